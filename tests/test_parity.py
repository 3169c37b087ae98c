"""Everything systems A and B do for a guard, with their own numbers; docs/coming-from.md says the same in words.

Where this product differs on purpose, the row's name begins with "differs" and says how, and the new behaviour is what is
asserted. A: topicality 0.1.0 (descriptors, centroids). B: topicality 0.2.2 (strings, three tiers).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from topicality import (
    CachedEmbedder,
    ConfigError,
    EmbedError,
    Guard,
    InputError,
    Policy,
    Space,
    SpaceMismatchError,
    TopicIndex,
    Verdict,
    similarity,
)
from topicality.config import OnError
from topicality.vectors import Array

NEAR = 1e-6  # vectors are float32


def rows(*table: tuple[Any, ...]) -> Any:
    """Parameters whose first column is the row's name."""
    return [pytest.param(*row[1:], id=row[0]) for row in table]


# Cosine.


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    rows(
        ("pythagorean", [3, 4], [4, 3], 0.96),
        ("parallel", [1, 2], [2, 4], 1.0),
        ("orthogonal", [1, 0], [0, 1], 0.0),
        ("opposed", [1, 0], [-1, 0], -1.0),
        ("tiny, as A and B (not C, where it is 0)", [1e-6, 0], [1e-6, 0], 1.0),
        ("differs: a zero vector is undefined, not 0", [1, 0], [0, 0], None),
    ),
)
def test_cosine(a: list[float], b: list[float], expected: float | None) -> None:
    assert similarity(a, b) == (None if expected is None else pytest.approx(expected, abs=1e-15))


