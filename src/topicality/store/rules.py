"""What may become of an exchange, and which values a store takes: the same for every backend, and pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from topicality.errors import InputError, SpaceMismatchError
from topicality.records import (
    SIDES,
    Begin,
    Change,
    Complete,
    Delete,
    DuplicateExchangeError,
    Edit,
    Exchange,
    ExchangeError,
    Fail,
    LogRun,
    Passage,
    PutState,
    PutTopic,
    TopicStatus,
)
from topicality.types import Message, Space
from topicality.vectors import Array, unit

TERM = 100  # characters of a term that count
ID = 200  # characters of an id, an owner or a conversation
REMEMBERED = 1000  # changes of a conversation that are known again


# NUL as JSON spells it; behind another backslash it is six harmless characters.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def check(change: Change, space: Space | None) -> None:
    """Refuse a change that no backend could keep, before any of it is written.

    Raises:
        InputError: see `ports.Store.apply`. SpaceMismatchError: a vector of another dimension, or nothing bound.
    """
    for what, value in (("change id", change.id), ("owner", change.owner), ("conversation", change.conversation)):
        _identifier(what, value)
    for operation in change.operations:
        _CHECKS[type(operation)](operation)
        for passage in getattr(operation, "passages", ()):
            _passage(passage, operation.text, space)  # type: ignore[union-attr]  # only those with a text have passages


def begun(change: Change, operation: Begin, known: Exchange | None, sequence: int) -> Exchange | None:
    """The exchange to write, or None when it is there already."""
    if known is not None:
        if known.status == "deleted" or known.user.text != operation.text:
            raise DuplicateExchangeError(operation.exchange, known.status)
        return None
    message = Message("user", operation.text, operation.at, name=operation.name)
    return Exchange(
        change.owner,
        change.conversation,
        sequence,
        operation.exchange,
        "pending",
        message,
        begun_at=operation.begun_at,
        meta=dict(operation.meta),
    )


def completed(operation: Complete, known: Exchange | None) -> Exchange:
    """The exchange with its reply; only a pending one can have it."""
    exchange = _pending(operation.exchange, known, "completed")
    reply = Message("assistant", operation.text, operation.at, name=operation.name)
    meta = exchange.meta if operation.meta is None else dict(operation.meta)
    return replace(exchange, status="completed", reply=reply, meta=meta)


def failed(operation: Fail, known: Exchange | None) -> Exchange:
    """The exchange as failed; only a pending one can fail."""
    return replace(_pending(operation.exchange, known, "failed"), status="failed", failure=operation.reason)


def edited(operation: Edit, known: Exchange | None) -> Exchange:
    """The exchange with one side's text replaced."""
    if known is None:
        raise ExchangeError(operation.exchange, None, "edited", "check the id, the conversation and the owner")
    if known.status == "deleted":
        raise ExchangeError(operation.exchange, "deleted", "edited", "its texts are gone for good")
    if operation.side == "user":
        return replace(known, user=replace(known.user, text=operation.text))
    if known.reply is None:
        raise ExchangeError(operation.exchange, known.status, "edited on the assistant's side", "it has no reply")
    return replace(known, reply=replace(known.reply, text=operation.text))


def deleted(operation: Delete, known: Exchange | None) -> Exchange | None:
    """The tombstone, or None when it is one already."""
    if known is None:
        raise ExchangeError(operation.exchange, None, "deleted", "check the id, the conversation and the owner")
    if known.status == "deleted":
        return None
    return replace(known, status="deleted", user=Message("user", "", known.user.at), reply=None, failure=None, meta={})


def term(value: str) -> str:
    """A term as it is kept and looked for."""
    return value[:TERM]


def encode(vector: Any, space: Space | None) -> bytes:
    """A vector as kept: unit length, one signed byte a component, behind a float32 that scales them back.

    Cosines are then within 0.01, and nearly always within 0.003, of the exact ones, for half of float16's bytes.

    Raises:
        InputError: not a finite vector with a direction. SpaceMismatchError: another dimension, or nothing bound.
    """
    array = checked(vector, space)
    rounded = np.rint(array * (127.0 / float(np.abs(array).max())))
    scale = np.float32(1.0 / np.sqrt(float(rounded @ rounded)))  # so that what comes back has length one again
    return bytes(scale.tobytes() + rounded.astype(np.int8).tobytes())


def checked(vector: Any, space: Space | None) -> Array:
    """The vector at length one, if it can be kept and looked for. Raises what `encode` does."""
    array = unit(vector)
    if space is None:
        raise SpaceMismatchError(
            "no space", f"dimension {array.shape[-1]}", hint="bind the store to the encoder's space first"
        )
    if array.ndim != 1 or array.shape[0] != space.dimension:
        raise SpaceMismatchError(space, f"shape {array.shape}")
    if not array.any():
        raise InputError("a vector of zeros has no direction and cannot be found; leave it out")
    return array


