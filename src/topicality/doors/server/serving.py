"""Run the server: one process, or several that share a socket and a store."""

from __future__ import annotations

import gc
import logging
import logging.config
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

import uvicorn
from prometheus_client import disable_created_metrics

from topicality.doors.server.app import create_app
from topicality.doors.server.operations.logs import configuration
from topicality.doors.server.operations.metrics import SHARED
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.errors import ConfigError, EmbedError, LlmError, StoreError, TopicalityError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE = 10.0  # seconds a worker has to close the store, after those its open requests have
_PAUSE = 1.0  # seconds between the death of a worker and the next
_YOUNG = 10_000  # objects between two collections; a message makes tens of thousands that live for a moment

_log = logging.getLogger("topicality.server")


def serve(settings: Settings) -> int:
    """Listen and answer until a signal says stop.

    Says "listening on http://…" on standard error as soon as connections are accepted. On SIGTERM or SIGINT open requests
    are given `limits.shutdown` seconds; a second signal does not wait for them.

    Returns:
        The exit code: 0; 2 or 3 when a worker could not start, as for other commands.
    Raises:
        ConfigError: the address cannot be listened on.
        TopicalityError: what opening the store or loading policy and encoder raises (one process; several log it).
    """
    logging.config.dictConfig(configuration(settings.log))
    with listening(settings.host, settings.port) as listener:
        if settings.workers == 1:
            return _serve_here(settings, listener, lambda: _log.info("listening on %s", address_of(listener)))
        return _Workers(settings, listener).run()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; port 0 takes a free one. IPv6 addresses may stand in brackets."""
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" and other names: clients try both kinds of address, but some only the old one
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port} ({error.strerror or error})", key="host") from error
    with listener:
        try:
            if os.name == "posix":  # elsewhere it would let two servers share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            listener.bind(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}, port {port} ({error.strerror or error})", key="port"
            ) from error
        listener.set_inheritable(True)
        yield listener


def address_of(listener: socket.socket) -> str:
    """Where a client finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _serve_here(settings: Settings, listener: socket.socket, told: Callable[[], None]) -> int:
    """Serve in this process; `told` is called when connections are accepted."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _settle()
                told()

    # uvicorn raises a signal again when it has stopped because of it; that is no reason to die of it
    handlers = {number: signal.signal(number, _ignore) for number in _SIGNALS}
    service = Service.start(settings)
    try:
        service.layer.warm()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
        config = uvicorn.Config(
            create_app(settings, service),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=65,  # longer than the minute that many proxies keep theirs
            timeout_graceful_shutdown=max(1, round(settings.limits.shutdown)),
        )
        server = Server(config)
        server.run(sockets=[listener])
        return 0 if server.started else 3
    finally:
        service.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _settle() -> None:
    """Leave what was loaded out of garbage collections from here on: each would stop all requests for a tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)


def _ignore(number: int, frame: FrameType | None) -> None:
    return


class _Workers:
    """Processes that share a listening socket; one that dies is replaced.

    Settings reach them through the pipe that `multiprocessing` starts a process with: no secret is in a command line.
    """

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._spawn = multiprocessing.get_context("spawn")
        self._running: dict[BaseProcess, Connection] = {}  # with what it says that it serves
        self._serving = False

    def run(self) -> int:
        """Until a signal, or until a worker cannot start; the exit code."""
        heard, told = self._spawn.Pipe(duplex=False)

        def stop(number: int, frame: FrameType | None) -> None:
            told.send_bytes(b"stop")

        with ExitStack() as stack:
            stack.callback(heard.close)
            stack.callback(told.close)
            for number in _SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, stop))
            stack.enter_context(_shared_metrics())
            try:
                for _ in range(self._settings.workers):
                    self._start()
                while True:
                    found = wait([heard, *(process.sentinel for process in self._running), *self._silent()])
                    if heard in found:
                        return 0
                    failed = self._look()
                    if failed is not None:
                        return failed
            finally:
                self._stop()

    def _start(self) -> None:
        ready, told = self._spawn.Pipe(duplex=False)
        process = self._spawn.Process(target=_work, args=(self._settings, self._listener, told), daemon=True)
        process.start()
        told.close()
        self._running[process] = ready

    def _silent(self) -> list[Connection]:
        return [ready for ready in self._running.values() if not ready.closed]

    def _look(self) -> int | None:
        """Which workers serve now, and which are gone. The exit code if there is no use in going on."""
        for process, ready in list(self._running.items()):
            began = ready.closed or _said(ready)
            if began and not self._serving:
                self._serving = True
                _log.info("listening on %s with %d workers", address_of(self._listener), self._settings.workers)
            if process.is_alive():
                continue
            process.join()
            ready.close()
            del self._running[process]
            if not began:
                return process.exitcode if process.exitcode in (2, 3) else 3
            _log.error("a worker ended (%s) and is replaced", process.exitcode)
            time.sleep(_PAUSE)
            self._start()
        return None

    def _stop(self) -> None:
        limits = self._settings.limits
        for process in self._running:
            process.terminate()
        end = time.monotonic() + limits.drain + limits.shutdown + _GRACE
        for process, ready in self._running.items():
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                _log.error("a worker did not stop in time and is killed")
                process.kill()
                process.join()
            ready.close()


def _said(ready: Connection) -> bool:
    """Whether a worker said that it serves; then, or when it is gone, the line is closed."""
    if not ready.poll():
        return False
    try:
        return bool(ready.recv_bytes())
    except EOFError:
        return False
    finally:
        ready.close()


def _work(settings: Settings, listener: socket.socket, told: Connection) -> None:
    """A worker's whole life."""
    logging.config.dictConfig(configuration(settings.log))
    threading.Thread(target=_outlived, daemon=True, name="parent").start()

    def serving() -> None:
        _log.info("serving")
        told.send_bytes(b"serving")
        told.close()

    try:
        code = _serve_here(settings, listener, serving)
    except TopicalityError as error:
        _log.error("%s", error)
        code = 3 if isinstance(error, EmbedError | LlmError | StoreError) else 2
    sys.exit(code)


def _outlived() -> None:
    """Stop when the parent is gone without saying so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _shared_metrics() -> Iterator[None]:
    """A directory where the workers' metrics meet, unless the environment names one."""
    if os.environ.get(SHARED):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="topicality-metrics-") as directory:
        os.environ[SHARED] = directory
        try:
            yield
        finally:
            del os.environ[SHARED]
