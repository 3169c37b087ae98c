"""Event streams (SSE) as they came from a model server: OpenAI chat, OpenAI Responses, Anthropic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topicality.doors.transcripts.content import say
from topicality.doors.transcripts.cursor import decode
from topicality.doors.transcripts.models import SHAPES
from topicality.doors.transcripts.record import Conversation, Malformed, Report, Thread, label, mapping, sequence, when
from topicality.doors.transcripts.source import Source

_ENDS = ("response.completed", "response.incomplete", "response.failed")


class _Reply:
    """A reply that is coming in: its text and calls so far, by the index the events give."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.at: float | None = None
        self.blocks: dict[tuple[str, int], dict[str, Any]] = {}

    def block(self, kind: str, index: Any) -> dict[str, Any]:
        key = (kind, index if isinstance(index, int) else 0)
        return self.blocks.setdefault(key, {"type": kind, "text": "", "input": ""})

    def grow(self, block: dict[str, Any], field: str, more: Any) -> None:
        if isinstance(more, str):
            block.setdefault("pieces", []).append((field, more))

    def put(self, thread: Thread) -> None:
        for block in self.blocks.values():
            for field in ("text", "input"):
                block[field] += "".join(more for name, more in block.get("pieces", ()) if name == field)
        say(thread, "assistant", list(self.blocks.values()), at=self.at, key=self.id)


def read_stream(source: Source, report: Report, name: str) -> Iterator[Conversation]:
    """The replies of the stream, as one conversation. A reply that is cut off is kept as far as it came."""
    thread = Thread(name)
    reply = _Reply()
    with source.text(report) as text:
        for number, line in text.lines():
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            position = f"line {number}"
            try:
                if data == "[DONE]":
                    reply = _next(reply, thread)
                    continue
                reply = _take(decode(data), reply, thread, position, report)
            except Malformed as problem:
                report(position, str(problem))
    _next(reply, thread)
    yield thread.done()


def _next(reply: _Reply, thread: Thread) -> _Reply:
    reply.put(thread)
    return _Reply()


def _take(event: Any, reply: _Reply, thread: Thread, position: str, report: Report) -> _Reply:
    if not isinstance(event, dict):
        raise Malformed("expected an object")
    kind = event.get("type")
    if isinstance(kind, str) and kind in _ENDS:
        for item in sequence(mapping(event.get("response")).get("output")):
            SHAPES["responses"].add(thread, mapping(item), position, report)
    elif kind == "message_start":
        reply = _next(reply, thread)
        reply.id = label(mapping(event.get("message")).get("id"))
    elif kind == "content_block_start":
        given = mapping(event.get("content_block"))
        block = reply.block("block", event.get("index"))
        block.update({key: given[key] for key in ("id", "name") if key in given})
        block["type"] = label(given.get("type")) or "text"
        reply.grow(block, "text", given.get("text"))
    elif kind == "content_block_delta":
        delta = mapping(event.get("delta"))
        block = reply.block("block", event.get("index"))
        block["type"] = "text" if block["type"] == "block" else block["type"]
        reply.grow(block, "text", delta.get("text"))
        reply.grow(block, "input", delta.get("partial_json"))
    elif kind == "message_stop":
        reply = _next(reply, thread)
    elif "choices" in event:
        key = label(event.get("id"))
        if reply.id is not None and key != reply.id:
            reply = _next(reply, thread)
        reply.id = key
        if reply.at is None:
            reply.at = when(report, position, event.get("created"))
        _choices(event, reply)
    return reply


def _choices(event: dict[str, Any], reply: _Reply) -> None:
    for choice in map(mapping, sequence(event.get("choices"))):
        if choice.get("index", 0) != 0:
            continue
        delta = mapping(choice.get("delta"))
        if isinstance(delta.get("content"), str):
            reply.grow(reply.block("text", 0), "text", delta["content"])
        for call in map(mapping, sequence(delta.get("tool_calls"))):
            block = reply.block("tool_use", call.get("index"))
            function = mapping(call.get("function"))
            for key, value in (("id", call.get("id")), ("name", function.get("name"))):
                if isinstance(value, str) and value:
                    block[key] = value
            reply.grow(block, "input", function.get("arguments"))
