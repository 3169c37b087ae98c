"""Routes of conversations and their exchanges: begin, reply, fail, list, edit, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.rest.asking import (
    AfterNumber,
    Asking,
    ConversationId,
    Erasing,
    ExchangeId,
    Limit,
    Reading,
    Writing,
)
from topicality.doors.server.rest.errors import answers
from topicality.doors.server.rest.models import (
    ConversationModel,
    ConversationsPage,
    EditRequest,
    EraseResponse,
    ExchangesPage,
    FailRequest,
    Identifier,
    ReceiveRequest,
    ReplyRequest,
)
from topicality.layer.conversation import Turn
from topicality.records import Exchange, ExchangeStatus, Scope

router = APIRouter(tags=["conversations"])
_LAST = 2**31 - 1  # the highest sequence there can be

Statuses = Annotated[
    list[ExchangeStatus], Query(max_length=4, description="Only of these; all but deleted without it.")
]


@router.get("/conversations", responses=answers())
async def conversations(
    asking: Reading,
    limit: Limit = 50,
    after: Annotated[Identifier | None, Query(description="Conversations after this id.")] = None,
) -> ConversationsPage:
    """The owner's conversations with their counts, by id."""
    found = await asking.run(asking.layer.store.conversations, asking.owner, after=after or "", limit=limit + 1)
    page = [ConversationModel.of(record) for record in found[:limit]]
    return ConversationsPage(conversations=page, next=page[-1].id if len(found) > limit else None)


@router.get("/conversations/{conversation}", responses=answers(404))
async def conversation(asking: Reading, conversation: ConversationId) -> ConversationModel:
    """A conversation's counts."""

    def info() -> ConversationModel:
        asking.known(conversation)
        with asking.layer.store.turn(asking.owner, conversation) as turn:
            return ConversationModel.of(turn.info())

    return await asking.run(info)


@router.delete("/conversations/{conversation}", responses=answers(404))
async def erase_conversation(asking: Erasing, conversation: ConversationId) -> EraseResponse:
    """Erase a conversation with everything derived from it, for good. Erasing again erases nothing."""
    return EraseResponse(erased=await asking.run(asking.layer.erase, asking.owner, conversation))


@router.post("/conversations/{conversation}/exchanges", status_code=201, responses=answers(404, 409))
async def receive(asking: Writing, conversation: ConversationId, wish: ReceiveRequest) -> Turn:
    """Take in a user's message: verdict, drift, topic, and a pending exchange. The same id and text again change nothing."""
    if wish.on_block == "keep":
        asking.caller.need("override")
    return await asking.run(
        asking.talk(conversation).receive, wish.text, at=wish.at, id=wish.id, name=wish.name, on_block=wish.on_block
    )


@router.post("/conversations/{conversation}/exchanges/{exchange}/reply", responses=answers(404, 409))
async def reply(asking: Writing, conversation: ConversationId, exchange: ExchangeId, wish: ReplyRequest) -> Turn:
    """Complete an exchange: from here on it is evidence, and in its topic."""
    return await asking.run(asking.talk(conversation).reply, wish.text, exchange=exchange, at=wish.at, name=wish.name)


@router.post("/conversations/{conversation}/exchanges/{exchange}/fail", responses=answers(404, 409))
async def fail(asking: Writing, conversation: ConversationId, exchange: ExchangeId, wish: FailRequest) -> Exchange:
    """End an exchange without a reply. It is kept, and is never evidence."""

    def failed() -> Exchange:
        asking.talk(conversation).fail(wish.reason, exchange=exchange)
        return _one(asking, conversation, exchange)

    return await asking.run(failed)


@router.get("/conversations/{conversation}/exchanges", responses=answers(404))
async def exchanges(
    asking: Reading,
    conversation: ConversationId,
    after: AfterNumber = 0,
    limit: Limit = 50,
    status: Statuses = [],  # noqa: B006 - read only; FastAPI copies it
) -> ExchangesPage:
    """The exchanges of a conversation by sequence."""

    def listed() -> list[Exchange]:
        asking.known(conversation)
        scope = Scope(asking.owner, conversation, ((after + 1, _LAST),))
        return asking.layer.store.exchanges(scope, statuses=status, limit=limit + 1)

    found = await asking.run(listed)
    page = found[:limit]
    return ExchangesPage(exchanges=page, next=page[-1].sequence if len(found) > limit else None)


@router.get("/conversations/{conversation}/exchanges/{exchange}", responses=answers(404))
async def exchange(asking: Reading, conversation: ConversationId, exchange: ExchangeId) -> Exchange:
    """One exchange; a deleted one is there without its texts."""
    return await asking.run(_one, asking, conversation, exchange)


@router.patch("/conversations/{conversation}/exchanges/{exchange}", responses=answers(404, 409))
async def edit(asking: Writing, conversation: ConversationId, exchange: ExchangeId, wish: EditRequest) -> Exchange:
    """Replace or redact one side of an exchange: words, vectors and topics follow."""

    def edited() -> Exchange:
        asking.talk(conversation).edit(exchange, wish.text, side=wish.side)
        return _one(asking, conversation, exchange)

    return await asking.run(edited)


@router.delete("/conversations/{conversation}/exchanges/{exchange}", status_code=204, responses=answers(404))
async def delete(asking: Erasing, conversation: ConversationId, exchange: ExchangeId) -> None:
    """Empty an exchange for good: texts, words and vectors go. Deleting again changes nothing."""
    await asking.run(asking.talk(conversation).delete, exchange)


def _one(asking: Asking, conversation: str, exchange: str) -> Exchange:
    found = asking.layer.store.exchange(asking.owner, conversation, exchange)
    if found is None:
        raise RefusedError(404, "unknown_exchange", "the conversation has no such exchange")
    return found
