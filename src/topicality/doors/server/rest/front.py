"""What a request to REST or MCP passes first: host, key, and its path with ids as they were written."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topicality.doors.server.keys import CALLER
from topicality.doors.server.operations.note import note, routed
from topicality.doors.server.problems import RefusedError, told
from topicality.doors.server.rest.errors import answer
from topicality.doors.server.service import Service

SLASH = "\0"  # stands for a slash inside an id; a path never has one of its own


class Caught:
    """An application whose errors are answered as problem details, and go no further."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            problem = told(error, note(scope).id)
            note(scope).error = problem.code
            if begun:  # what was sent is not all: the connection must end, and the log must not have the error's words
                raise RefusedError(problem.status, problem.code, "an answer broke off") from None
            await answer(problem)(scope, receive, send)


class Front:
    """An application behind its keys: nothing of a request is read before they are known.

    Args:
        public: paths that need no key.
    """

    def __init__(self, app: ASGIApp, current: Callable[[], Service], public: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._current = current
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises RefusedError: its key, its host or its path."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = note(scope)
        scope = {**scope, "path": _path(scope)}
        if scope["path"] not in self._public:
            caller = scope[CALLER] = self._current().keys.caller(Headers(scope=scope))
            seen.key = caller.key
        try:
            await self._app(scope, receive, send)
        finally:
            routed(scope)


def _path(scope: Scope) -> str:
    """The path with a slash that was written as %2F told apart from one between two parts."""
    raw: bytes = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
    if b"%00" in raw or b"\0" in raw:
        raise RefusedError(400, "malformed", "a path has no NUL characters")
    parts = [unquote_to_bytes(part).replace(b"/", SLASH.encode()) for part in raw.split(b"/")]
    path = b"/".join(parts).decode("utf-8", "surrogateescape")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise RefusedError(400, "malformed", "the path is not UTF-8") from None
    return path
