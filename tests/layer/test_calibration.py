"""`calibrate`: what a hundred labelled rows buy, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topicality import CalibrationError, ConfigError, Guard, Policy, calibrate
from topicality.core.calibrate import Target
from topicality.core.measure import balanced_accuracy
from topicality.layer.calibration import Calibration
from topicality.layer.evaluate import LabelledRow, read_rows

BENCH = Path(__file__).resolve().parents[2] / "bench" / "data"
TASKS = ("bank", "shop", "coding")


def split(task: str, size: int = 100) -> tuple[list[LabelledRow], list[LabelledRow]]:
    rows = read_rows(BENCH / f"{task}.jsonl")
    random.Random(4).shuffle(rows)
    return rows[:size], rows[size:]


@cache
def fitted(task: str, kind: str = "policy0", target: Target | None = None) -> Calibration:
    return calibrate(Policy.load(BENCH / f"{task}.{kind}.json"), split(task)[0], target=target, on="2026-01-02")


def passed(policy: Policy, rows: Sequence[LabelledRow]) -> tuple[list[bool], list[bool]]:
    verdicts = Guard(policy).check_many([row.text for row in rows], [row.context for row in rows])
    return [v.action == "allow" for v in verdicts], [row.label == "allowed" for row in rows]


def accuracy(task: str, kind: str) -> float:
    _, rest = split(task)
    assert len(rest) > 200
    return balanced_accuracy(*passed(fitted(task, kind).policy, rest)) or 0.0


@pytest.mark.parametrize("task", TASKS)
def test_a_hundred_rows_and_ten_examples_a_rule_make_good_decisions_on_the_rest(task: str) -> None:
    assert accuracy(task, "policy10") >= 0.85


def test_a_hundred_rows_and_descriptions_alone_make_good_decisions_on_the_rest() -> None:
    assert np.mean([accuracy(task, "policy0") for task in TASKS]) >= 0.85


def test_the_stated_target_is_met_on_rows_that_were_not_seen() -> None:
    flagged = total = 0
    for task in TASKS:
        policy = fitted(task, target=Target("flagged", 0.05)).policy
        met, truth = passed(policy, split(task)[1])
        flagged += sum(not ok for ok, right in zip(met, truth, strict=True) if right)
        total += sum(truth)
    assert flagged / total <= 0.08


def test_it_is_deterministic_and_the_order_of_a_second_fit_does_not_matter() -> None:
    rows, _ = split("shop")
    policy = Policy.load(BENCH / "shop.policy0.json")
    first = calibrate(policy, rows, on="2026-01-02")
    second = calibrate(first.policy, rows, on="2026-01-02")  # an earlier fit is replaced, not built upon
    assert first.policy.dump() == second.policy.dump()
    assert first.report == second.report
    assert first.policy.unfitted().dump() == policy.dump()


def test_the_fitted_policy_carries_where_it_came_from_and_survives_a_file() -> None:
    result = fitted("shop")
    note = result.policy.fitted
    assert note is not None
    assert note.space.startswith("minilm[384]")
    assert note.on == "2026-01-02"
    assert sum(note.rows.values()) == 100
    assert note.target == "best balanced accuracy"
    again = Policy.parse(json.dumps(result.policy.dump()), "json")
    assert again == result.policy
    texts = [row.text for row in split("shop")[1][:40]]
    assert Guard(again).check_many(texts) == Guard(result.policy).check_many(texts)


def test_the_report_has_the_figures_before_and_after_and_the_rows_it_gets_wrong() -> None:
    rows, _ = split("bank")
    report = fitted("bank").report
    side = report["sides"]["allowed"]
    assert side["n"] == 100
    assert side["auroc"]["after"] >= side["auroc"]["before"] - 0.03
    assert side["balanced_accuracy"]["after"] >= 0.8
    assert 0.0 <= side["threshold"] <= 1.0
    wrong = {row["text"] for row in side["wrong"]}
    assert wrong <= {row.text for row in rows}
    right = 100 - len(side["wrong"])
    positives = sum(row.label == "allowed" for row in rows)
    errors = side["belonging_missed"] * positives + side["others_met"] * (100 - positives)
    assert right == pytest.approx(100 - errors, abs=0.1)
    assert sum(side["histogram"]["belong"]) == positives
    assert sum(side["histogram"]["others"]) == 100 - positives
    json.dumps(report)


def test_too_few_blocked_rows_leave_that_side_alone_and_say_so() -> None:
    rows = [row for row in split("shop")[0] if row.label != "blocked"]
    result = calibrate(Policy.load(BENCH / "shop.policy0.json"), rows)
    assert "blocked rows" in result.report["sides"]["blocked"]["skipped"]
    assert result.policy.fitted is not None
    assert result.policy.fitted.blocked is None
    assert result.policy.blocked_threshold == Policy().blocked_threshold


def few(allowed: int, others: int) -> list[LabelledRow]:
    return [LabelledRow(f"message {n}", "allowed") for n in range(allowed)] + [
        LabelledRow(f"other {n}", "off_topic") for n in range(others)
    ]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no labelled messages"),
        ([LabelledRow(" ", "allowed")] * 30, "no labelled messages"),
        (few(3, 40), "got 3 that belong and 40"),
        (few(40, 9), "add messages that do not belong"),
        (few(40, 0), "40 that belong and 0"),
    ],
)
def test_too_few_or_one_sided_rows_are_refused_saying_what_is_missing(rows: list[LabelledRow], says: str) -> None:
    with pytest.raises(CalibrationError, match=says):
        calibrate(Policy(allowed=["billing"]), rows)


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_target_must_be_a_share(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        calibrate(Policy(allowed=["billing"]), few(12, 12), target=Target("flagged", rate))


def test_plain_cosine_cannot_be_calibrated() -> None:
    with pytest.raises(ConfigError, match="cosine"):
        calibrate(Policy(allowed=["billing"], scoring="cosine"), few(12, 12))


def test_a_policy_without_rules_cannot_be_fitted() -> None:
    with pytest.raises(CalibrationError):
        calibrate(Policy(), few(12, 12))


def test_context_is_read_when_fitting() -> None:
    told: list[Any] = ["I was charged twice for my subscription. Which card shall I refund?"]
    rows = [
        LabelledRow(f"{word} one", "allowed", "", tuple(told))
        for word in "the that this first second third last next other red blue big".split()
    ]
    rows += [LabelledRow(text, "off_topic") for text in (
        "write a poem", "who won the match", "bake a cake", "rain tomorrow", "paint a horse", "sing a song",
        "how old is the sun", "capital of Peru", "grow tomatoes", "train a dog", "learn Greek", "fix a bike",
    )]  # fmt: skip
    policy = Policy(allowed=["billing and payments"])
    with_context = calibrate(policy, rows).report["sides"]["allowed"]["auroc"]["before"]
    without = calibrate(policy, [LabelledRow(row.text, row.label) for row in rows]).report["sides"]["allowed"]["auroc"][
        "before"
    ]
    assert with_context > without + 0.1
    assert np.isfinite(with_context)