def decode(blob: bytes | memoryview) -> Array:
    """The unit vector behind the bytes, shape (D,), float32."""
    vector: Array = np.frombuffer(blob, np.int8, offset=4).astype(np.float32) * np.frombuffer(blob, np.float32, 1)[0]
    return vector


def decoded(blobs: Sequence[bytes | memoryview | None]) -> list[Array | None]:
    """As `decode`, for many of one dimension at once; the vectors share memory."""
    given = [blob for blob in blobs if blob is not None]
    if not given:
        return [None] * len(blobs)
    packed = np.frombuffer(b"".join(given), np.uint8).reshape(len(given), -1)
    scales = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    vectors = iter(packed[:, 4:].view(np.int8).astype(np.float32) * scales)
    return [None if blob is None else next(vectors) for blob in blobs]


def dumped(value: Mapping[str, Any], what: str = "meta") -> str:
    """JSON with one spelling for equal values.

    Raises:
        InputError: something in it is not a JSON value.
    """
    if value == {}:
        return "{}"
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must be JSON values ({error})") from error
    return _refused(what) if _NUL.search(text) else plain(text, what)


def plain(text: str, what: str) -> str:
    """The text, if every backend can keep it byte for byte.

    Raises:
        InputError: not a string, a NUL character, or half a surrogate pair.
    """
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, got {type(text).__name__}")
    if "\0" in text:
        _refused(what)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} has half a surrogate pair at character {error.start}; replace it first") from None
    return text


def _refused(what: str) -> str:
    raise InputError(f"{what} has a NUL character, which not every store can keep; remove it first")


def _identifier(what: str, value: str) -> None:
    if not plain(value, what).strip() or len(value) > ID:
        raise InputError(f"{what} must be 1 to {ID} characters and not blank, got {len(value)}")


def _time(what: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise InputError(f"{what} must be seconds since the epoch or None, got {value!r}")


def _pending(exchange: str, known: Exchange | None, wanted: str) -> Exchange:
    if known is None:
        raise ExchangeError(exchange, None, wanted, "begin it first, or check the id, the conversation and the owner")
    if known.status != "pending":
        raise ExchangeError(exchange, known.status, wanted, "only a pending exchange can be; begin a new one")
    return known


def _passage(passage: Passage, text: str, space: Space | None) -> None:
    if not 0 <= passage.start <= passage.end <= len(text):
        raise InputError(f"a passage [{passage.start}, {passage.end}) is outside its text of {len(text)} characters")
    try:
        whole = " ".join(passage.terms)
    except TypeError:
        raise InputError("a term must be a string") from None
    if "\0" in whole or tuple(whole.split()) != tuple(passage.terms):
        raise InputError("a term must be one word: not blank, no white space inside")
    plain(whole, "a term")
    if passage.vector is not None:
        checked(passage.vector, space)


def _begin(operation: Begin) -> None:
    _identifier("exchange id", operation.exchange)
    plain(operation.text, "the user's text")
    plain(operation.name or "", "a name")
    _time("at", operation.at)
    _time("begun_at", operation.begun_at)
    dumped(operation.meta)


def _complete(operation: Complete) -> None:
    plain(operation.text, "the reply")
    plain(operation.name or "", "a name")
    _time("at", operation.at)
    dumped(operation.meta or {})


def _fail(operation: Fail) -> None:
    plain(operation.reason, "the reason")


def _edit(operation: Edit) -> None:
    if operation.side not in SIDES:
        raise InputError(f"a side is one of {', '.join(SIDES)}, got {operation.side!r}")
    plain(operation.text, "the text")


def _topic(operation: PutTopic) -> None:
    topic = operation.topic
    _identifier("topic id", topic.id)
    if topic.status not in get_args(TopicStatus):
        raise InputError(f"a topic's status is one of {', '.join(get_args(TopicStatus))}, got {topic.status!r}")
    for value in (*topic.labels, *topic.terms):
        plain(value, "a label")
    if any(not 1 <= first <= last for first, last in topic.spans):
        raise InputError("a span has 1 <= first <= last")
    for what, at in (("started_at", topic.started_at), ("ended_at", topic.ended_at), ("updated_at", topic.updated_at)):
        _time(what, at)
    dumped(topic.meta)


def _state(operation: PutState) -> None:
    _identifier("state name", operation.name)
    if operation.value is not None and not isinstance(operation.value, bytes):
        raise InputError(f"a state is bytes or None, got {type(operation.value).__name__}")


def _run(operation: LogRun) -> None:
    _identifier("run id", operation.run.id)
    plain(operation.run.status, "a run's status")
    _time("created_at", operation.run.created_at)
    dumped(operation.run.data, "a run's data")


def _nothing(operation: Delete) -> None:
    plain(operation.exchange, "exchange id")


_CHECKS: dict[type, Callable[[Any], None]] = {
    Begin: _begin,
    Complete: _complete,
    Fail: _fail,
    Edit: _edit,
    Delete: _nothing,
    PutTopic: _topic,
    PutState: _state,
    LogRun: _run,
}
