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
    hashes = [_START, *map(_hashed, words[:_WORDS])]
    found = {value >> _SHIFT for value in hashes}
    found |= {(left * _LEFT + right * _RIGHT + 97 & _MASK) >> _SHIFT for left, right in pairwise(hashes)}
    found.add(_run(_OPENING, hashes[1:4]))
    found.add(_run(_ENDING, hashes[-3:]))
    if asks:
        found.add(_ASKS >> _SHIFT)
    return sorted(found)


def _run(mark: int, hashes: list[int]) -> int:
    for value in hashes:
        mark = mark * _LEFT + value * _RIGHT + 97 & _MASK
    return mark >> _SHIFT


@lru_cache(maxsize=16384)
def _hashed(word: str) -> int:
    return crc32(word.encode())
