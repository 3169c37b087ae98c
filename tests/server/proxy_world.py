"""What the tests of the proxy share: an encoder that sees marked words, policies over it, and reading answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np

from topicality.config import Policy
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.types import Space
from topicality.vectors import Array, unit

MALFORMED = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"{}",
    b'{"messages": []}',
    b'{"messages": "hello"}',
    b'{"messages": [1]}',
    b'{"messages": [{"role": "user", "content": "fine"}], "messages": [{"role": "user", "content": "bad"}]}',
    b'{"messages": [{"role": "user", "content": "fine"}], "m\\u0065ssages": [{"role": "user", "content": "bad"}]}',
    b'{"messages": [{"role": "user", "content": "fine", "content": "bad"}]}',
    b'{"messages": [{"role": "user", "content": "fine"}]} {}',
    b'{"messages": [{"role": "user"}], "n": NaN}',
    b'{"messages": [{"role": "user"}], "n": -Infinity}',
    b"\xff\xfe{\x00}\x00",
    b"[" * 100_000,
    b'{"messages": ' + b"[" * 100_000,
    b'{"messages": [{}], "a": ' + b"9" * 5000 + b"}",
    b'{"messages" [{"role": "user"}]}',
    b'{"messages": [{}] "a": 1}',
    b'{"messages": [{},]}',
    b'{"messages": [{}],}',
    b"{1: 2}",
    b'\xef\xbb\xbf{"messages": [{}]}',
    b'{"messages": [{"role": "user", "content": "a\xff"}]}',
]
NO, BACK = "That is not for here.", "Let us get back to fine things."


class Marks:
    """An encoder that sees only whether a text has the word "bad" or "odd"."""

    languages: frozenset[str] | None = None
    space = Space("marks", 3)

    def embed(self, texts: Sequence[str]) -> Array:
        kinds = [1 if "bad" in text.split() else 2 if "odd" in text.split() else 0 for text in texts]
        return unit(np.eye(3)[kinds])

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def judging(direction: str = "both", **changes: Any) -> Layer:
    """A layer that blocks what has "bad" in it and redirects what has "odd"."""
    rules = {
        "allowed": ["fine"],
        "blocked": ["bad"],
        "off_topic_action": "redirect",
        "scoring": "cosine",
        "allowed_threshold": 0.9,
        "blocked_threshold": 0.9,
        "small_talk": False,
        "direction": direction,
        "replies": {"blocked": NO, "off_topic": BACK},
    }
    return Layer(open_store("memory://"), Policy.model_validate({**rules, **changes}), Marks())


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def ask(client: httpx2.Client, *messages: Any, headers: dict[str, str] | None = None, **body: Any) -> httpx2.Response:
    """A completion of these messages; a text is the user's."""
    said = [user(one) if isinstance(one, str) else one for one in messages]
    given = {f"x-topicality-{name}": value for name, value in (headers or {}).items()}
    content = json.dumps({"model": "m", "messages": said, **body}).encode()
    return client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json", **given})


def chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a streamed answer; the last line must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def said(found: list[dict[str, Any]], index: int = 0) -> str:
    """What one choice of a streamed answer says."""
    choices = [one for chunk in found for one in chunk["choices"] if one["index"] == index]
    return "".join(one["delta"].get("content") or "" for one in choices)


def finish(found: list[dict[str, Any]], index: int = 0) -> str | None:
    """Why one choice of a streamed answer ended; it must do so once."""
    choices = [one for chunk in found for one in chunk["choices"] if one["index"] == index]
    reasons = [one["finish_reason"] for one in choices if one.get("finish_reason")]
    assert len(reasons) <= 1, reasons
    return reasons[0] if reasons else None
