"""A streamed answer on its way from the model to the client: as it came, or under the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.problems import Problem
from topicality.doors.server.proxy.call import Call
from topicality.doors.server.proxy.guarding import Filter
from topicality.doors.server.proxy.sse import Cutter, Event, Heard, packed
from topicality.doors.server.proxy.upstream import UpstreamFailedError

Ending = Callable[[], Awaitable[None]]


async def relayed(call: Call, response: httpx2.Response, heard: Heard, ending: Ending) -> None:
    """Pass on the bytes as they come, and follow a copy. An event that is not complete yet waits for its end.

    Args:
        ending: awaited when the answer's last line has come, before it is passed on.
    """
    cutter = Cutter()
    async for piece in response.aiter_bytes():
        out = piece
        if not heard.lost:
            try:
                out = _followed(heard, cutter.feed(piece))
            except ValueError:
                heard.lost, out = True, cutter.drain()
            if heard.done:
                await ending()
        if out:
            await call.write(out)
    rest = _followed(heard, cutter.finish())
    if rest:
        await call.write(rest)


def _followed(heard: Heard, events: list[Event]) -> bytes:
    for event in events:
        heard.take(event)
    return b"".join(event.raw for event in events)


async def guarded(call: Call, response: httpx2.Response, work: Filter, bridge: Bridge, ending: Ending) -> None:
    """Pass on what the guard lets through; ends early when it stops the answer.

    Args:
        ending: as for `relayed`.
    Raises:
        UpstreamFailedError: the stream cannot be read, so it cannot be guarded.
    """
    cutter = Cutter()
    try:
        async for piece in response.aiter_bytes():
            events = cutter.feed(piece)
            if not events:
                continue
            shown = await bridge.finish(work.take, events)
            if work.heard.done:
                await ending()
            if shown:
                await call.write(shown)
            if work.stopped:
                break
        else:
            shown = await bridge.finish(work.take, cutter.finish())
            if shown:
                await call.write(shown)
    except ValueError as error:
        raise UpstreamFailedError(502, "upstream_unreadable", "the model server's stream cannot be read") from error
    rest = await bridge.finish(work.finish)
    if rest:
        await call.write(rest)


def broken(error: UpstreamFailedError) -> bytes:
    """The last event of a stream that broke off: clients raise it as an error of the server."""
    return packed(Problem(error.status, error.code, error.detail).to_openai())