@pytest.mark.parametrize(
    ("a", "b", "error"),
    rows(
        ("differs: empty vectors raise, not 0", [], [], InputError),
        ("differs: a shorter vector raises, not 0 or NaN", [1, 0], [1], SpaceMismatchError),
        ("differs: a longer vector raises, not 0 or a part of it", [1], [1, 0], SpaceMismatchError),
        ("differs: NaN raises, not NaN", [math.nan, 0], [1, 0], InputError),
    ),
)
def test_cosine_of_what_cannot_be_compared(a: list[float], b: list[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        similarity(a, b)


# A's index.

SPORTS: list[list[float]] = [[1, 0, 0], [0.9, 0.1, 0], [0.95, 0.05, 0]]
COOKING: list[list[float]] = [[0, 1, 0], [0.1, 0.9, 0], [0.05, 0.95, 0]]
QUERIES = rows(
    ("A1", [1, 0, 0], [("sports", 0.9986178293325098), ("cooking", 0.05255883312276369)]),
    ("A1 mirrored", [0, 1, 0], [("cooking", 0.9986178293325098), ("sports", 0.05255883312276369)]),
    ("A2", [0.92, 0.08, 0], [("sports", 0.9994167652269246), ("cooking", 0.13887112227526743)]),
    ("A3 a tie keeps the order given", [1, 1, 0], [("sports", 0.7432941462471663), ("cooking", 0.7432941462471663)]),
    ("orthogonal", [0, 0, 1], [("sports", 0.0), ("cooking", 0.0)]),
)


def of_centroids() -> TopicIndex:
    """A's centroids (means of members that are not scaled) as one member a topic: A's very numbers."""
    index = TopicIndex()
    index.build_vectors({"sports": np.mean(SPORTS, axis=0), "cooking": np.mean(COOKING, axis=0)})
    return index


def of_members(scorer: Any = "centroid") -> TopicIndex:
    index = TopicIndex(scorer=scorer)
    index.build_vectors({"sports": SPORTS, "cooking": COOKING})
    return index


@pytest.mark.parametrize(("query", "ranked"), QUERIES)
def test_index_of_as_centroids_has_as_numbers(query: list[float], ranked: list[tuple[str, float]]) -> None:
    found = of_centroids().match_vector(query)
    assert [match.topic for match in found] == [name for name, _ in ranked]
    assert [match.score for match in found] == pytest.approx([score for _, score in ranked], abs=NEAR)


@pytest.mark.parametrize(("query", "ranked"), QUERIES)
def test_index_differs_members_are_scaled_before_the_mean(query: list[float], ranked: list[tuple[str, float]]) -> None:
    found = of_members().match_vector(query)
    assert [match.score for match in found] == pytest.approx([score for _, score in ranked], abs=3e-3)
    if ranked[0][1] != ranked[1][1]:
        assert [match.topic for match in found] == [name for name, _ in ranked]


@pytest.mark.parametrize(("query", "ranked"), QUERIES)
def test_index_differs_the_default_is_the_best_member(query: list[float], ranked: list[tuple[str, float]]) -> None:
    best = {match.topic: match.score for match in of_members("best").match_vector(query)}
    for name, members in (("sports", SPORTS), ("cooking", COOKING)):
        assert best[name] == pytest.approx(max(similarity(query, member) or 0.0 for member in members), abs=NEAR)
        assert best[name] >= dict(ranked)[name] - 1e-3


def test_index_a4_differs_a_negative_cosine_is_kept() -> None:
    assert [match.score for match in of_centroids().match_vector([-1, 0, 0])] == pytest.approx(
        [-0.05255883312276369, -0.9986178293325098], abs=NEAR
    )
    assert of_centroids().match_vector([-1, 0, 0])[0].topic == "cooking"
    assert not of_centroids().is_on_topic_vector([-1, 0, 0], 0.0)


def test_index_a4_differs_a_zero_query_raises_and_is_not_off_topic() -> None:
    with pytest.raises(InputError, match="zeros"):
        of_centroids().match_vector([0, 0, 0])


def test_index_a4_differs_another_dimension_raises() -> None:
    with pytest.raises(SpaceMismatchError):
        of_centroids().match_vector([1, 0])


@pytest.mark.parametrize(
    ("offset", "expected"),
    rows(("below", -0.001, True), ("differs: met when equal", 0.0, True), ("above", 0.001, False)),
)
def test_index_a5_threshold(offset: float, expected: bool) -> None:
    index = of_centroids()
    best = index.match_vector([0.92, 0.08, 0])[0].score
    assert index.is_on_topic_vector([0.92, 0.08, 0], best + offset) is expected


def test_index_a6_differs_members_that_cancel_are_refused_or_keep_their_modes() -> None:
    with pytest.raises(InputError, match="cancel"):
        TopicIndex(scorer="centroid").build_vectors({"both": [[1, 0], [-1, 0]]})
    index = TopicIndex()
    index.build_vectors({"both": [[1, 0], [-1, 0]]})
    assert [index.match_vector(query)[0].score for query in ([1, 0], [-1, 0])] == [1.0, 1.0]


def test_index_a7_differs_a_long_member_does_not_dominate() -> None:
    its = TopicIndex()
    its.build_vectors({"topic": [0.5, 5]})  # A's centroid
    assert its.match_vector([1, 0])[0].score == pytest.approx(0.09950371902099892, abs=NEAR)
    index = TopicIndex(scorer="centroid")
    index.build_vectors({"topic": [[1, 0], [0, 10]]})
    assert index.match_vector([1, 0])[0].score == pytest.approx(math.sqrt(0.5), abs=NEAR)


class Table:
    """An encoder that looks texts up; writes down the size of each call; refuses what is not there."""

    languages: frozenset[str] | None = None

    def __init__(self, vectors: Mapping[str, Sequence[float]]) -> None:
        self.vectors = vectors
        self.sizes: list[int] = []
        self.space = Space("table", len(next(iter(vectors.values()))))

    def embed(self, texts: Sequence[str]) -> Array:
        self.sizes.append(len(texts))
        if any(text not in self.vectors for text in texts):
            raise EmbedError("the fake encoder does not know this text")
        raw = np.array([self.vectors[text] for text in texts], dtype=np.float64).reshape(len(texts), -1)
        length = np.linalg.norm(raw, axis=1, keepdims=True)
        return (raw / np.where(length == 0, 1, length)).astype(np.float32)

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def test_index_builds_in_one_call_and_an_empty_one_asks_nothing() -> None:
    encoder = Table({"about sport": [1, 0], "a goal": [1, 1], "about food": [0, 1], "soup": [0, 2]})
    index = TopicIndex(encoder)
    assert not index.is_built
    assert index.match_vector([1, 0]) == []
    assert not index.is_on_topic_vector([1, 0], -1.0)
    index.build({})
    assert index.is_built
    assert encoder.sizes == []
    index.build({"sports": ["about sport", "a goal"], "food": ["about food", "soup"]})
    assert encoder.sizes == [4]
    assert index.match("soup")[0].topic == "food"
    assert encoder.sizes == [4, 1]


def test_index_differs_a_build_that_fails_leaves_the_old_index_in_place() -> None:
    encoder = Table({"about sport": [1, 0]})
    index = TopicIndex(encoder)
    index.build({"sports": ["about sport"]})
    with pytest.raises(EmbedError):
        index.build({"other": ["unknown"]})
    assert index.topics == ("sports",)
    assert index.match_vector([1, 0])[0].topic == "sports"


# A's guard.


def guard_a(vectors: Mapping[str, Sequence[float]], **policy: Any) -> Guard:
    """With A's defaults: 0.35 and 0.65 as cosines."""
    return Guard(
        Policy(**{"scoring": "cosine", "allowed_threshold": 0.35, "blocked_threshold": 0.65, **policy}), Table(vectors)
    )


def test_guard_a15_a_forbidden_topic_blocks() -> None:
    verdict = guard_a({"weapons": [0, 1, 0], "text": [0.1, 0.95, 0]}, blocked=["weapons"]).check("text")
    assert (verdict.action, verdict.reason_code, verdict.rule) == ("block", "BLOCKED_TOPIC", "weapons")
    assert verdict.score == pytest.approx(0.9945054529214059, abs=NEAR)
    assert verdict.threshold == 0.65


def test_guard_a15_may_flag_instead() -> None:
    guard = guard_a({"weapons": [0, 1, 0], "text": [0.1, 0.95, 0]}, blocked=["weapons"], blocked_action="flag")
    assert guard.check("text").action == "flag"


@pytest.mark.parametrize(
    ("action", "expected"),
    rows(
        ("flag", "flag", "flag"),
        ("block", "block", "block"),
        ("differs: redirect is not a mere flag", "redirect", "redirect"),
    ),
)
def test_guard_a16_off_topic(action: str, expected: str) -> None:
    guard = guard_a(
        {"billing": [1, 0, 0], "text": [0, 0, 1]},
        allowed=["billing"],
        off_topic_action=action,
        replies={"off_topic": "No."},
    )
    verdict = guard.check("text")
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.score) == (expected, "OFF_TOPIC", "billing", 0.0)
    assert verdict.reply == ("No." if expected != "flag" else None)


def test_guard_a18_between_the_thresholds_passes() -> None:
    guard = guard_a(
        {"billing": [1, 0, 0], "weapons": [0, 1, 0], "text": [0.33, 0.33, 0.33]},
        allowed=["billing"],
        blocked=["weapons"],
    )
    verdict = guard.check("text")
    assert (verdict.action, verdict.reason_code) == ("allow", "ON_TOPIC")
    assert verdict.score == pytest.approx(math.sqrt(1 / 3), abs=NEAR)


@pytest.mark.parametrize(
    ("x", "code"),
    rows(("below", 0.374, "OFF_TOPIC"), ("differs: met when equal", 0.375, "ON_TOPIC"), ("above", 0.376, "ON_TOPIC")),
)
def test_guard_a_allowed_threshold(x: float, code: str) -> None:
    vectors: dict[str, list[float]] = {"billing": [1, 0], "text": [x, math.sqrt(1 - x * x)]}
    guard = guard_a(vectors, allowed=["billing"], allowed_threshold=0.375)  # 3/8: exact in float32
    assert guard.check("text").reason_code == code


def test_guard_a19_differs_both_lists_are_built_in_one_call_and_texts_once() -> None:
    encoder = Table(
        {
            "billing": [1, 0, 0],
            "pay": [1, 0, 0],
            "weapons": [0, 1, 0],
            "gun": [0, 1, 0],
            "one": [1, 0, 1],
            "two": [0, 0, 1],
        }
    )
    rules: dict[str, Any] = {
        "allowed": [{"name": "billing", "examples": ["pay"]}],
        "blocked": [{"name": "weapons", "examples": ["gun"]}],
    }
    guard = Guard(Policy(**rules, scoring="cosine"), CachedEmbedder(encoder))
    guard.check("one")
    guard.check("two")
    guard.check("one")
    assert encoder.sizes == [4, 1, 1], "A: 2, 2, then 1 for each message"


@pytest.mark.parametrize(
    ("direction", "role", "checked"),
    rows(
        ("A20 output scope, input", "output", "user", False),
        ("A20 input scope, output", "input", "assistant", False),
        ("input scope, input", "input", "user", True),
        ("output scope, output", "output", "assistant", True),
        ("both, output", "both", "assistant", True),
    ),
)
def test_guard_a20_scope(direction: str, role: str, checked: bool) -> None:
    guard = guard_a({"billing": [1, 0], "text": [0, 1]}, allowed=["billing"], direction=direction)
    verdict = guard.check("text", role=role)
    assert (verdict.reason_code, verdict.action) == (("OFF_TOPIC", "flag") if checked else ("NOT_CHECKED", "allow"))


def test_guard_a_differs_a_broken_encoder_does_not_pass_everything() -> None:
    guard = guard_a({"billing": [1, 0]}, allowed=["billing"], blocked=["weapons"])
    verdict = guard.check("unknown")
    assert (verdict.action, verdict.reason_code, verdict.status) == ("block", "ERROR", "unavailable")


def test_guard_a_differs_the_same_id_twice_is_refused_and_does_not_replace() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Policy(allowed=["billing", "Billing"])


# B's guard: embeddings.

ALLOWED, BLOCKED = {"billing": [1, 0, 0, 0], "support": [0, 1, 0, 0]}, {"violence": [0, 0, 1, 0]}


def policy_b(**changes: Any) -> Policy:
    """With B's defaults: 0.3 and 0.5 as cosines. What no tier can answer is flagged on both sides, as B's keywords would."""
    values = {
        "allowed": list(ALLOWED), "blocked": list(BLOCKED), "scoring": "cosine", "allowed_threshold": 0.3,
        "blocked_threshold": 0.5, "on_error": OnError(allowed="flag", blocked="flag"), **changes,
    }  # fmt: skip
    return Policy(**values)


def b(vector: Sequence[float], **changes: Any) -> Verdict:
    return Guard(policy_b(**changes), Table({**ALLOWED, **BLOCKED, "text": vector})).check("text")


@pytest.mark.parametrize(
    ("vector", "action", "code", "rule", "score"),
    rows(
        ("on topic", [1, 0, 0, 0], "allow", "ON_TOPIC", "billing", 1.0),
        ("off topic", [0, 0, 0, 1], "flag", "OFF_TOPIC", "billing", 0.0),
        ("blocked", [0, 0, 1, 0], "block", "BLOCKED_TOPIC", "violence", 1.0),
        (
            "blocked wins over an allowed 0.832",
            [0.9, 0, 0.6, 0],
            "block",
            "BLOCKED_TOPIC",
            "violence",
            0.5547001962252291,
        ),
        ("blocked when equal", [0, 0, 0.5, math.sqrt(0.75)], "block", "BLOCKED_TOPIC", "violence", 0.5),
        ("allowed when equal", [0.3, 0, 0, 0.9539392014169457], "allow", "ON_TOPIC", "billing", 0.3),
        ("below", [0.29, 0, 0, 0.9570266453970862], "flag", "OFF_TOPIC", "billing", 0.29),
        ("the best of two below", [-1, 0, 0, 0], "flag", "OFF_TOPIC", "support", 0.0),
    ),
)
def test_guard_b_embeddings(vector: list[float], action: str, code: str, rule: str, score: float) -> None:
    verdict = b(vector)
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.method) == (action, code, rule, "embedding")
    assert verdict.score == pytest.approx(score, abs=NEAR)


