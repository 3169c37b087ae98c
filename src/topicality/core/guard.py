"""The guard's decision for one message, given what speaks for each rule. Pure: vectors and policy in, verdict out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topicality.config import Policy, Side
from topicality.core.keywords import ALLOWED_HIT, BLOCKED_HIT, NO_HIT, Hit
from topicality.core.score import Evidence, RuleBook
from topicality.types import SEVERITY, Action, Method, RuleScore, Verdict, Window
from topicality.vectors import Array

# A blocked rule has to beat the allowed ones, and the clearer the message is on an allowed topic the more: one that
# merely mentions a blocked subject while it asks for an allowed thing is not blocked. Fitted on bench/data (see
# docs/guard.md); both are log-odds.
_CONTEST_FROM, _CONTEST_WEIGHT = -3.0, 2.5


@dataclass(frozen=True)
class SideReading:
    """What speaks for the rules of one side, for the pieces of one message.

    Attributes:
        book: the side's rules. vectors: shape (P, D), the pieces: the whole message first, then its windows.
        evidence: theirs.
    """

    book: RuleBook
    vectors: Array
    evidence: Evidence

    def strongest(self, values: NDArray[np.float64]) -> tuple[int, int]:
        """(piece, rule) of the highest value in a (P, R) matrix; ties go to the earlier piece and rule."""
        piece, rule = np.unravel_index(int(np.argmax(values)), values.shape)
        return int(piece), int(rule)


def probability(logit: float) -> float:
    """Log-odds to probability, without overflow."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1.0 + math.exp(logit))


def log_odds(value: float) -> float:
    """Probability to log-odds; 0 and 1 are far away, not infinite."""
    clipped = min(max(value, 1e-9), 1.0 - 1e-9)
    return math.log(clipped / (1.0 - clipped))


def decide(
    policy: Policy,
    allowed: SideReading | None,
    blocked: SideReading | None,
    *,
    spans: Sequence[tuple[int, int]] = (),
    long: bool = False,
    small_talk: bool = False,
    leaning: tuple[float, int] | None = None,
    explicit: Sequence[Hit] = (),
) -> Verdict:
    """Decide one message by its embeddings.

    The order is: keywords that a rule lists itself, blocked rules (best hit over all windows, where it beats the allowed
    ones), allowed rules, small talk, off-topic.

    Args:
        policy: what to do. allowed, blocked: the two sides; None when a side has no rules.
        spans: character ranges of the pieces after the first, when the message was read in pieces.
        long: whether it is so long that its windows count for the allowed side too.
        small_talk: whether the message is nothing but small talk.
        leaning: log-odds of being on topic when read with what was said before, and the index of the allowed rule that
            this was about; None without context.
        explicit: hits of the rules' own keywords.
    Returns:
        A verdict by "embedding", "keywords" or "small_talk"; its `scores` list every rule, best first.
    """
    if policy.scoring == "cosine":
        return _by_cosine(policy, allowed, blocked, spans, small_talk)
    scores = _all_scores(policy, allowed, blocked)
    notes: list[str] = []
    on_logit = _allowed_logit(allowed, long)
    against = 0.0  # log-odds of the strongest blocked rule, once the allowed side has been held against it
    if blocked is not None:
        matrix = blocked.evidence.logits
        piece, index = blocked.strongest(matrix - _cuts(policy, "blocked", blocked))
        logit = float(matrix[piece, index])
        rule = policy.blocked[index]
        cut = log_odds(policy.threshold("blocked", rule))
        # Only a window that is itself about the allowed topic speaks against blocking it.
        rival = -math.inf if allowed is None else float(allowed.evidence.logits[piece].max())
        needed = _CONTEST_WEIGHT * max(rival - _CONTEST_FROM, 0.0)
        against = logit - 0.5 * max(rival, -2.0)
        hit = next((entry for entry in explicit if entry.side == "blocked"), None)
        if hit is not None or (logit >= cut and (needed == 0.0 or logit > needed)):
            return _blocked(policy, blocked, piece, index, logit, max(cut, needed), spans, scores, against, hit)
        if logit >= cut:
            notes.append(f"near the blocked rule {rule.name!r}, but the allowed rules outweigh it")
    verdict = _allowed(policy, allowed, scores, small_talk, leaning, on_logit, explicit, len(spans) if long else 0)
    if blocked is not None:
        base = verdict.risk if verdict.risk is not None else 0.0
        verdict = replace(verdict, risk=1.0 - (1.0 - base) * (1.0 - 0.5 * probability(against - 1.0)))
    return replace(verdict, notes=(*verdict.notes, *notes)) if notes else verdict


