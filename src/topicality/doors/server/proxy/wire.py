"""The chat format of OpenAI as bytes: what a request says, how its messages are replaced, and answers of our own. Pure.

A request is read without being changed: where its messages are replaced, everything else stays the bytes that came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from topicality.core.context import Turn
from topicality.doors.server.problems import RefusedError
from topicality.layer.sending import joined_text
from topicality.types import Message

Json = dict[str, Any]
_SPACE = re.compile(r"[ \t\r\n]*")
_ROLES = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}  # any other role is a user's: what nobody knows is judged
REFUSED = "I cannot help with that here."  # where the policy has no reply of its own
MOST_CHOICES = 128  # that an answer of our own gives


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a completion.

    Attributes:
        raw: the body as it came. body: its values. turns: its messages, one for one; `start` is the position of the message
            to answer, of its first piece where there are several in a row; None when no user speaks. text: of all pieces.
        span: where the list of messages stands in the text of the body.
    """

    raw: bytes
    body: Json
    turns: tuple[Turn, ...]
    start: int | None
    text: str
    span: tuple[int, int]

    @property
    def stream(self) -> bool:
        """Whether the client wants a stream."""
        return bool(self.body.get("stream"))

    @property
    def choices(self) -> int:
        """How many choices are asked for, as far as we give them."""
        n = self.body.get("n")
        return min(n, MOST_CHOICES) if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1

    @property
    def model(self) -> str:
        """The model that is asked for."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    def with_messages(self, kept: Sequence[int] | None, evidence: str) -> bytes:
        """The body with these messages of those before the one to answer, and evidence put before it.

        Args:
            kept: positions, ascending; None for all. evidence: text of a user message; "" for none.
        """
        if kept is None and not evidence:
            return self.raw
        text = self.raw.decode("utf-8")
        spans = list(_elements(text, self.span[0]))
        start = self.start or 0
        before = range(start) if kept is None else kept
        parts = [text[slice(*spans[n])] for n in before]
        if evidence:
            parts.append(json.dumps({"role": "user", "content": evidence}))
        parts += [text[slice(*spans[n])] for n in range(start, len(spans))]
        first, last = self.span
        return f"{text[:first]}[{','.join(parts)}]{text[last:]}".encode()


def read_request(raw: bytes) -> ChatRequest:
    """Read a body.

    Raises:
        RefusedError: 400, not JSON, a name that stands twice in one object (two readers may then see two requests), or no
            list of messages.
    """
    try:
        text = raw.decode("utf-8")
        body, spans = _top(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, _MalformedError) else "not valid JSON in UTF-8"
        raise RefusedError(400, "bad_body", f"the body cannot be read: {why}") from None
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "bad_messages", "the body needs messages: a list of at least one")
    if not all(isinstance(message, dict) for message in messages):
        raise RefusedError(400, "bad_messages", "each of the messages must be an object")
    turns = tuple(turn_of(message) for message in messages)
    start = _start(turns)
    pieces = [turn.message.text for turn in turns[start:] if turn.message.role == "user"] if start is not None else []
    return ChatRequest(raw, body, turns, start, joined_text(pieces), spans["messages"])


def turn_of(message: Mapping[str, Any]) -> Turn:
    """A message of the wire as the engine has it."""
    role = message.get("role")
    known = _ROLES.get(role, "user") if isinstance(role, str) else "user"
    name = message.get("name")
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    answered = message.get("tool_call_id")
    ids = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    payload = [part for part in (calls, legacy) if part]
    return Turn(
        Message(
            known,
            storable(text_of(message)),
            name=storable(name) if isinstance(name, str) and name.strip() else None,
            calls=tuple(one for one in ids if isinstance(one, str)) or (("",) if legacy else ()),
            call=answered if isinstance(answered, str) else None,
        ),
        payload=json.dumps(payload) if payload else "",
    )


def text_of(message: Mapping[str, Any]) -> str:
    """All text of a message: its content, of which only text parts count, or its refusal, or what its audio says."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content if _part(part))
    if content is not None:  # nobody knows this form, so all of it is looked at
        return json.dumps(content)
    audio = message.get("audio")
    for other in (message.get("refusal"), audio.get("transcript") if isinstance(audio, dict) else None):
        if isinstance(other, str):
            return other
    return ""


