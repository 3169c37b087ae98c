"""Reading a message with what was said before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from topicality.core.followup import FEATURES, Fusion, context_features, features, fused, quadratic
from topicality.core.score import Standing
from topicality.core.text import content_stems
from topicality.vectors import unit

SIZE = len(FEATURES)
TERMS = SIZE + SIZE * (SIZE + 1) // 2


def named(row: Any) -> dict[str, float]:
    return dict(zip(FEATURES, map(float, row), strict=True))


def read(
    text: str, turns: list[float], similar: list[float] | None = None, said: Sequence[str] = ()
) -> dict[str, float]:
    similar = similar or [0.5 * number for number in range(1, len(turns) + 1)]
    elsewhere = [4.0 + number for number in range(len(turns))]
    stems = [content_stems(turn) for turn in (*said, text)]
    return named(features(text, stems, -0.5, 3.5, 2.5, np.array(similar), np.array(turns), np.array(elsewhere)))


def test_the_features_of_a_follow_up() -> None:
    assert read("and what about that one?", [2.0, -3.0, 1.0]) == pytest.approx(
        {
            "own": -0.5,
            "length": np.log1p(5),
            "pointing": 1.0,
            "content": 0.0,
            "elsewhere": 3.5,
            "distinct": 2.5,
            "question": 1.0,
            "last": 1.0,
            "before": -3.0,
            "mean": 0.0,
            "highest": 2.0,
            "last_elsewhere": 6.0,
            "before_elsewhere": 5.0,
            "resembles": 1.5,
            "resembles_on": 1.5,
            "drawn": 1.5,
            "echoes": 0.0,
        }
    )


def test_a_message_of_its_own_points_at_nothing_and_has_content() -> None:
    found = read("Please cancel my gym membership", [0.0])
    assert found["pointing"] == found["question"] == 0.0
    assert found["content"] == pytest.approx(np.log1p(3))


def test_with_one_turn_the_one_before_counts_as_off_topic_and_elsewhere() -> None:
    found = read("yes", [2.0])
    assert (found["before"], found["before_elsewhere"]) == (-3.0, 3.0)
    assert found["last"] == found["mean"] == found["highest"] == 2.0


def test_likeness_to_turns_that_are_off_topic_counts_only_as_drawn() -> None:
    found = read("yes", [2.0, -1.0, -5.0], [0.7, 2.0, 3.0])
    assert (found["resembles"], found["resembles_on"], found["drawn"]) == (3.0, 0.7, 3.0)
    assert read("yes", [-2.0], [3.0])["resembles_on"] == 0.0


def test_an_answer_echoes_the_words_of_a_question() -> None:
    asked = ["I want a refund", "Shall I refund it to your card or as credit?"]
    assert read("to the card please", [1.0, 1.0], said=asked)["echoes"] == 1.0
    assert read("cards, and my refunds", [1.0, 1.0], said=asked)["echoes"] == 1.0  # inflected forms are the same word
    assert read("card games card tricks", [1.0, 1.0], said=asked)["echoes"] == pytest.approx(
        1 / 3
    )  # a word counts once
    assert read("pizza please", [1.0, 1.0], said=asked)["echoes"] == 0.0
    assert read("to the one", [1.0, 1.0], said=asked)["echoes"] == 0.0  # function words are no echo
    earlier = [asked[0], "Why?"]
    assert read("a refund", [1.0, 1.0], said=earlier)["echoes"] == 1.0  # of any turn, not of the latest alone


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(-4, 4)))
def test_quadratic_terms_are_the_features_and_each_product_of_two(rows: Any) -> None:
    found = quadratic(rows)
    width = rows.shape[1]
    assert found.shape == (len(rows), width + width * (width + 1) // 2)
    for row, terms in zip(rows, found, strict=True):
        products = [row[i] * row[j] for i in range(width) for j in range(i, width)]
        assert np.allclose(terms, [*row, *products])


def head(weights: dict[int, float], bias: float = 0.0) -> Fusion:
    values = [0.0] * TERMS
    for place, weight in weights.items():
        values[place] = weight
    return Fusion(np.ones(SIZE), np.full(SIZE, 2.0), np.array(values), bias)


def test_the_head_standardises_clips_and_adds_up() -> None:
    rows = np.ones((3, SIZE))
    rows[1, 0] = 2.0  # half a standard deviation above the mean
    rows[2, 0] = 1e9  # far out: counts as four
    assert fused(rows, head({0: 3.0, SIZE: 1.0}, bias=0.25)).tolist() == pytest.approx([0.25, 0.25 + 1.5 + 0.25, 28.25])


def test_context_comes_before_the_message_and_likeness_is_in_spreads() -> None:
    vectors = unit([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    standing = Standing(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
    texts, logits = ["first", "second", "and that one?"], np.array([2.0, -2.0, 0.5])
    found = named(context_features(texts, [["one"], ["two"], ["two", "three"]], standing, vectors, logits, 0.2))
    assert found["own"] == 0.5
    assert (found["elsewhere"], found["distinct"]) == (3.0, 6.0)
    assert (found["last"], found["before"], found["mean"]) == (-2.0, 2.0, 0.0)
    assert (found["last_elsewhere"], found["before_elsewhere"]) == (2.0, 1.0)
    assert found["resembles"] == pytest.approx(4.0)
    assert found["resembles_on"] == pytest.approx(0.0)
    assert found["pointing"] == 1.0
    assert found["echoes"] == 0.5
    assert found["content"] == pytest.approx(np.log1p(2))
