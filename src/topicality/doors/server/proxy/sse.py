"""Server-sent events: cutting a stream into events, and what the chunks of a completion say together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from topicality.doors.server.proxy.wire import Json, calls_tools, dump, loads, text_of

LARGEST = 16_000_000  # bytes of one event
LONGEST = 1_000_000  # characters of a reply that are kept
DONE = b"data: [DONE]\n\n"
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `raw` is how it came, with its blank line; `data` is None for a comment or an event without data."""

    raw: bytes
    data: str | None

    @property
    def done(self) -> bool:
        """Whether it is the last of a completion."""
        return self.data is not None and self.data.strip() == "[DONE]"


class Cutter:
    """Cuts a stream into events, however it comes in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[Event]:
        """The events that are complete now.

        Raises:
            ValueError: an event is too long; nothing of this piece was followed, and `drain` has it.
        """
        begin = max(0, len(self._held) - 3)
        self._held += piece
        events: list[Event] = []
        start = 0
        for found in _END.finditer(self._held, begin):
            if self._held[found.end() - 1 : found.end()] == b"\r" and found.end() == len(self._held):
                break  # the "\n" that belongs to it may still come
            _bounded(found.end() - start)
            events.append(_event(bytes(self._held[start : found.end()])))
            start = found.end()
        _bounded(len(self._held) - start)
        del self._held[:start]
        return events

    def finish(self) -> list[Event]:
        """What is left when the stream has ended; servers forget the last blank line."""
        rest = self.drain()
        return [_event(rest)] if rest else []

    def drain(self) -> bytes:
        """What has come of an event that is not complete; it is forgotten here."""
        rest, self._held = bytes(self._held), bytearray()
        return rest


def packed(chunk: Json) -> bytes:
    """A chunk as an event."""
    return b"data: " + dump(chunk) + b"\n\n"


@dataclass(slots=True)
class Reply:
    """What one choice has said so far. `finish`: why it ended; None while it has not. `calls`: whether it calls tools."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    calls: bool = False
    finish: str | None = None

    @property
    def text(self) -> str:
        """All of it, as far as it is kept."""
        return "".join(self.parts)[:LONGEST]


class Heard:
    """What a streamed answer has said so far: a copy of the first choice, for the memory.

    Attributes:
        done: whether its last line has come. failed: whether it told of an error. lost: whether it cannot be followed.
    """

    def __init__(self) -> None:
        self.reply = Reply()
        self.done = False
        self.failed = False
        self.lost = False

    @property
    def whole(self) -> bool:
        """Whether the first choice has come to its end."""
        return (self.done or self.reply.finish is not None) and not self.failed and not self.lost

    def take(self, event: Event) -> Json | None:
        """Follow an event; the chunk that it is, if it is one."""
        if event.data is None:
            return None
        if event.done:
            self.done = True
            return None
        try:
            chunk = loads(event.data)
        except ValueError:
            return None
        if not isinstance(chunk, dict):
            return None
        if chunk.get("error"):
            self.failed = True
        for one in choices_of(chunk):
            if index_of(one) == 0:
                self._follow(one)
        return chunk

    def _follow(self, one: Json) -> None:
        reply, delta = self.reply, delta_of(one)
        reply.calls = reply.calls or calls_tools(delta)
        text = text_of(delta)
        if text and reply.length < LONGEST:
            reply.parts.append(text)
            reply.length += len(text)
        finish = one.get("finish_reason")
        if isinstance(finish, str):
            reply.finish = finish


def choices_of(chunk: Json) -> Iterator[Json]:
    """The choices of a chunk, as far as they are any."""
    choices: Any = chunk.get("choices")
    return (one for one in choices if isinstance(one, dict)) if isinstance(choices, list) else iter(())


def index_of(one: Json) -> int:
    """Which choice it is."""
    index = one.get("index")
    return index if isinstance(index, int) else 0


def delta_of(one: Json) -> Json:
    """What it adds."""
    delta = one.get("delta")
    return delta if isinstance(delta, dict) else {}


def _bounded(size: int) -> None:
    if size > LARGEST:
        raise ValueError("an event is too long")


def _event(raw: bytes) -> Event:
    lines = (line for line in _LINE.split(raw) if line.startswith(b"data:"))
    data = [line[5:].removeprefix(b" ") for line in lines]
    return Event(raw, b"\n".join(data).decode("utf-8", "replace") if data else None)
