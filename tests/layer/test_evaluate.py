"""The figures of `eval guard`, against sums done by hand, and the data they are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topicality import Guard, InputError, Policy, Space
from topicality.layer.evaluate import LabelledRow, evaluate_guard, mean_of, read_rows
from topicality.vectors import Array, unit

BENCH = Path(__file__).resolve().parents[2] / "bench" / "data"
TASKS = ("bank", "shop", "coding")


class Angles:
    """An encoder in the plane: a text that is a number of degrees points there, "here" at 0, "there" at 90."""

    languages: frozenset[str] | None = None
    space = Space("angles", 2)

    def embed(self, texts: Sequence[str]) -> Array:
        degrees = [float({"here": "0", "there": "90"}.get(text, text)) for text in texts]
        return unit(np.column_stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]))

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def guard(**changes: Any) -> Guard:
    rules = {"allowed": ["here"], "scoring": "cosine", "allowed_threshold": 0.5}
    return Guard(Policy(**{**rules, **changes}), Angles())


ROWS = [
    LabelledRow("0", "allowed", "a"),  # cosine 1, risk 0
    LabelledRow("60", "allowed", "a"),  # 0.5, meets the threshold, risk 0.25
    LabelledRow("90", "allowed", "b"),  # 0, risk 0.5, wrongly flagged
    LabelledRow("45", "off_topic", "b"),  # 0.707, risk 0.146, wrongly passed
    LabelledRow("120", "off_topic"),  # -0.5, risk 0.75
    LabelledRow("180", "off_topic"),  # -1, risk 1
]


def test_the_figures_are_those_computed_by_hand() -> None:
    seen: list[int] = []
    report = evaluate_guard(guard(), ROWS, seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert report["n"] == 6
    # 9 pairs; the off-topic row at 45 degrees is less risky than two allowed ones: 7 of 9 are in order.
    assert report["auroc_off_topic"] == pytest.approx(7 / 9, abs=1e-4)
    assert report["auroc_blocked"] is None
    assert report["fpr_at_95_tpr"] == pytest.approx(1 / 3, abs=1e-4)
    assert report["balanced_accuracy"] == pytest.approx((2 / 3 + 2 / 3) / 2, abs=1e-4)
    # 1 - risk against being allowed, by tenths: 1 ok; .75 against 1; .5 against 1; .854 against 0; .25 against 0; 0 ok.
    assert report["calibration_error"] == pytest.approx((0.25 + 0.5 + 0.8536 + 0.25) / 6, abs=1e-3)
    assert report["confusion"] == {
        "allowed": {"allow": 2, "flag": 1, "block": 0},
        "off_topic": {"allow": 1, "block": 0, "flag": 2},
    }
    assert report["by_source"] == {
        "a": {"n": 2, "right": 1.0, "allow": 2},
        "b": {"n": 2, "right": 0.0, "allow": 1, "flag": 1},
    }
    assert set(report["ms_per_message"]) == {"p50", "p95"}
    assert report["encoder"] == "angles"
    json.dumps(report)


def test_blocked_rows_are_ranked_by_their_own_risk_and_counted_as_not_allowed() -> None:
    rows = [*ROWS[:2], LabelledRow("95", "blocked"), LabelledRow("180", "off_topic")]
    report = evaluate_guard(guard(blocked=["there"], blocked_threshold=0.9), rows)
    assert report["confusion"]["blocked"] == {"allow": 0, "block": 1, "flag": 0}
    assert report["balanced_accuracy"] == 1.0
    assert report["auroc_blocked"] == 1.0


def test_one_label_alone_gives_no_figure_that_needs_two() -> None:
    report = evaluate_guard(guard(), ROWS[:3])
    assert report["auroc_off_topic"] is report["fpr_at_95_tpr"] is report["balanced_accuracy"] is None
    assert report["n"] == 3


def test_a_redirected_message_counts_as_not_passed() -> None:
    report = evaluate_guard(guard(off_topic_action="redirect"), ROWS)
    assert report["balanced_accuracy"] == pytest.approx(2 / 3, abs=1e-4)
    assert report["confusion"]["off_topic"]["redirect"] == 2


def test_no_rows_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no rows"):
        evaluate_guard(guard(), [])


def test_the_mean_leaves_out_what_is_missing() -> None:
    empty = dict.fromkeys(
        ["auroc_off_topic", "auroc_blocked", "fpr_at_95_tpr", "balanced_accuracy", "calibration_error"]
    )
    means = mean_of([{**empty, "auroc_off_topic": 0.8}, {**empty, "auroc_off_topic": 0.9, "auroc_blocked": 0.7}])
    assert means == {**empty, "auroc_off_topic": 0.85, "auroc_blocked": 0.7}


def test_rows_are_read_with_source_context_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '\ufeff{"text": "a", "label": "allowed"}\n\n'
        '{"text": "b", "label": "blocked", "source": "s", "context": ["x", {"role": "user", "text": "y"}], "extra": 1}\n',
        "utf-8",
    )
    first, second = read_rows(path)
    assert first == LabelledRow("a", "allowed")
    assert second == LabelledRow("b", "blocked", "s", ("x", {"role": "user", "text": "y"}))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "text"),
        ('"text"', "text"),
        ('{"label": "allowed"}', "text"),
        ('{"text": 5, "label": "allowed"}', "text"),
        ('{"text": "a"}', "label"),
        ('{"text": "a", "label": "ALLOWED"}', "label"),
        ('{"text": "a", "label": ["allowed"]}', "label"),
        ('{"text": "a", "label": "allowed", "context": "b"}', "context"),
        ('{"text": "a", "label": "allowed", "context": [5]}', "context"),
        ('{"text": "a", "label": "allowed", "context": [{"role": "user"}]}', "context"),
    ],
)
def test_a_malformed_row_is_named_with_file_and_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "a", "label": "allowed"}}\n\n{line}\n', "utf-8")
    with pytest.raises(InputError, match=rf"rows\.jsonl, line 3: .*{says}"):
        read_rows(path)


def test_an_unreadable_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9", "label": "allowed"}')
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "latin.jsonl")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["policy0", "policy10"])
def test_the_shipped_defaults_do_well_on_the_projects_own_tasks(task: str, kind: str) -> None:
    report = evaluate_guard(Guard(BENCH / f"{task}.{kind}.json"), read_rows(BENCH / f"{task}.jsonl")[::3])
    assert report["auroc_off_topic"] >= 0.9
    assert report["auroc_blocked"] >= 0.9
    assert report["balanced_accuracy"] >= 0.75


@pytest.mark.parametrize("kind", ["policy0", "policy10"])
def test_messages_that_merely_mention_a_blocked_subject_are_seldom_blocked(kind: str) -> None:
    blocked, total = 0, 0
    for task in TASKS:
        rows = [row.text for row in read_rows(BENCH / f"{task}.jsonl") if row.source == "mention"]
        verdicts = Guard(BENCH / f"{task}.{kind}.json").check_many(rows)
        blocked += sum(verdict.action == "block" for verdict in verdicts)
        total += len(rows)
    assert total >= 60
    assert blocked / total <= 0.10, f"{blocked} of {total}"