def blocked_risk(allowed: SideReading | None, blocked: SideReading | None) -> float | None:
    """Probability, for ranking, that a message is on a blocked topic; None when there are no blocked rules."""
    if blocked is None:
        return None
    rival = -2.0 if allowed is None else max(float(allowed.evidence.logits[0].max()), -2.0)
    return probability(float(blocked.evidence.logits.max()) - 0.5 * rival - 1.0)


def by_keywords(policy: Policy, hits: Sequence[Hit], small_talk: bool) -> Verdict | None:
    """The keyword tier's verdict, or None when it has nothing to say and the policy's `on_error` must decide."""
    blocked = [hit for hit in hits if hit.side == "blocked"]
    if blocked:
        reply = reply_for(policy, "blocked", blocked[0].rule)
        return Verdict(
            policy.blocked_action,
            "BLOCKED_TOPIC",
            f"the word {blocked[0].word!r} of the blocked rule {blocked[0].rule!r}",
            rule=blocked[0].rule,
            probability=BLOCKED_HIT,
            risk=BLOCKED_HIT,
            method="keywords",
            nearest=blocked[0].word,
            reply=reply if policy.blocked_action != "flag" else None,
        )
    if hits:
        hit = hits[0]
        why = f"the word {hit.word!r} of the allowed rule {hit.rule!r}"
        return Verdict(
            "allow", "ON_TOPIC", why, hit.rule, probability=ALLOWED_HIT, risk=1 - ALLOWED_HIT, method="keywords", nearest=hit.word
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


def reply_for(policy: Policy, kind: str, rule: str | None) -> str | None:
    """The policy's text for the user: of the rule, or else of the kind ("off_topic" or "blocked")."""
    if rule is not None:
        for key, text in policy.replies.items():
            if key.casefold() == rule.casefold():
                return text
        for _, entry in policy.sided():
            if entry.name == rule and entry.reply is not None:
                return entry.reply
    return policy.replies.get(kind)


def off_topic(policy: Policy, why: str, method: Method, rule: str | None = None) -> Verdict:
    """A bare off-topic verdict with the policy's action and reply."""
    action = policy.off_topic_action
    reply = reply_for(policy, "off_topic", None) if action in ("redirect", "block") else None
    return Verdict(action, "OFF_TOPIC", why, rule, method=method, reply=reply)


def _cuts(policy: Policy, side: Side, reading: SideReading) -> NDArray[np.float64]:
    rules = policy.allowed if side == "allowed" else policy.blocked
    cut = policy.threshold if policy.scoring == "cosine" else lambda s, r: log_odds(policy.threshold(s, r))
    return np.array([cut(side, rule) for rule in rules[: len(reading.book.rules)]])


def _allowed_logit(allowed: SideReading | None, long: bool) -> float | None:
    """Log-odds of the whole message, pulled half-way towards the mean of its windows when it is long."""
    if allowed is None:
        return None
    logits = allowed.evidence.logits.max(axis=1)
    return float((logits[0] + logits[1:].mean()) / 2) if long and len(logits) > 1 else float(logits[0])


def _all_scores(policy: Policy, allowed: SideReading | None, blocked: SideReading | None) -> tuple[RuleScore, ...]:
    found: list[RuleScore] = []
    sides: tuple[tuple[Side, SideReading | None], ...] = (("allowed", allowed), ("blocked", blocked))
    for side, reading in sides:
        if reading is None:
            continue
        for index, rule in enumerate(reading.book.rules):
            piece = int(np.argmax(reading.evidence.logits[:, index])) if side == "blocked" else 0
            score = min(1.0, max(-1.0, float(reading.evidence.best[piece, index])))
            chance = probability(float(reading.evidence.logits[piece, index]))
            nearest = rule.texts[reading.book.nearest(reading.vectors[piece], index)]
            found.append(RuleScore(rule.name, side, score, chance, nearest))
    key = (lambda s: -s.score) if policy.scoring == "cosine" else (lambda s: -s.probability)
    return tuple(sorted(found, key=key))


def _blocked(
    policy: Policy,
    blocked: SideReading,
    piece: int,
    index: int,
    logit: float,
    cut: float,
    spans: Sequence[tuple[int, int]],
    scores: tuple[RuleScore, ...],
    against: float,
    hit: Hit | None,
) -> Verdict:
    if hit is not None:
        index = next(i for i, rule in enumerate(policy.blocked) if rule.name == hit.rule)
    rule = blocked.book.rules[index]
    score = float(blocked.evidence.best[piece, index])
    chance = max(probability(logit), BLOCKED_HIT if hit else 0.0)
    nearest = hit.word if hit else rule.texts[blocked.book.nearest(blocked.vectors[piece], index)]
    action = policy.blocked_action
    why = f"its keyword {hit.word!r}" if hit else f"nearest to {nearest!r}"
    margin = max(logit - cut, 0.0) if hit is None else 0.0
    return Verdict(
        action,
        "BLOCKED_TOPIC",
        f"on the blocked topic {rule.name!r}: {why}",
        rule=rule.name,
        score=_bounded(score),
        threshold=_threshold(score, margin, float(blocked.evidence.slope[piece, index]), met=True),
        probability=chance,
        risk=1.0 - 0.5 * (1.0 - probability(against)),
        method="keywords" if hit else "embedding",
        nearest=nearest,
        runner_up=_runner_up(scores, rule.name),
        window=_window(piece, spans),
        reply=reply_for(policy, "blocked", rule.name) if action != "flag" else None,
        scores=scores,
    )


def _allowed(
    policy: Policy,
    allowed: SideReading | None,
    scores: tuple[RuleScore, ...],
    small_talk: bool,
    leaning: tuple[float, int] | None,
    own_logit: float | None,
    explicit: Sequence[Hit],
    windows: int,
) -> Verdict:
    if allowed is None or own_logit is None:
        why = "nothing but blocked topics is restricted, and none is met"
        top = scores[0] if scores else None
        # With no allowed rules the score shown is that of the nearest blocked one.
        return Verdict(
            "allow",
            "ON_TOPIC",
            why,
            score=top.score if top else None,
            probability=top.probability if top else None,
            risk=0.0,
            method="embedding",
            nearest=top.nearest if top else None,
            scores=scores,
        )
    _, index = allowed.strongest(allowed.evidence.logits[:1] - _cuts(policy, "allowed", allowed))
    alone = own_logit >= log_odds(policy.threshold("allowed", policy.allowed[index]))
    if leaning is not None and not alone:
        index = leaning[1]
    rule = policy.allowed[index]
    logit = own_logit if leaning is None else leaning[0]
    wanted = policy.threshold("allowed", rule)
    if leaning is not None and rule.threshold is None:
        wanted = policy.follow_up_threshold
    cut = log_odds(wanted)
    score = float(allowed.evidence.best[0, index])
    nearest = allowed.book.rules[index].texts[allowed.book.nearest(allowed.vectors[0], index)]
    met = logit >= cut
    chance = probability(logit)
    base = Verdict(
        "allow",
        "ON_TOPIC",
        f"on the allowed topic {rule.name!r}: nearest to {nearest!r}",
        rule=rule.name,
        score=_bounded(score),
        threshold=_threshold(score, logit - cut, float(allowed.evidence.slope[0, index]), met=met),
        probability=chance,
        risk=1.0 - chance,
        method="embedding",
        nearest=nearest,
        runner_up=_runner_up(scores, rule.name),
        scores=scores,
        notes=(f"read in {windows} windows",) if windows else (),
    )
    hit = next((entry for entry in explicit if entry.side == "allowed"), None)
    if hit is not None:
        reason = f"on the allowed topic {hit.rule!r}: its keyword {hit.word!r}"
        sure = max(chance, ALLOWED_HIT)
        return replace(base, reason=reason, rule=hit.rule, method="keywords", nearest=hit.word, probability=sure, risk=1 - sure)
    if small_talk and policy.small_talk:
        sure = 0.5 + 0.5 * max(chance, 0.6)
        return replace(
            base, reason_code="SMALL_TALK", reason="small talk", rule=None, method="small_talk", probability=sure, risk=1 - sure
        )
    if met:
        if not alone:
            return replace(base, reason_code="FOLLOW_UP", reason=f"follows up on the allowed topic {rule.name!r}")
        return base
    action = policy.off_topic_action
    return replace(
        base,
        action=action,
        reason_code="OFF_TOPIC",
        reason=f"on no allowed topic; the nearest is {rule.name!r} by {nearest!r}",
        reply=reply_for(policy, "off_topic", None) if action in ("redirect", "block") else None,
    )


def _by_cosine(
    policy: Policy,
    allowed: SideReading | None,
    blocked: SideReading | None,
    spans: Sequence[tuple[int, int]],
    small_talk: bool,
) -> Verdict:
    """The ancestors' rule: best-member cosine, blocked first, thresholds met at >=, no background."""
    scores = _all_scores(policy, allowed, blocked)
    if blocked is not None:
        cuts = _cuts(policy, "blocked", blocked)
        piece, index = blocked.strongest(blocked.evidence.best - cuts)
        score, cut = float(blocked.evidence.best[piece, index]), float(cuts[index])
        if score >= cut:
            rule = blocked.book.rules[index]
            nearest = rule.texts[blocked.book.nearest(blocked.vectors[piece], index)]
            action = policy.blocked_action
            return Verdict(
                action,
                "BLOCKED_TOPIC",
                f"on the blocked topic {rule.name!r}: nearest to {nearest!r}",
                rule=rule.name,
                score=score,
                threshold=cut,
                risk=(1 + score) / 2,
                method="embedding",
                nearest=nearest,
                runner_up=_runner_up(scores, rule.name),
                window=_window(piece, spans),
                reply=reply_for(policy, "blocked", rule.name) if action != "flag" else None,
                scores=scores,
            )
    if allowed is None:
        return Verdict("allow", "ON_TOPIC", "no blocked topic is met", method="embedding", risk=0.0, scores=scores)
    cuts = _cuts(policy, "allowed", allowed)
    _, index = allowed.strongest(allowed.evidence.best[:1] - cuts)
    score, cut = float(allowed.evidence.best[0, index]), float(cuts[index])
    rule = allowed.book.rules[index]
    nearest = rule.texts[allowed.book.nearest(allowed.vectors[0], index)]
    base = Verdict(
        "allow",
        "ON_TOPIC",
        f"on the allowed topic {rule.name!r}: nearest to {nearest!r}",
        rule=rule.name,
        score=score,
        threshold=cut,
        risk=(1 - score) / 2,
        method="embedding",
        nearest=nearest,
        runner_up=_runner_up(scores, rule.name),
        scores=scores,
    )
    if score >= cut:
        return base
    if small_talk and policy.small_talk:
        return replace(base, reason_code="SMALL_TALK", reason="small talk", rule=None, method="small_talk")
    action = policy.off_topic_action
    reason = f"on no allowed topic; the nearest is {rule.name!r} by {nearest!r}"
    reply = reply_for(policy, "off_topic", None) if action in ("redirect", "block") else None
    return replace(base, action=action, reason_code="OFF_TOPIC", reason=reason, reply=reply)


def _threshold(score: float, margin: float, slope: float, *, met: bool) -> float:
    """The cosine at which the rule would just be met: the score less what the margin is worth, kept on its side."""
    value = score - margin / max(slope, 1e-6)
    value = min(value, score) if met else max(value, math.nextafter(score, 2.0))
    return min(1.0, max(-1.0, value)) if met else min(max(value, -1.0), max(1.0, math.nextafter(score, 2.0)))


def _bounded(score: float) -> float:
    return min(1.0, max(-1.0, score))


def _runner_up(scores: Sequence[RuleScore], rule: str | None) -> RuleScore | None:
    return next((entry for entry in scores if entry.rule != rule), None)


def _window(piece: int, spans: Sequence[tuple[int, int]]) -> Window | None:
    return Window(piece, *spans[piece - 1]) if piece and spans else None
