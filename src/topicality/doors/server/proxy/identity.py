"""Which conversation and exchange a request belongs to, what its headers ask for, and the headers of the answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from string import ascii_letters, digits, punctuation
from typing import Any
from urllib.parse import quote, unquote

from topicality.doors.server.keys import Caller
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy.wire import ChatRequest
from topicality.doors.server.settings import Settings
from topicality.layer.hosted import Taken, Terms

PREFIX = "x-topicality-"
_TOLD = "action reason rule probability drift topic conversation exchange recalled memory request-id".split()
EXPOSED = [f"{PREFIX}{name}" for name in _TOLD]  # headers of answers that pages of other origins may read
LONGEST = 200  # characters of a conversation's id, and of a header value of ours
_MOST = 10_000_000  # tokens that a header may ask for
_SAFE = "".join(sorted(set(ascii_letters + digits + punctuation + " ") - {"%"}))
_PARTS = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the headers of a request ask for; None where they say nothing."""

    conversation: str | None = None
    guard: bool | None = None
    memory: bool | None = None
    budget: int | None = None
    recall: int | None = None

    def terms(self, settings: Settings, shared: bool) -> Terms:
        """What is done with the request."""
        memory = settings.memory
        return Terms(
            judge=settings.guard.enabled if self.guard is None else self.guard,
            remember=memory.enabled if self.memory is None else self.memory,
            budget=memory.budget if self.budget is None else self.budget,
            recall=memory.recall if self.recall is None else self.recall,
            everywhere=memory.everywhere,
            shared=shared,
        )


def wishes_of(headers: Mapping[str, str], caller: Caller) -> Wishes:
    """Read the headers, names in lower case.

    Raises:
        RefusedError: 400, a value that cannot be used; 403, the guard may not be switched off with this key.
    """
    conversation = headers.get(f"{PREFIX}conversation")
    wishes = Wishes(
        None if conversation is None else _name(conversation),
        _switch(headers, "guard"),
        _switch(headers, "memory"),
        _number(headers, "budget", 64),
        _number(headers, "recall", 0),
    )
    if wishes.guard is False:
        caller.need("override")
    return wishes


def conversation_of(asked: ChatRequest, named: str | None) -> tuple[str, bool]:
    """The conversation of a request, and whether strangers may come to the same id: where it is made from the texts alone."""
    if named is not None:
        return named, False
    user = asked.body.get("user")
    if isinstance(user, str) and user.strip():
        plain = user.isprintable() and len(user) <= LONGEST
        return (user if plain else f"user-{_digest(user)[:24]}"), False
    first = next((n for n, turn in enumerate(asked.turns) if turn.message.role == "user"), None)
    system = [turn.message.text for turn in asked.turns if turn.message.role == "system"]
    opening = None if first is None else asked.body["messages"][first].get("content")
    return f"auto-{_digest([system, opening])[:24]}", True


def exchange_of(asked: ChatRequest, conversation: str) -> str:
    """An id that a request has again when it is repeated, or goes on after tool calls: from all that leads up to it.

    System text is left out: hosts put the time into it.
    """
    last = max(n for n, turn in enumerate(asked.turns) if turn.message.role == "user")
    messages = asked.body["messages"]
    said = [
        [message.get(part) for part in _PARTS]
        for message, turn in zip(messages[: last + 1], asked.turns, strict=False)
        if turn.message.role != "system"
    ]
    return f"x{_digest([conversation, said])[:32]}"


def told(conversation: str, taken: Taken) -> Headers:
    """The headers that say what was found."""
    verdict = taken.verdict
    values: dict[str, Any] = {
        "action": "none" if verdict is None else verdict.action,
        "reason": None if verdict is None else verdict.reason_code,
        "rule": None if verdict is None else verdict.rule,
        "probability": None if verdict is None or verdict.probability is None else f"{verdict.probability:.4f}",
        "drift": None if taken.drift is None else f"{taken.drift.level:.4f}",
        "topic": taken.topic,
        "conversation": conversation,
        "exchange": taken.exchange,
        "recalled": taken.sent.tokens,
        "memory": "failed" if taken.forgetful else None,
    }
    return [
        (f"{PREFIX}{name}".encode(), escaped(str(value)).encode())
        for name, value in values.items()
        if value is not None
    ]


def escaped(value: str) -> str:
    """A value as a header may have it: printable ASCII, anything else and "%" percent-encoded, cut to a length."""
    return quote(value[:LONGEST], safe=_SAFE, errors="replace").strip()


def _name(value: str) -> str:
    try:
        plain = unquote(value, errors="strict") if value.isascii() else ""
    except UnicodeDecodeError:
        plain = ""
    if not plain.strip() or len(plain) > LONGEST or not plain.isprintable():
        raise RefusedError(
            400,
            "bad_header",
            f"{PREFIX}conversation must be 1 to {LONGEST} printable characters, percent-encoded UTF-8",
        )
    return plain


def _switch(headers: Mapping[str, str], name: str) -> bool | None:
    value = headers.get(f"{PREFIX}{name}")
    if value is None:
        return None
    if value not in ("on", "off"):
        raise RefusedError(400, "bad_header", f"{PREFIX}{name} must be on or off")
    return value == "on"


def _number(headers: Mapping[str, str], name: str, least: int) -> int | None:
    value = headers.get(f"{PREFIX}{name}")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 12 and least <= int(value) <= _MOST):
        raise RefusedError(400, "bad_header", f"{PREFIX}{name} must be a whole number from {least} to {_MOST}")
    return int(value)


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
