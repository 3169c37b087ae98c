"""The one way from the event loop to the engine, which is synchronous: a bounded pool of threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from topicality.doors.server.problems import RefusedError

P = ParamSpec("P")
R = TypeVar("R")


class Bridge:
    """Runs calls of the engine in threads.

    Args:
        threads: how many at a time. waiting: how many more may wait; the next is refused (503).
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="topicality")
        self._most = threads + waiting
        self._open = 0

    @property
    def open(self) -> int:
        """Calls that run or wait."""
        return self._open

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call and wait for it. A caller that is cancelled stops waiting; the call itself runs to its end.

        Raises:
            RefusedError: 503, too many are waiting. Whatever the call raises.
        """
        if self._open >= self._most:
            raise RefusedError(503, "busy", "the server is busy; come again", {"retry-after": "1"})
        return await self.finish(call, *args, **kwargs)

    async def finish(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, and never refused: for what has to end that was begun."""
        self._open += 1
        context = contextvars.copy_context()  # tracing
        try:
            future: Future[R] = self._pool.submit(lambda: context.run(call, *args, **kwargs))
        except BaseException:
            self._open -= 1
            raise
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: self._ended(loop))
        # shielded: cancelling the waiter must not take a call out of the queue that someone counts on (a reply to be stored)
        return await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Wait for what is running and waiting, then end the threads."""
        self._pool.shutdown(wait=True)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has ended before the call
            loop.call_soon_threadsafe(self._done)

    def _done(self) -> None:
        self._open -= 1
