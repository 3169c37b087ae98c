"""Everything else under /v1: to the model server and back, byte for byte. Nothing of it is judged or remembered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from topicality.doors.server.operations import note
from topicality.doors.server.proxy.call import Call
from topicality.doors.server.proxy.chat import Chat
from topicality.doors.server.proxy.room import Room
from topicality.doors.server.proxy.upstream import UpstreamFailedError, answered

_CHAT = re.compile(r"/chat/+completions/*$", re.IGNORECASE)


class PassThrough:
    """The endpoint, as an ASGI application."""

    def __init__(self, room: Callable[[], Room]) -> None:
        self._room = room
        self._chat = Chat(room)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["method"] == "POST" and _CHAT.search(scope["path"]):  # however it is written, it is one
            await self._chat(scope, receive, send)
            return
        room = self._room()
        request = Request(scope, receive)
        caller = room.service.keys.caller(request.headers)
        note(scope).key = caller.key
        caller.need("chat")
        sent = asyncio.Event()
        has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"

        async def body() -> AsyncIterator[bytes]:
            async for piece in request.stream():
                yield piece
            sent.set()

        async def listen() -> dict[str, object]:
            await sent.wait()  # before that, the body is what is received
            return dict(await receive())

        if not has_body:
            sent.set()
        call = Call(scope, listen, send, room.service.settings.upstream.idle)

        async def work() -> None:
            try:
                async with room.upstream.asked(scope, body() if has_body else None, plain=False) as response:
                    await call.begin(response.status_code, answered(response))
                    async for piece in response.aiter_raw():
                        await call.write(piece)
            except ClientDisconnect:
                return
            except UpstreamFailedError:
                if call.begun:
                    return  # without its end, so that the client sees that something is missing
                raise
            await call.write(b"", last=True)

        await call.watched(work)
