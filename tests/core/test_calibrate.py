"""Fitting a policy to labelled messages: what it needs, what it promises, and that it does no harm."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicality.core.calibrate import LEAST, Fit, Target, _t4_quantile, _tail, fit_side
from topicality.core.measure import auroc, balanced_accuracy
from topicality.errors import CalibrationError, ConfigError
from topicality.vectors import unit

BALANCED = Target()


def draw(seed: int, rows: int, *, gap: float = 3.0, signal: float = 0.0, dimension: int = 16) -> tuple[Any, Any, Any]:
    """Rows of both labels in turn: log-odds `gap` apart with spread 1.5, and vectors that tell `signal` more."""
    dice = np.random.default_rng(seed)
    positive = np.arange(2 * rows) % 2 == 0
    logits = np.where(positive, gap / 2, -gap / 2) + 1.5 * dice.standard_normal(2 * rows)
    vectors = dice.standard_normal((2 * rows, dimension))
    vectors[:, 0] += signal * np.where(positive, 1, -1)
    return logits, unit(vectors), positive


def chances(fit: Fit, logits: Any, vectors: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-fit.apply(logits, vectors)))


@pytest.mark.parametrize("target", [BALANCED, Target("flagged", 0.02), Target("passed", 0.1)])
def test_the_same_rows_give_the_same_fit(target: Target) -> None:
    one, two = (fit_side(*draw(1, 30, signal=1.0), target) for _ in range(2))
    assert (one.slope, one.offset, one.threshold) == (two.slope, two.offset, two.threshold)
    assert np.array_equal(one.held_out, two.held_out)
    assert one.head is not None
    assert two.head is not None
    assert np.array_equal(one.head, two.head)


@pytest.mark.parametrize(
    ("ones", "zeros", "missing"),
    [
        (0, 50, "add messages that belong"),
        (50, 0, "add messages that do not belong"),
        (LEAST - 1, 50, "add messages that belong"),
        (50, LEAST - 1, "add messages that do not belong"),
        (3, 3, "add messages that belong"),
        (0, 0, "add messages that belong"),
    ],
)
def test_too_few_or_one_sided_rows_are_refused_saying_what_is_missing(ones: int, zeros: int, missing: str) -> None:
    positive = np.array([True] * ones + [False] * zeros, dtype=bool)
    vectors = unit(np.random.default_rng(1).standard_normal((len(positive), 4)))
    with pytest.raises(CalibrationError, match=f"got {ones} that belong and {zeros} that do not; {missing}$"):
        fit_side(np.zeros(len(positive)), vectors, positive, BALANCED)


def test_the_least_number_of_rows_is_enough() -> None:
    assert 0.0 <= fit_side(*draw(1, LEAST), BALANCED).threshold <= 1.0


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1") as caught:
        fit_side(*draw(1, 20), Target("flagged", rate))
    assert caught.value.key == "rate"


def test_a_target_says_what_it_is() -> None:
    assert str(BALANCED) == "best balanced accuracy"
    assert str(Target("flagged", 0.02)) == "at most 2.0% of on-topic messages flagged"
    assert str(Target("passed", 0.125)) == "at most 12.5% of other messages passed"


@pytest.mark.parametrize("gap", [10.0, 60.0, 1e4])
@pytest.mark.parametrize("signal", [0.0, 50.0])
def test_rows_that_a_line_separates_do_not_blow_up(gap: float, signal: float) -> None:
    logits, vectors, positive = draw(2, 25, gap=gap, signal=signal)
    fit = fit_side(logits, vectors, positive, BALANCED)
    assert 0.1 <= fit.slope <= 10
    assert abs(fit.offset) <= 10
    assert 0.0 <= fit.threshold <= 1.0
    assert fit.head is None or np.linalg.norm(fit.head) < 50
    assert np.isfinite(fit.held_out).all()
    assert balanced_accuracy(chances(fit, logits, vectors) >= fit.threshold, positive) == 1.0


@pytest.mark.parametrize("logits", [np.zeros(40), np.full(40, 1e6), np.linspace(-1e6, 1e6, 40)])
@pytest.mark.parametrize("target", [BALANCED, Target("flagged", 0.02), Target("passed", 0.02)])
def test_degenerate_scores_give_a_finite_fit(logits: Any, target: Target) -> None:
    _, vectors, positive = draw(3, 20)
    fit = fit_side(logits, np.repeat(vectors[:1], 40, axis=0), positive, target)
    assert np.isfinite([fit.slope, fit.offset, fit.threshold]).all()
    assert 0.0 <= fit.threshold <= 1.0
    assert ((fit.held_out >= 0) & (fit.held_out <= 1)).all()


@pytest.mark.parametrize(("kind", "rate"), [("flagged", 0.02), ("flagged", 0.05), ("passed", 0.02), ("passed", 0.05)])
@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_a_stated_target_holds_within_a_point_on_unseen_rows(kind: Any, rate: float, signal: float) -> None:
    """On the mean of 12 draws of 100 rows, each tried on 3,000 new ones; and the target is used, not undercut to nothing."""
    found = []
    for seed in range(12):
        fit = fit_side(*draw(seed, 50, signal=signal), Target(kind, rate))
        logits, vectors, positive = draw(1000 + seed, 1500, signal=signal)
        met = chances(fit, logits, vectors) >= fit.threshold
        found.append(float((~met[positive]).mean() if kind == "flagged" else met[~positive].mean()))
    assert rate / 5 <= np.mean(found) <= rate + 0.01


def test_the_balanced_threshold_is_near_the_best_there_is() -> None:
    """Two normals three apart with spread 1.5: nobody gets more than 84.1 % right."""
    best = NormalDist().cdf(1.0)
    found = []
    for seed in range(8):
        fit = fit_side(*draw(seed, 50), BALANCED)
        logits, vectors, positive = draw(1000 + seed, 1500)
        found.append(balanced_accuracy(chances(fit, logits, vectors) >= fit.threshold, positive) or 0.0)
    assert np.mean(found) >= best - 0.03


def test_fitted_probabilities_are_calibrated() -> None:
    logits, vectors, positive = draw(1, 200)
    fit = fit_side(3.0 * logits + 4.0, vectors, positive, BALANCED)  # far too sure, and shifted
    fresh, others, truth = draw(2, 2000)
    found = chances(fit, 3.0 * fresh + 4.0, others)
    for low, high in [(0.1, 0.3), (0.4, 0.6), (0.7, 0.9)]:
        rows = (found >= low) & (found <= high)
        assert truth[rows].mean() == pytest.approx(found[rows].mean(), abs=0.1)


def test_a_head_is_fitted_where_the_vectors_tell_more_and_helps_on_unseen_rows() -> None:
    for seed in range(4):
        fit = fit_side(*draw(seed, 50, signal=1.5), BALANCED)
        assert fit.head is not None
        assert abs(int(np.abs(fit.head).argmax())) == 0
        logits, vectors, positive = draw(1000 + seed, 1000, signal=1.5)
        with_head, without = auroc(fit.apply(logits, vectors), positive), auroc(logits, positive)
        assert (with_head or 0) >= (without or 1) + 0.02


def test_no_head_is_fitted_where_the_scores_are_right_already() -> None:
    for seed in range(4):
        assert fit_side(*draw(seed, 50, gap=30.0), BALANCED).head is None


def test_a_head_on_vectors_that_tell_nothing_does_little_harm() -> None:
    """Cross-validation on 100 rows takes one now and then; its strength is then small."""
    lost = []
    for seed in range(12):
        fit = fit_side(*draw(seed, 50), BALANCED)
        logits, vectors, positive = draw(1000 + seed, 1000)
        lost.append((auroc(logits, positive) or 0) - (auroc(fit.apply(logits, vectors), positive) or 0))
    assert np.mean(lost) <= 0.015


def test_held_out_probabilities_are_not_those_of_the_rows_fitted_on() -> None:
    """With more dimensions than rows a head separates anything it has seen, and nothing that it has not."""
    logits, vectors, positive = draw(5, 30, gap=0.0, dimension=300)
    fit = fit_side(logits, vectors, positive, BALANCED)
    assert fit.held_out.shape == (60,)
    assert 0.25 <= (auroc(fit.held_out, positive) or 0) <= 0.75


@settings(max_examples=20)
@given(st.integers(0, 30), st.floats(0.5, 5), st.floats(-3, 3))
def test_a_fit_keeps_the_order_of_the_scores_where_it_has_no_head(seed: int, scale: float, shift: float) -> None:
    logits, vectors, positive = draw(seed, 12)
    fit = Fit(None, scale, shift, 0.5, np.zeros(0))
    assert np.array_equal(np.argsort(fit.apply(logits, vectors)), np.argsort(logits))
    assert fit_side(scale * logits + shift, vectors, positive, BALANCED).slope >= 0.1


def test_a_fit_applies_head_slope_and_offset() -> None:
    fit = Fit(np.array([1.0, -2.0]), 2.0, 0.5, 0.5, np.zeros(0))
    assert fit.apply(np.array([1.0]), np.array([[3.0, 1.0]], np.float32)).tolist() == [2.0 * (1.0 + 3.0 - 2.0) + 0.5]


# The tail of a small sample


@pytest.mark.parametrize(
    ("p", "expected"), [(0.975, 2.7764), (0.99, 3.7469), (0.95, 2.1318), (0.5, 0.0), (0.9, 1.5332)]
)
def test_the_quantile_of_students_t_with_four_degrees_of_freedom(p: float, expected: float) -> None:
    assert _t4_quantile(p) == pytest.approx(expected, abs=1e-3)
    assert _t4_quantile(1 - p) == pytest.approx(-expected, abs=1e-3)


def test_the_tail_of_fifty_values_at_two_percent_lies_beyond_the_least_of_them() -> None:
    """Unseen values fall below the least of 50 more often than one would like; the tail allows for that."""
    values = np.array([NormalDist().inv_cdf((number + 0.5) / 50) for number in range(50)])
    assert -3.0 < _tail(values, 0.02, low=True) < values.min() - 0.1
    assert values.max() + 0.1 < _tail(values, 0.02, low=False) < 3.0


@given(st.lists(st.floats(-20, 20), min_size=5, max_size=60), st.sampled_from([0.01, 0.02, 0.1]))
def test_the_tail_is_outside_the_sample_s_own_quantile_and_mirrors(values: list[float], rate: float) -> None:
    rows = np.array(values)
    low, high = _tail(rows, rate, low=True), _tail(rows, rate, low=False)
    assert (rows < low).mean() <= rate
    assert (rows > high).mean() <= rate
    assert _tail(-rows, rate, low=False) == pytest.approx(-low)
    assert _tail(rows, rate / 2, low=True) <= low + 1e-12
