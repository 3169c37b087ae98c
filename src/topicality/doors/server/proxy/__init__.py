"""To be built."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute

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
