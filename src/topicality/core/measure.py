"""How good scores and decisions are: the figures that `eval` and `calibrate` report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def auroc(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Chance that a positive scores above a negative, ties counting half: [0, 1]; None if one of them is missing.

    Args:
        scores: shape (N,). positive: shape (N,), booleans.
    Cost: O(N log N).
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    ones = int(truth.sum())
    zeros = len(truth) - ones
    if not ones or not zeros:
        return None
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return float((ranks[truth].sum() - ones * (ones + 1) / 2.0) / (ones * zeros))


def false_positive_rate(scores: ArrayLike, positive: ArrayLike, recall: float = 0.95) -> float | None:
    """Share of negatives at or above the highest threshold that keeps `recall` of the positives; None as in `auroc`."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    if truth.all() or not truth.any():
        return None
    kept = np.sort(values[truth])[::-1]
    threshold = kept[max(0, int(np.ceil(recall * len(kept))) - 1)]
    return float((values[~truth] >= threshold).mean())


def balanced_accuracy(predicted: ArrayLike, positive: ArrayLike) -> float | None:
    """Mean of the shares of positives and of negatives that are predicted right: [0, 1]; None as in `auroc`."""
    guess, truth = np.asarray(predicted, dtype=bool), np.asarray(positive, dtype=bool)
    if truth.all() or not truth.any():
        return None
    return float((guess[truth].mean() + (~guess[~truth]).mean()) / 2.0)


def calibration_error(probabilities: ArrayLike, positive: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error over equal-width bins: mean gap between probability and frequency, [0, 1]."""
    p, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(positive, dtype=np.float64)
    if len(p) == 0:
        return 0.0
    index = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(p[index == b].sum() - truth[index == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(p))


def roc(scores: ArrayLike, positive: ArrayLike) -> NDArray[np.float64]:
    """Points (false positive rate, true positive rate, threshold), from strict to lax. Shape (K, 3)."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    order = np.argsort(-values, kind="stable")
    last = np.append(np.diff(values[order]) != 0, True) if len(order) else np.zeros(0, dtype=bool)
    hits, misses = np.cumsum(truth[order])[last], np.cumsum(~truth[order])[last]
    ones, zeros = max(int(truth.sum()), 1), max(int((~truth).sum()), 1)
    return np.column_stack([misses / zeros, hits / ones, values[order][last]])


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """p50 and p95 of some durations, rounded to microseconds; zeros when there are none."""
    if not milliseconds:
        return {"p50": 0.0, "p95": 0.0}
    return {name: round(float(np.percentile(milliseconds, q)), 3) for name, q in (("p50", 50), ("p95", 95))}
