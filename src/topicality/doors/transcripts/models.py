"""The message formats of model APIs and frameworks: rows that are messages, or objects that hold a list of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from topicality.doors.transcripts.content import call_of, calls_of, kind_of, parts_of, say, shown, text_of
from topicality.doors.transcripts.cursor import rows
from topicality.doors.transcripts.record import (
    Call,
    Conversation,
    Malformed,
    Report,
    Thread,
    first,
    known_role,
    label,
    mapping,
    place,
    sequence,
    speaker,
    when,
)
from topicality.doors.transcripts.source import Source

AddMessage = Callable[[Thread, dict[str, Any], str, Report], None]
_GROUPS = (
    "conversation_id",
    "conversation",
    "thread_id",
    "session_id",
    "sessionId",
    "chat_id",
    "dialogue_id",
    "dialog_id",
)
_TIMES = ("created_at", "timestamp", "create_time", "created", "sent_at", "at", "time", "date", "ts")
_REPEATED = ("tool_use", "tool_call", "function_call")


@dataclass(frozen=True, slots=True)
class Shape:
    """How one format holds messages.

    Attributes:
        name: the format.
        boxes: keys under which an object holds the list of its messages.
        add: adds one message.
        system: keys of an object that hold its system text.
        by_time: messages that come as single rows are put in order of time.
        heading: rows that name no conversation are no messages; under this key one may give the title of the next.
    """

    name: str
    boxes: tuple[str, ...]
    add: AddMessage
    system: tuple[str, ...] = ()
    by_time: bool = True
    heading: str = ""


def read_shape(shape: Shape, source: Source, report: Report) -> Iterator[Conversation]:
    """Read a JSON text of this shape.

    A row that holds messages is a conversation and comes out at once. Rows that are messages are gathered by their
    conversation id, and come out when the last row of that conversation is read, so that little is held at a time.
    """
    left = _counts(shape, source)
    threads: dict[str, Thread] = {}
    title: str | None = None
    for position, row in rows(source, report):
        if not isinstance(row, dict | list):
            report(position, "expected an object")
            continue
        box = _box(shape, row)
        if box is not None or isinstance(row, list):
            yield _whole(shape, row, box or "", position, report).done()
            continue
        key = _group(row)
        if shape.heading and not key:
            title = label(row.get(shape.heading)) or title
            continue
        if key not in threads:
            threads[key] = Thread(shape.name, key or None, title)
            title = None
        try:
            shape.add(threads[key], row, position, report)
        except Malformed as problem:
            report(position, str(problem))
        left[key] -= 1
        if key and left[key] == 0:
            yield threads.pop(key).done(by_time=shape.by_time)
    for thread in threads.values():
        yield thread.done(by_time=shape.by_time)


def _counts(shape: Shape, source: Source) -> Counter[str]:
    """How many rows each conversation has; nothing is counted where the first row is a whole conversation."""
    if "groups" not in source.memo:
        counts: Counter[str] = Counter()
        for _, row in rows(source, None):
            if not isinstance(row, dict) or _box(shape, row) is not None:
                break
            counts[_group(row)] += 1
        source.memo["groups"] = counts
    return Counter(source.memo["groups"])


def _group(row: dict[str, Any]) -> str:
    """The id of the conversation a message row belongs to; "" when it names none."""
    given = first(row, *_GROUPS)
    if given is None:
        given = first(mapping(row.get("metadata")), *_GROUPS)
    return label(given) or ""


def _box(shape: Shape, row: dict[str, Any] | list[Any]) -> str | None:
    """The key under which a row holds messages; "" for a bare list of them; None when the row is a message."""
    if isinstance(row, list):
        return ""
    if "role" in row or "call_id" in row:
        return None
    for key in shape.boxes:
        if isinstance(row.get(key), list):
            return key
    return None


def _whole(shape: Shape, row: dict[str, Any] | list[Any], box: str, position: str, report: Report) -> Thread:
    thread = Thread(shape.name)
    if isinstance(row, list):
        members: list[Any] = row
    else:
        members = row[box]
        own = first(row, *_GROUPS[:1], "id", "uuid", *_GROUPS[1:])
        thread.id = label(own if label(own) else None) or _group(row) or None
        thread.title = label(first(row, "title", "name"))
        try:
            if "input" in shape.boxes and box == "output" and row.get("input") is not None:
                given = row["input"]
                members = [*(given if isinstance(given, list) else [{"role": "user", "content": given}]), *members]
            for key in shape.system:
                say(thread, "system", row.get(key))
        except Malformed as problem:
            report(position, str(problem))
    for index, member in enumerate(members):
        where = place(position, f"{box}[{index}]") if box else f"{position}[{index}]"
        if not isinstance(member, dict):
            report(where, "expected an object")
            continue
        try:
            shape.add(thread, member, where, report)
        except Malformed as problem:
            report(where, str(problem))
    return thread


def _time(row: dict[str, Any], position: str, report: Report) -> float | None:
    return when(report, position, first(row, *_TIMES))


def _chat(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """OpenAI chat, Anthropic, and plain event rows: role and content, or speaker and text."""
    role, other = speaker(first(row, "role", "speaker", "sender", "author", "from", "user"))
    content = first(row, "content", "text", "message", "value", "parts", "refusal")
    if content is None and isinstance(row.get("audio"), dict):
        content = [{"type": "audio", "audio": row["audio"]}]
    calls = calls_of(row)
    if not {"content", "text", "message", "value", "parts", "refusal", "audio"} & row.keys() and not calls:
        raise Malformed("the content is missing")
    say(
        thread,
        role,
        content,
        at=_time(row, position, report),
        key=label(first(row, "id", "uuid", "message_id")),
        name=label(row.get("name")) or other,
        calls=calls,
        call=label(row.get("tool_call_id")) if role == "tool" else None,
    )


def _item(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """OpenAI Responses items. A message may lack its type; reasoning and calls of built-in tools are left out."""
    kind = row.get("type")
    if kind is None or kind == "message":
        _chat(thread, row, position, report)
        return
    if not isinstance(kind, str):
        raise Malformed("the type is not text")
    at = _time(row, position, report)
    if kind.endswith("_call_output"):
        output = row.get("output")
        text = text_of(output) if isinstance(output, str | list) else shown(output)
        thread.add("tool", text, at=at, key=label(row.get("id")), call=label(row.get("call_id")))
    elif kind.endswith("_call") and "call_id" in row:
        thread.add("assistant", "", at=at, key=label(row.get("id")), calls=[call_of(row)])


def _turn(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """ShareGPT: from and value, with calls and observations as turns of their own."""
    kind = first(row, "from", "role")
    if kind == "function_call":
        thread.add("assistant", "", calls=[Call(None, text_of(first(row, "value", "content")))])
        return
    _chat(thread, {**row, "role": kind, "from": None}, position, report)


def _langchain(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """LangChain: {"type", "data"} of messages_to_dict, or {"lc", "id", "kwargs"} of dumpd."""
    data = mapping(first(row, "data", "kwargs"))
    names = [name for name in sequence(row.get("id")) if isinstance(name, str)]
    kind = label(data.get("type")) or label(row.get("type") if "data" in row else None) or "".join(names[-1:])
    if not kind or not data:
        raise Malformed("neither a type with data nor a constructor with arguments")
    kind = kind.removesuffix("Chunk").removesuffix("Message").casefold()
    if kind == "remove":
        return
    role, other = speaker(data.get("role") if kind == "chat" else kind)
    extra = mapping(data.get("additional_kwargs"))
    calls = calls_of(data) or calls_of(extra)
    content = data.get("content")
    if calls and isinstance(content, list):  # content blocks repeat the calls
        content = [part for part in parts_of(content) if kind_of(part) not in _REPEATED]
    say(
        thread,
        role,
        content,
        at=_time(data, position, report) or _time(extra, position, report),
        key=label(data.get("id")),
        name=label(data.get("name")) or other,
        calls=calls,
        call=label(data.get("tool_call_id")) if role == "tool" else None,
    )


def _pydantic(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """pydantic-ai: a request or a response, made of parts."""
    if row.get("kind") not in ("request", "response"):
        raise Malformed('the kind is neither "request" nor "response"')
    calls: list[Call] = []
    texts: list[str] = []
    outer = _time(row, position, report)
    for index, part in enumerate(sequence(row.get("parts"))):
        if not isinstance(part, dict):
            raise Malformed(f"parts[{index}] is not an object")
        kind, content = part.get("part_kind"), part.get("content")
        at = _time(part, position, report)
        at = outer if at is None else at
        if kind == "text":
            texts.append(text_of(content))
        elif kind in ("tool-call", "builtin-tool-call"):
            calls.append(call_of(part))
        elif kind in ("system-prompt", "user-prompt"):
            if isinstance(content, list):
                content = [{**each, "type": each.get("kind")} if isinstance(each, dict) else each for each in content]
            thread.add("system" if kind == "system-prompt" else "user", text_of(content), at=at)
        elif kind in ("tool-return", "builtin-tool-return", "retry-prompt"):
            role = "user" if kind == "retry-prompt" and not part.get("tool_name") else "tool"
            call = label(part.get("tool_call_id")) if role == "tool" else None
            thread.add(role, shown(content), at=at, name=label(part.get("tool_name")), call=call)
    thread.add("assistant", "\n".join(texts), at=outer, calls=calls)


def _claude_code(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    """A line of a Claude Code session. Bookkeeping lines, injected lines and side chains are passed over."""
    kind = row.get("type")
    if kind not in ("user", "assistant") or row.get("isSidechain") is True or row.get("isMeta") is True:
        return
    message = row.get("message")
    if not isinstance(message, dict):
        raise Malformed("the message is missing")
    role = known_role(str(message.get("role", kind))[:20]) or kind
    say(thread, role, message.get("content"), at=_time(row, position, report), key=label(row.get("uuid")))


_CHAT_BOXES = ("messages", "conversation", "chat", "turns", "dialog", "dialogue")
SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("openai", _CHAT_BOXES, _chat),
        Shape("anthropic", _CHAT_BOXES, _chat, system=("system",)),
        Shape("responses", ("output", "input", "items"), _item, system=("instructions",), by_time=False),
        Shape("sharegpt", ("conversations", "conversation"), _turn, system=("system",), by_time=False),
        Shape("langchain", ("messages", "history", "chat_history"), _langchain),
        Shape("pydantic-ai", ("messages",), _pydantic, by_time=False),
        Shape("claude-code", (), _claude_code, by_time=False, heading="summary"),
    )
}
