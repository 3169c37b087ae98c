"""What a whole transcript adds to a message's features: both sides of the gap before it, and how it compares with others.

Source: block comparison and depth scores of TextTiling (Hearst 1997), here on message vectors and as features only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topicality.core.segment.cues import Cues, Words, overlap
from topicality.core.segment.features import CONVERSATION, Row, conversation
from topicality.vectors import Array

_WIDTHS = (1, 2, 3, 4, 6)  # messages on each side that are compared as blocks
_DEEP = (2, 3, 4)
_WORD_SPAN = 4
_CHUNK = 512  # messages whose vectors fit a cache
_SECOND_NEXT = tuple(
    Cues._fields.index(name) for name in ("log_words", "question", "asking", "thanks", "closing", "only_assent", "user")
)
TWO_SIDED = (
    *(f"block{width}" for width in _WIDTHS),
    *(f"{what}{width}" for width in _DEEP for what in ("depth", "rank")),
    "rank_best3", "rank_cosine1", "lowest2", "lowest3", "lowest_best3",
    "cosine1_next", "cosine1_second", "best3_next", "best3_second", "best3_previous",
    "words_across", "words_return", "rank_words", "log_length", "log_left", "z_block2",
    *(f"aspect_block{width}" for width in _DEEP), *(f"aspect_{what}{width}" for width in _DEEP for what in ("depth", "rank")),
    *(f"second_{Cues._fields[k]}" for k in _SECOND_NEXT), *(f"whole_{name}" for name in CONVERSATION),
)  # fmt: skip


def two_sided(rows: Sequence[Row], vectors: Array, sums: list[float]) -> Array:
    """The features of `TWO_SIDED` for each message, shape (N, len(TWO_SIDED)), float32.

    Args:
        rows: of all N messages. vectors: shape (N, D), float32, length 1. sums: the trail's running sums at the end.
    Cost: O(N * D); about 40 microseconds a message.
    """
    count = len(rows)
    blocks = block_cosines(vectors, _WIDTHS)
    best3 = np.array([row.best3 for row in rows], np.float32)
    cosine = np.array([row.cosines[0] for row in rows], np.float32)
    across, again = _words(rows)
    columns = [blocks[width] for width in _WIDTHS]
    for width in _DEEP:
        columns += [depth(blocks[width]), rank(blocks[width])]
    columns += [rank(best3), rank(cosine)]
    columns += [_above_neighbours(line) for line in (blocks[2], blocks[3], best3)]
    columns += [_moved(cosine, -1), _moved(cosine, -2), _moved(best3, -1), _moved(best3, -2), _moved(best3, 1)]
    columns += [across, again, rank(across)]
    inner = blocks[2][1:] if count > 1 else blocks[2]
    columns += [
        np.full(count, np.log(count)),
        np.log1p(count - 1.0 - np.arange(count)),
        (blocks[2] - inner.mean()) / (inner.std() + 0.05),
    ]
    aspects = block_cosines(np.stack([row.aspect for row in rows]), _DEEP)
    columns += [aspects[width] for width in _DEEP]
    for width in _DEEP:
        columns += [depth(aspects[width]), rank(aspects[width])]
    second = np.zeros((count, len(_SECOND_NEXT)), np.float32)
    if count > 2:
        second[:-2] = [[row.cues[k] for k in _SECOND_NEXT] for row in rows[2:]]
    whole = np.tile(np.array(conversation(sums), np.float32), (count, 1))
    return np.concatenate([np.stack(columns, axis=1), second, whole], axis=1).astype(np.float32)


def block_cosines(vectors: Array, widths: Sequence[int]) -> dict[int, Array]:
    """Cosine of the sum of `width` vectors before each gap with that of those after it; 0 for the first.

    The sums themselves are never made: their products are sums of products of near neighbours.

    Returns:
        Shape (N,), float32, for each width.
    Cost: O(N * D * largest width).
    """
    count = len(vectors)
    reach = max(widths)
    # products[k, i] is the product of message i with the one k before it; zeros beyond both ends
    products = np.zeros((2 * reach, count + 2 * reach))
    for start in range(0, count, _CHUNK):
        end = min(count, start + _CHUNK)
        for lag in range(2 * reach):
            first = max(start, lag)
            if first < end:
                near = np.einsum("ij,ij->i", vectors[first:end], vectors[first - lag : end - lag])
                products[lag, reach + first : reach + end] = near
    at = reach + np.arange(count)
    found: dict[int, Array] = {}
    for width in widths:
        left, right, across = np.zeros(count), np.zeros(count), np.zeros(count)
        for one in range(width):
            for other in range(width):
                lag = abs(one - other)
                left += products[lag, at - 1 - min(one, other)]
                right += products[lag, at + max(one, other)]
                across += products[1 + one + other, at + other]
        lengths = np.sqrt(np.maximum(left, 0.0) * np.maximum(right, 0.0))
        cosines: Array = (across / (lengths + 1e-6)).astype(np.float32)
        cosines[:1] = 0.0
        found[width] = cosines
    return found


def depth(line: Array, reach: int = 8) -> Array:
    """How far a line climbs on both sides of each point, within reach; the two climbs are added."""
    count = len(line)
    left, right = line.copy(), line.copy()
    for step in range(1, min(reach + 1, count)):
        left[step:] = np.maximum(left[step:], line[:-step])
        right[:-step] = np.maximum(right[:-step], line[step:])
    climbed: Array = (left - line) + (right - line)
    return climbed


def rank(line: Array) -> Array:
    """Where each value stands among all: 0 for the lowest, 1 for the highest."""
    ranks = np.empty(len(line), np.float32)
    ranks[np.argsort(line, kind="stable")] = np.arange(len(line))
    return np.asarray(ranks / max(len(line) - 1, 1), dtype=np.float32)


def _moved(line: Array, step: int) -> Array:
    """Row i has the value of row i - step; 1 where there is none."""
    moved: Array = np.full_like(line, 1.0)
    if abs(step) < len(line):
        if step > 0:
            moved[step:] = line[:-step]
        else:
            moved[:step] = line[-step:]
    return moved


def _above_neighbours(line: Array) -> Array:
    lowest = _moved(line, 1)
    for step in (-1, 2, -2):
        lowest = np.minimum(lowest, _moved(line, step))
    return np.asarray(line - lowest, dtype=np.float32)


def _words(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Overlap of the words of four messages on each side of the gap, and of the message with the three after it."""
    across, again = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
    words: list[Words] = [row.words for row in rows]
    for index in range(1, len(rows)):
        before: Words = frozenset().union(*words[max(0, index - _WORD_SPAN) : index])
        after: Words = frozenset().union(*words[index + 1 : index + _WORD_SPAN])
        across[index] = overlap(before, after | words[index])
        again[index] = overlap(words[index], after)
    return across, again
