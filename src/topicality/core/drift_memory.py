"""What a conversation's remembered on-topic messages have in common, and how the last messages stand to them. Pure.

All lengths are in spreads (`Landmarks.yardstick`) or in standard deviations of this conversation's own messages, so that they
mean the same with any encoder. What is not known is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MESSAGE = (
    "own",
    "alone",
    "context",
    "background",
    "distinct",
    "nearest",
    "three",
    "centre",
    "mean",
    "unusual_alone",
    "unusual_context",
)
_SAME = 0.9995  # cosine from which a message is the same text again, which is no witness
_MANY = 3  # remembered messages, at least, that tell how they vary
_FURTHEST = 8.0  # log-odds of one reading


class Memory(NamedTuple):
    """What the remembered messages have in common; NaN where there are none, or too few.

    Attributes:
        size: how many. length: of their mean direction, (0, 1]: 1 when they are all the same.
        nearest, nearest_spread: mean and s.d. of how much nearer each is to its nearest other one than to the nearest
            background subject. mean, mean_spread: of its mean cosine to the others.
        readings, readings_spread: mean and s.d., shape (2,), of their log-odds read alone and with context.
    """

    size: int
    length: float
    nearest: float
    nearest_spread: float
    mean: float
    mean_spread: float
    readings: Floats
    readings_spread: Floats


def memory_of(cosines: NDArray[np.float32], readings: NDArray[np.float32], yardstick: float) -> Memory:
    """Sum up remembered messages.

    Args:
        cosines: shape (K, K), of each to each, in spreads. readings: shape (K, 3), log-odds read alone, and with context (NaN
            when unknown), and cosine to the nearest background subject in spreads.
    Cost: O(K²).
    """
    count = len(cosines)
    nan = float("nan")
    unknown = np.full(2, nan)
    if count == 0:
        return Memory(0, nan, nan, nan, nan, nan, unknown, unknown)
    sums = np.add.reduce(cosines, axis=1)
    length = float(max(np.add.reduce(sums) * yardstick, 1e-9)) ** 0.5 / count
    read = readings[:, :2].astype(np.float64)
    usual = np.add.reduce(read, axis=0) / count
    if count < _MANY:
        return Memory(count, length, nan, nan, nan, nan, usual, unknown)
    spread = np.sqrt(np.maximum(np.add.reduce(read * read, axis=0) / count - usual * usual, 0.0))
    others = np.where(cosines < _SAME / yardstick, cosines, -np.inf).max(axis=1) - readings[:, 2]
    others = others[np.isfinite(others)]
    means = (sums - 1.0 / yardstick) / (count - 1)
    nearest, mean = _middle(others), _middle(means)
    return Memory(count, length, *nearest, *mean, usual, spread)


def standing(
    cosines: NDArray[np.float32], background: Floats, readings: Floats, memory: Memory, yardstick: float
) -> Floats:
    """How messages stand to what is remembered, shape (A, 6), in the order of the last six of `MESSAGE`.

    Args:
        cosines: shape (A, K), of each to each remembered one, in spreads. background: shape (A,), to the nearest background
            subject. readings: shape (A, 2), log-odds read alone and with context.
    """
    found = np.full((len(cosines), 6), np.nan)
    if memory.size == 0:
        return found
    same = _SAME / yardstick
    for row, values in enumerate(cosines.tolist()):
        top = sorted(value for value in values if value < same)[-3:]
        if top:
            found[row, :2] = top[-1], sum(top) / len(top)
    found[:, 3] = np.add.reduce(cosines, axis=1) / memory.size
    found[:, 2] = found[:, 3] / memory.length
    found[:, :3] -= background[:, None]
    found[:, 4:] = np.minimum(np.maximum((readings - memory.readings) / (memory.readings_spread + 1.0), -6.0), 6.0)
    return found


def bounded(reading: float | None) -> float:
    """Log-odds of one reading, or NaN."""
    return float("nan") if reading is None else min(max(reading, -_FURTHEST), _FURTHEST)


def _middle(values: NDArray[np.floating]) -> tuple[float, float]:
    if not len(values):
        return float("nan"), float("nan")
    mean = float(np.add.reduce(values)) / len(values)
    return mean, max(float(values @ values) / len(values) - mean * mean, 0.0) ** 0.5
