"""Fitting a policy to labelled messages: a small head, two log-odds maps, thresholds for a stated target. Deterministic.

The local scores stay the prior. Labelled rows move them in two steps: a residual head on the message's vector, penalised
towards zero by a strength that cross-validation picks (no head at all is one of the choices), and a logistic map
of its sum with the score. Thresholds are then set on scores that the head did not see (out of fold).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from topicality.core.measure import auroc, balanced_accuracy
from topicality.errors import CalibrationError, ConfigError
from topicality.vectors import Array

Floats = NDArray[np.float64]
LEAST = 10  # rows that each label needs before anything is fitted
_FOLDS = 5
_STRENGTHS = (0.0, 0.3, 1.0, 3.0, 10.0)  # 0 is "no head"


@dataclass(frozen=True, slots=True)
class Target:
    """What thresholds are fitted for.

    Attributes:
        kind: "balanced" (mean of both labels' accuracy), "flagged" (at most `rate` of on-topic messages are flagged) or
            "passed" (at most `rate` of the others pass).
        rate: share, (0, 1); unused for "balanced".
    """

    kind: Literal["balanced", "flagged", "passed"] = "balanced"
    rate: float = 0.02

    def __str__(self) -> str:
        if self.kind == "balanced":
            return "best balanced accuracy"
        who = "on-topic messages flagged" if self.kind == "flagged" else "other messages passed"
        return f"at most {self.rate:.1%} of {who}"


@dataclass(frozen=True)
class Fit:
    """A fitted side.

    Attributes:
        head: shape (D,), added to the log-odds as head · vector, or None. slope, offset: map of the sum to log-odds.
        threshold: probability, [0, 1], met at >=.
        held_out: shape (N,), each row's probability by a fit that did not see it.
    """

    head: Floats | None
    slope: float
    offset: float
    threshold: float
    held_out: Floats

    def apply(self, logits: NDArray[np.floating[Any]], vectors: Array) -> Floats:
        """Fitted log-odds of messages: logits shape (N,), vectors shape (N, D)."""
        summed = logits if self.head is None else logits + vectors @ self.head
        return np.asarray(self.slope * summed + self.offset, dtype=np.float64)


def fit_side(logits: Floats, vectors: Array, positive: NDArray[np.bool_], target: Target) -> Fit:
    """Fit one side.

    Args:
        logits: shape (N,), the unfitted log-odds. vectors: shape (N, D). positive: shape (N,), on this side or not.
        target: what the threshold is for.
    Raises:
        CalibrationError: fewer than `LEAST` rows of either label. ConfigError: a rate outside (0, 1).
    Cost: O(N² · D) for a few hundred rows.
    """
    if not 0.0 < target.rate < 1.0:
        raise ConfigError("target rate", key="rate", got=target.rate, accepted="a share between 0 and 1")
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if min(ones, zeros) < LEAST:
        raise CalibrationError(
            f"at least {LEAST} rows on each side are needed, got {ones} that belong and {zeros} that do not; "
            f"add {'messages that belong' if ones < LEAST else 'messages that do not belong'}"
        )
    folds = _folds(positive)
    best, chosen, held = -1.0, 0.0, np.zeros(len(logits))
    for strength in _STRENGTHS:
        guess = _held_out(logits, vectors, positive, folds, strength)
        value = auroc(guess, positive) or 0.0
        if value > best + 0.002:  # a head has to earn its place
            best, chosen, held = value, strength, guess
    head = _head(logits, vectors, positive, chosen)
    summed = logits if head is None else logits + vectors @ head
    slope, offset = _platt(summed, positive)
    probabilities = 1.0 / (1.0 + np.exp(-np.clip(held, -60, 60)))
    return Fit(head, slope, offset, _threshold(probabilities, positive, target), probabilities)


def _held_out(
    logits: Floats, vectors: Array, positive: NDArray[np.bool_], folds: NDArray[np.intp], strength: float
) -> Floats:
    guess = np.zeros(len(logits))
    for fold in range(_FOLDS):
        inside, outside = folds != fold, folds == fold
        head = _head(logits[inside], vectors[inside], positive[inside], strength)
        summed = logits if head is None else logits + vectors @ head
        slope, offset = _platt(summed[inside], positive[inside])
        guess[outside] = slope * summed[outside] + offset
    return guess


def _folds(positive: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Stratified folds by position, the same every time."""
    folds = np.zeros(len(positive), dtype=np.intp)
    for label in (True, False):
        rows = np.flatnonzero(positive == label)
        folds[rows] = np.arange(len(rows)) % _FOLDS
    return folds


def _head(logits: Floats, vectors: Array, positive: NDArray[np.bool_], strength: float) -> Floats | None:
    """Ridge-penalised logistic regression on vectors, with the log-odds as a fixed offset, by Newton steps in row space."""
    if strength == 0.0:
        return None
    rows = vectors.astype(np.float64)
    rows = rows - rows.mean(axis=0)
    gram = rows @ rows.T * strength
    truth = positive.astype(np.float64)
    weight = np.where(positive, 0.5 / positive.mean(), 0.5 / (1.0 - positive.mean()))
    slope, offset = _platt(logits, positive)
    base = slope * logits + offset
    dual = np.zeros(len(rows))

    def loss(candidate: Floats) -> float:
        eta = base + gram @ candidate
        return float((weight * (np.logaddexp(0.0, eta) - truth * eta)).sum() + 0.5 * candidate @ gram @ candidate)

    current = loss(dual)
    for _ in range(25):
        p = 1.0 / (1.0 + np.exp(-np.clip(base + gram @ dual, -60, 60)))
        curvature = np.maximum(weight * p * (1.0 - p), 1e-6)
        working = gram @ dual + weight * (truth - p) / curvature
        step = np.linalg.solve(gram + np.diag(1.0 / curvature), working) - dual
        size = 1.0
        while size > 1e-4 and loss(dual + size * step) > current:
            size /= 2.0
        dual = dual + size * step
        improved, current = current - loss(dual), loss(dual)
        if improved < 1e-7:
            break
    head: Floats = strength * (rows.T @ dual) / max(slope, 1e-3)
    return head


def _platt(logits: Floats, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Logistic map (slope, offset) from log-odds to log-odds, pulled towards (1, 0), labels smoothed.

    Newton steps, halved until they improve (without that they run away on rows that a line separates).
    Source: Platt (1999) with the safeguards of Lin, Lin and Weng (2007), Machine Learning 68:267-276.
    """
    ones, zeros = positive.sum(), (~positive).sum()
    truth = np.where(positive, (ones + 1.0) / (ones + 2.0), 1.0 / (zeros + 2.0))
    rows = np.column_stack([np.clip(logits, -30, 30), np.ones(len(logits))])
    start = np.array([1.0, 0.0])
    pull = np.array([4.0, 0.5])

    def loss(parameters: Floats) -> float:
        eta = rows @ parameters
        return float((np.logaddexp(0.0, eta) - truth * eta).sum() + 0.5 * (pull * (parameters - start) ** 2).sum())

    parameters, current = start, loss(start)
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-np.clip(rows @ parameters, -60, 60)))
        gradient = rows.T @ (p - truth) + pull * (parameters - start)
        hessian = (rows * (p * (1.0 - p))[:, None]).T @ rows + np.diag(pull)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-6 and loss(parameters - size * step) > current:
            size /= 2.0
        parameters = parameters - size * step
        improved, current = current - loss(parameters), loss(parameters)
        if improved < 1e-9:
            break
    return float(max(parameters[0], 0.1)), float(parameters[1])


def _threshold(probabilities: Floats, positive: NDArray[np.bool_], target: Target) -> float:
    logits = np.log(probabilities / np.maximum(1.0 - probabilities, 1e-12) + 1e-12)
    if target.kind == "balanced":
        cuts = np.unique(probabilities)
        values = [balanced_accuracy(probabilities >= cut, positive) or 0.0 for cut in cuts]
        best = max(values)
        near = cuts[np.array(values) >= best - 0.01]  # the middle of the plateau, not its lucky edge
        return float(np.median(near))
    chosen = logits[positive] if target.kind == "flagged" else logits[~positive]
    tail = _tail(chosen, target.rate, low=target.kind == "flagged")
    value = 1.0 / (1.0 + np.exp(-tail))
    return float(min(max(value, 0.0), 1.0))


def _tail(values: Floats, rate: float, *, low: bool) -> float:
    """A quantile far out in a small sample, meant to hold on rows not seen.

    The empirical quantile of 50 values at 2 % is the least of them, and unseen rows fall below it more often than that.
    So: a quantile half-way between those of the normal and of a t distribution with four degrees of freedom, centred and
    scaled on the near half of the values and widened for the size of the sample; or the empirical one, if it is further
    out.
    """
    ordered = np.sort(values if low else -values)
    rank = max(int(np.floor(rate * (len(ordered) + 1))) - 1, 0)
    centre = float(np.median(ordered))
    half = ordered[ordered <= centre]
    spread = max(float(np.sqrt(np.mean((half - centre) ** 2))), 1e-3)
    factor = (NormalDist().inv_cdf(1.0 - rate) + _t4_quantile(1.0 - rate)) / 2.0
    widened = centre - factor * spread * float(np.sqrt(1.0 + 2.0 / len(ordered)))
    cut = min(widened, float(ordered[rank]))
    return cut if low else -cut


def _t4_quantile(p: float) -> float:
    """Quantile of Student's t with four degrees of freedom (closed form: Shaw 2006, J. Comput. Finance 9:37-73)."""
    alpha = 4.0 * p * (1.0 - p)
    q = np.cos(np.arccos(np.sqrt(alpha)) / 3.0) / np.sqrt(alpha)
    return float(np.sign(p - 0.5) * 2.0 * np.sqrt(max(q - 1.0, 0.0)))
