"""The outermost layer, plain ASGI: request ids, limits, the access line, counting, and errors that nobody answered."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topicality.doors.server.operations.errors import answered, as_response
from topicality.doors.server.operations.health import PATHS
from topicality.doors.server.operations.logs import ACCESS
from topicality.doors.server.operations.metrics import Metrics
from topicality.doors.server.operations.note import Note, note, routed
from topicality.doors.server.operations.tracing import enabled, request_span
from topicality.doors.server.problems import RefusedError, problem_of, told

if TYPE_CHECKING:
    from topicality.doors.server.operations import Current
    from topicality.doors.server.settings import Settings

REQUEST_ID = b"x-topicality-request-id"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LEFT = 499  # no answer was begun: the client left first

_access = logging.getLogger(ACCESS)


class Gate:
    """Around an application.

    Args:
        current: the running service, once the application has started.
    """

    def __init__(self, app: ASGIApp, settings: Settings, current: Current) -> None:
        self._app = app
        self._current = current
        self._body = settings.limits.body
        self._most = settings.limits.concurrent
        self._open = 0
        self._turns = _Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._current().metrics
        call = _Call(self._app, scope, receive, send, self._body)
        counted = scope["path"] not in PATHS  # health is asked most when the server is full
        full = counted and self._open >= self._most
        self._open += counted
        metrics.requests_open.inc()
        try:
            if full:
                await call.refuse(RefusedError(503, "busy", "the server is busy; come again", {"retry-after": "1"}))
            elif call.length > self._body:
                await call.refuse(_too_large(self._body))
            else:
                if counted:
                    await self._turns.one()
                await (_traced(call) if enabled() else call.run())
        finally:
            self._open -= counted
            metrics.requests_open.dec()
            call.told(metrics)


class _Turns:
    """Lets one request begin in each round of the loop, so that a burst of them does not hold up the answers under way."""

    def __init__(self) -> None:
        self._taken = False  # in this round
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def one(self) -> None:
        """Wait for a turn; most get it at once."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._round)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _round(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request was cancelled
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._round)
                return
        self._taken = False


class _Call:
    """One request on its way."""

    __slots__ = (
        *("_app", "_begun", "_body", "_chunked", "_ended", "_read", "_receive", "_send"),
        *("length", "note", "scope", "status"),
    )

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, body: int) -> None:
        self._begun = time.perf_counter()
        self._app, self.scope, self._receive, self._send, self._body = app, scope, receive, send, body
        self.status = 0  # of the answer that was begun
        self._ended = False
        self._chunked = False
        self._read = 0
        self.length = 0
        self.note = note(scope)
        for name, value in scope["headers"]:
            if name == b"content-length":
                self.length = int(value[:20]) if value.isdigit() else 0  # 20 digits are too many already
            elif name == b"transfer-encoding":
                self._chunked = True
            elif name == REQUEST_ID and _ID.fullmatch(value):
                self.note.id = value.decode("ascii")
        if not self.note.id:
            self.note.id = uuid4().hex

    async def run(self) -> None:
        """Have the application answer. An error that it let out is answered here if nothing was sent yet."""
        try:
            # a body whose length was told is held to it by the HTTP server
            await self._app(self.scope, self._counting if self._chunked else self._receive, self.send)
        except Exception as error:  # noqa: BLE001 - the last place where one can be answered
            if not self.status:
                await self.refuse(error)
            elif not self.note.error:
                self.note.error = told(error, self.note.id).code

    async def refuse(self, error: Exception) -> None:
        """Answer with an error."""
        await answered(self.scope, error)(self.scope, self._receive, self.send)

    async def send(self, message: Message) -> None:
        """Pass on a piece of the answer."""
        if message["type"] == "http.response.start":
            if self._read > self._body and message["status"] != 413:
                # whatever the application made of the error it was given while reading
                problem = problem_of(_too_large(self._body))
                self.note.error = problem.code
                self._ended = True
                await as_response(self.scope, problem)(self.scope, self._receive, self._out)
                return
            await self._out(message)
        elif not self._ended:
            self._ended = not message.get("more_body", False)
            await self._send(message)

    async def _out(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            identity = (REQUEST_ID, self.note.id.encode("ascii"))
            message = {**message, "headers": [*message.get("headers", ()), identity]}
        await self._send(message)

    async def _counting(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._body:
                raise _too_large(self._body)
        return message

    def told(self, metrics: Metrics) -> None:
        """Count it and write its line."""
        seconds = time.perf_counter() - self._begun
        status = self.status or _LEFT
        route, method = routed(self.scope), self.scope["method"]
        metrics.request(route, method, status, seconds)
        if _access.isEnabledFor(logging.INFO):
            _access.info("request", extra=_line(self.note, route, method, status, seconds, not self._ended))


def _line(seen: Note, route: str, method: str, status: int, seconds: float, cut: bool) -> dict[str, object]:
    return {
        "request": seen.id,
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "key": seen.key,
        "action": seen.action,
        "reason": seen.reason,
        "error": seen.error,
        "cut": True if cut else None,  # the answer did not come to its end
    }


async def _traced(call: _Call) -> None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.scope["headers"]}
    with request_span(headers) as span:
        await call.run()
        method, route, status = call.scope["method"], routed(call.scope), call.status or _LEFT
        span.rename(f"{method} {route}")
        span.standard(http__request__method=method, http__route=route, http__response__status_code=status)
        span.set(request=call.note.id, action=call.note.action, reason=call.note.reason)
        if status >= 500:
            span.fail(call.note.error or str(status))


def _too_large(limit: int) -> RefusedError:
    # the connection stays: closing it with bytes unread would reset it, and the client would never see this answer
    return RefusedError(413, "too_large", f"a request body may have {limit} bytes")
