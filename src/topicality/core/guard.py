"""The guard's decision for one message, given what speaks for each rule. Pure: vectors and policy in, verdict out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from topicality.core.cosine import decide_by_cosine
from topicality.core.keywords import ALLOWED_HIT, BLOCKED_HIT, Hit
from topicality.core.verdicts import (
    Case,
    SideReading,
    log_odds,
    probability,
    reply_for,
    runner_up,
    strongest,
    threshold_for,
)
from topicality.types import RuleScore, Verdict

# A blocked rule has to beat the allowed ones, and by more the clearer the message is on an allowed topic: one that merely
# mentions a blocked subject while it asks for an allowed thing is not blocked. In log-odds; chosen on bench/data so that
# at most one in ten of such messages is blocked (see docs/guard.md).
_CONTEST_FROM, _CONTEST_WEIGHT = -3.0, 2.5


def decide(case: Case) -> Verdict:
    """Decide one message by its embeddings.

    The order is: keywords that a rule lists itself, blocked rules (best hit over all pieces, where it beats the allowed
    ones), allowed rules, small talk, off-topic.

    Returns:
        A verdict by "embedding", "keywords" or "small_talk"; its `scores` list every rule, best first.
    """
    if case.policy.scoring == "cosine":
        return decide_by_cosine(case)
    scores = case.scores()
    if case.blocked is None:
        return _allowed(case, scores)
    piece, index, rival, needed = _contest(case, case.blocked)
    logit, cut = float(case.blocked.evidence.logits[piece, index]), float(case.cuts("blocked")[index])
    risk = _risk(logit, rival)
    hit = next((entry for entry in case.explicit if entry.side == "blocked"), None)
    verdict = _allowed(case, scores)
    either = 1.0 - (1.0 - (verdict.risk or 0.0)) * (1.0 - 0.5 * risk)
    if hit is not None or (logit >= cut and logit > (needed or -math.inf)):
        worst = max(either, 1.0 - 0.5 * (1.0 - risk))
        return _blocked(case, scores, (piece, index), max(cut, needed or cut), worst, hit)
    notes = verdict.notes
    if logit >= cut:
        name = case.policy.blocked[index].name
        notes = (*notes, f"near the blocked rule {name!r}, but the allowed rules outweigh it")
    return replace(verdict, risk=either, notes=notes)


def _contest(case: Case, blocked: SideReading) -> tuple[int, int, float, float]:
    """The piece and the rule that come nearest to blocking; the allowed side's log-odds there, and what has to be beaten.

    Only the piece that is itself about the allowed topic speaks against blocking it, so a piece that blocks is looked for
    before one that merely scores high.
    """
    logits, cuts = blocked.evidence.logits, case.cuts("blocked")
    if case.allowed is None:
        return *strongest(logits - cuts), -math.inf, 0.0
    rivals = case.allowed.evidence.logits.max(axis=1)
    needed = _CONTEST_WEIGHT * np.maximum(rivals - _CONTEST_FROM, 0.0)
    beaten = np.where(needed > 0.0, needed, -math.inf)[:, None]
    blocks = (logits >= cuts) & (logits > beaten)
    margin = np.where(blocks, logits - np.maximum(cuts, beaten), -math.inf) if blocks.any() else logits - cuts
    piece, index = strongest(margin)
    return piece, index, float(rivals[piece]), float(needed[piece])


def allowed_logit(allowed: SideReading, long: bool) -> float:
    """Log-odds that the whole message is on one of the rules, pulled half-way to its windows' mean when it is long."""
    logits = allowed.evidence.logits.max(axis=1) - allowed.chance
    return float((logits[0] + logits[1:].mean()) / 2) if long and len(logits) > 1 else float(logits[0])


def blocked_risk(allowed: SideReading | None, blocked: SideReading | None) -> float | None:
    """Probability, for ranking, that a message is on a blocked topic; None when there are no blocked rules."""
    if blocked is None:
        return None
    rival = -math.inf if allowed is None else float(allowed.evidence.logits[0].max())
    return _risk(float(blocked.evidence.logits.max()), rival)


def _risk(logit: float, rival: float) -> float:
    return probability(logit - 0.5 * max(rival, -2.0) - 1.0)


