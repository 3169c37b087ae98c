"""`check_topic`: the guard's own verdict, as a tool for function-calling models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from topicality import EmbedError, Guard, Policy, check_topic_tool
from topicality.embed import load
from topicality.vectors import Array

MINILM = load("minilm")
GUARD = Guard(Policy.load("customer_support").with_rules_of(Policy.load("common_unsafe")))
TOOL = check_topic_tool(GUARD)
DATA = Path(__file__).resolve().parents[2] / "bench" / "data" / "shop.jsonl"
TEXTS = [json.loads(line)["text"] for line in DATA.read_text("utf-8").splitlines()][::7]


class Down:
    """An encoder that never answers."""

    languages = MINILM.languages
    space = MINILM.space

    def embed(self, texts: Sequence[str]) -> Array:
        raise EmbedError("down")

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def test_it_decides_exactly_as_the_guard_for_fifty_texts() -> None:
    assert len(TEXTS) == 50
    actions = set()
    for text in TEXTS:
        answer = TOOL(text)
        assert answer.pop("ok") is True
        assert answer == GUARD.check(text).to_dict()
        actions.add(answer["action"])
    assert len(actions) >= 2


def test_what_it_answers_is_json_and_keeps_the_score_of_a_message_that_passes() -> None:
    answer = json.loads(json.dumps(TOOL("How do I reset my password?")))
    assert answer["ok"] is True
    assert answer["action"] == "allow"
    assert answer["score"] >= answer["threshold"]
    assert answer["scores"]


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_a_blank_text_is_an_error_in_the_answer(text: Any) -> None:
    answer = TOOL(text)
    assert answer == {"ok": False, "error": "text is required and must not be blank"}


@pytest.mark.parametrize("text", [5, ["a"], {"text": "a"}])
def test_what_is_not_text_is_an_error_in_the_answer(text: Any) -> None:
    answer = TOOL(text)
    assert answer["ok"] is False
    assert type(text).__name__ in answer["error"]


def test_a_broken_encoder_is_the_guards_own_degraded_verdict_not_a_pass() -> None:
    guard = Guard(GUARD.policy, Down())
    answer = check_topic_tool(guard)("quantum chromodynamics")
    assert (answer["ok"], answer["action"], answer["status"]) == (True, "block", "unavailable")


def test_the_schema_is_closed_and_asks_for_one_text() -> None:
    assert TOOL.name == "check_topic"
    assert TOOL.parameters["required"] == ["text"]
    assert TOOL.parameters["additionalProperties"] is False
    assert TOOL.parameters["properties"]["text"]["type"] == "string"
    assert TOOL.openai() == {
        "type": "function",
        "function": {"name": "check_topic", "description": TOOL.description, "parameters": TOOL.parameters},
    }
    json.dumps(TOOL.openai())
