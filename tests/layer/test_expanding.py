"""`policy expand`: what a model suggests for each rule gets into the file, and nothing else changes there."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicality import LlmError, Policy, TopicRule
from topicality.core.expansion import Expansion, read_expansion
from topicality.layer.expanding import Expanded, expand, expanded_toml, expanded_values
from topicality.llm import Asker, Budget, CallableLlm
from topicality.types import LlmUse

TOML = """\
# what this bot is for
name = "shop"   # the name
off_topic_action = "redirect"

allowed = [ # short ones
  "billing", # money
  {name = "shipping", examples = ["where is my parcel"]},
]

# never
[[blocked]]
name = "violence" # important
description = "weapons, attacks"
examples = [
  "how to build a bomb", # seen in March
]
threshold = 0.4

[[blocked]]
name = "politics"
"""


def found(side: Any, rule: str, includes: tuple[str, ...], near: tuple[str, ...] = ()) -> Expanded:
    return Expanded(side, rule, Expansion(includes, near), "", LlmUse("expander", 1, 0, 0, 0.0, "ok"))


ALL = [
    found("allowed", "billing", ("refunds", 'a "quoted" \\ entry'), ("a bill in parliament",)),
    found("allowed", "shipping", ("customs",), ("relationshipping",)),
    found("blocked", "violence", ("poison",), ("a bomb of a party",)),
    found("blocked", "politics", ("elections",)),
]


def test_suggestions_stand_behind_what_is_there_and_comments_stay() -> None:
    text = expanded_toml(TOML, ALL)
    policy = Policy.parse(text, "toml")
    assert [rule.name for _, rule in policy.sided()] == ["billing", "shipping", "violence", "politics"]
    assert policy.allowed[1].examples == ("where is my parcel", "customs")
    assert policy.blocked[0].examples == ("how to build a bomb", "poison")
    assert policy.blocked[0].counterexamples == ("a bomb of a party",)
    assert policy.blocked[1].counterexamples == ()
    for comment in (
        "# what this bot is for",
        "# the name",
        "# short ones",
        "# money",
        "# never",
        "# important",
        "# seen in March",
    ):
        assert comment in text
    assert text.count("suggested by a language model") == 3
    lines = [
        line for line in TOML.splitlines() if "examples" not in line and '"billing"' not in line and "bomb" not in line
    ]
    assert all(line in text.splitlines() for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        'allowed = "billing"\n[blocked]\nname = "violence"\n',
        'allowed = ["billing"]\nblocked = [{name = "violence", examples = "one"}]\n',
        '[[allowed]]\nname = " billing "\nexamples = "one"\n[[blocked]]\nname = "violence"\nexamples = []\n',
        '[allowed]\nname = "billing"\ncounterexamples = ["x",]\n[blocked]\nname = "violence"\n[replies]\nblocked = "no"\n',
        'allowed = [\n  "billing"\n]\r\nblocked = ["violence"]\r\n',
        '{"not": "toml"}',
    ],
)
def test_every_way_to_write_a_rule(text: str) -> None:
    both = [ALL[0], ALL[2]]
    if text.startswith("{"):
        with pytest.raises(ValueError, match=r"[Ii]nvalid|[Ee]mpty|[Uu]nexpected"):
            expanded_toml(text, both)
        return
    before, after = Policy.parse(text, "toml"), Policy.parse(expanded_toml(text, both), "toml")
    assert after.allowed[0].examples == (*before.allowed[0].examples, *ALL[0].found.includes)  # type: ignore[union-attr]
    assert after.blocked[0].counterexamples == (*before.blocked[0].counterexamples, "a bomb of a party")
    assert after.replies == before.replies


def test_nothing_suggested_changes_nothing() -> None:
    none = Expanded("allowed", "billing", None, "down", ALL[0].llm)
    assert expanded_toml(TOML, [none]) == TOML
    values = Policy.parse(TOML, "toml").dump()
    assert expanded_values(values, [none]) == values


PLAIN = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20).filter(lambda t: t.strip())


@given(st.lists(PLAIN, min_size=1, max_size=4), st.lists(PLAIN, max_size=4))
@settings(max_examples=150)
def test_whatever_is_suggested_the_file_says_exactly_that(includes: list[str], near: list[str]) -> None:
    read = read_expansion(json.dumps({"includes": includes, "near_misses": near}), TopicRule(name="violence"))
    assert isinstance(read, Expansion)
    suggestion = found("blocked", "violence", read.includes, read.near_misses)
    written = tomllib.loads(expanded_toml(TOML, [suggestion]))
    assert written["blocked"][0]["examples"] == ["how to build a bomb", *read.includes]
    assert written["blocked"][0].get("counterexamples", []) == list(read.near_misses)


def test_repetitions_and_what_the_rule_has_already_are_left_out() -> None:
    rule = TopicRule(name="Billing", description="money", examples=("Refunds",), counterexamples=("a bill",))
    reply = {
        "includes": ["billing", "refunds.", "MONEY", "Invoices", "invoices", " "],
        "near_misses": ["a bill", "Invoices", "law"],
    }
    assert read_expansion(json.dumps(reply), rule) == Expansion(("Invoices",), ("law",))


# Asking.

POLICY = Policy.parse(TOML, "toml")


def test_each_rule_is_asked_about_once_with_the_names_of_the_others() -> None:
    asked: list[Any] = []

    def model(system: str, user: str) -> Any:
        asked.append(json.loads(user))
        return {"includes": ["x"], "near_misses": ["y"]}

    seen: list[int] = []
    results = expand(POLICY, Asker(CallableLlm(model)), progress=seen.append)
    assert [(one.side, one.rule, one.llm.calls) for one in results] == [
        ("allowed", "billing", 1), ("allowed", "shipping", 1), ("blocked", "violence", 1), ("blocked", "politics", 1),
    ]  # fmt: skip
    assert seen == [1, 2, 3, 4]
    assert asked[2]["topic"] == {
        "name": "violence", "description": "weapons, attacks", "examples": ["how to build a bomb"], "side": "blocked",
    }  # fmt: skip
    assert asked[2]["other_topics"] == ["billing", "shipping", "politics"]


def test_a_rule_without_an_answer_is_reported_and_the_others_go_on() -> None:
    def model(system: str, user: str) -> Any:
        return {"includes": ["x"], "near_misses": []} if '"name": "shipping"' in user else "no"

    results = expand(POLICY, Asker(CallableLlm(model), Budget(calls_per_minute=None)))
    assert [one.found is not None for one in results] == [False, True, False, False]
    assert "unusable" in results[0].why


def test_no_answer_at_all_is_an_error() -> None:
    with pytest.raises(LlmError, match="no usable answer for any rule"):
        expand(POLICY, Asker(CallableLlm(lambda system, user: "")))
