"""Is the process alive, can it serve, and what has it counted."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.settings import is_loopback
from topicality.errors import StoreError, TopicalityError

if TYPE_CHECKING:
    from topicality.doors.server.operations import Current
    from topicality.doors.server.service import Service
    from topicality.doors.server.settings import Settings
    from topicality.layer.memory import Layer

PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
_FRESH = 1.0  # seconds an answer about the store is good for
_PATIENCE = 5.0  # seconds it is waited for

_log = logging.getLogger("topicality.server")


class Readiness:
    """Whether a service can take requests, and if not, why."""

    def __init__(self) -> None:
        self.draining = False  # told to stop
        self._task: asyncio.Task[list[str]] | None = None
        self._found: tuple[float, list[str]] | None = None

    async def reasons(self, service: Service) -> list[str]:
        """Why not, as codes; empty when ready. One look at a time, and not more than one a second, however many ask."""
        if self.draining:
            return ["shutting_down"]
        if self._found is not None and time.monotonic() - self._found[0] < _FRESH:
            return self._found[1]
        if self._task is None:
            self._task = asyncio.create_task(self._look(service))
        task = self._task
        await asyncio.wait({task}, timeout=_PATIENCE)
        return task.result() if task.done() else ["slow"]

    async def _look(self, service: Service) -> list[str]:
        try:
            found = await service.bridge.run(look, service.layer)
        except RefusedError as error:
            found = [error.code]
        finally:
            self._task = None
        self._found = time.monotonic(), found
        return found


def look(layer: Layer) -> list[str]:
    """Ask the store and the encoder. The first time is slow: the encoder and all that is made of the policy is loaded."""
    found: list[str] = []
    try:
        layer.store.conversations("default", limit=1)
    except StoreError as error:
        _log.warning("not ready: the store cannot be reached", exc_info=error)
        found.append("store")
    try:
        layer.embedder.embed(["ready"])
        if layer.guard is not None:
            layer.guard.check("ready")
        _ = layer.landmarks, layer.reading
    except TopicalityError as error:
        _log.warning("not ready: the encoder cannot be used", exc_info=error)
        found.append("encoder")
    return found


def health_routes(settings: Settings, current: Current) -> list[BaseRoute]:
    """/healthz, /readyz, /metrics."""
    open_to_all = is_loopback(settings.host)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        service = current()
        reasons = await service.readiness.reasons(service)
        headers = {"retry-after": "1"} if reasons else None
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200, headers)

    async def metrics(request: Request) -> Response:
        service = current()
        if not open_to_all:
            service.keys.caller(request.headers).need("metrics")
        page, kind = await to_thread.run_sync(service.metrics.exposed)
        return Response(page, media_type=kind)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