def test_guard_b_differs_a_zero_vector_is_not_checked_rather_than_off_topic() -> None:
    verdict = b([0, 0, 0, 0])
    assert (verdict.action, verdict.reason_code, verdict.status) == ("flag", "ERROR", "unavailable")
    guard = Guard(policy_b(), Table({**ALLOWED, **BLOCKED}))
    with pytest.raises(InputError, match="zeros"):
        guard.check("text", vector=[0, 0, 0, 0])


def test_guard_b_differs_the_best_blocked_topic_is_named_not_the_first() -> None:
    vectors: dict[str, list[float]] = {"weapons": [0.8, 0.6], "war": [0, 1], "text": [0.1, 0.99]}
    guard = Guard(Policy(blocked=["weapons", "war"], scoring="cosine", blocked_threshold=0.5), Table(vectors))
    assert guard.check("text").rule == "war"


def test_guard_b_without_allowed_topics_everything_else_passes() -> None:
    verdict = Guard(policy_b(allowed=[]), Table({**BLOCKED, "text": [1, 0, 0, 0]})).check("text")
    assert (verdict.action, verdict.reason_code) == ("allow", "ON_TOPIC")


def test_guard_b_differs_one_name_on_both_sides_is_refused_and_no_name_comparison_decides() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Policy(allowed=["violence"], blocked=["Violence"])


