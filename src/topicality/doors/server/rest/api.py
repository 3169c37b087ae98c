"""REST as one FastAPI application, and its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import anyio.to_thread
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from topicality import __version__
from topicality.doors.server.keys import OWNER_HEADER
from topicality.doors.server.rest import errors, judging, moving, remembering, talking
from topicality.doors.server.rest.front import Caught, Front
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings

OPENAPI = "/openapi.json"
_PARTS = (judging, talking, remembering, moving)
_METHODS = ("GET", "POST", "PATCH", "DELETE")


def api(current: Callable[[], Service]) -> FastAPI:
    """The application, without what stands in front of it."""
    app = _bare()
    app.state.current = current
    errors.install(app)
    app.add_middleware(Caught)

    @app.get(OPENAPI, include_in_schema=False)
    async def openapi() -> Response:
        return Response(await anyio.to_thread.run_sync(_document), media_type="application/json")

    return app


def fronted(
    app: ASGIApp, settings: Settings, current: Callable[[], Service], public: frozenset[str] = frozenset()
) -> ASGIApp:
    """An application behind keys, and behind what browsers are told where the settings let them call."""
    front: ASGIApp = Caught(Front(app, current, public))
    if not settings.cors:
        return front
    return CORSMiddleware(
        front,
        allow_origins=list(settings.cors),
        allow_methods=_METHODS,
        allow_headers=["authorization", "content-type", OWNER_HEADER, "mcp-protocol-version", "mcp-session-id"],
        expose_headers=["mcp-session-id", "retry-after"],
    )


def scope_of(route: APIRoute) -> str | None:
    """The scope that a route needs; None for one that needs none."""
    found = [getattr(part.call, "scope", None) for part in route.dependant.dependencies]
    return next((scope for scope in found if scope is not None), None)


def operations() -> list[APIRoute]:
    """All routes but the document's own."""
    return [route for part in _PARTS for route in part.router.routes if isinstance(route, APIRoute)]


def _bare() -> FastAPI:
    app = FastAPI(
        title="Topicality",
        version=__version__,
        description="The topic layer for LLM conversations: guard, drift, topics and memory.",
        openapi_url=None,  # below, with the errors in it
        docs_url=None,  # its page loads code from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    for part in _PARTS:
        app.include_router(part.router)
    return app


@cache
def _document() -> bytes:
    """The same for every server; half a second to make."""
    app = _bare()
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=[{"url": "/api"}],
    )
    schemas, responses = errors.documented()
    parts = document["components"]
    parts["schemas"] = {**parts["schemas"], **schemas}
    parts["responses"] = responses
    parts["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key of the server's settings, with its scopes."}
    }
    for route in operations():
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["security"] = [{"key": [scope_of(route)]}]
            operation["description"] += f"\n\nScope: `{scope_of(route)}`."
    return json.dumps(document, ensure_ascii=False).encode()
