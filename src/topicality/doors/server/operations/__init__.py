"""Health, metrics, logs, tracing and the limits of one server."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from topicality.doors.server.operations.errors import answer_errors
from topicality.doors.server.operations.gate import Gate
from topicality.doors.server.operations.health import Readiness, health_routes
from topicality.doors.server.operations.note import Note, note, routed
from topicality.doors.server.operations.tracing import onward, span

if TYPE_CHECKING:  # the service holds this room's values
    from topicality.doors.server.service import Service
    from topicality.doors.server.settings import Settings

__all__ = ["Note", "answer_errors", "note", "onward", "routed", "routes", "running", "span", "wrapped"]

Current = Callable[[], "Service"]


@asynccontextmanager
async def running(current: Current) -> AsyncIterator[None]:
    """What this room does at start and end."""
    service = current()
    service.metrics.watch(lambda: service.bridge.open)
    # loads what the first request would wait for; a store or an encoder that cannot be reached is told by /readyz
    await service.readiness.reasons(service)
    sampling = asyncio.create_task(_sample(service))
    restore = _told_to_stop(service.readiness, service.settings.limits.drain)
    try:
        yield
    finally:
        restore()
        service.readiness.draining = True
        sampling.cancel()
        service.metrics.close()


def routes(settings: Settings, current: Current) -> list[BaseRoute]:
    """This room's routes."""
    return health_routes(settings, current)


def wrapped(app: ASGIApp, settings: Settings, current: Current) -> ASGIApp:
    """The application behind limits, logs, metrics and tracing."""
    if isinstance(app, Starlette):
        answer_errors(app)
    return Gate(app, settings, current)


async def _sample(service: Service) -> None:
    while True:
        service.metrics.sample()
        await asyncio.sleep(1.0)


def _told_to_stop(readiness: Readiness, drain: float) -> Callable[[], None]:
    """From the signal on, /readyz says so; the HTTP server hears of it `drain` seconds later. Gives what undoes this."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    before: Any = signal.getsignal(signal.SIGTERM)
    if not callable(before):  # no HTTP server that would listen
        return lambda: None

    def stop(number: int, frame: FrameType | None) -> None:
        readiness.draining = True
        if drain:
            loop.call_soon_threadsafe(loop.call_later, drain, before, number, None)
        else:
            before(number, frame)

    signal.signal(signal.SIGTERM, stop)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, before)

    return restore
