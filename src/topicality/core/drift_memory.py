"""What a conversation's remembered on-topic messages have in common, and how the last messages stand to them. Pure.

All lengths are in spreads (`Landmarks.yardstick`) or in standard deviations of this conversation's own messages, so that they
mean the same with any encoder. What is not known is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        readings, readings_spread: mean and s.d. of their log-odds read alone, and with context.
    """

    size: int
    length: float
    nearest: float
    nearest_spread: float
    mean: float
    mean_spread: float
    readings: tuple[float, ...]
    readings_spread: tuple[float, ...]


def memory_of(cosines: NDArray[np.float32], readings: NDArray[np.float32], yardstick: float) -> Memory:
    """Sum up remembered messages.

    Args:
        cosines: shape (K, K), of each to each, in spreads. readings: shape (K, 3), log-odds read alone, and with context (NaN
            when unknown), and cosine to the nearest background subject in spreads.
    Cost: O(K²).
    """
    count = len(cosines)
    nan = float("nan")
    unknown = (nan, nan)
    if count == 0:
        return Memory(0, nan, nan, nan, nan, nan, unknown, unknown)
    sums = np.add.reduce(cosines, axis=0)  # each to each: by column is by row, and quicker
    length = float(max(np.add.reduce(sums) * yardstick, 1e-9)) ** 0.5 / count
    alone, context = (_middle(column) for column in readings[:, :2].T)
    usual = (alone[0], context[0])
    if count < _MANY:
        return Memory(count, length, nan, nan, nan, nan, usual, unknown)
    others = np.maximum.reduce(_but_the_same(cosines, yardstick), axis=0) - readings[:, 2]
    others = others[np.isfinite(others)]
    means = (sums - 1.0 / yardstick) / (count - 1)
    return Memory(count, length, *_middle(others), *_middle(means), usual, (alone[1], context[1]))


def standing(
    cosines: NDArray[np.float32],
    background: Sequence[float],
    readings: Sequence[Sequence[float]],
    memory: Memory,
    yardstick: float,
) -> list[list[float]]:
    """How each of A messages stands to what is remembered, in the order of the last six of `MESSAGE`.

    Args:
        cosines: shape (A, K), of each to each remembered one, in spreads. background: of each, to the nearest background
            subject. readings: of each, log-odds read alone and with context.
    """
    nan = float("nan")
    if memory.size == 0:
        return [[nan] * 6 for _ in background]
    tops = np.sort(_but_the_same(cosines, yardstick), axis=1)[:, -3:].tolist()
    means = (np.add.reduce(cosines, axis=1) / memory.size).tolist()
    usual = tuple(zip(memory.readings, memory.readings_spread, strict=True))
    found = []
    for top, mean, near, own in zip(tops, means, background, readings, strict=True):
        known = [value for value in top if value > -math.inf]
        nearest, three = (known[-1] - near, sum(known) / len(known) - near) if known else (nan, nan)
        unusual = [
            min(max((value - middle) / (spread + 1.0), -6.0), 6.0)
            for value, (middle, spread) in zip(own, usual, strict=True)
        ]
        found.append([nearest, three, mean / memory.length - near, mean, *unusual])
    return found


def bounded(reading: float | None) -> float:
    """Log-odds of one reading, or NaN."""
    return float("nan") if reading is None else min(max(reading, -_FURTHEST), _FURTHEST)


def _but_the_same(cosines: NDArray[np.float32], yardstick: float) -> NDArray[np.float32]:
    other = cosines.copy()  # quicker than np.where
    other[other >= _SAME / yardstick] = -np.inf
    return other


def _middle(values: NDArray[np.floating]) -> tuple[float, float]:
    if not len(values):
        return float("nan"), float("nan")
    mean = float(np.add.reduce(values)) / len(values)
    return mean, max(float(values @ values) / len(values) - mean * mean, 0.0) ** 0.5
