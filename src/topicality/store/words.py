"""Word postings: which passages a term stands in, packed in blocks, and BM25 over them.

A posting is five bytes: the passage's place in its block of 1,024, how often the term stands in it, and how long it is.
A query is then ranked exactly from the postings of its terms alone. (SQLite's FTS5 ranks every match by a call each, and
capping its postings lost most of the best fifty: docs/store.md.)
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

K1 = 1.2
B = 0.75
BLOCK = 1024
POSTING = np.dtype([("place", "<u2"), ("count", "u1"), ("length", "<u2")])
_PACKED = struct.Struct("<HBH").pack  # the same, without numpy's cost for each

Ids = NDArray[np.int64]


def postings(
    passages: Iterable[tuple[int, Sequence[str]]], wanted: Collection[str] | None = None
) -> dict[tuple[str, int], tuple[bytes, int]]:
    """By term and block, the packed postings of passages given as (number, terms), and how many they are.

    Args:
        wanted: only these terms; None for all.
    """
    packed: dict[tuple[str, int], bytearray] = {}
    for number, terms in passages:
        block, place = divmod(number, BLOCK)
        length = min(len(terms), 65535)
        for value, count in _counted(terms, wanted):
            packed.setdefault((value, block), bytearray()).extend(_PACKED(place, min(count, 255), length))
    return {key: (bytes(data), len(data) // POSTING.itemsize) for key, data in packed.items()}


def without(data: bytes | memoryview, numbers: Iterable[int], block: int) -> tuple[bytes, int]:
    """A block's postings without those of some passages, and how many are left."""
    rows = np.frombuffer(data, POSTING)
    places = [number - block * BLOCK for number in numbers]
    kept = rows[~np.isin(rows["place"], places)]
    return kept.tobytes(), len(kept)


def unpack(rows: Sequence[tuple[int, bytes | memoryview]]) -> tuple[Ids, NDArray[np.float64], NDArray[np.float64]]:
    """(first number of a block, its data) to passage numbers, counts and lengths, in the order given."""
    merged = np.frombuffer(b"".join(data for _, data in rows), POSTING)
    sizes = [len(data) // POSTING.itemsize for _, data in rows]
    firsts = np.repeat(np.array([first for first, _ in rows], np.int64), sizes)
    return firsts + merged["place"], merged["count"].astype(np.float64), merged["length"].astype(np.float64)


def idf(frequency: int, passages: int) -> float:
    """How much it says that a term occurs; above 0 even for a term that is everywhere."""
    return math.log(1.0 + (passages - frequency + 0.5) / (frequency + 0.5))


def weights(
    counts: NDArray[np.float64], lengths: NDArray[np.float64], *, frequency: int, passages: int, mean_length: float
) -> NDArray[np.float64]:
    """One term's share of BM25 (Robertson and Zaragoza 2009; k1 1.2, b 0.75) in each passage it stands in."""
    norm = K1 * (1.0 - B + B * lengths / max(mean_length, 1e-9))
    return idf(frequency, passages) * counts * (K1 + 1.0) / (counts + norm)


def best(scores: NDArray[np.float64], limit: int) -> Ids:
    """Places of the highest scores above 0, best first, the later place first among equals.

    Cost: O(N), not O(N log N).
    """
    found = np.flatnonzero(scores > 0.0)
    if len(found) > limit > 0:
        edge = np.partition(scores[found], len(found) - limit)[len(found) - limit]
        found = found[scores[found] >= edge]
    order = np.lexsort((-found, -scores[found]))
    return found[order[:limit]]


def tally(terms: Sequence[str], wanted: Mapping[str, int]) -> dict[str, int]:
    """How often each wanted term stands among the terms."""
    found: dict[str, int] = {}
    for value in terms:
        if value in wanted:
            found[value] = found.get(value, 0) + 1
    return found


def _counted(terms: Sequence[str], wanted: Collection[str] | None) -> Iterable[tuple[str, int]]:
    if wanted is None:
        return Counter(terms).items()
    return [(value, terms.count(value)) for value in wanted if value in terms]
