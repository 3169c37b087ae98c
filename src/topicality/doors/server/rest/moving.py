"""Routes that move or remove everything of an owner: export, import, erase."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.rest.asking import Asking, Erasing, Reading, Writing
from topicality.doors.server.rest.errors import answers
from topicality.doors.server.rest.models import EraseRequest, EraseResponse, Identifier
from topicality.records import Imported

router = APIRouter(tags=["moving"])

NDJSON = "application/x-ndjson"
_PIECE = 1 << 16  # characters sent at a time
_STALLED = 60.0  # seconds a reader may take for one piece; until it is done the store keeps the moment of the export

_LINES = {"content": {NDJSON: {"schema": {"type": "string", "description": "An export: a JSON object a line."}}}}
All = Annotated[bool, Query(description="Of all owners; only for keys without an owner.")]


class _Lines(StreamingResponse):
    """A stream whose reader must go on reading."""

    media_type = NDJSON

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timed(message: Message) -> None:
            async with asyncio.timeout(_STALLED):
                await send(message)

        try:
            await super().__call__(scope, receive, timed)
        finally:
            with anyio.CancelScope(shield=True):  # a reader that goes leaves the generator where it was
                await self.body_iterator.aclose()  # type: ignore[attr-defined]  # a generator


@router.get(
    "/export",
    response_class=_Lines,
    responses={200: {"description": "JSON lines, of one moment.", **_LINES}, **answers(404)},
)
async def export(
    asking: Reading,
    conversation: Annotated[Identifier | None, Query(description="Only this one.")] = None,
    all: All = False,  # noqa: A002 - the query's word for it
) -> Response:
    """Everything that is kept of an owner, or of one conversation; `import` takes it back."""
    if conversation is not None and not all:
        await asking.run(asking.known, conversation)
    lines = asking.layer.store.export(_whose(asking, all), conversation)
    pieces = _pieces(asking, iter(lines))
    first = await anext(pieces)  # so that a store that fails is told as a problem
    return _Lines(_with(first, pieces))


@router.post(
    "/import",
    responses=answers(409, 415),
    openapi_extra={"requestBody": {"required": True, **_LINES}},
)
async def import_lines(asking: Writing, request: Request, all: All = False) -> Imported:  # noqa: A002 - see above
    """Take an export in: all of it or nothing, twice is once. Other owners' conversations are refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != NDJSON:
        raise RefusedError(415, "media_type", f"an import is sent as {NDJSON}")
    owner = _whose(asking, all)
    body = await request.body()

    def load() -> Imported:
        try:
            lines = body.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError:
            raise RefusedError(400, "malformed", "the body is not UTF-8") from None
        return asking.layer.load(lines if owner is None else _own(lines, owner))

    return await asking.run(load)


@router.post("/erase", responses=answers())
async def erase(asking: Erasing, wish: EraseRequest) -> EraseResponse:
    """Erase everything of an owner, for good. Erasing again erases nothing."""
    return EraseResponse(erased=await asking.run(asking.layer.erase, asking.caller.for_owner(wish.owner)))


def _whose(asking: Asking, everybody: bool) -> str | None:
    if everybody and asking.caller.bound:
        raise RefusedError(403, "forbidden", f"the key {asking.caller.key!r} belongs to one owner and asked for all")
    return None if everybody else asking.owner


def _own(lines: Iterable[str], owner: str) -> Iterator[str]:
    """The lines of an export, if they are of nobody but this owner."""
    for line in lines:
        try:
            record: Any = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            record = None  # the store says which line is malformed
        if isinstance(record, dict) and record.get("kind") == "conversation" and record.get("owner") != owner:
            raise RefusedError(403, "forbidden", "the import has a conversation of another owner; nothing was imported")
        yield line


async def _pieces(asking: Asking, lines: Iterator[str]) -> AsyncIterator[str]:
    """The lines in pieces, each made by the engine's threads; the store's moment is let go at the end, however it comes."""

    def piece() -> str:
        found: list[str] = []
        size = 0
        for line in lines:
            found.append(f"{line}\n")
            size += len(line)
            if size >= _PIECE:
                break
        return "".join(found)

    running: asyncio.Future[str] | None = None
    try:
        while True:
            running = asyncio.ensure_future(asking.run(piece))
            made = await asyncio.shield(running)
            if not made:
                return
            yield made
    finally:
        with anyio.CancelScope(shield=True):
            if running is not None and not running.done():
                await asyncio.wait([running])  # a generator cannot be closed while it runs
            close = getattr(lines, "close", None)
            if close is not None:
                await asking.run(close)


async def _with(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        with anyio.CancelScope(shield=True):
            await rest.aclose()  # type: ignore[attr-defined]  # a generator
