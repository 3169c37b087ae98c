"""Without learned heads: an encoder or a language that they do not know. Nothing but unit vectors is needed.

Offline a dynamic program whose penalty is measured on the conversation itself; online the quantile of what this
conversation has shown so far. Neither compares a cosine with a fixed number: that belongs to an encoder.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from math import ceil

import numpy as np

from topicality.core.segment.whole import depth
from topicality.vectors import Array

_GRAIN = {"fine": 1.0, "balanced": 1.2, "coarse": 1.4}  # penalty of a segment, in units of the mean distance
RATES = {"fine": 0.35, "balanced": 0.25, "coarse": 0.15}  # share of messages that start a segment, online
_KEPT = 512
_LONGEST = 400  # messages of a segment that are looked at


class Quantile:
    """The latest 512 values, kept sorted. Bounded; adding and asking cost microseconds."""

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values: deque[float] = deque(values, maxlen=_KEPT)
        self.ordered = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        """Take one in; the oldest of more than 512 goes."""
        if len(self.values) == _KEPT:
            del self.ordered[self.ordered.index(self.values[0])]
        self.values.append(value)
        insort(self.ordered, value)

    def lowest(self, share: float) -> float:
        """The greatest of the lowest `share` of the values, share in (0, 1)."""
        return self.ordered[max(0, ceil(share * len(self.ordered)) - 1)]

    def highest(self, share: float) -> float:
        """The least of the highest `share` of the values, share in (0, 1)."""
        return self.ordered[-max(1, ceil(share * len(self.ordered)))]


def cut_by_program(vectors: Array, granularity: str = "balanced") -> list[int]:
    """Where segments start, by dynamic programming over the whole transcript.

    Every segment pays its scatter (length less squared length of its sum, over its length) and a penalty: the mean
    distance of two messages of this conversation, times 1.0, 1.2 or 1.4 for fine, balanced and coarse.

    Args:
        vectors: shape (N, D), rows of length 1.
    Returns:
        Indices, ascending, without 0.
    Cost: O(N * min(N, 400) * D) multiplications, in float64. Source: kernel change-point detection (Arlot et al. 2019);
        the automatic penalty is our own.
    """
    rows = np.asarray(vectors, np.float64)
    count = len(rows)
    if count < 3:
        return []
    total = rows.sum(axis=0)
    mean = (total @ total - count) / (count * (count - 1))
    penalty = _GRAIN[granularity] * max(1.0 - mean, 1e-3)
    sums = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
    squares = (sums * sums).sum(axis=1)
    best = np.zeros(count + 1)
    came = np.zeros(count + 1, np.intp)
    for end in range(1, count + 1):
        first = max(0, end - _LONGEST)
        length = np.arange(end - first, 0, -1)
        scatter = length - (squares[end] + squares[first:end] - 2.0 * sums[first:end] @ sums[end]) / length
        cost = best[first:end] + scatter
        at = int(cost.argmin())
        best[end], came[end] = cost[at] + penalty, first + at
    starts = []
    end = count
    while end > 0:
        end = int(came[end])
        starts.append(end)
    return sorted(starts)[1:]


def cut_meeting(
    vectors: Array, lengths: Sequence[int], *, words: int = 120, width: int = 4, deep: float = 1.5
) -> list[int]:
    """Where a long meeting of several people turns, from the valleys between blocks of about `words` words.

    Only valleys deeper than the mean by `deep` standard deviations, and at least 20 messages apart, count. Measured on
    six meetings: better than no boundary at these settings, worse at 15 of 36 others; so it is not the default.

    Args:
        vectors: shape (N, D), rows of length 1. lengths: words of each message.
    """
    count, apart = len(lengths), 20
    blocks, filled = [0], 0
    for index, length in enumerate(lengths):
        if filled >= words:
            blocks.append(index)
            filled = 0
        filled += length
    size = len(blocks)
    if size < 3 * width:
        return []
    weights = np.minimum(np.asarray(lengths, np.float32), 120.0)[:, None]
    means = np.add.reduceat(vectors * weights, blocks, axis=0)
    means /= np.linalg.norm(means, axis=1, keepdims=True) + 1e-9
    sums = np.concatenate([np.zeros((1, means.shape[1])), np.cumsum(means, axis=0)])
    likeness = np.ones(size, np.float32)
    for at in range(2, size - 1):
        left, right = sums[at] - sums[max(0, at - width)], sums[min(size, at + width)] - sums[at]
        likeness[at] = left @ right / (np.linalg.norm(left) * np.linalg.norm(right) + 1e-9)
    valleys = depth(likeness[2 : size - 1], reach=width * 2)
    least = float(valleys.mean() + deep * valleys.std())
    taken: list[int] = []
    for valley in np.argsort(-valleys, kind="stable"):
        if valleys[valley] < least:
            break
        at = blocks[int(valley) + 2]
        if at >= apart and count - at >= apart and all(abs(at - other) >= apart for other in taken):
            taken.append(at)
    return sorted(taken)
