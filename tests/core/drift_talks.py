"""Conversations for tests of drift: messages as vectors with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.core.drift import Heard, Reading, Settings, step
from topicality.core.drift_state import DriftState
from topicality.core.landmarks import Landmarks


def near(direction: Any, index: int, spread: float) -> NDArray[np.float64]:
    """A message about it: no two are the same."""
    return np.asarray(direction + spread * np.random.default_rng(index).normal(size=len(direction)))


def told(
    messages: Sequence[tuple[Any, Heard | float | None]],
    landmarks: Landmarks | None,
    settings: Settings | None = None,
    start: DriftState | None = None,
) -> tuple[DriftState, list[Reading]]:
    """A second between any two; the state after the last, and what was read after each."""
    state, readings = start, []
    for index, (vector, probability) in enumerate(messages):
        state, reading = step(state, vector, probability, now=float(index), settings=settings, landmarks=landmarks)
        readings.append(reading)
    assert state is not None
    return state, readings


def alarms(readings: Sequence[Reading]) -> list[int]:
    return [index for index, reading in enumerate(readings) if reading.alarm]
