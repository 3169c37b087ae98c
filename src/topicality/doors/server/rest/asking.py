"""What a route is given: who asks, for whom, and the way to the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends, Header, Path, Query
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.requests import Request

from topicality.doors.server.keys import CALLER, Caller
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.rest.front import SLASH
from topicality.doors.server.rest.models import PAGE, Identifier
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Scope
from topicality.layer.conversation import Conversation
from topicality.layer.guard import Guard
from topicality.layer.memory import Layer

P = ParamSpec("P")
R = TypeVar("R")

OwnerHeader = Annotated[
    str | None,
    Header(
        alias="X-Topicality-Owner",
        description="Whose data, for keys without an owner. A name with other characters goes into the query.",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]([ -~]*[!-~])?$",
    ),
]
OwnerQuery = Annotated[Identifier | None, Query(description="Whose data, for keys without an owner.")]
PathId = Annotated[Identifier, BeforeValidator(lambda written: str(written).replace(SLASH, "/"))]


@dataclass(frozen=True, slots=True)
class Asking:
    """One request, let in.

    Attributes:
        caller: who asks. owner: whose data it is about.
    """

    service: Service
    caller: Caller
    owner: str

    @property
    def layer(self) -> Layer:
        """The engine. Called through `run` only."""
        return self.service.layer

    @property
    def guard(self) -> Guard:
        """The policy's guard. Raises RefusedError (409) without a policy."""
        if self.layer.guard is None:
            raise RefusedError(409, "no_policy", "the server judges nothing: it was started without a policy")
        return self.layer.guard

    def talk(self, conversation: str) -> Conversation:
        """A conversation of the owner."""
        return self.layer.conversation(conversation, self.owner)

    def known(self, conversation: str) -> Conversation:
        """A conversation that there is. Blocks. Raises RefusedError (404)."""
        if not self.layer.store.conversation(self.owner, conversation).exchanges:
            raise RefusedError(404, "unknown_conversation", "the owner has no such conversation")
        return self.talk(conversation)

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have the engine do something, off the event loop."""
        return await self.service.bridge.run(call, *args, **kwargs)


def _asking(scope: Scope) -> Callable[..., Awaitable[Asking]]:
    async def asked(request: Request, header: OwnerHeader = None, owner: OwnerQuery = None) -> Asking:
        caller: Caller = request.scope[CALLER]  # which has read the header
        caller.need(scope)
        unknown = sorted(set(request.query_params) - _queries(request.scope["route"]))
        if unknown:  # a filter with a slip in its name must not mean "all"
            raise RefusedError(422, "invalid", f"query: there is no parameter {unknown[0][:40]!r} here")
        return Asking(request.app.state.current(), caller, caller.for_owner(owner))

    asked.scope = scope  # type: ignore[attr-defined]  # for the documentation
    return asked


def _queries(route: APIRoute) -> set[str]:
    """The names that a route's query may have."""
    parts = [route.dependant, *route.dependant.dependencies]
    return {field.alias for part in parts for field in part.query_params}


Reading = Annotated[Asking, Depends(_asking("read"))]
Writing = Annotated[Asking, Depends(_asking("write"))]
Erasing = Annotated[Asking, Depends(_asking("erase"))]
ConversationId = Annotated[PathId, Path(description="Id of the conversation; a slash in it is written %2F.")]
ExchangeId = Annotated[PathId, Path(description="Id of the exchange.")]
Limit = Annotated[int, Query(ge=1, le=PAGE, description="Most entries of the page.")]
AfterNumber = Annotated[int, Query(ge=0, le=2_000_000_000, description="Entries after this number.")]
