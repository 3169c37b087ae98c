"""What the requests of the proxy share, and the open exchanges: each is ended, whatever happens to its request."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy.call import Call
from topicality.doors.server.proxy.upstream import Upstream
from topicality.doors.server.service import Service
from topicality.layer.hosted import Asked, Hosted, Taken, Terms

T = TypeVar("T")
Place = tuple[str, str]  # owner, conversation

_log = logging.getLogger("topicality.server")


class Room:
    """The proxy of one running service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.upstream = Upstream(service)
        self.hosted = Hosted(service.layer)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending: dict[Place, set[asyncio.Task[Any]]] = {}
        self._users: Counter[tuple[str, str, str]] = Counter()  # requests that work on an exchange
        self._sweeper = asyncio.create_task(self._sweep())

    async def begin(self, call: Call, asked: Asked, terms: Terms) -> Held:
        """Take in a message, once everything before it in the conversation is stored."""
        place = asked.owner, asked.conversation
        while waiting := self._ending.get(place):
            await asyncio.wait(set(waiting))
        task = self._spawn(self.service.bridge.run(self.hosted.take, asked, terms))
        try:
            taken = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._abandon(task, call, place))  # it cannot be stopped, so it has to be ended
            raise
        return Held(self, call, place, taken)

    async def close(self) -> None:
        """Wait for every exchange to be ended, then leave the model server."""
        self._sweeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeper
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self.upstream.close()

    def use(self, place: Place, exchange: str) -> None:
        """A request works on an exchange."""
        self._users[*place, exchange] += 1

    def unused(self, place: Place, exchange: str) -> bool:
        """A request no longer works on it: whether none does."""
        key = (*place, exchange)
        self._users[key] -= 1
        if self._users[key] > 0:
            return False
        del self._users[key]
        return True

    def end(self, place: Place, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that ends an exchange: it goes on without the request, and the next one of the conversation waits for it."""
        task = self._spawn(work)
        self._ending.setdefault(place, set()).add(task)
        task.add_done_callback(lambda done: self._ended(place, done))
        return task

    def _ended(self, place: Place, task: asyncio.Task[Any]) -> None:
        left = self._ending.get(place, set())
        left.discard(task)
        if not left:
            self._ending.pop(place, None)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _abandon(self, task: asyncio.Task[Taken], call: Call, place: Place) -> None:
        try:
            taken = await task
        except Exception:  # noqa: BLE001 - nothing was begun
            return
        async with Held(self, call, place, taken):
            pass

    async def _sweep(self) -> None:
        pending = self.service.settings.memory.pending
        while True:
            try:
                await self.service.bridge.run(self.service.layer.sweep, pending)
            except Exception as error:  # noqa: BLE001 - there is a next time
                _log.warning("exchanges that nobody ended could not be looked for: %s", type(error).__name__)
            await asyncio.sleep(min(60.0, max(0.5, pending / 4)))


class Held:
    """One request's hold on an exchange; used as `async with`, which fails the exchange if nothing else ended it."""

    def __init__(self, room: Room, call: Call, place: Place, taken: Taken) -> None:
        self.taken = taken
        self._room = room
        self._call = call
        self._place = place
        self._open = taken.open
        self._task: asyncio.Task[None] | None = None
        if taken.open and taken.exchange is not None:
            room.use(place, taken.exchange)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RefusedError):
            self.fail(error.code)
        else:
            self.fail(self._call.why)

    def complete(self, text: str) -> None:
        """The reply is whole."""
        self._end(self._complete(text) if self._open else None)

    def fail(self, reason: str) -> None:
        """There is no reply. Does nothing where the exchange was ended."""
        self._end(self._fail(reason) if self._open else None)

    def leave(self) -> None:
        """The reply calls a tool: the exchange stays open for the request that brings the result."""
        if self._open:
            self._open = False
            self._room.unused(self._place, self.taken.exchange or "")

    async def stored(self) -> None:
        """Wait until the end of the exchange is in the store, where other processes may ask for it."""
        if self._task is not None and self._room.service.settings.workers > 1:
            await asyncio.shield(self._task)

    def _end(self, work: Coroutine[Any, Any, None] | None) -> None:
        if work is not None:
            self._open = False
            self._task = self._room.end(self._place, work)

    async def _complete(self, text: str) -> None:
        service, exchange = self._room.service, self.taken.exchange or ""
        try:
            how = await service.bridge.finish(self._room.hosted.complete, *self._place, exchange, text)
        except Exception as error:  # noqa: BLE001 - the answer is on its way, and nobody waits for this
            _log.warning("a reply could not be stored: %s", type(error).__name__)
            service.metrics.exchange("failed", "not_stored")
        else:
            if how != "known":
                service.metrics.exchange("edited" if how == "edited" else "completed")
        finally:
            self._room.unused(self._place, exchange)

    async def _fail(self, reason: str) -> None:
        service, exchange = self._room.service, self.taken.exchange or ""
        if not self._room.unused(self._place, exchange):
            return  # the same request came again, and that one goes on
        try:
            if await service.bridge.finish(self._room.hosted.fail, *self._place, exchange, reason):
                service.metrics.exchange("failed", reason)
        except Exception as error:  # noqa: BLE001 - nobody waits for this; it is swept later
            _log.warning("an exchange could not be ended: %s", type(error).__name__)
