"""`calibrate`: fit a policy to labelled messages and say how well it went."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from topicality.config import Fitted, FittedSide, Policy
from topicality.core.calibrate import LEAST, Fit, Target, fit_side
from topicality.core.measure import auroc, balanced_accuracy, calibration_error, roc
from topicality.errors import CalibrationError, ConfigError
from topicality.layer.evaluate import LabelledRow
from topicality.layer.guard import Guard
from topicality.ports import Embedder


@dataclass(frozen=True)
class Calibration:
    """A fitted policy and the figures of the fit.

    Attributes:
        policy: the policy with thresholds, maps and heads fitted; `Policy.dump` gives what to write.
        report: by side: rows, AUROC and balanced accuracy before and after (after: each row by a fit that did not see
            it), expected calibration error, precision, recall, the share of on-topic messages flagged, the threshold,
            points of the ROC curve, histogram, and the rows it gets wrong.
    """

    policy: Policy
    report: dict[str, Any]


def calibrate(
    policy: Policy,
    rows: Sequence[LabelledRow],
    *,
    embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
    target: Target | None = None,
    on: str = "",
) -> Calibration:
    """Fit a policy's thresholds and probabilities to labelled messages. Deterministic.

    Args:
        policy: with scoring "calibrated"; an earlier fit is replaced, not built upon.
        rows: labelled messages, at least ten of each label that is fitted. Rows of every kind the chat will see are worth
            more than many of one kind.
        target: what the thresholds are for; best balanced accuracy by default.
        on: ISO date to write into the policy.
    Raises:
        CalibrationError: too few or one-sided rows; says what is missing. ConfigError: the policy scores by plain cosine.
    Cost: one embedding a row, then well under a second for a few hundred rows.
    """
    if policy.scoring != "calibrated":
        raise ConfigError(
            "only background-normalised scores can be calibrated",
            key="scoring",
            got=policy.scoring,
            accepted="calibrated",
        )
    target = target or Target()
    counts = Counter(row.label for row in rows)
    plain = policy.unfitted()
    rows = [row for row in rows if row.text.strip()]
    if not rows:
        raise CalibrationError("there are no labelled messages; give at least ten of each label")
    guard = Guard(plain, embedder)
    evidence = guard.evidence([row.text for row in rows], [row.context for row in rows])
    sides: dict[str, FittedSide] = {}
    report: dict[str, Any] = {"target": str(target), "rows": dict(sorted(counts.items())), "sides": {}}
    values: dict[str, Any] = {}
    for side, label in (("allowed", "allowed"), ("blocked", "blocked")):
        if side not in evidence:
            continue
        logits, vectors = evidence[side]
        positive = np.array([row.label == label for row in rows])
        if side == "blocked" and positive.sum() < LEAST:
            report["sides"][side] = {"skipped": f"{int(positive.sum())} blocked rows; at least {LEAST} are needed"}
            continue
        fit = fit_side(logits, vectors, positive, target if side == "allowed" else Target())
        before = plain.allowed_threshold if side == "allowed" else plain.blocked_threshold
        sides[side] = FittedSide(slope=fit.slope, offset=fit.offset, head=_packed(fit), threshold=before)
        values[f"{side}_threshold"] = fit.threshold
        if side == "allowed":
            values["follow_up_threshold"] = fit.threshold
        report["sides"][side] = _side_report(rows, logits, positive, fit, before)
    if not sides:
        raise CalibrationError("nothing could be fitted: the policy has no rules, or the rows have one label only")
    fitted = Fitted(
        space=str(guard.embedder.space), target=str(target), rows=dict(sorted(counts.items())), on=on, **sides
    )
    kept = {name: getattr(plain, name) for name in type(plain).model_fields}
    return Calibration(Policy(**{**kept, **values, "fitted": fitted}), report)


def _side_report(rows: Sequence[LabelledRow], logits: Any, positive: Any, fit: Fit, threshold: float) -> dict[str, Any]:
    chance = 1.0 / (1.0 + np.exp(-np.clip(logits, -60, 60)))
    met = fit.held_out >= fit.threshold
    wrong = np.flatnonzero(met != positive)
    order = wrong[np.argsort(-np.abs(fit.held_out[wrong] - fit.threshold), kind="stable")]
    points = roc(fit.held_out, positive)
    return {
        "n": len(positive),
        "threshold": fit.threshold,
        "head": fit.head is not None,
        "auroc": {"before": _round(auroc(logits, positive)), "after": _round(auroc(fit.held_out, positive))},
        "balanced_accuracy": {
            "before": _round(balanced_accuracy(chance >= threshold, positive)),
            "after": _round(balanced_accuracy(met, positive)),
        },
        "calibration_error": {
            "before": _round(calibration_error(chance, positive)),
            "after": _round(calibration_error(fit.held_out, positive)),
        },
        "precision": _round(float(positive[met].mean()) if met.any() else None),
        "recall": _round(float(met[positive].mean())),
        "belonging_missed": _round(float((~met[positive]).mean())),
        "others_met": _round(float(met[~positive].mean())),
        "roc": [[_round(float(x)), _round(float(y))] for x, y, _ in points[:: max(1, len(points) // 40)]],
        "histogram": {
            "belong": np.histogram(fit.held_out[positive], bins=20, range=(0, 1))[0].tolist(),
            "others": np.histogram(fit.held_out[~positive], bins=20, range=(0, 1))[0].tolist(),
        },
        "wrong": [
            {"text": rows[index].text, "label": rows[index].label, "probability": _round(float(fit.held_out[index]))}
            for index in order
        ],
    }


def _packed(fit: Fit) -> str:
    return "" if fit.head is None else base64.b64encode(fit.head.astype("<f4").tobytes()).decode("ascii")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
