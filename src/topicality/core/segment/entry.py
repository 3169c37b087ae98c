"""The door of the segmenter: what a message must be to be taken in. Nothing is changed before everything was checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from topicality.core.segment.decisions import Talk
from topicality.core.segment.heads import GRANULARITIES
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import Message, Space
from topicality.vectors import Array, unit

_IDS = 10_000  # ids remembered, to tell duplicates
_CHUNK = 1024  # messages whose vectors are checked at a time
_SILENT_ROLES = frozenset({"tool", "function", "system"})


def check_settings(granularity: str, expected_rate: float | None, limit: int, talk: str) -> None:
    """Raise ConfigError unless the settings are in range."""
    if granularity not in GRANULARITIES:
        raise ConfigError(
            "unknown granularity", key="granularity", got=granularity, accepted="coarse, balanced or fine"
        )
    if expected_rate is not None and not 0.0 < expected_rate < 1.0:
        raise ConfigError(
            "no share of messages", key="expected_rate", got=expected_rate, accepted="a number in (0, 1), or None"
        )
    if limit < 2:
        raise ConfigError("too few live topics", key="limit", got=limit, accepted="2 or more")
    if talk not in get_args(Talk):
        raise ConfigError("unknown kind of talk", key="talk", got=talk, accepted="auto, pair, crowd or meeting")


def is_silent(message: Message) -> bool:
    """Whether a message decides nothing: blank, of the system, a tool call or its result. It stays with what is before."""
    return (
        message.role.lower() in _SILENT_ROLES
        or bool(message.calls)
        or message.call is not None
        or not message.text.strip()
    )


def checked_vector(vector: ArrayLike | None, dimension: int, space: object) -> Array:
    """A message's vector as float32 of length 1.

    Raises:
        InputError: missing, not finite, all zeros. SpaceMismatchError: another dimension.
    """
    if vector is None:
        raise InputError("a message that says something needs its vector")
    array = vector if isinstance(vector, np.ndarray) and vector.dtype == np.float32 else np.asarray(unit(vector))
    if array.ndim != 1:
        raise InputError(f"a message's vector must have shape (D,), got {array.shape}")
    if len(array) != dimension:
        raise SpaceMismatchError(space, f"dimension {len(array)}")
    square = float(array @ array)
    if not isfinite(square):
        raise InputError("a vector must be finite, got NaN or infinity inside; check the encoder that made it")
    if square == 0.0:
        raise InputError("a vector of zeros has no direction; check the encoder that made it")
    return array if abs(square - 1.0) < 1e-4 else unit(array)


class Entry:
    """Counts messages and remembers their ids, the latest 10,000."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.count = 0
        self.ids: dict[str, None] = {}
        self.last_number: int | None = None

    def check(self, message: Message, vector: ArrayLike | None, space: Space | None) -> Array | None:
        """The vector of a message that may come in; None for a silent one. Changes nothing. Raises: see `Segmenter`."""
        if not isinstance(message.text, str):
            raise InputError(f"a message must be text (str), got {type(message.text).__name__}")
        if space is not None and space != self.space:
            raise SpaceMismatchError(self.space, space)
        if message.id is not None:
            if message.id in self.ids:
                raise InputError(f"message {self.count} has an id that was there before; ids must be different")
            number = _number(message.id)
            if number is not None and self.last_number is not None and number < self.last_number:
                raise InputError(
                    f"message {self.count} has id {number}, after {self.last_number}: messages must come in order"
                )
        return None if is_silent(message) else checked_vector(vector, self.space.dimension, self.space)

    def admit(self, message: Message) -> int:
        """Take a checked message in; gives its index."""
        if message.id is not None:
            self.ids[message.id] = None
            self.last_number = _number(message.id)
            if len(self.ids) > _IDS:
                del self.ids[next(iter(self.ids))]
        self.count += 1
        return self.count - 1


def check_ids(messages: Iterable[Message], space: Space) -> None:
    """Raise InputError unless ids are all different and, where they are whole numbers, ascending."""
    entry = Entry(space)
    seen: set[str] = set()
    for message in messages:
        if message.id in seen:
            raise InputError(f"message {entry.count} has an id that was there before; ids must be different")
        entry.check(_SILENCE if message.id is None else Message("system", "", id=message.id), None, None)
        entry.admit(message)
        if message.id is not None:
            seen.add(message.id)


def checked_matrix(vectors: ArrayLike | None, messages: Sequence[Message], space: Space) -> Array:
    """Vectors of all messages as float32 rows of length 1, shape (N, D); rows of silent messages may be anything.

    Raises:
        InputError: not one row a message, not finite, or all zeros. SpaceMismatchError: another dimension.
    """
    rows = np.zeros((len(messages), space.dimension), np.float32)
    spoken = [index for index, message in enumerate(messages) if not is_silent(message)]
    if not spoken:
        return rows
    try:
        given = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"vectors must be a rectangular array of numbers ({error})") from error
    if given.ndim != 2 or len(given) != len(messages):
        raise InputError(f"one vector for each of {len(messages)} messages is needed, got shape {given.shape}")
    if given.shape[1] != space.dimension:
        raise SpaceMismatchError(space, f"dimension {given.shape[1]}")
    for start in range(0, len(spoken), _CHUNK):
        part = spoken[start : start + _CHUNK]
        rows[part] = unit(given[part])
    for index in spoken:
        if not rows[index].any():
            raise InputError(f"the vector of message {index} is all zeros: it has no direction")
    return rows


_SILENCE = Message("system", "")


def _number(key: str) -> int | None:
    return int(key) if len(key) <= 18 and key.isascii() and key.isdigit() else None
