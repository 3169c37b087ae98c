"""REST under /api, and MCP under /mcp where its library is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from topicality.doors.server.rest.api import OPENAPI, api, fronted
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings


class Rest:
    """REST and MCP of one application: their routes, and what runs while they are served."""

    def __init__(self, settings: Settings, current: Callable[[], Service]) -> None:
        self._current = current
        public = frozenset({f"/api{OPENAPI}"})
        self._api = fronted(api(current), settings, current, public)
        self._mcp = _Late() if find_spec("mcp") is not None else None
        self._fronted_mcp = _Endpoint(fronted(self._mcp, settings, current)) if self._mcp else None

    def routes(self) -> list[BaseRoute]:
        """This room's routes."""
        found: list[BaseRoute] = [Mount("/api", app=self._api)]
        if self._fronted_mcp is not None:
            found.append(Route("/mcp", endpoint=self._fronted_mcp))
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What this room does at start and end."""
        if self._mcp is None:
            yield
            return
        from topicality.doors.mcp import over_http

        async with over_http(self._current) as self._mcp.app:
            yield


class _Endpoint:
    """An application as an endpoint: a route takes a function for something else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Late:
    """The MCP server, which there is from the start of the application on."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