def storable(text: str) -> str:
    """A text that every store can keep: without NUL and halves of surrogate pairs."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def dump(value: object) -> bytes:
    """JSON as it is sent."""
    return json.dumps(value, separators=(",", ":")).encode()


def refusal(asked: ChatRequest, text: str, exchange: str, created: int) -> Json:
    """A whole answer that the guard gives instead of the model."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "content_filter",
        }
        for index in range(asked.choices)
    ]
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    known = {"id": f"chatcmpl-{exchange}", "object": "chat.completion", "created": created, "model": asked.model}
    return {**known, "choices": choices, "usage": usage}


def refusal_chunks(asked: ChatRequest, text: str, exchange: str, created: int) -> list[Json]:
    """The same as a stream, without its last line."""
    known = {"id": f"chatcmpl-{exchange}", "object": "chat.completion.chunk", "created": created, "model": asked.model}
    chunks: list[Json] = []
    for index in range(asked.choices):
        opening = {"role": "assistant", "content": text, "refusal": None}
        chunks += [
            {**known, "choices": [choice(index, opening)]},
            {**known, "choices": [choice(index, {}, "content_filter")]},
        ]
    if asked.usage:
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        chunks.append({**known, "choices": [], "usage": usage})
    return chunks


def choice(index: int, delta: Json, finish: str | None = None) -> Json:
    """One choice of a chunk."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def replies_of(body: Any) -> list[Json] | None:
    """The choices of a whole answer, by position; None when it is not one."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices:
        return None
    good = all(isinstance(one, dict) and isinstance(one.get("message"), dict) for one in choices)
    return choices if good else None


def calls_tools(message: Mapping[str, Any]) -> bool:
    """Whether a message or a delta calls a tool, so that the host has to answer it."""
    return bool(message.get("tool_calls") or message.get("function_call"))


class _MalformedError(ValueError):
    pass


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for name in ("text", "refusal"):
            if isinstance(part.get(name), str):
                return str(part[name])
    return ""


def _start(turns: Sequence[Turn]) -> int | None:
    """Position of the message to answer: the first of the user's after the model's last one before it."""
    found = None
    for place in range(len(turns) - 1, -1, -1):
        role = turns[place].message.role
        if role == "user":
            found = place
        elif found is not None and role in ("assistant", "tool"):
            break
    return found


def _object(pairs: list[tuple[str, Any]]) -> Json:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _MalformedError("a name stands twice in one object")
    return made


def _constant(_: str) -> NoReturn:
    raise _MalformedError("NaN and Infinity are not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def loads(text: str | bytes) -> Any:
    """JSON from the model server, of any shape.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _top(text: str) -> tuple[Json, dict[str, tuple[int, int]]]:
    """The members of the object that a text is, with the places of their values."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise _MalformedError("it must be a JSON object")
    body: Json = {}
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            name, at = _value(text, at)
            if not isinstance(name, str):
                raise _MalformedError("not valid JSON")
            at = _skip(text, _expect(text, _skip(text, at), ":"))
            value, end = _value(text, at)
            if name in body:
                raise _MalformedError("a name stands twice in one object")
            body[name], spans[name] = value, (at, end)
            at = _skip(text, end)
            if text[at : at + 1] == "}":
                at += 1
                break
            at = _skip(text, _expect(text, at, ","))
    if _skip(text, at) != len(text):
        raise _MalformedError("something follows the JSON object")
    return body, spans


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Places of the elements of the list that begins here and is known to be valid, with at least one."""
    at += 1
    while True:
        at = _skip(text, at)
        _, end = _value(text, at)
        yield at, end
        at = _skip(text, end)
        if text[at] == "]":
            return
        at += 1


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, at)
    except StopIteration as error:  # pragma: no cover - some versions of the library let it out
        raise _MalformedError("not valid JSON") from error


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise _MalformedError("not valid JSON")
    return at + 1
