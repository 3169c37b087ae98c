"""The decision for one message, from what speaks for each rule: order of the tiers, boundaries, keywords, windows, cosine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topicality.config import Policy
from topicality.core.guard import blocked_risk, decide
from topicality.core.keywords import ALLOWED_HIT, BLOCKED_HIT, Hit
from topicality.core.panel import Evidence
from topicality.core.score import RuleBook, RuleMembers, Weights
from topicality.core.verdicts import (
    Case,
    SideReading,
    by_keywords,
    cuts_of,
    log_odds,
    on_error,
    probability,
    reply_for,
    strongest,
    threshold_for,
)
from topicality.types import Verdict, Window
from topicality.vectors import unit

WEIGHTS = Weights(0.8, (5.0, 3.0), 0.6, (0.2, 0.5, 0.9, 2.5), 0.4)


def side(
    names: Sequence[str], logits: Sequence[Sequence[float]], best: Any = None, slope: float | Sequence[Any] = 10.0
) -> SideReading:
    """A reading of a side with one member a rule; rows are the pieces, the whole message first."""
    matrix = np.array(logits, dtype=np.float64)
    shape = matrix.shape
    values: dict[str, Any] = {
        "best": np.array(np.full(shape, 0.5) if best is None else best, dtype=np.float64),
        "logits": matrix,
        "slope": np.broadcast_to(np.array(slope, dtype=np.float64), shape),
        "nearest": np.zeros(shape, dtype=np.intp),
    }
    book = RuleBook(
        [RuleMembers(name, (f"about {name}",), np.eye(2, dtype=np.float32)[:1]) for name in names], None, WEIGHTS
    )
    return SideReading(book, np.zeros((len(matrix), 2), np.float32), Evidence(**values))


POLICY = Policy(
    allowed=["billing", "shipping"],
    blocked=["violence", "drugs"],
    off_topic_action="redirect",
    replies={"off_topic": "Ask me about your order.", "blocked": "No.", "drugs": "No drugs."},
)
OFF = log_odds(POLICY.blocked_threshold)


def case(
    allowed: Sequence[float] = (-6, -6), blocked: Sequence[float] = (-6, -6), policy: Policy = POLICY, **more: Any
) -> Case:
    """One short message: log-odds for billing and shipping, for violence and drugs."""
    return Case(
        policy,
        cuts_of(policy),
        side([rule.name for rule in policy.allowed], [allowed]) if policy.allowed else None,
        side([rule.name for rule in policy.blocked], [blocked]) if policy.blocked else None,
        **more,
    )


def test_a_message_on_an_allowed_rule_passes_and_says_why() -> None:
    verdict = decide(case(allowed=(3.0, 1.0)))
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.method) == (
        "allow",
        "ON_TOPIC",
        "billing",
        "embedding",
    )
    assert verdict.nearest == "about billing"
    assert verdict.status == "checked"
    assert verdict.runner_up is not None
    assert verdict.runner_up.rule == "shipping"
    assert [score.rule for score in verdict.scores] == ["billing", "shipping", "violence", "drugs"]
    assert "billing" in verdict.reason
    assert verdict.reply is None


def test_a_message_on_no_rule_gets_the_policy_s_action_reply_and_the_nearest_rule() -> None:
    for action in ("allow", "flag", "redirect", "block"):
        verdict = decide(case(policy=POLICY.model_copy(update={"off_topic_action": action}), allowed=(-6.0, -4.0)))
        assert (verdict.action, verdict.reason_code, verdict.rule) == (action, "OFF_TOPIC", "shipping")
        assert verdict.reply == ("Ask me about your order." if action in ("redirect", "block") else None)
        assert (verdict.probability or 1) < POLICY.allowed_threshold


@pytest.mark.parametrize(("above", "code"), [(0.0, "ON_TOPIC"), (1e-9, "ON_TOPIC"), (-1e-9, "OFF_TOPIC")])
def test_an_allowed_rule_is_met_at_its_threshold(above: float, code: str) -> None:
    allowed = Policy(allowed=["billing"], allowed_threshold=0.5)
    verdict = decide(case(policy=allowed, allowed=(above,)))
    assert verdict.reason_code == code
    assert (verdict.score >= verdict.threshold) == (code == "ON_TOPIC")  # type: ignore[operator]  # both are there


@pytest.mark.parametrize(("above", "code"), [(0.0, "BLOCKED_TOPIC"), (1e-9, "BLOCKED_TOPIC"), (-1e-9, "ON_TOPIC")])
def test_a_blocked_rule_is_met_at_its_threshold(above: float, code: str) -> None:
    verdict = decide(case(policy=Policy(blocked=["violence"], blocked_threshold=0.5), blocked=(above,)))
    assert verdict.reason_code == code


def test_of_rules_that_are_as_near_the_first_is_named() -> None:
    assert decide(case(blocked=(3.0, 3.0))).rule == "violence"
    assert decide(case(allowed=(3.0, 3.0))).rule == "billing"


def test_a_rule_s_own_threshold_decides_for_it_alone() -> None:
    strict = Policy(
        allowed=[{"name": "billing", "threshold": 0.95}, "shipping"], blocked=[{"name": "violence", "threshold": 0.9}]
    )
    assert decide(case(policy=strict, allowed=(2.0, -6.0), blocked=(-9,))).reason_code == "OFF_TOPIC"
    assert decide(case(policy=strict, allowed=(4.0, -6.0), blocked=(-9,))).rule == "billing"
    assert decide(case(policy=strict, allowed=(2.0, 1.0), blocked=(-9,))).rule == "shipping"
    assert decide(case(policy=strict, blocked=(2.0,))).reason_code == "OFF_TOPIC"
    assert decide(case(policy=strict, blocked=(2.3,))).reason_code == "BLOCKED_TOPIC"


# Blocked against allowed


def test_a_blocked_rule_comes_before_off_topic_and_names_itself_and_its_reply() -> None:
    verdict = decide(case(blocked=(1.0, 2.0)))
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.reply) == (
        "block",
        "BLOCKED_TOPIC",
        "drugs",
        "No drugs.",
    )
    assert verdict.runner_up is not None
    assert verdict.runner_up.rule == "violence"
    other = decide(case(blocked=(3.0, 2.0)))
    assert (other.rule, other.reply) == ("violence", "No.")


def test_a_blocked_rule_has_to_beat_the_allowed_ones_by_more_the_clearer_they_are() -> None:
    """A message that merely mentions a blocked subject while it asks for an allowed thing is not blocked."""
    blocked = {
        rival: min(
            (logit for logit in np.arange(-4, 30, 0.25) if decide(case((rival, -9), (logit, -9))).action == "block"),
            default=math.inf,
        )
        for rival in (-9.0, -3.0, -2.0, 0.0, 2.0, 4.0)
    }
    needed = list(blocked.values())
    assert needed == sorted(needed)
    assert needed[0] == needed[1] == pytest.approx(OFF, abs=0.25)  # no rival: the threshold alone
    assert needed[-1] > needed[3] + 5 > OFF + 7


def test_what_is_nearly_blocked_passes_with_a_note_and_a_higher_risk() -> None:
    clean, near = decide(case(allowed=(4.0, -6.0))), decide(case(allowed=(4.0, -6.0), blocked=(3.0, -6.0)))
    assert clean.action == near.action == "allow"
    assert not clean.notes
    assert any("'violence'" in note and "outweigh" in note for note in near.notes)
    assert (near.risk or 0) > (clean.risk or 1)


def test_a_tie_with_what_is_needed_is_not_blocked() -> None:
    """Beating is more than equalling; a threshold is met by equalling."""
    from topicality.core import guard

    needed = guard._CONTEST_WEIGHT * (1.0 - guard._CONTEST_FROM)
    assert decide(case(allowed=(1.0, -6.0), blocked=(needed, -6.0))).action == "allow"
    assert decide(case(allowed=(1.0, -6.0), blocked=(math.nextafter(needed, 99), -6.0))).action == "block"


@pytest.mark.parametrize("action", ["flag", "redirect", "block"])
def test_the_blocked_action_is_the_policy_s(action: str) -> None:
    verdict = decide(case(policy=POLICY.model_copy(update={"blocked_action": action}), blocked=(3.0, -6.0)))
    assert (verdict.action, verdict.reason_code) == (action, "BLOCKED_TOPIC")
    assert verdict.reply == (None if action == "flag" else "No.")


def test_with_only_blocked_rules_all_else_passes() -> None:
    policy = Policy(blocked=["violence"])
    verdict = decide(case(policy=policy, blocked=(-4.0,)))
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.threshold) == ("allow", "ON_TOPIC", None, None)
    assert verdict.runner_up is not None
    assert verdict.runner_up.rule == "violence"
    assert decide(case(policy=policy, blocked=(3.0,))).action == "block"


# Small talk


def test_small_talk_passes_unless_the_policy_says_otherwise() -> None:
    verdict = decide(case(small_talk=True))
    assert (verdict.action, verdict.reason_code, verdict.rule, verdict.method) == (
        "allow",
        "SMALL_TALK",
        None,
        "small_talk",
    )
    assert (verdict.probability or 0) >= 0.5
    strict = POLICY.model_copy(update={"small_talk": False})
    assert decide(case(policy=strict, small_talk=True)).reason_code == "OFF_TOPIC"


def test_small_talk_does_not_open_the_door_to_what_is_blocked() -> None:
    assert decide(case(small_talk=True, blocked=(3.0, -6.0))).reason_code == "BLOCKED_TOPIC"


# What was said before


def test_a_follow_up_passes_by_what_was_said_before_and_says_so() -> None:
    verdict = decide(case(allowed=(-6.0, -6.0), leaning=(2.0, 1)))
    assert (verdict.action, verdict.reason_code, verdict.rule) == ("allow", "FOLLOW_UP", "shipping")
    assert verdict.probability == pytest.approx(probability(2.0))
    assert verdict.score is not None
    assert verdict.threshold is not None
    assert verdict.score >= verdict.threshold


def test_a_message_that_is_enough_alone_is_on_topic_not_a_follow_up() -> None:
    verdict = decide(case(allowed=(4.0, -6.0), leaning=(3.0, 1)))
    assert (verdict.reason_code, verdict.rule) == ("ON_TOPIC", "billing")


def test_a_follow_up_needs_the_follow_up_threshold_or_the_rule_s_own() -> None:
    assert POLICY.follow_up_threshold > POLICY.allowed_threshold
    edge = log_odds(POLICY.follow_up_threshold)
    assert decide(case(leaning=(edge, 0))).reason_code == "FOLLOW_UP"
    assert decide(case(leaning=(edge - 1e-9, 0))).reason_code == "OFF_TOPIC"
    own = Policy(allowed=[{"name": "billing", "threshold": 0.9}, "shipping"])
    assert decide(case(policy=own, leaning=(2.0, 0))).reason_code == "OFF_TOPIC"
    assert decide(case(policy=own, leaning=(2.3, 0))).reason_code == "FOLLOW_UP"


def test_what_was_said_before_does_not_open_the_door_to_what_is_blocked() -> None:
    assert decide(case(leaning=(6.0, 0), blocked=(3.0, -6.0))).reason_code == "BLOCKED_TOPIC"


# Keywords


def test_a_blocked_rule_s_keyword_blocks_whatever_the_vectors_say() -> None:
    hit = Hit("drugs", "blocked", "heroin")
    for allowed, blocked in [((-6, -6), (-9, -9)), ((9.0, 9.0), (-9, -9)), ((-6, -6), (5.0, -9))]:
        verdict = decide(case(allowed, blocked, explicit=[hit], small_talk=True))
        assert (verdict.action, verdict.reason_code, verdict.rule) == ("block", "BLOCKED_TOPIC", "drugs")
        assert (verdict.method, verdict.nearest, verdict.reply) == ("keywords", "heroin", "No drugs.")
        assert (verdict.probability or 0) >= BLOCKED_HIT
        assert (verdict.risk or 0) >= 0.5
        assert (verdict.score or 0) >= (verdict.threshold or 1)
        assert verdict.runner_up is not None
        assert verdict.runner_up.rule != "drugs"


def test_an_allowed_rule_s_keyword_lets_a_message_pass_but_not_a_blocked_one() -> None:
    hit = Hit("shipping", "allowed", "tracking number")
    verdict = decide(case(explicit=[hit]))
    assert (verdict.action, verdict.reason_code, verdict.rule) == ("allow", "ON_TOPIC", "shipping")
    assert (verdict.method, verdict.nearest) == ("keywords", "tracking number")
    assert (verdict.probability or 0) >= ALLOWED_HIT
    assert decide(case(blocked=(3.0, -6.0), explicit=[hit])).reason_code == "BLOCKED_TOPIC"
    both = [Hit("violence", "blocked", "bomb"), hit]
    assert decide(case(explicit=both)).rule == "violence"


def test_a_keyword_s_verdict_has_the_scores_of_its_own_rule() -> None:
    """Not those of the rule that happens to be nearest by vector."""
    hit = Hit("shipping", "allowed", "tracking number")
    reading = side(["billing", "shipping"], [[-4.0, -6.0]], best=[[0.4, 0.1]])
    verdict = decide(Case(two := Policy(allowed=["billing", "shipping"]), cuts_of(two), reading, None, explicit=[hit]))
    assert verdict.rule == "shipping"
    assert verdict.score == pytest.approx(0.1)
    assert verdict.threshold is not None
    assert verdict.score is not None
    assert verdict.score >= verdict.threshold
    assert verdict.runner_up is not None
    assert verdict.runner_up.rule == "billing"


# Long messages


def long_case(allowed: Sequence[Sequence[float]], blocked: Sequence[Sequence[float]]) -> Case:
    spans = [(100 * number, 100 * number + 100) for number in range(len(allowed) - 1)]
    sides = side(["billing", "shipping"], allowed), side(["violence", "drugs"], blocked)
    return Case(POLICY, cuts_of(POLICY), *sides, spans, long=True)


def test_one_blocked_window_of_a_long_message_is_enough_and_is_shown() -> None:
    quiet = [[-9.0, -9.0]] * 4
    verdict = decide(long_case([[4.0, 0.0], [5.0, 0.0], [-8.0, -8.0], [5.0, 0.0]], [*quiet[:2], [-9.0, 3.0], quiet[3]]))
    assert (verdict.reason_code, verdict.rule) == ("BLOCKED_TOPIC", "drugs")
    assert verdict.window == Window(2, 100, 200)


def test_only_the_window_s_own_topic_speaks_against_blocking_it() -> None:
    blocked = [[-9.0, -9.0], [3.0, -9.0]]
    assert decide(long_case([[6.0, 0.0], [-8.0, -8.0]], blocked)).action == "block"
    assert decide(long_case([[-8.0, -8.0], [6.0, 0.0]], blocked)).action != "block"


def test_a_blocked_sentence_does_not_hide_behind_the_whole_message() -> None:
    """The whole, or another sentence, may come nearer to the blocked rule and yet be outweighed by an allowed one."""
    allowed = side(["billing", "shipping"], [[2.0, -6.0], [4.0, -6.0], [-9.0, -9.0]])
    spans = [(0, 20), (20, 40)]
    for blocked in ([[4.0, -9.0], [-9.0, -9.0], [3.9, -9.0]], [[-9.0, -9.0], [9.0, -9.0], [-9.0, 3.0]]):
        verdict = decide(Case(POLICY, cuts_of(POLICY), allowed, side(["violence", "drugs"], blocked), spans))
        assert verdict.reason_code == "BLOCKED_TOPIC"
        assert verdict.window == Window(2, 20, 40)
    strict = Policy(
        allowed=["billing"], blocked=[{"name": "violence", "threshold": 0.1}, {"name": "drugs", "threshold": 0.9}]
    )
    both = Case(strict, cuts_of(strict), side(["billing"], [[-2.0]]), side(["violence", "drugs"], [[2.4, 4.0]]))
    assert decide(both).rule == "drugs"  # violence is further above its threshold, but does not beat billing


def test_a_long_message_has_to_be_on_topic_in_its_windows_too() -> None:
    quiet = [[-9.0, -9.0]] * 5
    on, off = [4.0, -6.0], [-6.0, -6.0]
    assert decide(long_case([on, on, on, on, on], quiet)).reason_code == "ON_TOPIC"
    assert decide(long_case([on, off, off, off, off], quiet)).reason_code == "OFF_TOPIC"
    assert any("4 windows" in note for note in decide(long_case([on, on, on, on, on], quiet)).notes)


def test_a_short_message_read_by_sentence_is_judged_as_a_whole_by_the_allowed_side() -> None:
    reading = side(["billing", "shipping"], [[4.0, -6.0], [-6.0, -6.0], [-6.0, -6.0]])
    found = decide(
        Case(POLICY, cuts_of(POLICY), reading, side(["violence", "drugs"], [[-9.0, -9.0]] * 3), [(0, 9), (9, 20)])
    )
    assert (found.reason_code, found.window) == ("ON_TOPIC", None)


# What holds for every message

logit = st.floats(-12, 12)
share = st.floats(0, 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    allowed, blocked = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    assume(allowed + blocked)
    pieces = draw(st.integers(1, 3)) if blocked else 1
    long = pieces > 1 and draw(st.booleans())

    def reading(names: list[str]) -> SideReading | None:
        if not names:
            return None
        rows = st.lists(st.lists(logit, min_size=len(names), max_size=len(names)), min_size=pieces, max_size=pieces)
        cosines = st.lists(
            st.lists(st.floats(-1, 1), min_size=len(names), max_size=len(names)), min_size=pieces, max_size=pieces
        )
        return side(names, draw(rows), draw(cosines), draw(st.floats(0, 60)))

    ons, offs = [f"on {number}" for number in range(allowed)], [f"off {number}" for number in range(blocked)]
    policy = Policy(
        allowed=[{"name": name, "threshold": draw(st.none() | share)} for name in ons],
        blocked=[{"name": name, "threshold": draw(st.none() | share)} for name in offs],
        allowed_threshold=draw(share),
        blocked_threshold=draw(share),
        follow_up_threshold=draw(share),
        off_topic_action=draw(st.sampled_from(["flag", "redirect", "block"])),
        small_talk=draw(st.booleans()),
    )
    hits = [Hit(name, "allowed", "x") for name in ons] + [Hit(name, "blocked", "y") for name in offs]
    return Case(
        policy,
        cuts_of(policy),
        reading(ons),
        reading(offs),
        spans=[(number, number + 1) for number in range(pieces - 1)],
        long=long,
        small_talk=draw(st.booleans()),
        leaning=draw(st.none() | st.tuples(logit, st.integers(0, allowed - 1))) if allowed else None,
        explicit=draw(st.lists(st.sampled_from(hits), max_size=1)),
    )


def consistent(verdict: Verdict, rules: int) -> None:
    assert len(verdict.scores) == rules
    chances = [score.probability for score in verdict.scores]
    assert chances == sorted(chances, reverse=True)
    assert all(-1.0 <= score.score <= 1.0 for score in verdict.scores)
    assert all(0.0 <= chance <= 1.0 for chance in chances)
    assert verdict.risk is not None
    assert 0.0 <= verdict.risk <= 1.0
    assert verdict.probability is None or 0.0 <= verdict.probability <= 1.0
    assert verdict.score is None or -1.0 <= verdict.score <= 1.0
    if verdict.rule is not None:
        assert verdict.rule in [score.rule for score in verdict.scores]
        assert verdict.runner_up is None or verdict.runner_up.rule != verdict.rule


@given(cases())
def test_the_score_reaches_the_threshold_exactly_when_the_rule_is_met(given_case: Case) -> None:
    verdict = decide(given_case)
    consistent(verdict, len(given_case.policy.sided()))
    if verdict.score is None or verdict.threshold is None:
        assert verdict.reason_code == "ON_TOPIC"
        assert not given_case.policy.allowed
    elif verdict.reason_code in ("ON_TOPIC", "FOLLOW_UP", "BLOCKED_TOPIC"):
        assert verdict.score >= verdict.threshold
    elif verdict.reason_code == "OFF_TOPIC":
        assert verdict.score < verdict.threshold


@given(cases())
def test_the_code_the_action_and_the_method_belong_together(given_case: Case) -> None:
    verdict, policy = decide(given_case), given_case.policy
    blocked_word = any(hit.side == "blocked" for hit in given_case.explicit)
    expected = {
        "ON_TOPIC": "allow",
        "FOLLOW_UP": "allow",
        "SMALL_TALK": "allow",
        "OFF_TOPIC": policy.off_topic_action,
        "BLOCKED_TOPIC": policy.blocked_action,
    }
    assert verdict.action == expected[verdict.reason_code]
    assert (verdict.reason_code == "BLOCKED_TOPIC") == (verdict.rule in [rule.name for rule in policy.blocked])
    if blocked_word:
        assert (verdict.reason_code, verdict.method) == ("BLOCKED_TOPIC", "keywords")
    if verdict.reason_code == "FOLLOW_UP":
        assert given_case.leaning is not None
    if verdict.reason_code == "SMALL_TALK":
        assert given_case.small_talk
        assert policy.small_talk
    if verdict.window is not None:
        assert verdict.reason_code == "BLOCKED_TOPIC"
    assert decide(given_case) == verdict


@given(st.lists(logit, min_size=2, max_size=2), st.lists(logit, min_size=2, max_size=2), st.floats(0, 5))
def test_more_for_a_blocked_rule_never_frees_and_more_for_an_allowed_one_never_blocks(
    allowed: list[float], blocked: list[float], more: float
) -> None:
    before = decide(case(allowed, blocked))
    worse = decide(case(allowed, [blocked[0] + more, blocked[1]]))
    better = decide(case([allowed[0] + more, allowed[1]], blocked))
    if before.reason_code == "BLOCKED_TOPIC":
        assert worse.reason_code == "BLOCKED_TOPIC"
    else:
        assert better.reason_code != "BLOCKED_TOPIC"
    if before.reason_code == "ON_TOPIC":
        assert better.reason_code == "ON_TOPIC"
    assert (worse.risk or 0) >= (before.risk or 0) - 1e-9


# Plain cosine, the ancestors' rule: allowed billing and support, blocked violence, thresholds 0.3 and 0.5

B_POLICY = Policy(
    allowed=["billing", "support"], blocked=["violence"], scoring="cosine",
    allowed_threshold=0.3, blocked_threshold=0.5,
)  # fmt: skip


def by_cosine(vector: Sequence[float], policy: Policy = B_POLICY, **more: Any) -> Verdict:
    query = unit([vector])
    axis = np.eye(4, dtype=np.float32)

    def reading(names: Sequence[str], first: int) -> SideReading:
        members = [RuleMembers(name, (name,), axis[first + number][None]) for number, name in enumerate(names)]
        book = RuleBook(members, None, WEIGHTS)
        return SideReading(book, query, book.score(query))

    blocked = [rule.name for rule in policy.blocked]
    allowed = [rule.name for rule in policy.allowed]
    sides = reading(allowed, 0) if allowed else None, reading(blocked, 2) if blocked else None
    return decide(Case(policy, cuts_of(policy), *sides, **more))


@pytest.mark.parametrize(
    ("vector", "code", "rule", "score"),
    [
        ([1, 0, 0, 0], "ON_TOPIC", "billing", 1.0),
        ([0, 0, 0, 1], "OFF_TOPIC", "billing", 0.0),
        ([0, 0, 1, 0], "BLOCKED_TOPIC", "violence", 1.0),
        ([0.9, 0, 0.6, 0], "BLOCKED_TOPIC", "violence", 0.5547001962252291),  # blocked beats an allowed 0.832
        ([0, 0, 0.5, 0.75**0.5], "BLOCKED_TOPIC", "violence", 0.5),  # inclusive
        ([0.3, 0, 0, 0.91**0.5], "ON_TOPIC", "billing", 0.3),  # inclusive
        ([0.29, 0, 0, (1 - 0.29**2) ** 0.5], "OFF_TOPIC", "billing", 0.29),
        ([-1, 0, 0, 0], "OFF_TOPIC", "support", 0.0),  # best is 0 > -1
    ],
)
def test_cosine_scoring_gives_the_ancestor_s_rows(vector: list[float], code: str, rule: str, score: float) -> None:
    verdict = by_cosine(vector)
    assert (verdict.reason_code, verdict.rule) == (code, rule)
    assert verdict.score == pytest.approx(score, abs=1e-6)
    assert verdict.threshold == (0.5 if code == "BLOCKED_TOPIC" else 0.3)
    assert (verdict.score or 0) >= (verdict.threshold or 0) or code == "OFF_TOPIC"
    assert verdict.probability is None  # a cosine is not one


def test_cosine_scoring_names_the_best_blocked_rule_where_the_ancestor_named_the_first() -> None:
    policy = Policy(blocked=["violence", "drugs"], scoring="cosine", blocked_threshold=0.5)
    assert by_cosine([0, 0, 0.6, 0.8], policy).rule == "drugs"


def test_cosine_scoring_takes_thresholds_per_rule_negative_ones_included() -> None:
    policy = Policy(
        allowed=[{"name": "billing", "threshold": -1.0}, "support"], scoring="cosine", allowed_threshold=0.9
    )
    assert by_cosine([-1, 0, 0, 0], policy).rule == "billing"
    assert by_cosine([-1, 0, 0, 0], policy).action == "allow"


def test_cosine_scoring_knows_small_talk_replies_and_blocked_only_policies() -> None:
    assert by_cosine([0, 0, 0, 1], small_talk=True).reason_code == "SMALL_TALK"
    assert by_cosine([0, 0, 1, 0], small_talk=True).reason_code == "BLOCKED_TOPIC"
    policy = B_POLICY.model_copy(update={"off_topic_action": "redirect", "replies": {"off_topic": "Back to work."}})
    assert by_cosine([0, 0, 0, 1], policy).reply == "Back to work."
    only = Policy(blocked=["violence"], scoring="cosine", blocked_threshold=0.5)
    assert by_cosine([0, 0, 0, 1], only).action == "allow"
    assert by_cosine([0, 0, 1, 0], only).action == "block"


@given(
    st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=4, max_size=4).filter(any),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_cosine_scoring_reaches_the_threshold_exactly_when_the_rule_is_met(
    vector: list[float], on: float, off: float
) -> None:
    policy = B_POLICY.model_copy(update={"allowed_threshold": on, "blocked_threshold": off})
    verdict = by_cosine(vector, policy)
    assert verdict.score is not None
    assert verdict.threshold is not None
    assert (verdict.score >= verdict.threshold) == (verdict.reason_code != "OFF_TOPIC")
    assert 0.0 <= (verdict.risk or 0.0) <= 1.0
    assert [score.score for score in verdict.scores] == sorted((score.score for score in verdict.scores), reverse=True)


# The parts


@given(st.floats(-800, 800))
def test_probability_is_the_logistic_function_without_overflow(value: float) -> None:
    assert probability(value) == pytest.approx(1 / (1 + math.exp(-value)) if value > -700 else 0.0, abs=1e-12)
    assert probability(value) + probability(-value) == pytest.approx(1.0)
    if abs(value) < 18:
        assert log_odds(probability(value)) == pytest.approx(value, abs=1e-4)


def test_log_odds_of_the_ends_are_far_away_and_finite() -> None:
    assert log_odds(0.0) == pytest.approx(-20.7, abs=0.1)
    assert log_odds(1.0) == pytest.approx(20.7, abs=0.1)
    assert log_odds(0.5) == 0.0


@given(st.floats(-1, 1), st.floats(-30, 30), st.floats(0, 100))
def test_a_threshold_stands_on_its_side_of_the_score(score: float, margin: float, slope: float) -> None:
    found = threshold_for(score, margin, slope, met=margin >= 0)
    assert (score >= found) == (margin >= 0)
    assert -1.0 <= found <= math.nextafter(1.0, 2.0)
    if slope > 1 and abs(score - margin / slope) < 1:
        assert found == pytest.approx(score - margin / slope, abs=1e-9)


def test_the_strongest_of_equals_is_the_earlier_piece_then_the_earlier_rule() -> None:
    assert strongest(np.array([[0.0, 2.0, 2.0], [2.0, 0.0, 0.0]])) == (0, 1)
    assert strongest(np.array([[0.0], [3.0], [3.0]])) == (1, 0)


def test_risk_for_ranking_grows_with_the_blocked_side_and_falls_with_the_allowed() -> None:
    def risk(allowed: float, blocked: float) -> float:
        reading = case((allowed, -9), (blocked, -9))
        return blocked_risk(reading.allowed, reading.blocked) or 0.0

    assert risk(-6, -3) < risk(-6, 0) < risk(-6, 3)
    assert risk(3, 0) < risk(0, 0) < risk(-2, 0) == risk(-6, 0)
    assert blocked_risk(case().allowed, None) is None
    assert blocked_risk(None, side(["violence"], [[0.0]])) == pytest.approx(risk(-6, 0))


def test_a_reply_is_the_rule_s_or_else_the_kind_s_and_only_where_it_is_shown() -> None:
    policy = Policy(
        allowed=["billing"], blocked=["Violence", {"name": "drugs", "reply": "own"}, {"name": "arms", "reply": "own"}],
        replies={"blocked": "kind", "VIOLENCE": "by name", "arms": "by name"},
    )  # fmt: skip
    assert reply_for(policy, "blocked", "Violence", "block") == "by name"
    assert reply_for(policy, "blocked", "drugs", "redirect") == "own"
    assert reply_for(policy, "blocked", "arms", "block") == "by name"
    assert reply_for(policy, "blocked", None, "block") == "kind"
    assert reply_for(policy, "off_topic", None, "block") is None
    for action in ("allow", "flag"):
        assert reply_for(policy, "blocked", "drugs", action) is None


def test_the_keyword_tier_answers_blocked_first_then_allowed_then_small_talk_or_nothing() -> None:
    blocked, allowed = Hit("drugs", "blocked", "drugs"), Hit("billing", "allowed", "billing")
    first = by_keywords(POLICY, [blocked, allowed], small_talk=False)
    assert first is not None
    assert (first.action, first.rule, first.probability, first.reply) == ("block", "drugs", BLOCKED_HIT, "No drugs.")
    second = by_keywords(POLICY, [allowed], small_talk=False)
    assert second is not None
    assert (second.action, second.rule, second.probability, second.method) == (
        "allow",
        "billing",
        ALLOWED_HIT,
        "keywords",
    )
    third = by_keywords(POLICY, [], small_talk=True)
    assert third is not None
    assert (third.action, third.reason_code) == ("allow", "SMALL_TALK")
    assert by_keywords(POLICY, [], small_talk=False) is None
    assert by_keywords(POLICY.model_copy(update={"small_talk": False}), [], small_talk=True) is None


@pytest.mark.parametrize(
    ("allowed", "blocked", "action"),
    [(["a"], ["b"], "block"), (["a"], [], "flag"), ([], ["b"], "block")],
)
def test_when_no_tier_can_answer_the_stricter_side_decides(allowed: list[str], blocked: list[str], action: str) -> None:
    verdict = on_error(Policy(allowed=allowed, blocked=blocked), "the encoder is down")
    assert (verdict.action, verdict.reason_code, verdict.status, verdict.method) == (
        action,
        "ERROR",
        "unavailable",
        "none",
    )
    assert "the encoder is down" in verdict.reason
    lax = Policy(allowed=allowed, blocked=blocked, on_error={"allowed": "allow", "blocked": "allow"})
    assert on_error(lax, "x").action == "allow"


def test_of_several_allowed_rules_the_best_has_to_be_better_than_a_single_one() -> None:
    """Chance has as many tries as there are rules: half of log R is taken off the best one's log-odds."""
    names = [f"topic {number}" for number in range(6)]
    only, among = Policy(allowed=names[:1]), Policy(allowed=names)
    barely = log_odds(only.allowed_threshold) + 0.1
    assert decide(case([barely], policy=only)).reason_code == "ON_TOPIC"
    crowd = decide(case([barely, *[-6.0] * 5], policy=among))
    assert crowd.reason_code == "OFF_TOPIC"
    assert crowd.probability == pytest.approx(probability(barely - 0.5 * math.log(6)))
    assert decide(case([barely + 0.5 * math.log(6), *[-6.0] * 5], policy=among)).reason_code == "ON_TOPIC"
