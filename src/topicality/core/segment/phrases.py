"""Words and pairs of words as places in a table of weights. Places are hashes, so that a table holds no word.

Vectors say what a message is about; how it is put ("and what if", "is there anything else") often says more about whether a
topic starts, and most of that is lost in a vector. Source: the hashing trick (Weinberger et al. 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from zlib import crc32

PLACES = 8192
_SHIFT = 19  # a 32-bit hash keeps its highest 13 bits
_WORDS = 40  # of a message that are read
_LEFT, _RIGHT, _MASK = 2654435761, 2246822519, 0xFFFFFFFF  # mix two hashes into one
_START, _OPENING, _ENDING, _ASKS = (crc32(mark) for mark in (b"<", b"^", b"$", b"?"))


def places(words: Sequence[str], *, asks: bool) -> list[int]:
    """Places in [0, PLACES) of a message: its first 40 words, pairs of neighbours, its first three and its last three.

    Args:
        words: in order, lower case. asks: whether it has a question mark.
    Returns:
        In order, each once; at least one.
    Cost: about 10 microseconds for a sentence or two.
    """
    hashed = [_FIRST, *map(_hashed, words[:_WORDS])]
    found = {place for place, _, _ in hashed}
    found |= {(left + right & _MASK) >> _SHIFT for (_, left, _), (_, _, right) in pairwise(hashed)}
    found.add(_run(_OPENING, hashed[1:4]))
    found.add(_run(_ENDING, hashed[-3:]))
    if asks:
        found.add(_ASKS >> _SHIFT)
    return sorted(found)


def _run(mark: int, hashed: list[tuple[int, int, int]]) -> int:
    for _, _, right in hashed:
        mark = mark * _LEFT + right & _MASK
    return mark >> _SHIFT


def _parts(value: int) -> tuple[int, int, int]:
    """The place of a hash, and what it adds to a pair as the left and as the right one."""
    return value >> _SHIFT, value * _LEFT, value * _RIGHT + 97


@lru_cache(maxsize=16384)
def _hashed(word: str) -> tuple[int, int, int]:
    return _parts(crc32(word.encode()))


_FIRST = _parts(_START)
