"""Policies: from Python, TOML, YAML and JSON; what is refused, and what the refusal says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality import Policy, TopicRule
from topicality.config import PRESETS, Fitted, FittedSide, OnError
from topicality.errors import ConfigError

TOML = """
name = "shop"
off_topic_action = "redirect"
allowed_threshold = 0.4
borderline = [0.2, 0.5]
context_turns = 2

[on_error]
allowed = "block"

[replies]
off_topic = "Let's talk about your order."
billing = "Ask billing."

[[allowed]]
name = "billing"
description = "invoices, refunds, cards"
examples = ["Where is my invoice?", "I want a refund"]
threshold = 0.25

[[allowed]]
name = "shipping"

[[blocked]]
name = "violence"
counterexamples = ["This bug is killing me"]
keywords = "bomb"
"""

YAML = """
name: shop
off_topic_action: redirect
allowed_threshold: 0.4
borderline: [0.2, 0.5]
context_turns: 2
on_error: {allowed: block}
replies:
  off_topic: Let's talk about your order.
  billing: Ask billing.
allowed:
  - name: billing
    description: invoices, refunds, cards
    examples: ["Where is my invoice?", I want a refund]
    threshold: 0.25
  - shipping
blocked:
  - name: violence
    counterexamples: This bug is killing me
    keywords: [bomb]
