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

VERSION = 2
_SINCE_2: dict[str, Any] = {"alike": 0.0, "likes": 0.0, "kept": None}  # a state of version 1 knows nothing of these


@dataclass(frozen=True, slots=True, eq=False)
class DriftState:
    """What is remembered of one session between messages. Compare by `to_dict`. Immutable.

    Attributes:
        messages: all messages seen. counted: those that were read (not small talk, not unchecked).
        seen_at: time of the last one, seconds. space: of the vectors, as text; "" when unnamed.
        running: shape (D,), float64, running mean of the vectors; None before the first.
        odds: log-odds that the conversation is off its topics. low, of: on-topic messages so far that looked off-topic,
            of how many. total, weight: their log-odds, summed, and how many. mean: running mean of the probabilities.
        alike, likes: their likeness (`core.drift_change`), summed, and of how many. kept: shape (K, D), int8, directions of
            the last on-topic messages; None before the first.
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
    alike: float = 0.0
    likes: float = 0.0
    kept: NDArray[np.int8] | None = None
    mean: float | None = None
    drift_streak: int = 0
    off_topic_streak: int = 0
    armed: bool = True
    since: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same state, to the last bit."""
        plain = {
            entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in {"running", "kept"}
        }
        running = None if self.running is None else _packed(self.running.astype("<f8"))
        kept = None if self.kept is None else [_packed(row) for row in self.kept]
        return {"version": VERSION, **plain, "running": running, "kept": kept}

    @classmethod
    def from_dict(cls, data: object) -> DriftState:
        """A state from `to_dict`, also of version 1. Raises InputError: another version, a missing or malformed value."""
        if not isinstance(data, Mapping) or data.get("version") not in (1, VERSION):
            raise InputError(f"a drift state of version {VERSION} is needed; start the session afresh")
        if data["version"] == 1:
            data = {**_SINCE_2, **data}
        names = {entry.name for entry in fields(cls)}
        if set(data) != names | {"version"}:
            raise InputError(
                f"a drift state has other entries than expected: {sorted(set(data) ^ (names | {'version'}))}"
            )
        values = {name: data[name] for name in names}
        for name in names - {"running", "kept"}:
            if not _fits(name, values[name]):
                raise InputError(f"a drift state has an unusable value for {name!r}")
        if values["odds"] is not None and not (0 < values["low"] < values["of"] and values["weight"] > 0):
            raise InputError("a drift state has counts that cannot be")
        if values["running"] is not None:
            values["running"] = _unpacked(values["running"], "<f8").astype(np.float64)
            values["running"].flags.writeable = False
        if values["kept"] is not None:
            values["kept"] = _rows(values["kept"], values["running"])
        return cls(**values)


def is_number(value: object) -> TypeGuard[float]:
    """A finite number, not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> TypeGuard[int]:
    """A whole number, not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _unpacked(packed: object, kind: str) -> NDArray[Any]:
    try:
        array = np.frombuffer(base64.b64decode(str(packed), validate=True), dtype=kind)
    except ValueError as error:
        raise InputError("a drift state has an unusable vector") from error
    if len(array) == 0 or not np.isfinite(array).all():
        raise InputError("a drift state has an unusable vector")
    return array


def _rows(packed: object, running: NDArray[np.float64] | None) -> NDArray[np.int8]:
    rows = [_unpacked(row, "i1") for row in packed] if isinstance(packed, list) else []
    if not rows or running is None or any(len(row) != len(running) or not row.any() for row in rows):
        raise InputError("a drift state has remembered messages that cannot be")
    array = np.array(rows, dtype=np.int8)
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
    if name in {"seen_at", "total", "alike"}:
        return is_number(value)
    return (
        is_number(value) and value >= 0 if name in {"low", "of", "weight", "likes"} else is_count(value) and value >= 0
    )
