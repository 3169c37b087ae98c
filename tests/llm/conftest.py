"""Model servers on loopback that do what a script says, one step a request; the last step goes on for ever."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Step = Callable[[BaseHTTPRequestHandler], None]


class Scripted:
    """What a server was asked, and what it does next."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        self.gone = threading.Event()  # set when a step saw that the client went away
        self.url = ""

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        self.released.wait(100)

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """A byte now and then, so that no single wait is ever too long."""
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        try:
            while not self.released.wait(0.05):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            self.gone.set()


class Script:
    """Steps of a script."""

    @staticmethod
    def say(text: Any, *, finish: str = "stop", usage: Any = None, **message: Any) -> Step:
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        body = {"id": "x", "object": "chat.completion", "choices": [choice]}
        return Script.raw(json.dumps({**body, **({} if usage is None else {"usage": usage})}).encode())

    @staticmethod
    def raw(body: bytes, *, status: int = 200, length: int | None = None, **headers: str) -> Step:
        def step(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(body) if length is None else length))
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(body)

        return step

    @staticmethod
    def fail(status: int, error: Any = "SECRET of the conversation", **headers: str) -> Step:
        return Script.raw(json.dumps({"error": error}).encode(), status=status, length=None, **headers)

    @staticmethod
    def reset(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()


class Time:
    """A clock that only sleeping moves on, and what was slept."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The endpoint's clock: it pauses in no time, and says how long it would have."""
    fake = Time()
    monkeypatch.setattr("topicality.llm.endpoint.time", fake)
    return fake


@pytest.fixture
def script() -> type[Script]:
    return Script


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scripted]]:
    """Start a server with a script: `serve(step, step, …)`."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    running: list[tuple[Scripted, ThreadingHTTPServer]] = []

    def start(*steps: Step) -> Scripted:
        scripted = Scripted(*steps)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                scripted.paths.append(self.path)
                Script.raw(json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}).encode())(self)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                scripted.bodies.append(json.loads(body))
                scripted.headers.append({key.lower(): value for key, value in self.headers.items()})
                scripted.paths.append(self.path)
                step = scripted.steps[min(len(scripted.bodies), len(scripted.steps)) - 1]
                try:
                    step(self)
                except OSError:
                    scripted.gone.set()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                scripted.gone.set()

        server = Server(("127.0.0.1", 0), Handler)
        scripted.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append((scripted, server))
        return scripted

    yield start
    for scripted, server in running:
        scripted.released.set()
        server.shutdown()
        server.server_close()
