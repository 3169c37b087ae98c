"""Connections to one model server: HTTP/1.1 parsed by httptools, kept open, as a transport for httpx2.

httpx2's own transport takes over a millisecond of CPU for a request, which on an event loop is added to all the others; this
one takes a twentieth of it (bench/serve.py). It knows one server and no proxies; `transport` falls back where more is needed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.request import getproxies, proxy_bypass

import httpx2

_IDLE = 5.0  # seconds an unused connection is kept: less than servers keep theirs
_HIGH = 262_144  # bytes of an answer that wait for their reader before the server is told to wait
_BAD = re.compile(rb"[\r\n\0]")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"[!-~]+")


def transport(url: httpx2.URL, connections: int) -> httpx2.AsyncBaseTransport | None:
    """The transport for a server; None, for httpx2's own, where a proxy is to be used or httptools is missing."""
    proxies = getproxies()
    if (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.host):
        return None
    try:
        import httptools  # noqa: F401 - whether it is there
    except ImportError:
        return None
    return Lines(url, connections)


class Lines(httpx2.AsyncBaseTransport):
    """Connections to one server.

    Args:
        connections: most at a time; a request waits for one as long as its "pool" timeout says.
    """

    def __init__(self, url: httpx2.URL, connections: int) -> None:
        self._host = url.host
        self._secure = url.scheme == "https"
        self._port = url.port or (443 if self._secure else 80)
        self._ssl: ssl.SSLContext | None = None
        self._slots = asyncio.Semaphore(connections)
        self._idle: deque[tuple[float, _Line]] = deque()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; its answer's body is still to be read. Raises httpx2's errors."""
        head = _head(request)
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        try:
            if self._slots.locked():
                async with asyncio.timeout(limits.get("pool")):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("all connections are taken", request=request) from None
        line: _Line | None = None
        try:
            line = self._kept() or await self._opened(request, limits.get("connect"))
            status, headers = await line.asked(request, head, limits)
        except BaseException:
            if line is not None:
                line.drop()
            self._slots.release()
            raise
        return httpx2.Response(status, headers=headers, stream=_Body(self, line, request, limits.get("read")))

    def give_back(self, line: _Line) -> None:
        """An answer was read, or is not wanted any more."""
        self._slots.release()
        if line.reusable:
            self._idle.append((asyncio.get_running_loop().time() + _IDLE, line))
        else:
            line.drop()

    async def aclose(self) -> None:
        """Close what is not in use."""
        while self._idle:
            self._idle.pop()[1].drop()

    def _kept(self) -> _Line | None:
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0][0] < now:
            self._idle.popleft()[1].drop()
        while self._idle:
            _, line = self._idle.pop()  # the latest: the others may grow old
            if line.reusable:
                return line
            line.drop()
        return None

    async def _opened(self, request: httpx2.Request, patience: float | None) -> _Line:
        if self._secure and self._ssl is None:
            self._ssl = await asyncio.to_thread(httpx2.create_ssl_context)
            self._ssl.set_alpn_protocols(["http/1.1"])
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience):
                _, line = await loop.create_connection(_Line, self._host, self._port, ssl=self._ssl)
        except TimeoutError:
            raise httpx2.ConnectTimeout("no connection in time", request=request) from None
        except (OSError, ssl.SSLError) as error:
            raise httpx2.ConnectError(type(error).__name__, request=request) from error
        return line


class _Line(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        import httptools

        self._new_parser = httptools.HttpResponseParser
        self._wire: asyncio.Transport | None = None
        self._lost = False
        self._writable: asyncio.Future[None] | None = None
        self._begin(head=False)

    def _begin(self, *, head: bool) -> None:
        """Ready for an answer. `head`: it has no body, whatever its headers say."""
        self._parser: Any = self._new_parser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._headless = head
        self._ready = False  # its headers have come
        self._done = False
        self._sent = True  # the request is out
        self._keep = False
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._broken: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    # ---- what the rest of the file calls

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent."""
        return self._done and self._sent and self._keep and not self._lost and self._broken is None

    async def asked(
        self, request: httpx2.Request, head: bytes, limits: dict[str, float | None]
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Send a request and wait for status and headers of its answer."""
        self._begin(head=request.method == "HEAD")
        self._sent = False
        try:
            async with asyncio.timeout(limits.get("write")):
                await self._send(request, head)
        except TimeoutError:
            raise httpx2.WriteTimeout("the server takes nothing", request=request) from None
        while not self._ready:
            await self._wait(request, limits.get("read"))
        return self._parser.get_status_code(), self._headers

    async def read(self, request: httpx2.Request, patience: float | None) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._pieces:
            if self._done:
                return None
            await self._wait(request, patience)
        piece = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused and self._wire is not None and not self._lost:
            self._paused = False
            self._wire.resume_reading()
        return piece

    def drop(self) -> None:
        """Close it, whatever is going on."""
        self._lost = True
        if self._wire is not None:
            self._wire.abort()

    async def _send(self, request: httpx2.Request, head: bytes) -> None:
        stream = request.stream
        if isinstance(stream, httpx2.SyncByteStream):  # in memory
            self._write(head + b"".join(stream))
        else:
            self._write(head)
            chunked = b"transfer-encoding" in {name.lower() for name, _ in request.headers.raw}
            async for piece in stream:
                if self._ready or self._lost:
                    return  # it has made up its mind before it heard everything
                if piece:
                    self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await self._drained()
            if chunked:
                self._write(b"0\r\n\r\n")
        self._sent = True
        await self._drained()

    def _write(self, data: bytes) -> None:
        if self._wire is not None and not self._lost:
            self._wire.write(data)

    async def _drained(self) -> None:
        if self._writable is not None and not self._lost:
            await self._writable

    async def _wait(self, request: httpx2.Request, patience: float | None) -> None:
        """Until something has come."""
        if self._broken is not None:
            raise httpx2.RemoteProtocolError(self._broken, request=request)
        if self._lost:
            raise httpx2.ReadError("the connection was lost", request=request)
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, _late, waiter)
        try:
            await waiter
        except TimeoutError:
            raise httpx2.ReadTimeout("nothing came in time", request=request) from None
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._done:
            self._keep = False  # more than was asked for
            return
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - of the parser: several kinds
            self._broken = f"not HTTP ({type(error).__name__})"
            self._keep = False
        if self._size > _HIGH and not self._paused and self._wire is not None:
            self._paused = True
            self._wire.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self._done and self._broken is None:
            names = {name.lower() for name, _ in self._headers}
            if self._ready and exc is None and not names & {b"content-length", b"transfer-encoding"}:
                self._done = True  # a body that ends with the connection
            else:
                self._broken = "the connection was closed before the answer was whole"
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._wake()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        if self._size > _HIGH:
            raise ValueError("too many headers")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._size = 0
        if self._parser.get_status_code() >= 200:
            self._ready = True
            self._keep = self._parser.should_keep_alive()
            if self._headless:
                self._done, self._keep = True, False  # the parser waits for the body that its length announces

    def on_body(self, body: bytes) -> None:
        if not self._done:
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        if self._ready:
            self._done = True
        else:
            self._headers = []  # 100 Continue and the like


class _Body(httpx2.AsyncByteStream):
    """An answer's body as it comes."""

    def __init__(self, lines: Lines, line: _Line, request: httpx2.Request, patience: float | None) -> None:
        self._lines = lines
        self._line: _Line | None = line
        self._request = request
        self._patience = patience

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._line is not None:
            piece = await self._line.read(self._request, self._patience)
            if piece is None:
                return
            yield piece

    async def aclose(self) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            self._lines.give_back(line)


def _head(request: httpx2.Request) -> bytes:
    target = request.url.raw_path
    if not _TARGET.fullmatch(target):
        raise httpx2.LocalProtocolError("the path cannot be sent", request=request)
    parts = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), target)]
    for name, value in request.headers.raw:
        if _BAD.search(value) or not _NAME.fullmatch(name):
            raise httpx2.LocalProtocolError("a header cannot be sent", request=request)
        parts.append(b"%b: %b\r\n" % (name, value))
    parts.append(b"\r\n")
    return b"".join(parts)


def _late(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