"""

PYTHON = Policy(
    name="shop",
    off_topic_action="redirect",
    allowed_threshold=0.4,
    borderline=(0.2, 0.5),
    context_turns=2,
    on_error=OnError(allowed="block"),
    replies={"off_topic": "Let's talk about your order.", "billing": "Ask billing."},
    allowed=[
        TopicRule(
            name="billing",
            description="invoices, refunds, cards",
            examples=["Where is my invoice?", "I want a refund"],
            threshold=0.25,
        ),
        "shipping",
    ],
    blocked={"name": "violence", "counterexamples": "This bug is killing me", "keywords": "bomb"},
)


def test_toml_yaml_json_and_python_say_the_same(tmp_path: Path) -> None:
    texts = {"toml": TOML, "yaml": YAML, "yml": YAML, "json": json.dumps(PYTHON.dump())}
    for kind, text in texts.items():
        path = tmp_path / f"policy.{kind}"
        path.write_text(text, "utf-8")
        assert Policy.load(path) == PYTHON, kind
        assert Policy.load(str(path)) == PYTHON, kind
        assert Policy.parse(text, kind) == PYTHON, kind


def test_a_file_without_a_name_is_called_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "my shop.json"
    path.write_text('{"allowed": ["billing"]}', "utf-8")
    assert Policy.load(path).name == "my shop"


def test_a_byte_order_mark_and_an_upper_case_ending_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "POLICY.JSON"
    path.write_text('{"allowed": ["billing"]}', "utf-8-sig")
    assert Policy.load(path).allowed == (TopicRule(name="billing"),)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_are_rich_and_can_be_combined(name: str) -> None:
    policy = Policy.load(name)
    assert policy.name == name
    assert policy.sided()
    assert policy.hints() == []
    assert all(len(rule.examples) >= 5 for _, rule in policy.sided())


def test_a_preset_s_rules_are_added_to_a_policy_and_the_rest_stays() -> None:
    unsafe = Policy.load("common_unsafe")
    both = PYTHON.with_rules_of(unsafe.model_copy(update={"blocked": unsafe.blocked[1:]}))
    assert both.blocked == PYTHON.blocked + unsafe.blocked[1:]
    assert both.allowed == PYTHON.allowed
    assert (both.name, both.replies, both.borderline) == (PYTHON.name, PYTHON.replies, PYTHON.borderline)
    with pytest.raises(ConfigError, match="twice"):
        PYTHON.with_rules_of(PYTHON)


# What is refused. The message names the key, what was got, and what is accepted or what to do.

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown key", {"allow": ["a"]}, "allow: unknown key; check the spelling"),
    ("unknown key of a rule", {"allowed": [{"name": "a", "exmaples": []}]}, r"allowed\.0: exmaples: unknown key"),
    ("unknown key of on_error", {"on_error": {"allow": "flag"}}, r"on_error: allow: unknown key"),
    ("a rule without a name", {"allowed": [{"description": "x"}]}, r"allowed\.0: name: Field required"),
    ("an empty name", {"allowed": [""]}, r"allowed\.0: name: .*not blank"),
    ("a blank name", {"blocked": ["ok", " \t\n"]}, r"blocked\.1: name: .*not blank"),
    ("an empty example", {"allowed": [{"name": "a", "examples": ["x", ""]}]}, r"examples: an entry is empty"),
    ("a blank keyword", {"allowed": [{"name": "a", "keywords": " "}]}, r"keywords: an entry is empty"),
    ("a blank counterexample", {"allowed": [{"name": "a", "counterexamples": [" "]}]}, "counterexamples: an entry"),
    ("a name twice", {"allowed": ["a", "a"]}, "rule 'a' is there twice.*allowed"),
    ("twice but for case", {"allowed": ["Straße", "STRASSE"]}, "twice"),
    ("twice but for white space", {"allowed": ["a b", " a  b "]}, "twice"),
    ("on both sides", {"allowed": ["Violence"], "blocked": ["violence"]}, "blocked: rule 'violence'.*under allowed"),
    (
        "a threshold above one",
        {"allowed_threshold": 1.01},
        r"allowed_threshold: got 1\.01; accepted: a probability in \[0",
    ),
    ("a threshold below zero", {"blocked_threshold": -0.1}, r"blocked_threshold: got -0\.1"),
    ("a follow-up threshold", {"follow_up_threshold": 2}, "follow_up_threshold: got 2"),
    ("a rule's threshold", {"allowed": [{"name": "a", "threshold": 1.5}]}, r"allowed rule 'a': threshold: got 1\.5"),
    ("a cosine out of range", {"scoring": "cosine", "allowed_threshold": -1.1}, r"a cosine in \[-1, 1\]"),
    ("NaN", {"allowed_threshold": math.nan}, r"allowed_threshold: .*finite.*nan"),
    ("infinity", {"allowed": [{"name": "a", "threshold": math.inf}]}, r"threshold: .*finite"),
    ("NaN in the band", {"borderline": [math.nan, 0.5]}, "borderline.*finite"),
    ("a band upside down", {"borderline": [0.6, 0.2]}, r"borderline: got \[0\.6, 0\.2\]; accepted: .*low <= high"),
    ("a band out of range", {"borderline": [0.5, 1.2]}, "borderline: got"),
    ("half a band", {"borderline": [0.5]}, "borderline"),
    ("an action nobody knows", {"off_topic_action": "warn"}, r"off_topic_action: .*'allow', 'flag'.*got 'warn'"),
    ("allowing what is blocked", {"blocked_action": "allow"}, "blocked_action: got 'allow'; accepted: flag"),
    ("a reply to nobody", {"allowed": ["a"], "replies": {"b": "x"}}, r"replies: unknown \['b'\]; accepted: off_topic"),
    ("a reply that is no text", {"replies": {"off_topic": 7}}, r"replies\.off_topic: .*string.*got 7"),
    ("a number for a rule", {"allowed": [7]}, r"allowed\.0: .*got 7"),
    ("a number for the rules", {"allowed": 7}, "allowed: .*got 7"),
    ("nothing for the rules", {"allowed": None}, "allowed: .*got None"),
    ("too many turns", {"context_turns": 51}, "context_turns: .*50.*got 51"),
    ("fewer than no turns", {"context_turns": -1}, "context_turns: .*got -1"),
    ("text for a number", {"allowed_threshold": "high"}, "allowed_threshold: .*got 'high'"),
    ("a direction nobody knows", {"direction": "up"}, "direction: .*got 'up'"),
]


@pytest.mark.parametrize(("values", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_policy_that_cannot_be_meant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy(**values)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.parse(json.dumps(values), "json", "shop.json")
    assert str(caught.value).startswith("shop.json: ")


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(allowed=[""], borderline="x", unknown=1)
    assert all(word in str(caught.value) for word in ("allowed.0: name", "borderline", "unknown: unknown key"))
    assert caught.value.key == "allowed.0"


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(allowed_threshold="x" * 10_000)
    assert len(str(caught.value)) < 300


MALFORMED: list[tuple[str, str, str]] = [
    ("toml", "name = 'a'\nallowed = [", r"not valid TOML \(.*line 2, column 12"),
    ("toml", "name = 'a'\nname = 'b'\n", r"not valid TOML \(.*line 2"),
    ("json", '{"name": "a",\n "allowed": [}', r"not valid JSON, line 2 column 14"),
    ("json", "", "not valid JSON, line 1 column 1"),
    ("yaml", "name: a\nallowed: [", r"not valid YAML, line 2 column"),
    ("yaml", "a: b\n\tc: d", r"not valid YAML, line 2 column 1"),
    ("yaml", "a: \0", "not valid YAML"),
    ("yaml", "a: !!python/object/apply:os.getcwd []", "not valid YAML, line 1 column 4"),
    ("yaml", "", "a policy is a table of keys"),
    ("yaml", "- billing", "a policy is a table of keys; got 'list'"),
    ("json", '"billing"', "a policy is a table of keys; got 'str'"),
    ("json", "[" * 100_000, "nested too deeply"),
    ("toml", "a = " + "[" * 5_000 + "]" * 5_000, "nested too deeply"),
    ("yaml", "[" * 5_000, "nested too deeply"),
    ("json", '{"context_turns": ' + "1" * 5_000 + "}", "not usable JSON"),
    ("toml", "context_turns = " + "1" * 5_000, "not usable TOML"),
    ("yaml", "context_turns: " + "1" * 5_000, "not usable YAML"),
    ("yaml", "name: 2001-99-99", "not usable YAML"),
    ("json", '{"allowed_threshold": NaN}', "allowed_threshold"),
    ("yaml", "1: 2", "1: unknown key"),
]


@pytest.mark.parametrize(("kind", "text", "message"), MALFORMED)
def test_a_malformed_file_is_refused_with_its_name_and_place(
    kind: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / f"policy.{kind}"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.load(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < len(str(path)) + 400


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    binary = tmp_path / "policy.toml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path in (binary, tmp_path / "missing.toml"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            Policy.load(path)
        assert str(path) in str(caught.value)
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.load(folder)


@pytest.mark.parametrize("name", ["policy", "policy.ini", "policy.", "", "customer-support"])
def test_a_format_that_cannot_be_told_lists_the_formats_and_the_presets(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.toml, \.yaml, \.yml, \.json, or customer_support"):
        Policy.load(name)
    with pytest.raises(ConfigError, match="toml, yaml, json"):
        Policy.parse("{}", name)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        PYTHON.name = "other"


# What follows from a policy


def test_bare_strings_and_single_values_are_fine() -> None:
    policy = Policy(allowed="billing", blocked=TopicRule(name="violence", examples="x"))
    assert [(side, rule.name) for side, rule in policy.sided()] == [("allowed", "billing"), ("blocked", "violence")]
    assert policy.blocked[0].examples == ("x",)
    assert TopicRule(name=" a \n b ").name == "a b"
    assert TopicRule(name="a", examples=["x", "y", "x"]).examples == ("x", "y")


def test_a_rule_s_own_threshold_goes_first_zero_included() -> None:
    policy = Policy(
        allowed=["a", {"name": "b", "threshold": 0.0}], blocked=["c", {"name": "d", "threshold": 0.9}],
        allowed_threshold=0.2, blocked_threshold=0.7,
    )  # fmt: skip
    assert [policy.threshold(side, rule) for side, rule in policy.sided()] == [0.2, 0.0, 0.7, 0.9]


def test_replies_are_by_kind_or_by_rule_whatever_the_case() -> None:
    replies = {"off_topic": "a", "blocked": "b", "VIOLENCE": "c", "billing": "d"}
    assert Policy(allowed=["Billing"], blocked=["violence"], replies=replies).replies == replies


def test_hints_name_the_rules_that_say_too_little() -> None:
    thin = [f"rule {number}" for number in range(5)]
    hint = Policy(allowed=thin).hints()[0]
    assert "'rule 0', 'rule 1', 'rule 2' and 2 more" in hint
    assert "5 to 15" in hint
    assert Policy(allowed=[{"name": "a", "examples": ["x"]}]).hints() == []
    assert Policy(allowed=[{"name": "a", "description": "b, c; d, e"}]).hints() == []
    assert "'a'" in Policy(allowed=[{"name": "a", "description": "b, c, d"}]).hints()[0]
    assert Policy().hints() == []


def test_unfitted_is_the_policy_from_before_the_fit() -> None:
    before = Policy(allowed=["a"], blocked=["b"], allowed_threshold=0.25, blocked_threshold=0.35)
    fit = Fitted(
        space="s[2]", target="t", rows={"allowed": 20}, on="2026-01-01",
        allowed=FittedSide(slope=1, offset=0, threshold=0.25), blocked=FittedSide(slope=2, offset=1, threshold=0.35),
    )  # fmt: skip
    after = before.model_copy(
        update={"fitted": fit, "allowed_threshold": 0.9, "follow_up_threshold": 0.9, "blocked_threshold": 0.8}
    )
    assert after != before
    assert after.unfitted() == before
    assert before.unfitted() is before
    half = after.model_copy(update={"fitted": fit.model_copy(update={"blocked": None})})
    assert half.unfitted().blocked_threshold == 0.8


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(str.strip)
entries = st.lists(words, max_size=3)
chance = st.floats(0, 1)
rules: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    description=st.text(st.characters(codec="utf-8"), max_size=20),
    examples=entries,
    counterexamples=entries,
    keywords=entries,
    threshold=st.none() | chance,
    reply=st.none() | words,
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    names = draw(st.lists(words, max_size=5, unique_by=lambda name: " ".join(name.split()).casefold()))
    made = [{"name": name, **draw(rules)} for name in names]
    cut = draw(st.integers(0, len(made)))
    low, high = sorted([draw(chance), draw(chance)])
    keys = ["off_topic", "blocked", *(" ".join(name.split()) for name in names)]
    return Policy(
        name=draw(st.just("") | words),
        allowed=made[:cut],
        blocked=made[cut:],
        off_topic_action=draw(st.sampled_from(["allow", "flag", "redirect", "block"])),
        blocked_action=draw(st.sampled_from(["flag", "redirect", "block"])),
        allowed_threshold=draw(chance),
        follow_up_threshold=draw(chance),
        blocked_threshold=draw(chance),
        borderline=(low, high),
        judge=draw(st.sampled_from(["borderline", "always", "never"])),
        small_talk=draw(st.booleans()),
        context_turns=draw(st.integers(0, 50)),
        direction=draw(st.sampled_from(["input", "output", "both"])),
        on_error=draw(st.builds(OnError, allowed=st.sampled_from(["allow", "flag"]), blocked=st.just("flag"))),
        replies=draw(st.dictionaries(st.sampled_from(keys), words, max_size=3)),
        background=draw(entries),
        fitted=draw(
            st.none()
            | st.builds(
                Fitted,
                space=words,
                target=words,
                rows=st.just({"allowed": 10}),
                on=st.just("2026-01-01"),
                allowed=st.none() | st.builds(FittedSide, slope=chance, offset=chance, head=words, threshold=chance),
                blocked=st.none(),
            )
        ),
    )


@given(policies())
def test_what_is_dumped_is_read_back_the_same(policy: Policy) -> None:
    assert Policy.parse(json.dumps(policy.dump()), "json") == policy
    assert Policy(**policy.dump()) == policy


def test_a_dump_has_only_what_differs_from_the_defaults() -> None:
    assert Policy().dump() == {}
    assert Policy(allowed=["a"]).dump() == {"allowed": [{"name": "a"}]}
