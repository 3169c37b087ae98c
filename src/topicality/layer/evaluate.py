"""Measuring a guard on labelled messages: the figures of `topicality eval guard`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topicality.core.measure import auroc, balanced_accuracy, calibration_error, false_positive_rate, percentiles
from topicality.errors import InputError
from topicality.layer.guard import Guard
from topicality.layer.reading import Turn, text_of
from topicality.types import Verdict

LABELS = ("allowed", "off_topic", "blocked")


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One message with the label a person gave it: "allowed", "off_topic" or "blocked"."""

    text: str
    label: str
    source: str = ""
    context: tuple[Turn, ...] = ()


def read_rows(path: str | Path) -> list[LabelledRow]:
    """Labelled rows from a JSONL file: `{"text", "label", "source"?, "context"?}` a line; blank lines are skipped.

    Raises:
        InputError: unreadable or malformed, with the line.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            rows.append(_row(line, f"{path}, line {number}"))
    return rows


def evaluate_guard(
    guard: Guard, rows: Sequence[LabelledRow], progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Check every row, one by one, and measure.

    Returns:
        n, auroc_off_topic (risk of not being allowed, all rows), auroc_blocked (None without blocked rows),
        fpr_at_95_tpr (share of the other rows let in when 95 % of the allowed ones are), balanced_accuracy (allowed
        against the rest, by the policy's own thresholds), calibration_error, confusion (label to action), by_source,
        ms_per_message, encoder, llm_calls. A figure that one label alone cannot give is None.
        With a judge also `judge`: how often it was asked, the rows whose action it changed, and at which cost.
    """
    if not rows:
        raise InputError("there is nothing to measure: the data has no rows")
    guard.warm_up()
    risks, actions, spent = [], [], []
    asked: list[tuple[int, Verdict]] = []
    for done, row in enumerate(rows, start=1):
        started = time.perf_counter()
        verdict = guard.check(row.text, row.context)
        spent.append((time.perf_counter() - started) * 1000.0)
        risks.append(
            0.0 if verdict.risk is None and verdict.action == "allow" else 1.0 if verdict.risk is None else verdict.risk
        )
        actions.append(verdict.action)
        if verdict.llm is not None:
            asked.append((done - 1, verdict))
        if progress is not None:
            progress(done)
    risk = np.array(risks)
    allowed = np.array([row.label == "allowed" for row in rows])
    blocked = np.array([row.label == "blocked" for row in rows])
    passed = np.array([action == "allow" for action in actions])
    against = None
    if blocked.any():
        against = auroc([value or 0.0 for value in guard.blocked_risks([row.text for row in rows])], blocked)
    report = {
        "n": len(rows),
        "auroc_off_topic": _rounded(auroc(risk, ~allowed)),
        "auroc_blocked": _rounded(against),
        "fpr_at_95_tpr": _rounded(false_positive_rate(1.0 - risk, allowed)),
        "balanced_accuracy": _rounded(balanced_accuracy(passed, allowed)),
        "calibration_error": _rounded(calibration_error(1.0 - risk, allowed)),
        "confusion": {
            label: dict(sorted(_tally(rows, actions, label).items()))
            for label in LABELS
            if any(row.label == label for row in rows)
        },
        "by_source": _by_source(rows, actions),
        "ms_per_message": percentiles(spent),
        "encoder": guard.embedder.space.name,
        "llm_calls": sum(verdict.llm_calls for _, verdict in asked),
    }
    if guard.judge is not None:
        report["judge"] = judge_effect(guard, rows, asked)
    return report


def judge_effect(guard: Guard, rows: Sequence[LabelledRow], asked: Sequence[tuple[int, Verdict]]) -> dict[str, Any]:
    """What a judge changed, against the same guard without one.

    Args:
        asked: the verdicts for which it was asked, with the row's index.
    Returns:
        asked, failed (no usable answer), changed (another action), better and worse (right where the local verdict was wrong,
        and the other way round; right is to allow the allowed rows and no others), calls, input_tokens, output_tokens,
        seconds, outcomes, and `rows`: those that were changed.
    """
    alone = Guard(guard.policy, guard.embedder)
    changed: list[dict[str, Any]] = []
    for index, verdict in asked:
        row = rows[index]
        before = alone.check(row.text, row.context).action
        if before != verdict.action:
            was, now = ((action == "allow") == (row.label == "allowed") for action in (before, verdict.action))
            effect = "better" if now and not was else "worse" if was and not now else "same"
            told = {"row": index + 1, "text": row.text, "label": row.label, "before": before, "after": verdict.action}
            changed.append({**told, "effect": effect, "reason": verdict.reason})
    uses = [verdict.llm for _, verdict in asked if verdict.llm is not None]
    return {
        "asked": len(asked),
        "failed": sum(use.outcome not in ("ok", "repaired") for use in uses),
        "changed": len(changed),
        "better": sum(row["effect"] == "better" for row in changed),
        "worse": sum(row["effect"] == "worse" for row in changed),
        "calls": sum(use.calls for use in uses),
        "input_tokens": sum(use.input_tokens for use in uses),
        "output_tokens": sum(use.output_tokens for use in uses),
        "seconds": round(sum(use.seconds for use in uses), 3),
        "outcomes": dict(sorted(Counter(use.outcome for use in uses).items())),
        "rows": changed,
    }


def mean_of(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over several reports, leaving out those that have none."""
    found = list(reports)
    means: dict[str, Any] = {}
    for name in ("auroc_off_topic", "auroc_blocked", "fpr_at_95_tpr", "balanced_accuracy", "calibration_error"):
        values = [report[name] for report in found if report[name] is not None]
        means[name] = _rounded(float(np.mean(values))) if values else None
    return means


def _by_source(rows: Sequence[LabelledRow], actions: Sequence[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for source in sorted({row.source for row in rows if row.source}):
        inside = [(row, action) for row, action in zip(rows, actions, strict=True) if row.source == source]
        right = [(action == "allow") == (row.label == "allowed") for row, action in inside]
        counts = Counter(action for _, action in inside)
        found[source] = {"n": len(inside), "right": _rounded(float(np.mean(right))), **dict(sorted(counts.items()))}
    return found


def _tally(rows: Sequence[LabelledRow], actions: Sequence[str], label: str) -> Counter[str]:
    counts: Counter[str] = Counter({"allow": 0, "flag": 0, "block": 0})
    counts.update(action for row, action in zip(rows, actions, strict=True) if row.label == label)
    return counts


def _row(line: str, where: str) -> LabelledRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{where}: a row needs a "text" that is a string')
    if value.get("label") not in LABELS:
        raise InputError(f'{where}: "label" must be one of {", ".join(LABELS)}, got {str(value.get("label"))[:40]!r}')
    context = value.get("context") or []
    if not isinstance(context, list):
        raise InputError(f'{where}: "context" must be a list of turns')
    try:
        for turn in context:
            text_of(turn)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return LabelledRow(value["text"], value["label"], str(value.get("source") or ""), tuple(context))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
