"""The OpenAI-compatible proxy under /v1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from topicality.doors.server.proxy.chat import Chat
from topicality.doors.server.proxy.identity import EXPOSED
from topicality.doors.server.proxy.passthrough import PassThrough
from topicality.doors.server.proxy.room import Room
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class Proxy:
    """The proxy of one application: its routes, and what runs while they are served."""

    def __init__(self, settings: Settings, current: Callable[[], Service]) -> None:
        self._on = settings.upstream.url is not None
        self._origins = list(settings.cors)
        self._current = current
        self._rooms: list[Room] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open connections to the model server; at the end, wait until every exchange is ended."""
        if not self._on:
            yield
            return
        room = Room(self._current())
        self._rooms.append(room)
        try:
            yield
        finally:
            await room.close()
            self._rooms.clear()

    def routes(self) -> list[BaseRoute]:
        """The routes; none without a model server."""
        if not self._on:
            return []
        return [
            Route("/v1/chat/completions", self._for_browsers(Chat(self._room)), methods=["POST"]),
            Route("/v1/{path:path}", self._for_browsers(PassThrough(self._room)), methods=_METHODS),
        ]

    def _for_browsers(self, app: ASGIApp) -> ASGIApp:
        """An endpoint that pages of the origins in the settings may call, if there are any."""
        if not self._origins:
            return app
        return CORSMiddleware(
            app, allow_origins=self._origins, allow_methods=_METHODS, allow_headers=["*"], expose_headers=EXPOSED
        )

    def _room(self) -> Room:
        return self._rooms[0]