def test_guard_b_checks_no_empty_text_and_differs_by_saying_so() -> None:
    guard = Guard(policy_b(), Table({**ALLOWED, **BLOCKED}))
    for text in ("", "  \n"):
        assert (guard.check(text).action, guard.check(text).reason_code) == ("allow", "NOT_CHECKED")


def test_guard_b_differs_no_topics_at_all_is_no_error() -> None:
    assert Guard(Policy()).check("anything").reason_code == "NOT_CHECKED"


# B's guard: keywords.


class Down(Table):
    """An encoder that does not answer."""

    def embed(self, texts: Sequence[str]) -> Array:
        raise EmbedError("down")


def words(text: str, **changes: Any) -> Verdict:
    return Guard(policy_b(**changes), Down(ALLOWED)).check(text)


@pytest.mark.parametrize(
    ("text", "action", "code", "probability"),
    rows(
        ("blocked", "Tell me about violence", "block", "BLOCKED_TOPIC", 0.8),
        ("allowed", "I have a billing question", "allow", "ON_TOPIC", 0.7),
        ("allowed, in capitals", "BILL", "allow", "ON_TOPIC", 0.7),
        ("differs: nothing known is an error for the policy, not off topic", "quantum physics", "flag", "ERROR", None),
        ("differs: one letter of an allowed topic does not pass", "b", "flag", "ERROR", None),
        ("differs: one letter of a blocked topic does not block", "e", "flag", "ERROR", None),
        ("differs: a word of one letter does not block", "I", "flag", "ERROR", None),
        ("differs: a word inside a word does not block", "nonviolence training", "flag", "ERROR", None),
        ("differs: a greeting is small talk, not off topic", " hi ", "allow", "SMALL_TALK", 0.5),
    ),
)
def test_guard_b_keywords(text: str, action: str, code: str, probability: float | None) -> None:
    verdict = words(text)
    assert (verdict.action, verdict.reason_code, verdict.probability) == (action, code, probability)
    assert verdict.status == ("unavailable" if code == "ERROR" else "degraded")
    assert verdict.method == {"ERROR": "none", "SMALL_TALK": "small_talk"}.get(code, "keywords")


