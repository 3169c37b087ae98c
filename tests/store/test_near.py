"""The index in memory: exact where it says so, close where it does not, and bounded."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from topicality.records import Scope
from topicality.store import near as room
from topicality.store import rules
from topicality.store.near import Near, NearCache
from topicality.types import Space
from topicality.vectors import Array, unit

COUNT, DIMENSION = 20_000, 100  # above EXACT, and no multiple of 64
SCOPE = Scope("ann", "c1")


def _clustered(count: int, seed: int) -> Array:
    dice = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((200, DIMENSION))
    return unit(centres[dice.integers(0, 200, count)] + 0.8 * dice.standard_normal((count, DIMENSION)))


@pytest.fixture(scope="module")
def blobs() -> list[bytes]:
    space = Space("near", DIMENSION)
    return [rules.encode(vector, space) for vector in _clustered(COUNT, 2)]


def _filled(blobs: list[bytes], room_for: int) -> Near:
    near = Near(DIMENSION, room_for)
    for start in range(0, len(blobs), 7000):
        numbers = np.arange(start + 1, min(start + 7000, len(blobs)) + 1)
        sides = (numbers % 2).astype(np.int8)
        near.extend((3 << 32) | numbers, numbers, sides, numbers.astype(np.float64), blobs[start : start + 7000])
    return near


def _exact(blobs: list[bytes], query: Array, limit: int, allowed: NDArray[np.bool_] | None = None) -> list[int]:
    packed = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), -1)
    scales = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    scores = (packed[:, 4:].view(np.int8).astype(np.float32) * scales) @ query
    scores = scores if allowed is None else np.where(allowed, scores, -2.0)
    return [int(place) + 1 for place in np.argsort(-scores, kind="stable")[:limit]]


def _never(ids: NDArray[np.int64]) -> tuple[NDArray[np.int8], Array]:
    raise AssertionError(f"{len(ids)} vectors were read again")


def test_a_small_index_is_exact(blobs: list[bytes]) -> None:
    small = blobs[:5000]
    near = _filled(small, 1 << 30)
    for query in _clustered(10, 3):
        ids, scores = near.search(query, 50, SCOPE, _never)
        found = (ids & 0xFFFFFFFF).tolist()
        assert found == _exact(small, query, 50)
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_large_index_finds_nearly_all(blobs: list[bytes], whole: bool) -> None:
    near = _filled(blobs, 1 << 30 if whole else 1 << 20)
    assert near.whole is whole
    read: list[int] = []

    def fetch(ids: NDArray[np.int64]) -> tuple[NDArray[np.int8], Array]:
        read.append(len(ids))
        some = np.array([np.frombuffer(blobs[key], np.uint8) for key in (ids & 0xFFFFFFFF) - 1])
        return some[:, 4:].view(np.int8), np.ascontiguousarray(some[:, :4]).view(np.float32).ravel()

    recall = []
    for query in _clustered(20, 4):
        ids, _ = near.search(query, 10, SCOPE, _never if whole else fetch)
        recall.append(len(set((ids & 0xFFFFFFFF).tolist()) & set(_exact(blobs, query, 10))) / 10)
    assert np.mean(recall) >= 0.98
    assert whole or max(read) <= room.BLOCK


def test_filters_come_before_the_shortlist(blobs: list[bytes]) -> None:
    """A narrow filter on a large index loses nothing: it is not applied to what a wide search happened to find."""
    near = _filled(blobs, 1 << 30)
    scope = Scope("ann", "c1", ((100, 120),), sides=("user",))
    numbers = np.arange(1, COUNT + 1)
    allowed = (numbers >= 100) & (numbers <= 120) & (numbers % 2 == 0)
    for query in _clustered(5, 5):
        ids, _ = near.search(query, 20, scope, _never)
        assert (ids & 0xFFFFFFFF).tolist() == _exact(blobs, query, int(allowed.sum()), allowed)


def test_a_wide_filter_on_a_large_index_lets_nothing_through(blobs: list[bytes]) -> None:
    near = _filled(blobs, 1 << 30)
    first = 3001  # leaves 17,000, still more than are compared one by one
    assert first - 1 < COUNT - room.EXACT
    allowed = np.arange(1, COUNT + 1) >= first
    recall = []
    for query in _clustered(10, 7):
        ids, _ = near.search(query, 10, Scope("ann", "c1", since=float(first)), _never)
        found = (ids & 0xFFFFFFFF).tolist()
        assert min(found) >= first
        recall.append(len(set(found) & set(_exact(blobs, query, 10, allowed))) / 10)
    assert np.mean(recall) >= 0.98


def test_what_was_forgotten_is_not_found(blobs: list[bytes]) -> None:
    near = _filled(blobs[:100], 1 << 30)
    query = rules.decode(blobs[41])
    ids, _ = near.search(query, 1, SCOPE, _never)
    near.forget(ids)
    near.forget(ids)
    again, _ = near.search(query, 100, SCOPE, _never)
    assert ids[0] not in again
    assert (len(again), near.dead) == (99, 1)


def test_passages_without_a_vector_are_kept_for_filters_only() -> None:
    near = Near(DIMENSION, 1 << 30)
    one = rules.encode(np.ones(DIMENSION), Space("near", DIMENSION))
    near.extend(np.array([1, 2]), np.array([1, 2]), np.zeros(2, np.int8), np.array([1.0, np.nan]), [None, one])
    ids, _ = near.search(unit(np.ones(DIMENSION)), 5, SCOPE, _never)
    assert ids.tolist() == [2]
    assert near.matching(Scope("ann", "c1", since=0.0)).tolist() == [True, False]


def test_the_cache_is_bounded(blobs: list[bytes]) -> None:
    cache = NearCache(1_000_000)
    for name in range(30):
        near = cache.get(name, DIMENSION)
        if near.size == 0:
            numbers = np.arange(1, 1001)
            near.extend(numbers, numbers, np.zeros(1000, np.int8), np.zeros(1000), blobs[:1000])
    held = [near.held for near in cache._held.values()]
    assert sum(held[:-1]) <= 1_000_000
    assert 29 in cache._held
    assert cache.get(0, DIMENSION).size == 0


def test_rounding_moves_a_cosine_by_less_than_a_hundredth() -> None:
    space = Space("near", 384)
    dice = np.random.default_rng(6)
    worst = 0.0
    for _ in range(300):
        one, two = unit(dice.standard_normal(384) ** 3), unit(dice.standard_normal(384))
        two = unit(one + dice.uniform(0, 2) * two)
        worst = max(worst, abs(float(rules.decode(rules.encode(one, space)) @ two) - float(one @ two)))
    assert worst < 0.01
