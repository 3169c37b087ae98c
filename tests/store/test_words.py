"""Postings and BM25."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topicality.store import words

said = st.lists(st.sampled_from("a b c dd é".split()), max_size=12)


@given(st.dictionaries(st.integers(1, 5000), said, max_size=12), st.sets(st.integers(1, 5000), max_size=5))
def test_postings_give_back_what_was_put_in(passages: dict[int, list[str]], gone: set[int]) -> None:
    packed = words.postings(sorted(passages.items()))
    for word in "a b c dd é".split():
        rows = []
        for (value, block), (data, count) in packed.items():
            if value == word:
                left, kept = words.without(data, gone, block)
                assert kept <= count
                rows.append((block * words.BLOCK, left))
        numbers, counts, lengths = words.unpack(rows)
        found = {int(n): (int(c), int(size)) for n, c, size in zip(numbers, counts, lengths, strict=True)}
        assert found == {
            n: (terms.count(word), len(terms)) for n, terms in passages.items() if word in terms and n not in gone
        }


def test_counts_and_lengths_do_not_overflow() -> None:
    packed = words.postings([(1023, ["x"] * 70_000), (1024, ["x"])])
    assert set(packed) == {("x", 0), ("x", 1)}
    _, counts, lengths = words.unpack([(0, packed["x", 0][0])])
    assert (counts.tolist(), lengths.tolist()) == ([255.0], [65535.0])


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 10))
def test_the_best_are_the_best_and_the_later_first(scores: list[int], limit: int) -> None:
    places = words.best(np.array(scores, np.float64), limit).tolist()
    wanted = sorted((n for n, score in enumerate(scores) if score), key=lambda n: (-scores[n], -n))
    assert places == wanted[:limit]


def test_a_rare_word_says_more_and_even_a_common_one_something() -> None:
    assert words.idf(1, 100) > words.idf(50, 100) > words.idf(100, 100) > 0.0


@given(st.dictionaries(st.integers(1, 5000), said, max_size=12), st.sets(st.sampled_from("a b c x".split())))
def test_postings_of_some_words_are_those_among_all(passages: dict[int, list[str]], wanted: set[str]) -> None:
    every = words.postings(sorted(passages.items()))
    some = words.postings(sorted(passages.items()), wanted)
    assert some == {key: value for key, value in every.items() if key[0] in wanted}
