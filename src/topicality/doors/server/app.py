"""The application: every room's routes in one, and what happens at start and end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio.to_thread
from starlette.applications import Starlette
from starlette.types import ASGIApp

from topicality.doors.server import operations
from topicality.doors.server.proxy import Proxy
from topicality.doors.server.rest import Rest
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings


def create_app(settings: Settings, service: Service | None = None) -> ASGIApp:
    """The server as an ASGI application, for uvicorn or a test client.

    Args:
        service: a service that was started elsewhere and is closed there (tests); by default the application starts one
            with its own lifespan.
    """
    started: list[Service] = []

    def current() -> Service:
        return started[0]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if service is None:
                started.append(await anyio.to_thread.run_sync(Service.start, settings))
                stack.push_async_callback(anyio.to_thread.run_sync, started[0].close)
            else:
                started.append(service)
            stack.callback(started.clear)
            await stack.enter_async_context(operations.running(current))
            await stack.enter_async_context(proxy.running())
            await stack.enter_async_context(rest.running())
            yield

    proxy, rest = Proxy(settings, current), Rest(settings, current)
    routes = [
        *operations.routes(settings, current),
        *rest.routes(),
        *proxy.routes(),  # last: it takes what is left of /v1
    ]
    return operations.wrapped(Starlette(routes=routes, lifespan=lifespan), settings, current)
