"""The figures that are reported, each against its definition written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.core.measure import auroc, balanced_accuracy, calibration_error, false_positive_rate, percentiles, roc

rows = st.lists(st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0]), st.booleans()), max_size=30)
chances = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40)
Rows = list[tuple[float, bool]]


def split(data: Rows) -> tuple[list[float], list[float]]:
    return [score for score, good in data if good], [score for score, good in data if not good]


@given(rows)
def test_auroc_counts_the_pairs_in_the_right_order(data: Rows) -> None:
    good, bad = split(data)
    found = auroc([row[0] for row in data], [row[1] for row in data])
    if not good or not bad:
        assert found is None
        return
    won = [1.0 if one > two else 0.5 if one == two else 0.0 for one, two in product(good, bad)]
    assert found == pytest.approx(sum(won) / len(won), abs=1e-12)


@given(rows, st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_false_positive_rate_is_read_at_the_highest_threshold_that_keeps_the_recall(data: Rows, recall: float) -> None:
    good, bad = split(data)
    found = false_positive_rate([row[0] for row in data], [row[1] for row in data], recall)
    if not good or not bad:
        assert found is None
        return
    enough = [cut for cut in good if sum(score >= cut for score in good) >= recall * len(good)]
    assert found == pytest.approx(sum(score >= max(enough) for score in bad) / len(bad), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_balanced_accuracy_is_the_mean_of_both_labels_shares(data: list[tuple[bool, bool]]) -> None:
    good = [guess for guess, truth in data if truth]
    bad = [not guess for guess, truth in data if not truth]
    found = balanced_accuracy([row[0] for row in data], [row[1] for row in data])
    if not good or not bad:
        assert found is None
        return
    assert found == pytest.approx((sum(good) / len(good) + sum(bad) / len(bad)) / 2, abs=1e-12)


@given(chances)
def test_calibration_error_is_the_weighted_gap_of_ten_bins(data: Rows) -> None:
    bins: dict[int, Rows] = {}
    for chance, truth in data:
        bins.setdefault(min(int(chance * 10), 9), []).append((chance, truth))
    expected = 0.0
    for members in bins.values():
        mean = sum(chance for chance, _ in members) / len(members)
        share = sum(truth for _, truth in members) / len(members)
        expected += len(members) / len(data) * abs(mean - share)
    assert calibration_error([row[0] for row in data], [row[1] for row in data]) == pytest.approx(expected, abs=1e-9)


def test_a_perfectly_calibrated_forecast_has_no_error_and_a_sure_wrong_one_has_all() -> None:
    assert calibration_error([0.25] * 4, [True, False, False, False]) == pytest.approx(0.0)
    assert calibration_error([1.0, 0.0], [False, True]) == pytest.approx(1.0)
    assert calibration_error([], []) == 0.0


@given(rows)
def test_roc_has_a_point_for_every_threshold_from_strict_to_lax(data: Rows) -> None:
    good, bad = split(data)
    points = roc([row[0] for row in data], [row[1] for row in data])
    assert [point[2] for point in points] == sorted({row[0] for row in data}, reverse=True)
    for wrong, right, cut in points:
        assert right == pytest.approx(sum(score >= cut for score in good) / max(len(good), 1))
        assert wrong == pytest.approx(sum(score >= cut for score in bad) / max(len(bad), 1))
    if good and bad:
        across = np.concatenate([[0.0], points[:, 0]])
        up = np.concatenate([[0.0], points[:, 1]])
        area = float(((across[1:] - across[:-1]) * (up[1:] + up[:-1]) / 2).sum())
        assert area == pytest.approx(auroc([row[0] for row in data], [row[1] for row in data]), abs=1e-9)


def test_percentiles_of_durations() -> None:
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0}
    assert percentiles([2.0]) == {"p50": 2.0, "p95": 2.0}
    assert percentiles([float(number) for number in range(101)]) == {"p50": 50.0, "p95": 95.0}
    assert percentiles([0.12345678]) == {"p50": 0.123, "p95": 0.123}
