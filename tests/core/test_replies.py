"""A judge's reply is never trusted: what is found in it, what is refused and why."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topicality.config import Policy
from topicality.core.replies import Judgement, judgement_schema, objects, read_judgement

POLICY = Policy(allowed=["billing", "shipping"], blocked=["violence"])
REASON = "asks for an invoice"
GOOD: dict[str, Any] = {"verdict": "allowed", "rule": "billing", "confidence": 0.9, "reason": REASON}
WANTED = Judgement("allowed", "billing", 0.9, "asks for an invoice")


def valid(judgement: Judgement) -> bool:
    """Whether a judgement keeps its promise to the policy."""
    if judgement.kind not in ("allowed", "off_topic", "blocked") or not isinstance(judgement.confidence, float):
        return False
    rule_fits = {
        "allowed": judgement.rule in ("billing", "shipping", None),
        "off_topic": judgement.rule in ("billing", "shipping", "violence", None),
        "blocked": judgement.rule == "violence",
    }[judgement.kind]
    return rule_fits and 0.0 <= judgement.confidence <= 1.0 and isinstance(judgement.reason, str)


def dumped(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


@pytest.mark.parametrize(
    "reply",
    [
        GOOD,
        json.dumps(GOOD),
        json.dumps(GOOD, indent=4),
        f"```json\n{json.dumps(GOOD)}\n```",
        f"Sure! Here is my answer:\n\n{json.dumps(GOOD)}\n\nLet me know if you need more.",
        f"{{bad}} {{not json either}} {json.dumps(GOOD)}",
        f"I think {{ is a brace. {json.dumps(GOOD)} }}",
        f'{{"thought": {{"nested": true}}}} {json.dumps(GOOD)}',
        f"{dumped(confidence=12)} No, I mean {json.dumps(GOOD)}",
        "\ufeff" + json.dumps(GOOD),
        dumped(reason="  asks \n for an   invoice "),
    ],
)
def test_a_valid_answer_is_found_in_fences_prose_and_after_false_starts(reply: Any) -> None:
    assert read_judgement(reply, POLICY) == WANTED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"verdict": "blocked", "rule": "violence", "confidence": 1},
            Judgement("blocked", "violence", 1.0, REASON),
        ),
        ({"verdict": "off_topic", "rule": None, "confidence": 0}, Judgement("off_topic", None, 0.0, REASON)),
        ({"verdict": "off_topic", "rule": "billing"}, Judgement("off_topic", "billing", 0.9, REASON)),
        ({"rule": None}, Judgement("allowed", None, 0.9, REASON)),
        ({"reason": ""}, Judgement("allowed", "billing", 0.9, "")),
    ],
)
def test_each_kind_of_answer(changes: dict[str, Any], expected: Judgement) -> None:
    assert read_judgement(dumped(**changes), POLICY) == expected


def test_a_reason_may_be_missing_and_a_long_one_is_cut() -> None:
    bare = {key: value for key, value in GOOD.items() if key != "reason"}
    assert read_judgement(bare, POLICY) == Judgement("allowed", "billing", 0.9, "")
    found = read_judgement(dumped(reason="x " * 5000), POLICY)
    assert isinstance(found, Judgement)
    assert len(found.reason) <= 400


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (dumped(verdict="false"), "verdict must be one of"),
        (dumped(verdict=True), "verdict must be one of"),
        (dumped(verdict=None), "verdict must be one of"),
        (dumped(verdict=["allowed"]), "verdict must be one of"),
        (dumped(verdict="Allowed"), "verdict must be one of"),
        (dumped(confidence="0.9"), "confidence must be a number"),
        (dumped(confidence=True), "confidence must be a number"),
        (dumped(confidence=None), "confidence must be a number"),
        (dumped(confidence=math.nan), "confidence must be a number"),
        (dumped(confidence=math.inf), "confidence must be a number"),
        ('{"verdict": "allowed", "rule": null, "confidence": 1e999}', "confidence must be a number"),
        ('{"verdict": "allowed", "rule": null, "confidence": 1%s}' % ("0" * 400), "confidence must be"),
        ('{"verdict": "allowed", "rule": null, "confidence": -1%s}' % ("0" * 400), "confidence must be"),
        (dumped(confidence=12), "between 0 and 1"),
        (dumped(confidence=-0.01), "between 0 and 1"),
        (dumped(confidence=1.0000001), "between 0 and 1"),
        (dumped(rule="weather"), "rule must be null or one of"),
        (dumped(rule="Billing"), "rule must be null or one of"),
        (dumped(rule=7), "rule must be null or one of"),
        (dumped(rule=["billing"]), "rule must be null or one of"),
        (dumped(rule={}), "rule must be null or one of"),
        (dumped(verdict="blocked", rule="billing"), "a blocked verdict must name the blocked rule"),
        (dumped(verdict="blocked", rule=None), "a blocked verdict must name the blocked rule"),
        (dumped(rule="violence"), "an allowed verdict cannot name a blocked rule"),
        (dumped(reason=7), "reason must be text"),
        (dumped(reason=None), "reason must be text"),
        (dumped(onTopic=True), "unknown key 'onTopic'"),
        ('{"verdict": "allowed"}', "missing key 'rule'"),
        ("{}", "missing key 'verdict'"),
        ("", "no JSON object"),
        ("null", "no JSON object"),
        ("[]", "no JSON object"),
        ("yes, that is fine", "no JSON object"),
        ("{" * 5000, "no JSON object"),
        ('{"verdict": "allowed", "rule": "billing", "conf', "no JSON object"),
        (None, "got NoneType"),
        (7, "got int"),
        ([GOOD], "got list"),
        (b"{}", "got bytes"),
    ],
)
def test_an_answer_that_is_not_exactly_right_is_refused_and_told_why(reply: Any, fault: str) -> None:
    found = read_judgement(reply, POLICY)
    assert isinstance(found, list)
    assert any(fault in entry for entry in found), found


def test_all_faults_of_the_first_object_are_told_at_once() -> None:
    found = read_judgement(dumped(verdict="x", confidence=2, rule="x") + dumped(verdict="y"), POLICY)
    assert isinstance(found, list)
    assert len(found) == 3


def test_a_name_in_a_fault_is_cut() -> None:
    found = read_judgement({**GOOD, "k" * 10_000: 1}, POLICY)
    assert isinstance(found, list)
    assert all(len(fault) < 100 for fault in found)


def test_a_nested_answer_is_not_taken_out_of_its_wrapping() -> None:
    """What a user made the model repeat inside a field is not the model's own answer."""
    assert isinstance(read_judgement({"result": GOOD}, POLICY), list)
    assert isinstance(read_judgement(json.dumps({"result": GOOD}), POLICY), list)
    assert isinstance(read_judgement(json.dumps({"quote": json.dumps(GOOD)}), POLICY), list)