def _blocked(
    case: Case, scores: tuple[RuleScore, ...], where: tuple[int, int], cut: float, risk: float, hit: Hit | None
) -> Verdict:
    reading = case.blocked
    if reading is None:  # pragma: no cover - decide() asks only when there is a blocked side
        raise ValueError("no blocked side")
    piece, index = where
    if hit is not None:
        index = next(number for number, rule in enumerate(case.policy.blocked) if rule.name == hit.rule)
    rule, score = reading.book.rules[index], reading.score(piece, index)
    logit = float(reading.evidence.logits[piece, index])
    nearest = hit.word if hit else reading.nearest(piece, index)
    margin = logit - cut if hit is None else 0.0
    action = case.policy.blocked_action
    return Verdict(
        action,
        "BLOCKED_TOPIC",
        f"on the blocked topic {rule.name!r}: " + (f"its keyword {nearest!r}" if hit else f"nearest to {nearest!r}"),
        rule.name,
        score,
        threshold_for(score, margin, float(reading.evidence.slope[piece, index]), met=True),
        max(probability(logit), BLOCKED_HIT if hit else 0.0),
        risk,
        method="keywords" if hit else "embedding",
        nearest=nearest,
        runner_up=runner_up(scores, rule.name),
        window=case.window(piece),
        reply=reply_for(case.policy, "blocked", rule.name, action),
        scores=scores,
    )


def _allowed(case: Case, scores: tuple[RuleScore, ...]) -> Verdict:
    if case.allowed is None:
        return _anything(scores)
    own, index, alone = _own(case, case.allowed)
    if case.leaning is not None and not alone:
        index = case.leaning[1]
    logit = own if case.leaning is None else case.leaning[0]
    rule = case.policy.allowed[index]
    wanted = case.policy.threshold("allowed", rule)
    if case.leaning is not None and rule.threshold is None:
        wanted = case.policy.follow_up_threshold
    margin = logit - log_odds(wanted)
    score, nearest, chance = case.allowed.score(0, index), case.allowed.nearest(0, index), probability(logit)
    base = Verdict(
        "allow",
        "ON_TOPIC",
        f"on the allowed topic {rule.name!r}: nearest to {nearest!r}",
        rule.name,
        score,
        threshold_for(score, margin, float(case.allowed.evidence.slope[0, index]), met=margin >= 0.0),
        chance,
        1.0 - chance,
        method="embedding",
        nearest=nearest,
        runner_up=runner_up(scores, rule.name),
        scores=scores,
        notes=(f"read in {len(case.spans)} windows",) if case.long else (),
    )
    return _passed(case, base, met=margin >= 0.0, alone=alone)


def _own(case: Case, allowed: SideReading) -> tuple[float, int, bool]:
    """The message's own log-odds, its best rule, and whether that is enough without any context."""
    cuts = case.cuts("allowed")
    _, index = strongest(allowed.evidence.logits[:1] - cuts)
    own = allowed_logit(allowed, case.long) if case.long else float(allowed.evidence.logits[0, index]) - allowed.chance
    return own, index, own >= float(cuts[index])


def _passed(case: Case, base: Verdict, *, met: bool, alone: bool) -> Verdict:
    hit = next((entry for entry in case.explicit if entry.side == "allowed"), None)
    chance = base.probability or 0.0
    if hit is not None and case.allowed is not None:
        sure = max(chance, ALLOWED_HIT)
        score = case.allowed.score(0, [rule.name for rule in case.policy.allowed].index(hit.rule))
        return replace(
            base,
            reason=f"on the allowed topic {hit.rule!r}: its keyword {hit.word!r}",
            rule=hit.rule,
            score=score,
            threshold=score,
            probability=sure,
            risk=1.0 - sure,
            method="keywords",
            nearest=hit.word,
            runner_up=runner_up(base.scores, hit.rule),
        )
    if case.small_talk and case.policy.small_talk:
        sure = 0.5 + 0.5 * max(chance, 0.6)
        found = replace(base, reason_code="SMALL_TALK", reason="small talk", rule=None, method="small_talk")
        return replace(found, probability=sure, risk=1.0 - sure)
    if met and not alone:
        return replace(base, reason_code="FOLLOW_UP", reason=f"follows up on the allowed topic {base.rule!r}")
    if met:
        return base
    action = case.policy.off_topic_action
    return replace(
        base,
        action=action,
        reason_code="OFF_TOPIC",
        reason=f"on no allowed topic; the nearest is {base.rule!r} by {base.nearest!r}",
        reply=reply_for(case.policy, "off_topic", None, action),
    )


def _anything(scores: tuple[RuleScore, ...]) -> Verdict:
    """No allowed rules: whatever is not blocked passes. The scores shown are those of the nearest blocked rule."""
    top = scores[0] if scores else None
    return Verdict(
        "allow",
        "ON_TOPIC",
        "only blocked topics are restricted, and none is met",
        score=top.score if top else None,
        probability=top.probability if top else None,
        risk=0.0,
        method="embedding",
        nearest=top.nearest if top else None,
        runner_up=top,
        scores=scores,
    )
