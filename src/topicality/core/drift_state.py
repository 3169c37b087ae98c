"""What drift remembers of one session between messages, and how that is written down."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from topicality.errors import InputError

VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class DriftState:
    """What is remembered of one session between messages. Compare by `to_dict`. Immutable.

    Attributes:
        messages: all messages seen. counted: those that were read (not small talk, not unchecked).
        seen_at: time of the last one, seconds. space: of the vectors, as text; "" when unnamed.
        running: shape (D,), float64, running mean of the vectors; None before the first.
        odds: log-odds that the conversation is off its topics. low, of: on-topic messages so far that looked off-topic,
            of how many. total, weight: their log-odds, summed, and how many. mean: running mean of the probabilities.
        drift_streak, off_topic_streak: messages in a row. armed: whether the next drift raises the alarm.
        since: messages counted since the last alarm; None before the first.
    """

    messages: int = 0
    counted: int = 0
    seen_at: float = 0.0
    space: str = ""
    running: NDArray[np.float64] | None = None
    odds: float | None = None
    low: float = 0.0
    of: float = 0.0
    total: float = 0.0
    weight: float = 0.0
    mean: float | None = None
    drift_streak: int = 0
    off_topic_streak: int = 0
    armed: bool = True
    since: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same state, to the last bit."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "running"}
        packed = None if self.running is None else base64.b64encode(self.running.astype("<f8").tobytes()).decode()
        return {"version": VERSION, **plain, "running": packed}

    @classmethod
    def from_dict(cls, data: object) -> DriftState:
        """A state from `to_dict`. Raises InputError: another version, a missing or a malformed value."""
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise InputError(f"a drift state of version {VERSION} is needed; start the session afresh")
        names = {entry.name for entry in fields(cls)}
        if set(data) != names | {"version"}:
            raise InputError(
                f"a drift state has other entries than expected: {sorted(set(data) ^ (names | {'version'}))}"
            )
        values = {name: data[name] for name in names}
        for name in names - {"running"}:
            if not _fits(name, values[name]):
                raise InputError(f"a drift state has an unusable value for {name!r}")
        if values["odds"] is not None and not (0 < values["low"] < values["of"] and values["weight"] > 0):
            raise InputError("a drift state has counts that cannot be")
        if values["running"] is not None:
            values["running"] = _unpacked(values["running"])
        return cls(**values)


def is_number(value: object) -> TypeGuard[float]:
    """A finite number, not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> TypeGuard[int]:
    """A whole number, not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _unpacked(packed: object) -> NDArray[np.float64]:
    try:
        array = np.frombuffer(base64.b64decode(str(packed), validate=True), dtype="<f8").astype(np.float64)
    except ValueError as error:
        raise InputError("a drift state has an unusable running vector") from error
    if len(array) == 0 or not np.isfinite(array).all():
        raise InputError("a drift state has an unusable running vector")
    array.flags.writeable = False
    return array


def _fits(name: str, value: object) -> bool:
    if name == "space":
        return isinstance(value, str)
    if name == "armed":
        return isinstance(value, bool)
    if name in {"odds", "mean"}:
        return value is None or is_number(value)
    if name == "since":
        return value is None or (is_count(value) and value >= 0)
    if name in {"seen_at", "total"}:
        return is_number(value)
    return is_number(value) and value >= 0 if name in {"low", "of", "weight"} else is_count(value) and value >= 0
