"""Metrics of segmentation against the plainest way to write them down."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.core.segment.measure import (
    b_cubed,
    boundary_f1,
    harmonic,
    joint_score,
    matching,
    one_to_one,
    return_counts,
    window_errors,
    window_size,
)

marks = st.integers(2, 40).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 1), min_size=size, max_size=size),
        st.lists(st.integers(0, 1), min_size=size, max_size=size),
    )
)


def plain_windows(gold: list[int], predicted: list[int]) -> tuple[float, float]:
    """nltk's pk and windowdiff over marks of the last message of each segment."""
    left, right = [*gold[1:], 0], [*predicted[1:], 0]
    size = window_size(gold)
    places = range(len(left) - size + 1)
    pk = [any(left[at : at + size]) != any(right[at : at + size]) for at in places]
    difference = [sum(left[at : at + size]) != sum(right[at : at + size]) for at in places]
    return sum(pk) / len(pk), sum(difference) / len(difference)


@given(marks)
def test_window_errors_are_those_of_the_plain_definition(pair: tuple[list[int], list[int]]) -> None:
    gold, predicted = pair
    if len(gold) >= window_size(gold):
        assert window_errors(gold, predicted) == pytest.approx(plain_windows(gold, predicted))


@given(marks)
def test_f1_is_that_of_sets(pair: tuple[list[int], list[int]]) -> None:
    gold = {place for place, mark in enumerate(pair[0]) if mark and place}
    guess = {place for place, mark in enumerate(pair[1]) if mark and place}
    common = len(gold & guess)
    expected = 2 * common / (len(gold) + len(guess)) if common else 0.0
    assert boundary_f1(*pair) == pytest.approx(expected)


def test_a_perfect_segmentation_scores_one_and_an_empty_one_what_its_windows_say() -> None:
    gold = [0, 0, 1, 0, 0, 1, 0, 0]
    assert joint_score(*window_errors(gold, gold), boundary_f1(gold, gold)) == 1.0
    nothing = [0] * 8
    pk, difference = window_errors(gold, nothing)
    assert pk == difference > 0
    assert boundary_f1(gold, nothing) == 0.0


def test_the_window_is_half_a_mean_segment_and_at_least_two() -> None:
    assert window_size([0] * 20) == 10
    assert window_size([0, 1] * 5) == 2
    assert window_size([0] * 5 + [1] + [0] * 4) == 2  # 2.5 rounds to even


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_the_matching_is_the_best_of_all(rows: int, columns: int, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 9, size=(rows, columns))
    found = matching(weights)
    size = max(rows, columns)
    padded = np.zeros((size, size), int)
    padded[:rows, :columns] = weights
    best = max(sum(padded[row, column] for row, column in enumerate(order)) for order in permutations(range(size)))
    taken = [column for column in found if column >= 0]
    assert len(taken) == len(set(taken))
    assert sum(int(weights[row, column]) for row, column in enumerate(found) if column >= 0) == best


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=25))
def test_b_cubed_is_that_of_single_messages(pairs: list[tuple[int, int]]) -> None:
    precisions, recalls = [], []
    for gold, guess in pairs:
        common = sum(1 for pair in pairs if pair == (gold, guess))
        precisions.append(common / sum(1 for _, other in pairs if other == guess))
        recalls.append(common / sum(1 for other, _ in pairs if other == gold))
    p, r = sum(precisions) / len(pairs), sum(recalls) / len(pairs)
    assert b_cubed([a for a, _ in pairs], [b for _, b in pairs]) == pytest.approx(2 * p * r / (p + r))


def test_agreement_does_not_depend_on_the_numbers_of_topics() -> None:
    assert one_to_one([0, 0, 1, 1], [7, 7, 3, 3]) == 1.0
    assert one_to_one([0, 0, 1, 1], [5, 5, 5, 5]) == 0.5
    assert b_cubed([0, 0, 1, 1], [7, 7, 3, 3]) == 1.0
    assert one_to_one([], []) == b_cubed([], []) == 1.0


def test_returns_are_counted_by_what_the_topic_mostly_was() -> None:
    gold = [0, 0, 1, 1, 0, 2, 1]
    predicted = [0, 0, 1, 1, 0, 2, 0]
    kinds = ["new", "continue", "new", "continue", "return", "new", "return"]
    assert return_counts(gold, predicted, kinds) == (1, 2, 2)
    assert harmonic(1, 2, 2) == 0.5
    assert harmonic(0, 0, 0) == 0.0
    assert return_counts(gold, predicted, ["new"] + ["continue"] * 6) == (0, 0, 2)
