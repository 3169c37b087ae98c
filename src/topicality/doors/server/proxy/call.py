"""One request while it is answered: what is sent to the client, and noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from topicality.doors.server.problems import Problem
from topicality.doors.server.proxy.identity import Headers
from topicality.doors.server.proxy.wire import dump

HUNG_UP = "hung_up"
SLOW = "slow_client"
SHUTDOWN = "shutdown"
STOPPING = Problem(503, SHUTDOWN, "the server is stopping; ask again")


class ClientGoneError(Exception):
    """The client takes nothing any more."""


class Call:
    """A request on its way through the proxy.

    Args:
        patience: seconds the client may take for a piece of the answer.
    Attributes:
        begun: whether an answer was begun. why: the reason code when the answer came to no end on our side.
        farewell: what ends the answer when the server stops; b"" when nothing fits.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._patience = patience
        self.begun = False
        self.farewell = b""
        self.why = "server_error"

    async def begin(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.begun = True
        await self._out({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, piece: bytes, *, last: bool = False) -> None:
        """Send a piece of the body. Waits while the client is slower than the model.

        Raises:
            ClientGoneError: it has not taken anything for too long.
        """
        await self._out({"type": "http.response.body", "body": piece, "more_body": not last})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete answer."""
        await self.begin(status, headers)
        await self.write(body, last=True)

    async def watched(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of the request, and stop it when the client leaves or the server does. The body must have been read."""
        task = asyncio.ensure_future(_run(work))
        leaving = asyncio.create_task(self._left())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.why = HUNG_UP
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                return
            await task
        except asyncio.CancelledError:
            if not task.done():
                self.why = SHUTDOWN
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            if self.farewell:
                await self.write(self.farewell, last=True)
            elif not self.begun:
                await self.whole(
                    503, [(b"content-type", b"application/json"), (b"connection", b"close")], dump(STOPPING.to_openai())
                )
            raise
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _out(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            self.why = SLOW
            raise ClientGoneError from None
        except OSError:
            self.why = HUNG_UP
            raise ClientGoneError from None


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    with suppress(ClientGoneError):
        await work()