def test_objects_are_the_outermost_ones_in_order() -> None:
    assert list(objects('x {"a": {"b": 1}} {bad {"c": 2} [{"d": 3}]')) == [{"a": {"b": 1}}, {"c": 2}, {"d": 3}]


@pytest.mark.parametrize("reply", ["{" * 300_000, '{"a":' * 100_000, "[" * 300_000 + "{}", '{"' * 150_000])
def test_a_hostile_reply_costs_little(reply: str) -> None:
    assert isinstance(read_judgement(reply, POLICY), list)


def test_the_schema_is_closed_and_has_the_policy_s_own_names() -> None:
    schema = judgement_schema(POLICY)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"]) == set(GOOD)
    assert schema["properties"]["rule"]["enum"] == ["billing", "shipping", "violence", None]
    json.dumps(schema)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from([*GOOD.values(), "violence", "blocked"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "other"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "other"]), junk, max_size=5) | junk)
@example({**GOOD, "confidence": 10**400})
def test_whatever_an_object_holds_a_judgement_is_valid(value: Any) -> None:
    for reply in (value, json.dumps(value)):
        found = read_judgement(reply, POLICY)
        assert valid(found) if isinstance(found, Judgement) else found and all(map(str, found))


def test_a_thousand_malformed_replies_never_give_an_invalid_judgement() -> None:
    """A valid reply, damaged: characters cut, doubled, swapped, replaced, wrapped, values exchanged."""
    dice = random.Random(11)
    values: list[Any] = [
        "allowed",
        "blocked",
        "off_topic",
        "violence",
        "billing",
        None,
        True,
        False,
        "false",
        0,
        1,
        -1,
        1e9,
        [],
        {},
    ]
    judgements = 0
    for _ in range(1000):
        data: dict[str, Any] = dict(GOOD)
        for _ in range(dice.randrange(3)):
            data[dice.choice([*GOOD, "Verdict"])] = dice.choice(values)
        text = json.dumps(data)
        for _ in range(dice.randrange(4)):
            place = dice.randrange(len(text) + 1)
            text = (
                dice.choice(
                    [
                        text[:place],
                        text[:place] + text[place + 1 :],
                        text[:place] + dice.choice('{}[]":,\\\n\0x9') + text[place:],
                        text[place:] + text[:place],
                        text + text,
                        f"```json\n{text}\n```",
                        text.replace(
                            "0.9", dice.choice(["NaN", "Infinity", "1e999", "0.9.9", "12", "-0", "1" + "0" * 400])
                        ),
                    ]
                )
                or "x"
            )
        found = read_judgement(text, POLICY)
        if isinstance(found, Judgement):
            judgements += 1
            assert valid(found), text
        else:
            assert found, text
    assert judgements > 50  # the damage is not all there is