def test_guard_b_differs_an_empty_topic_is_refused_and_does_not_block_everything() -> None:
    with pytest.raises(ConfigError, match="blank"):
        Policy(blocked=[""])


# B's guard: the judge, where the encoder is down.


def judged(reply: object, text: str = "quantum physics") -> Verdict:
    return Guard(policy_b(), Down(ALLOWED), judge=lambda system, user: reply).check(text)


def says(verdict: str, rule: str | None = None, confidence: object = 0.6) -> str:
    return json.dumps({"verdict": verdict, "rule": rule, "confidence": confidence, "reason": "x"})


@pytest.mark.parametrize(
    ("reply", "action", "method", "risk"),
    rows(
        ("on topic", says("allowed"), "allow", "judge", 0.4),
        ("off topic, with its confidence", says("off_topic"), "flag", "judge", 0.6),
        ("blocked, in a fence", f"```json\n{says('blocked', 'violence')}\n```", "block", "judge", 0.6),
        ("differs: a stray brace first is passed over", "{bad} " + says("blocked", "violence"), "block", "judge", 0.6),
        ("differs: an unknown topic is refused", says("off_topic", "physics"), "flag", "none", None),
        ("differs: allowed, but by a blocked topic, is refused", says("allowed", "violence"), "flag", "none", None),
        ("differs: text for a yes or no is refused", '{"onTopic": "false", "confidence": 1}', "flag", "none", None),
        ("differs: a confidence of 12 is refused", says("allowed", None, 12), "flag", "none", None),
        ("differs: a missing confidence is refused", '{"verdict": "allowed", "rule": null}', "flag", "none", None),
        (
            "nested object",
            json.dumps({"verdict": {"is": "allowed"}, "rule": None, "confidence": 1}),
            "flag",
            "none",
            None,
        ),
        ("null", "null", "flag", "none", None),
        ("prose", "It is about physics.", "flag", "none", None),
        ("differs: an empty object is refused, not off topic", "{}", "flag", "none", None),
    ),
)
def test_guard_b_judge(reply: str, action: str, method: str, risk: float | None) -> None:
    verdict = judged(reply)
    assert (verdict.action, verdict.method) == (action, method)
    assert verdict.risk == (None if risk is None else pytest.approx(risk))
    assert verdict.reason_code == ("ERROR" if method == "none" else verdict.reason_code)
    assert verdict.status == ("degraded" if method == "judge" else "unavailable")


