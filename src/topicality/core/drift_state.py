"""What drift remembers of one session between messages, and how that is written down."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from topicality.core.drift_window import KEPT, LAST, Seen
from topicality.errors import InputError

VERSION = 4
_SINCE_2: dict[str, Any] = {"alike": 0.0, "likes": 0.0, "kept": None}  # a state of version 1 knows nothing of these
_SINCE_4: dict[str, Any] = {"readings": None}  # nor one of version 3 of this; its window is left behind
_PACKED = frozenset({"running", "kept", "readings", "window", "lately"})


@dataclass(frozen=True, slots=True, eq=False)
class DriftState:
    """What is remembered of one session between messages. Compare by `to_dict`. Immutable.

    Attributes:
        messages: all messages seen. counted: those that were read (not small talk, not unchecked).
        seen_at: time of the last one, seconds. space: of the vectors, as text; "" when unnamed.
        running: shape (D,), float64, running mean of the vectors; None before the first.
        odds: log-odds that the conversation is off its topics. low, of: on-topic messages so far that looked off-topic,
            of how many. total, weight: their log-odds, summed, and how many. mean: running mean of the probabilities.
        alike, likes: their likeness (`core.drift_change`), summed, and of how many. kept: shape (K, M), int8, directions of
            the last on-topic messages, as `Landmarks.measurable` gave them; None before the first. readings: shape (K, 3),
            float32, of the same ones (`core.drift_memory.memory_of`); None when they are not known.
        felt: log-odds by the last messages together (`core.drift_window`); None where they cannot be seen, then `odds` count.
            window: what is remembered of up to five of them, newest first. lately: shape (K, M), int8, directions of the
            last two, newest last.
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
    readings: NDArray[np.float32] | None = None
    felt: float | None = None
    window: tuple[Seen, ...] = ()
    lately: NDArray[np.int8] | None = None
    mean: float | None = None
    drift_streak: int = 0
    off_topic_streak: int = 0
    armed: bool = True
    since: int | None = None

    def but(self, **changes: Any) -> DriftState:
        """This state with other values; as `dataclasses.replace`, four times as quick."""
        values = dict(zip(_NAMES, _VALUES(self), strict=True))
        values.update(changes)
        return DriftState(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same state, to the last bit."""
        plain = {name: getattr(self, name) for name in _NAMES if name not in _PACKED}
        running = None if self.running is None else _packed(self.running.astype("<f8", copy=False))
        kept = None if self.kept is None else _packed(self.kept)
        readings = None if self.readings is None else _packed(self.readings.astype("<f4", copy=False))
        lately = None if self.lately is None else _packed(self.lately)
        window = [list(seen) for seen in self.window]
        packed = {"running": running, "kept": kept, "readings": readings, "window": window, "lately": lately}
        return {"version": VERSION, **plain, **packed}

    @classmethod
    def from_dict(cls, data: object) -> DriftState:
        """A state from `to_dict`, also of versions 1 to 3. Raises InputError: another one, a missing or malformed value."""
        if not isinstance(data, Mapping) or data.get("version") not in (1, 2, 3, VERSION):
            raise InputError(f"a drift state of version {VERSION} is needed; start the session afresh")
        if data["version"] < VERSION:
            data = {**(_SINCE_2 if data["version"] == 1 else {}), **_SINCE_4, **data, "window": [], "lately": None}
            data = {"felt": None, **data}
        if data.keys() != _ENTRIES:
            raise InputError(f"a drift state has other entries than expected: {sorted(set(data) ^ _ENTRIES)}")
        values = {name: data[name] for name in _NAMES}
        for name, value in values.items():
            if name not in _PACKED and not _fits(name, value):
                raise InputError(f"a drift state has an unusable value for {name!r}")
        if values["odds"] is not None and not (0 < values["low"] < values["of"] and values["weight"] > 0):
            raise InputError("a drift state has counts that cannot be")
        if values["running"] is not None:
            values["running"] = _unpacked(values["running"], "<f8")
            if not np.isfinite(values["running"]).all():
                raise InputError("a drift state has an unusable vector")
        if values["kept"] is not None:
            values["kept"] = _rows(values, "kept", data["version"])
        values["readings"] = _readings(values["readings"], values["kept"])
        if values["lately"] is not None:
            values["lately"] = _rows(values, "lately", VERSION)
            if values["kept"] is not None and values["kept"].shape[1] != values["lately"].shape[1]:
                raise InputError("a drift state has remembered messages of two lengths")
        values["window"] = _window(values["window"], values["lately"])
        return cls(**values)


_NAMES = tuple(entry.name for entry in fields(DriftState))
_ENTRIES = {*_NAMES, "version"}
_VALUES = attrgetter(*_NAMES)


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
    if len(array) == 0:
        raise InputError("a drift state has an unusable vector")
    return array  # of bytes: nobody can write into it


def _rows(values: Mapping[str, Any], name: str, version: int) -> NDArray[np.int8]:
    """The remembered directions: one text; a list of one for each before version 3.

    How many they are is told by the window, or by the readings; without those they are as long as the vectors.
    """
    packed, running, readings, window = values[name], values["running"], values["readings"], values["window"]
    size = 0 if running is None else len(running)
    if version < 3:
        rows = [_unpacked(row, "i1") for row in packed] if isinstance(packed, list) else []
        packed = _packed(np.concatenate(rows)) if rows and all(len(row) == size for row in rows) else None
    array = _unpacked(packed, "i1") if isinstance(packed, str) and size else np.zeros(0, dtype=np.int8)
    if name == "lately":
        count = min(len(window), LAST - 1) if isinstance(window, list) else 0
    elif readings is not None:
        count = len(_unpacked(readings, "<f4")) // 3
    else:
        count = 0 if size == 0 or len(array) % size else len(array) // size
    if count == 0 or len(array) == 0 or len(array) % count or not array.reshape(count, -1).any(axis=1).all():
        raise InputError("a drift state has remembered messages that cannot be")
    return array.reshape(count, -1)


def _readings(packed: object, kept: NDArray[np.int8] | None) -> NDArray[np.float32] | None:
    if packed is None:
        return None
    array = _unpacked(packed, "<f4")
    if kept is None or len(array) != 3 * len(kept) or np.isinf(array).any():
        raise InputError("a drift state has readings that cannot be")
    return array.reshape(-1, 3)


def _window(given: object, lately: NDArray[np.int8] | None) -> tuple[Seen, ...]:
    seen: list[Any] = given if isinstance(given, list) else [given]
    shaped = all(isinstance(one, list) and len(one) == len(Seen._fields) and _is_seen(*one) for one in seen)
    window = tuple(Seen(*one) for one in seen) if shaped else ()
    directions = 0 if lately is None else len(lately)
    if not shaped or len(seen) > KEPT or directions != min(len(seen), LAST - 1):
        raise InputError("a drift state has last messages that cannot be")
    return window


def _is_seen(own: object, alone: object, context: object, *rest: object) -> bool:
    read = (value for value in (alone, context) if value is not None)
    return all(map(is_number, (own, *read, *rest))) and rest[Seen._fields.index("kept") - 3] in {0, 1}


def _fits(name: str, value: object) -> bool:
    if name == "space":
        return isinstance(value, str)
    if name == "armed":
        return isinstance(value, bool)
    if name in {"odds", "felt", "mean"}:
        return value is None or is_number(value)
    if name == "since":
        return value is None or (is_count(value) and value >= 0)
    if name in {"seen_at", "total", "alike"}:
        return is_number(value)
    return (
        is_number(value) and value >= 0 if name in {"low", "of", "weight", "likes"} else is_count(value) and value >= 0
    )
