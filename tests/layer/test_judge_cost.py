"""What a judge costs and when it is in the way: never when it is not needed, never longer than its timeout."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import pytest

from topicality import Guard, Policy
from topicality.layer.evaluate import LabelledRow, evaluate_guard
from topicality.layer.tool import Tool, check_topic_tool
from topicality.llm import Asker, Budget, CallableLlm
from topicality.types import LlmReply, LlmUse

RULES: dict[str, Any] = {"allowed": ["billing and payments"], "blocked": ["violence"]}
ON, OFF, HARM = "How do I update my credit card?", "Write me a poem about snow", "How do I build a bomb to hurt people?"
SAYS = '{"verdict": "off_topic", "rule": null, "confidence": 0.9, "reason": "snow"}'
ALLOWS = '{"verdict": "allowed", "rule": null, "confidence": 0.9, "reason": "fine"}'
TALK = [ON, OFF, HARM, "", "thanks", "What does an invoice cost?", "x" * 20_000, "Как дела?"]


def said(reply: str, system: str, user: str) -> str:
    return reply


def never_asked(system: str, user: str) -> str:
    raise AssertionError("asked")


def test_a_judge_that_is_not_needed_changes_nothing_and_is_not_asked() -> None:
    asker = Asker(CallableLlm(never_asked))
    policy = Policy(**RULES, borderline=(0.0, 0.0))
    texts = [text for text in TALK if text.isascii()]
    alone, judged = Guard(policy), Guard(policy, judge=asker)
    assert judged.check_many(texts) == alone.check_many(texts)
    assert [judged.check(text) for text in texts] == [alone.check(text) for text in texts]
    assert asker.counters.to_dict() == {}
    for verdict in judged.check_many(texts):
        assert (verdict.llm, verdict.llm_calls) == (None, 0)
        assert verdict.to_dict()["llm"] is None


def test_without_a_judge_there_are_no_calls() -> None:
    report = evaluate_guard(Guard(Policy(**RULES)), [LabelledRow(ON, "allowed"), LabelledRow(OFF, "off_topic")])
    assert report["llm_calls"] == 0
    assert "judge" not in report


def test_a_verdict_says_what_the_judge_cost() -> None:
    guard = Guard(Policy(**RULES, judge="always"), judge=lambda system, user: LlmReply(SAYS, 321, 12))
    verdict = guard.check(OFF)
    assert isinstance(verdict.llm, LlmUse)
    assert (verdict.llm.role, verdict.llm.calls, verdict.llm.input_tokens, verdict.llm.output_tokens) == (
        "judge",
        1,
        321,
        12,
    )
    assert (verdict.llm.outcome, verdict.llm_calls) == ("ok", 1)
    assert verdict.to_dict()["llm"]["input_tokens"] == 321


def test_a_judge_that_failed_cost_something_too() -> None:
    guard = Guard(Policy(**RULES, judge="always"), judge=lambda system, user: LlmReply("?", 100, 1))
    verdict = guard.check(OFF)
    assert verdict.status == "degraded"
    assert verdict.llm is not None
    assert (verdict.llm.calls, verdict.llm.outcome, verdict.llm.input_tokens) == (2, "refused", 200)


def test_budgets_are_of_the_conversation_that_is_named() -> None:
    asker = Asker(CallableLlm(lambda system, user: SAYS), Budget(calls_per_conversation=1))
    guard = Guard(Policy(**RULES, judge="always"), judge=asker)
    kinds = [guard.check(OFF, conversation=name).method for name in ("a", "a", "b", "", "")]
    assert kinds == ["judge", "embedding", "judge", "judge", "judge"]
    verdict = guard.check(OFF, conversation="a")
    assert (verdict.status, verdict.llm_calls) == ("degraded", 0)
    assert any("budget" in note for note in verdict.notes)


def test_a_dead_judge_delays_by_its_timeout_and_then_is_left_alone() -> None:
    release, asked, returned = threading.Event(), [], []

    def hang(system: str, user: str) -> str:
        asked.append(user)
        returned.append(release.wait(100))
        return SAYS

    asker = Asker(CallableLlm(hang), Budget(pause_after=2))
    guard = Guard(Policy(**RULES, judge="always"), judge=asker, judge_timeout=0.2)
    verdicts = [guard.check(OFF) for _ in range(4)]
    assert (len(asked), returned) == (2, []), "every verdict was there before the judge came back"
    release.set()
    assert [verdict.status for verdict in verdicts] == ["degraded"] * 4
    outcomes = [verdict.llm.outcome if verdict.llm else None for verdict in verdicts]
    assert outcomes == ["timeout", "timeout", "paused", "paused"]


def test_no_text_of_a_message_or_a_reply_gets_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "topicality")
    for reply in ('{"SECRET": 1}', "SECRET", SAYS.replace("snow", "SECRET"), '{"verdict": "SECRET"}'):
        model = CallableLlm(partial(said, reply))
        Guard(Policy(**RULES, judge="always"), judge=model).check(OFF + " HIDDEN")
    assert caplog.records
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("topicality"))
    assert "SECRET" not in text
    assert "HIDDEN" not in text


def test_the_tool_tells_the_cost_like_the_guard() -> None:
    tool: Tool = check_topic_tool(Guard(Policy(**RULES, judge="always"), judge=lambda system, user: SAYS))
    assert tool(OFF)["llm"]["calls"] == 1


def test_a_policy_that_allows_anything_has_nothing_off_topic() -> None:
    guard = Guard(Policy(blocked=["violence"], judge="always"), judge=lambda system, user: SAYS)
    verdict = guard.check(OFF)
    assert (verdict.action, verdict.status) == ("allow", "degraded")
    assert any("any topic is allowed" in note for note in verdict.notes)


def test_evaluation_tells_what_the_judge_changed_and_what_that_cost() -> None:
    def model(system: str, user: str) -> Any:
        if "poem" in user:
            return LlmReply("nonsense", 10, 1)
        return LlmReply(ALLOWS, 100, 20)

    rows = [LabelledRow(text, label) for text, label in ((ON, "allowed"), (OFF, "off_topic"), (HARM, "blocked"))]
    rows.append(LabelledRow("thanks", "allowed"))
    policy = Policy(**RULES, judge="always", allowed_threshold=0.999)
    local = [Guard(policy).check(row.text).action for row in rows]
    assert local == ["flag", "flag", "block", "allow"]
    report = evaluate_guard(Guard(policy, judge=Asker(CallableLlm(model))), rows)
    judge = report["judge"]
    assert report["llm_calls"] == judge["calls"] == 5
    assert {key: judge[key] for key in ("asked", "failed", "changed", "better", "worse")} == {
        "asked": 4, "failed": 1, "changed": 2, "better": 1, "worse": 1,
    }  # fmt: skip
    assert (judge["input_tokens"], judge["output_tokens"]) == (320, 62)
    assert judge["outcomes"] == {"ok": 3, "refused": 1}
    assert [(row["row"], row["before"], row["after"], row["effect"]) for row in judge["rows"]] == [
        (1, "flag", "allow", "better"),
        (3, "block", "allow", "worse"),
    ]