def test_guard_b_a_judge_that_fails_hands_on_to_the_keywords() -> None:
    verdict = judged("It is about physics.", "Tell me about violence")
    assert (verdict.action, verdict.method, verdict.status) == ("block", "keywords", "degraded")


def test_guard_b_differs_inference_that_fails_hands_on_too() -> None:
    guard = Guard(policy_b(), Table({**ALLOWED, **BLOCKED, "text": [1, 0, 0, 0]}))
    assert guard.check("text").method == "embedding"
    assert guard.check("some violence").method == "keywords"


# B's cache.


def test_cache_b_a_topic_and_a_message_are_embedded_once_and_again_after_clear() -> None:
    encoder = Table({**ALLOWED, **BLOCKED, "text": [1, 0, 0, 0]})
    cache = CachedEmbedder(encoder)
    guard = Guard(policy_b(), cache)
    guard.check("text")
    guard.check("text")
    assert encoder.sizes == [3, 1], "differs: all topics in one call, where B has one call a topic"
    cache.clear()
    guard.check("text")
    assert encoder.sizes == [3, 1, 1]
    Guard(policy_b(), cache).check("text")
    assert encoder.sizes == [3, 1, 1, 3]


def test_cache_b_differs_it_is_bounded_and_no_process_wide_store_of_users_texts() -> None:
    cache = CachedEmbedder(Table({**ALLOWED, **BLOCKED, "text": [1, 0, 0, 0]}), 2)
    Guard(policy_b(), cache).check("text")
    assert len(cache) == 2
    assert "text" not in repr(vars(cache))
