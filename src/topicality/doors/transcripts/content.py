"""What is inside a message of an API: text, parts, tool calls and their results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from topicality.doors.transcripts.record import Call, Malformed, Thread, first, label, mapping, sequence

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "markdown"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content", "thought", "token_budget"})


def text_of(content: Any) -> str:
    """The words of a content: a string, parts, or nothing. Parts without words count only where there are no words.

    Raises:
        Malformed: it is none of these.
    """
    texts: list[str] = []
    others: list[str] = []
    for part in parts_of(content):
        words = _words(part)
        if kind_of(part) in _THOUGHTS:
            continue
        if words is not None:
            texts.append(words)
        else:
            others.append(placeholder(part))
    return "\n".join(texts) or "\n".join(others)


def parts_of(content: Any) -> list[dict[str, Any]]:
    """A content as a list of parts, each an object.

    Raises:
        Malformed: it is neither text, a list of parts, a part, nor nothing.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, list):
        raise Malformed(f"the content is {_kind(content)}, not text or a list of parts")
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, dict):
            parts.append(part)
        elif part is not None:
            raise Malformed(f"content[{index}] is {_kind(part)}, not a part")
    return parts


def kind_of(part: dict[str, Any]) -> str:
    """The type of a part, "" when it names none."""
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _words(part: dict[str, Any]) -> str | None:
    kind = kind_of(part)
    if kind in _TEXTS or (not kind and "text" in part):
        text = first(part, "text", "refusal")
        if isinstance(text, dict):  # the Assistants API: {"text": {"value": …}}
            text = text.get("value")
        if isinstance(text, str):
            return text
        raise Malformed(f"a text part without text: {_kind(text)}")
    transcript = first(part, "transcript") or mapping(first(part, "audio", "input_audio")).get("transcript")
    return transcript if isinstance(transcript, str) else None


def placeholder(part: dict[str, Any]) -> str:
    """What stands for a part that is not text, such as "[image]"."""
    name = label(first(part, "filename", "file_name", "name", "title"))
    kind = (label(part.get("type")) or "attachment").removeprefix("input_").removesuffix("_url")
    return f"[{kind}: {name}]" if name else f"[{kind}]"


def say(
    thread: Thread,
    role: str,
    content: Any,
    *,
    at: float | None = None,
    key: str | None = None,
    name: str | None = None,
    calls: Iterable[Call] = (),
    call: str | None = None,
) -> None:
    """Add what a content says: one message, or several where tool results stand between (role "tool").

    Raises:
        Malformed: the content is not one. Nothing is added then.
    """
    texts: list[str] = []
    others: list[str] = []
    made: list[Call] = []
    ready: list[dict[str, Any]] = []

    def flush() -> None:
        text = "\n".join(texts) or ("" if made else "\n".join(others))
        if text.strip() or made:
            ready.append({"role": role, "text": text, "calls": tuple(made), "name": name, "call": call})
        texts.clear()
        others.clear()
        made.clear()

    for part in parts_of(content):
        kind = kind_of(part)
        if kind in _THOUGHTS:
            continue
        if kind.endswith(("tool_use", "tool_call")):
            made.append(call_of(part))
        elif kind.endswith("tool_result"):
            flush()
            result = part.get("content")
            answered = label(first(part, "tool_use_id", "tool_call_id", "id"))
            ready.append({"role": "tool", "text": text_of(result), "call": answered, "name": label(part.get("name"))})
        else:
            words = _words(part)
            if words is not None:
                texts.append(words)
            else:
                others.append(placeholder(part))
    made.extend(calls)
    flush()
    if not ready and call is not None:
        ready.append({"role": role, "text": "", "name": name, "call": call})
    for each in ready:
        thread.add(at=at, key=key, **each)


def call_of(part: dict[str, Any]) -> Call:
    """A tool call in any of the shapes the APIs have: nested under "function", or flat."""
    inner = mapping(part.get("function")) or part
    name = label(first(inner, "name", "tool_name")) or "tool"
    given = first(inner, "arguments", "args", "input", "parameters")
    return Call(label(first(part, "call_id", "tool_call_id", "id")), f"{name}({shown(given)})")


def calls_of(message: dict[str, Any]) -> list[Call]:
    """The calls a message makes outside its content: `tool_calls`, or the older `function_call`.

    Raises:
        Malformed: a call is not an object.
    """
    calls: list[Call] = []
    for index, each in enumerate(sequence(message.get("tool_calls"))):
        if not isinstance(each, dict):
            raise Malformed(f"tool_calls[{index}] is {_kind(each)}, not a call")
        calls.append(call_of(each))
    older = message.get("function_call")
    if isinstance(older, dict) and not calls:
        calls.append(call_of(older))
    return calls


def shown(value: Any) -> str:
    """Arguments or a result as text: text as it is, the rest as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        raise Malformed("arguments that cannot be written as JSON") from None


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object"}
    return names.get(type(value), "nothing")
