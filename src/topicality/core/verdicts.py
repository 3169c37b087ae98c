"""The parts that verdicts are made of, whichever tier decides: scores of all rules, replies, thresholds, windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.config import Policy, Side
from topicality.core.keywords import ALLOWED_HIT, BLOCKED_HIT, NO_HIT, Hit
from topicality.core.panel import Evidence
from topicality.core.score import RuleBook
from topicality.types import SEVERITY, Action, RuleScore, Verdict, Window
from topicality.vectors import Array

SIDES: tuple[Side, Side] = ("allowed", "blocked")
_BY_SCORE, _BY_PROBABILITY = attrgetter("score"), attrgetter("probability")


class SideReading(NamedTuple):
    """What speaks for the rules of one side, for the pieces of one message.

    Attributes:
        book: the side's rules. vectors: shape (P, D), the whole message first, then its sentences or windows.
        evidence: theirs.
    """

    book: RuleBook
    vectors: Array
    evidence: Evidence

    @property
    def chance(self) -> float:
        """Log-odds to take off the best of R rules, since chance had R tries: half of log R, for rules that are alike.

        Measured on policies joined from several public ones, five rules accept 40 % of what is on none without it.
        """
        return 0.5 * math.log(len(self.book.rules))

    def nearest(self, piece: int, rule: int) -> str:
        """Text of the rule's member that comes nearest to a piece."""
        return self.book.rules[rule].texts[int(self.evidence.nearest[piece, rule])]

    def score(self, piece: int, rule: int) -> float:
        """Cosine similarity of a piece to the rule's nearest member, [-1, 1]."""
        return clamped(float(self.evidence.best[piece, rule]))


class Case(NamedTuple):
    """One message, ready to be decided.

    Attributes:
        policy: what to do. cuts: each side's thresholds, see `cuts_of`.
        allowed, blocked: the two sides; None when a side has no rules.
        spans: character ranges of the pieces after the first, when the message was read in pieces.
        long: whether it is so long that its windows count for the allowed side too.
        small_talk: whether it is nothing but small talk.
        leaning: log-odds of being on topic when read with what was said before, and the index of the allowed rule that
            was about; None without context.
        explicit: hits of the rules' own keywords.
    """

    policy: Policy
    cuts: Mapping[Side, Sequence[float]]
    allowed: SideReading | None = None
    blocked: SideReading | None = None
    spans: Sequence[tuple[int, int]] = ()
    long: bool = False
    small_talk: bool = False
    leaning: tuple[float, int] | None = None
    explicit: Sequence[Hit] = ()

    def scores(self) -> tuple[RuleScore, ...]:
        """Every rule's score, best first; blocked rules at the piece where they are strongest."""
        found: list[RuleScore] = []
        for side, reading in zip(SIDES, (self.allowed, self.blocked), strict=True):
            if reading is None:
                continue
            evidence = reading.evidence
            tables = (evidence.best, evidence.logits, evidence.nearest)
            if side == "blocked" and len(evidence.best) > 1:
                values = evidence.best if self.policy.scoring == "cosine" else evidence.logits
                pieces, columns = values.argmax(axis=0), np.arange(values.shape[1])
                scores, logits, nearest = (table[pieces, columns].tolist() for table in tables)
            else:
                scores, logits, nearest = (table[0].tolist() for table in tables)
            found += [
                RuleScore(rule.name, side, clamped(score), probability(logit), rule.texts[member])
                for rule, score, logit, member in zip(reading.book.rules, scores, logits, nearest, strict=True)
            ]
        found.sort(key=_BY_SCORE if self.policy.scoring == "cosine" else _BY_PROBABILITY, reverse=True)
        return tuple(found)

    def window(self, piece: int) -> Window | None:
        """Where in the message a piece stands; None for the message as a whole."""
        return Window(piece, *self.spans[piece - 1]) if piece and self.spans else None


def clamped(score: float) -> float:
    """A cosine without the last bit that rounding may add to it, [-1, 1]."""
    return score if -1.0 <= score <= 1.0 else math.copysign(1.0, score)


