"""To be built."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings

Current = Callable[[], Service]


@asynccontextmanager
async def running(current: Current) -> AsyncIterator[None]:
    """What this room does at start and end."""
    yield


def routes(settings: Settings, current: Current) -> list[BaseRoute]:
    """This room's routes."""
    return []


def wrapped(app: ASGIApp, settings: Settings, current: Current) -> ASGIApp:
    """The application behind limits, logs, metrics and tracing."""
    return app
