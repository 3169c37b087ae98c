"""The cache around an encoder: what it asks for, what it keeps, and for how long."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.embed import CachedEmbedder
from topicality.errors import ConfigError, EmbedError
from topicality.ports import Embedder
from topicality.testing import EmbedderContract, WordEmbedder
from topicality.vectors import Array


class TestCached(EmbedderContract):
    def make(self) -> Embedder:
        return CachedEmbedder(WordEmbedder())


class TestCachedThatKeepsNothing(EmbedderContract):
    def make(self) -> Embedder:
        return CachedEmbedder(WordEmbedder(), 0)


class TestCachedThatIsTooSmall(EmbedderContract):
    """Fewer entries than one call has texts."""

    def make(self) -> Embedder:
        return CachedEmbedder(WordEmbedder(), 3)


class TestWordEmbedder(EmbedderContract):
    """The encoder that the tests use passes the contract itself."""

    def make(self) -> Embedder:
        return WordEmbedder()


def test_only_what_is_not_kept_is_asked_for_each_text_once_and_in_one_call() -> None:
    inner = WordEmbedder()
    cached = CachedEmbedder(inner)
    cached.embed(["a", "b", "a"])
    cached.embed(["b", "c", "a", "c"])
    cached.embed(["c", "b", "a"])
    assert inner.calls == [["a", "b"], ["c"]]
    assert len(cached) == 3


def test_a_kept_vector_is_the_encoder_s_own() -> None:
    inner = WordEmbedder()
    cached = CachedEmbedder(inner)
    wanted = inner.embed(["a b", "c"])
    for _ in range(2):
        assert np.array_equal(cached.embed(["a b", "c"]), wanted)


def test_the_least_recently_used_goes_first() -> None:
    inner = WordEmbedder()
    cached = CachedEmbedder(inner, 3)
    cached.embed(["a", "b", "c"])
    cached.embed(["a"])  # now b is the oldest
    cached.embed(["d"])
    inner.calls.clear()
    cached.embed(["a", "c", "d"])
    assert inner.calls == []
    cached.embed(["b"])
    assert inner.calls == [["b"]]


@given(st.integers(0, 5), st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8), max_size=12))
def test_the_cache_is_bounded_and_never_changes_an_answer(entries: int, calls: list[list[str]]) -> None:
    inner = WordEmbedder(8)
    cached = CachedEmbedder(WordEmbedder(8), entries)
    for texts in calls:
        assert np.array_equal(cached.embed(texts), inner.embed(texts))
        assert len(cached) <= entries


def test_a_kept_row_does_not_hold_the_whole_batch_in_memory() -> None:
    """A row of a matrix is a view; keeping it would keep its thousand neighbours as well."""
    cached = CachedEmbedder(WordEmbedder(), 10)
    cached.embed([f"text {number}" for number in range(100)])
    assert all(row.base is None and row.nbytes == 64 * 4 for row in cached._kept.values())


def test_no_text_is_kept() -> None:
    class Forgetful(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Array:
            vectors = super().embed(texts)
            self.calls.clear()
            return vectors

    cached = CachedEmbedder(Forgetful())
    cached.embed(["a rather secret sentence"])
    gc.collect()
    assert "secret" not in repr(vars(cached))
    assert {len(key) for key in cached._kept} == {16}


def test_clearing_forgets_everything() -> None:
    inner = WordEmbedder()
    cached = CachedEmbedder(inner)
    cached.embed(["a"])
    cached.clear()
    assert len(cached) == 0
    cached.embed(["a"])
    assert inner.calls == [["a"], ["a"]]


def test_a_failure_is_not_kept_and_harms_nothing_that_is() -> None:
    class Moody(WordEmbedder):
        down = False

        def embed(self, texts: Sequence[str]) -> Array:
            if self.down:
                raise EmbedError("down")
            return super().embed(texts)

    moody = Moody()
    cached = CachedEmbedder(moody)
    kept = cached.embed(["a"])
    moody.down = True
    with pytest.raises(EmbedError, match="down"):
        cached.embed(["a", "b"])
    assert np.array_equal(cached.embed(["a"]), kept)
    moody.down = False
    assert cached.embed(["a", "b"]).shape == (2, 64)


def test_space_languages_and_windows_are_the_encoder_s() -> None:
    inner = WordEmbedder(words=10, languages=frozenset({"en"}))
    cached = CachedEmbedder(inner)
    assert cached.space == inner.space
    assert cached.languages == inner.languages
    text = "one two three " * 20
    assert cached.windows(text) == inner.windows(text)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"entries.*-1.*0 or more"):
        CachedEmbedder(WordEmbedder(), -1)


def test_threads_that_push_each_other_s_texts_out_get_the_right_vectors() -> None:
    inner = WordEmbedder(16)
    texts = [f"text {number}" for number in range(40)]
    wanted = inner.embed(texts)
    cached = CachedEmbedder(WordEmbedder(16), 7)
    gate = threading.Barrier(8)

    def ask(seed: int) -> bool:
        dice = np.random.default_rng(seed)
        gate.wait()
        good = True
        for _ in range(60):
            which = dice.integers(0, len(texts), size=5)
            good &= np.array_equal(cached.embed([texts[index] for index in which]), wanted[which])
            if dice.random() < 0.05:
                cached.clear()
        return good

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert len(cached) <= 7
