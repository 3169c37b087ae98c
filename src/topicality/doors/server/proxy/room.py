"""What the requests of the proxy share, and the open exchanges: each is ended, whatever happens to its request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy.call import Call
from topicality.doors.server.proxy.upstream import Upstream
from topicality.doors.server.service import Service
from topicality.layer.hosted import Asked, Hosted, Looked, Taken, Terms

P = ParamSpec("P")
T = TypeVar("T")
Place = tuple[str, str]  # owner, conversation

CALM = 0.03  # seconds that work nobody waits for gives way to calls that somebody does; all that is queued shares them
TICK = 0.002

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
        self._awaited: Counter[Place] = Counter()  # requests that wait for what is stored of a conversation
        self._lane = asyncio.Lock()
        self._queued = 0
        self._sweeper = asyncio.create_task(self._sweep())

    async def begin(self, call: Call, asked: Asked, terms: Terms) -> Held:
        """Judge a message and choose what to send, once everything before it in the conversation is stored.

        What that leaves to be stored is, while the model is asked.
        """
        task = self._spawn(self._look(asked, terms))
        try:
            looked = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._abandon(task, call, asked))  # it cannot be stopped, so it has to be ended
            raise
        return self._held(call, asked, looked)

    async def close(self) -> None:
        """Wait for every exchange to be ended, then leave the model server."""
        self._sweeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeper
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self.upstream.close()

    @contextmanager
    def awaiting(self, place: Place) -> Iterator[None]:
        """While somebody waits for what is to be stored of a conversation."""
        self._awaited[place] += 1
        try:
            yield
        finally:
            self._awaited[place] -= 1
            if not self._awaited[place]:
                del self._awaited[place]

    async def behind(self, place: Place, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call of the engine that ends an exchange or begins it: one at a time, after those whose answer is due.

        It waits until what it comes from is on its way and no other call runs, for `CALM` seconds at most, and not at all
        once somebody waits for it: the engine's calls slow each other and the event loop down.
        """
        self._queued += 1
        try:
            async with self._lane:
                end = time.monotonic() + CALM / self._queued
                bridge = self.service.bridge
                pause = not self._awaited[place]  # the request is on its way to the model, or the answer to its client
                while pause and time.monotonic() < end:
                    await asyncio.sleep(TICK)
                    pause = bool(bridge.open) and not self._awaited[place]
                return await bridge.finish(call, *args, **kwargs)
        finally:
            self._queued -= 1

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

    def end(self, place: Place, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that begins or ends an exchange: it goes on without the request, and the conversation's next one waits."""
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

    async def _look(self, asked: Asked, terms: Terms) -> Looked:
        bridge, place = self.service.bridge, (asked.owner, asked.conversation)
        if place not in self._ending:
            return await bridge.run(self.hosted.look, asked, terms)
        with self.awaiting(place):
            heard = await bridge.run(self.hosted.hear, asked, terms)  # while the reply before it is stored
            while waiting := self._ending.get(place):
                await asyncio.wait(set(waiting))
        return await bridge.run(self.hosted.look, asked, terms, heard)

    def _held(self, call: Call, asked: Asked, looked: Looked) -> Held:
        place = asked.owner, asked.conversation
        keeping = None if looked.kept else self.end(place, self._keep(asked, looked))
        return Held(self, call, place, looked.taken, keeping)

    async def _keep(self, asked: Asked, looked: Looked) -> Taken:
        try:
            return await self.behind((asked.owner, asked.conversation), self.hosted.keep, asked, looked)
        except Exception as error:  # noqa: BLE001 - the model is being asked, and its answer is worth more
            _log.warning("a message could not be stored: %s", type(error).__name__)
            return replace(looked.taken, forgetful=True)

    async def _abandon(self, task: asyncio.Task[Looked], call: Call, asked: Asked) -> None:
        try:
            looked = await task
        except Exception:  # noqa: BLE001 - nothing was begun
            return
        async with self._held(call, asked, looked):
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
    """One request's hold on an exchange; used as `async with`, which fails the exchange if nothing else ended it.

    Args:
        first: what is known. keeping: what the rest comes from, when the exchange is not in the store yet.
    """

    def __init__(
        self, room: Room, call: Call, place: Place, first: Taken, keeping: asyncio.Task[Taken] | None = None
    ) -> None:
        self.first = first
        self._room = room
        self._call = call
        self._place = place
        self._keeping = keeping
        self._taken: Taken | None = None
        self._open = keeping is not None or first.open
        self._task: asyncio.Task[None] | None = None
        if keeping is None:
            self._use(first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RefusedError):
            self.fail(error.code)
        else:
            self.fail(self._call.why)

    async def taken(self) -> Taken:
        """All that came of the message, once it is stored."""
        if self._taken is None and self._keeping is not None:
            with self._room.awaiting(self._place):
                taken = await asyncio.shield(self._keeping)
            self._use(taken)
        return self._taken or self.first

    def complete(self, text: str) -> None:
        """The reply is whole."""
        self._end(self._complete, text)

    def fail(self, reason: str) -> None:
        """There is no reply. Does nothing where the exchange was ended."""
        self._end(self._fail, reason)

    def leave(self) -> None:
        """The reply calls a tool: the exchange stays open for the request that brings the result."""
        self._end(self._leave, "")

    async def stored(self) -> None:
        """Wait until the end of the exchange is in the store, where other processes may ask for it."""
        if self._task is not None and self._room.service.settings.workers > 1:
            with self._room.awaiting(self._place):
                await asyncio.shield(self._task)

    def _use(self, taken: Taken) -> None:
        if self._taken is None:
            self._taken = taken
            if taken.open and taken.exchange is not None:
                self._room.use(self._place, taken.exchange)

    def _end(self, how: Callable[[str, str], Awaitable[None]], what: str) -> None:
        if self._open:
            self._open = False
            self._task = self._room.end(self._place, self._ended(how, what))

    async def _ended(self, how: Callable[[str, str], Awaitable[None]], what: str) -> None:
        taken = await self.taken()
        if taken.open and taken.exchange is not None:
            await how(taken.exchange, what)

    async def _leave(self, exchange: str, _: str) -> None:
        self._room.unused(self._place, exchange)

    async def _complete(self, exchange: str, text: str) -> None:
        service = self._room.service
        try:
            how = await self._room.behind(self._place, self._room.hosted.complete, *self._place, exchange, text)
        except Exception as error:  # noqa: BLE001 - the answer is on its way, and nobody waits for this
            _log.warning("a reply could not be stored: %s", type(error).__name__)
            service.metrics.exchange("failed", "not_stored")
        else:
            if how != "known":
                service.metrics.exchange("edited" if how == "edited" else "completed")
        finally:
            self._room.unused(self._place, exchange)

    async def _fail(self, exchange: str, reason: str) -> None:
        service = self._room.service
        if not self._room.unused(self._place, exchange):
            return  # the same request came again, and that one goes on
        try:
            if await self._room.behind(self._place, self._room.hosted.fail, *self._place, exchange, reason):
                service.metrics.exchange("failed", reason)
        except Exception as error:  # noqa: BLE001 - nobody waits for this; it is swept later
            _log.warning("an exchange could not be ended: %s", type(error).__name__)