def probability(logit: float) -> float:
    """Log-odds to probability, without overflow."""
    if logit >= 0.0:
        return 1.0 / (1.0 + math.exp(-logit))
    odds = math.exp(logit)
    return odds / (1.0 + odds)


def log_odds(value: float) -> float:
    """Probability to log-odds; 0 and 1 are far away, not infinite."""
    clipped = min(max(value, 1e-9), 1.0 - 1e-9)
    return math.log(clipped / (1.0 - clipped))


def cuts_of(policy: Policy) -> dict[Side, list[float]]:
    """Each side's thresholds in rule order: log-odds, or cosines when the policy scores by cosine."""
    sides: dict[Side, list[float]] = {
        "allowed": [policy.threshold("allowed", rule) for rule in policy.allowed],
        "blocked": [policy.threshold("blocked", rule) for rule in policy.blocked],
    }
    if policy.scoring == "cosine":
        return sides
    return {side: [log_odds(value) for value in values] for side, values in sides.items()}


def strongest(values: NDArray[np.float64]) -> tuple[int, int]:
    """(piece, rule) of the highest value in a (P, R) matrix; ties go to the earlier piece, then the earlier rule."""
    piece, rule = np.unravel_index(int(np.argmax(values)), values.shape)
    return int(piece), int(rule)


def runner_up(scores: Sequence[RuleScore], rule: str | None) -> RuleScore | None:
    """The best rule but one."""
    return next((entry for entry in scores if entry.rule != rule), None)


def threshold_for(score: float, margin: float, slope: float, *, met: bool) -> float:
    """The cosine at which a rule would just have been met: the score less what the margin is worth.

    Kept on its side of the score, so that score >= threshold exactly when the rule is met.

    Args:
        margin: log-odds above the cut (negative below). slope: log-odds a unit of cosine.
    """
    value = score - margin / max(slope, 1e-6)
    if met:
        return min(1.0, max(-1.0, min(value, score)))
    above = math.nextafter(score, 2.0)
    return max(above, min(value, 1.0))


def reply_for(policy: Policy, kind: str, rule: str | None, action: Action) -> str | None:
    """The policy's text for the user, if the action shows one: the rule's, or else the kind's ("off_topic", "blocked")."""
    if SEVERITY[action] < SEVERITY["redirect"]:
        return None
    if rule is not None:
        for key, text in policy.replies.items():
            if key.casefold() == rule.casefold():
                return text
        for _, entry in policy.sided():
            if entry.name == rule and entry.reply is not None:
                return entry.reply
    return policy.replies.get(kind)


def by_keywords(policy: Policy, hits: Sequence[Hit], small_talk: bool) -> Verdict | None:
    """The keyword tier's verdict, or None when it has nothing to say and the policy's `on_error` must decide."""
    hit = next((entry for entry in hits if entry.side == "blocked"), None)
    if hit is not None:
        return Verdict(
            policy.blocked_action,
            "BLOCKED_TOPIC",
            f"the word {hit.word!r} of the blocked rule {hit.rule!r}",
            hit.rule,
            probability=BLOCKED_HIT,
            risk=BLOCKED_HIT,
            method="keywords",
            nearest=hit.word,
            reply=reply_for(policy, "blocked", hit.rule, policy.blocked_action),
        )
    if hits:
        hit = hits[0]
        return Verdict(
            "allow",
            "ON_TOPIC",
            f"the word {hit.word!r} of the allowed rule {hit.rule!r}",
            hit.rule,
            probability=ALLOWED_HIT,
            risk=1 - ALLOWED_HIT,
            method="keywords",
            nearest=hit.word,
        )
    if small_talk and policy.small_talk:
        return Verdict("allow", "SMALL_TALK", "small talk", probability=NO_HIT, risk=1 - NO_HIT, method="small_talk")
    return None


def on_error(policy: Policy, why: str) -> Verdict:
    """What the policy wants when no tier could answer: the stricter of its two sides' choices."""
    actions: list[Action] = []
    if policy.allowed:
        actions.append(policy.on_error.allowed)
    if policy.blocked:
        actions.append(policy.on_error.blocked)
    action = max(actions, key=lambda choice: SEVERITY[choice])
    return Verdict(action, "ERROR", f"not checked: {why}", method="none", status="unavailable")
