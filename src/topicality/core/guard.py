"""The guard's decision for one message, given what speaks for each rule. Pure: vectors and policy in, verdict out."""

from __future__ import annotations

import math

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
    threshold_for,
)
from topicality.types import Action, Method, ReasonCode, RuleScore, Verdict

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
    logit, cut = float(case.blocked.evidence.logits[piece, index]), case.cuts["blocked"][index]
    hit = next((entry for entry in case.explicit if entry.side == "blocked"), None) if case.explicit else None
    risk = _risk(logit, rival)
    if hit is not None or (logit >= cut and logit > (needed or -math.inf)):
        either = _allowed(case, scores, 0.5 * risk).risk or 0.0
        worst = max(either, 1.0 - 0.5 * (1.0 - risk))
        return _blocked(case, scores, (piece, index), max(cut, needed or cut), worst, hit)
    notes: tuple[str, ...] = ()
    if logit >= cut:
        name = case.policy.blocked[index].name
        notes = (f"near the blocked rule {name!r}, but the allowed rules outweigh it",)
    return _allowed(case, scores, 0.5 * risk, notes)


def _contest(case: Case, blocked: SideReading) -> tuple[int, int, float, float]:
    """The piece and the rule that come nearest to blocking; the allowed side's log-odds there, and what has to be beaten.

    Only the piece that is itself about the allowed topic speaks against blocking it, so a piece that blocks is looked for
    before one that merely scores high.
    """
    logits, cuts = blocked.evidence.logits.tolist(), case.cuts["blocked"]
    rivals = [-math.inf] * len(logits)
    if case.allowed is not None:
        rivals = np.maximum.reduce(case.allowed.evidence.logits, axis=1).tolist()
    best = (False, -math.inf)
    where = (0, 0, rivals[0], 0.0)
    for piece, (row, rival) in enumerate(zip(logits, rivals, strict=True)):
        needed = _CONTEST_WEIGHT * max(rival - _CONTEST_FROM, 0.0)
        beaten = needed if needed > 0.0 else -math.inf
        for index, (logit, cut) in enumerate(zip(row, cuts, strict=True)):
            blocks = logit >= cut and logit > beaten
            margin = (blocks, logit - max(cut, beaten) if blocks else logit - cut)
            if margin > best:
                best, where = margin, (piece, index, rival, needed)
    return where


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


def _allowed(case: Case, scores: tuple[RuleScore, ...], threat: float = 0.0, notes: tuple[str, ...] = ()) -> Verdict:
    """The verdict of the allowed side, where no blocked rule blocks.

    Args:
        threat: probability, for `risk`, that the message should not pass for what is blocked. notes: on that.
    """
    if case.allowed is None:
        return _anything(scores, threat, notes)
    policy = case.policy
    own, index, alone = _own(case, case.allowed)
    if case.leaning is not None and not alone:
        index = case.leaning[1]
    logit = own if case.leaning is None else case.leaning[0]
    hit = next((entry for entry in case.explicit if entry.side == "allowed"), None) if case.explicit else None
    if hit is not None:
        index = [entry.name for entry in policy.allowed].index(hit.rule)
    rule = policy.allowed[index]
    wanted = policy.threshold("allowed", rule)
    if case.leaning is not None and rule.threshold is None:
        wanted = policy.follow_up_threshold
    margin = logit - log_odds(wanted)
    score, nearest, chance = case.allowed.score(0, index), case.allowed.nearest(0, index), probability(logit)
    threshold = threshold_for(score, margin, float(case.allowed.evidence.slope[0, index]), met=margin >= 0.0)
    action: Action = "allow"
    code: ReasonCode = "ON_TOPIC"
    method: Method = "embedding"
    reply, named = None, rule.name
    if hit is not None:
        reason, nearest = f"on the allowed topic {named!r}: its keyword {hit.word!r}", hit.word
        method, threshold, chance = "keywords", score, max(chance, ALLOWED_HIT)
    elif case.small_talk and policy.small_talk:
        code, reason, method, chance = "SMALL_TALK", "small talk", "small_talk", 0.5 + 0.5 * max(chance, 0.6)
    elif margin >= 0.0 and alone:
        reason = f"on the allowed topic {named!r}: nearest to {nearest!r}"
    elif margin >= 0.0:
        code, reason = "FOLLOW_UP", f"follows up on the allowed topic {named!r}"
    else:
        action, code = policy.off_topic_action, "OFF_TOPIC"
        reason = f"on no allowed topic; the nearest is {named!r} by {nearest!r}"
        reply = reply_for(policy, "off_topic", None, action)
    return Verdict(
        action,
        code,
        reason,
        None if method == "small_talk" else named,
        score,
        threshold,
        chance,
        1.0 - chance * (1.0 - threat),
        method,
        nearest=nearest,
        runner_up=runner_up(scores, named),
        reply=reply,
        scores=scores,
        notes=(f"read in {len(case.spans)} windows", *notes) if case.long else notes,
    )


def _own(case: Case, allowed: SideReading) -> tuple[float, int, bool]:
    """The message's own log-odds, its best rule, and whether that is enough without any context."""
    cuts, row = case.cuts["allowed"], allowed.evidence.logits[0].tolist()
    above = [logit - cut for logit, cut in zip(row, cuts, strict=True)]
    index = above.index(max(above))
    own = allowed_logit(allowed, case.long) if case.long else row[index] - allowed.chance
    return own, index, own >= cuts[index]


def _anything(scores: tuple[RuleScore, ...], threat: float, notes: tuple[str, ...]) -> Verdict:
    """No allowed rules: whatever is not blocked passes. The scores shown are those of the nearest blocked rule."""
    top = scores[0] if scores else None
    return Verdict(
        "allow",
        "ON_TOPIC",
        "only blocked topics are restricted, and none is met",
        score=top.score if top else None,
        probability=top.probability if top else None,
        risk=threat,
        method="embedding",
        nearest=top.nearest if top else None,
        runner_up=top,
        scores=scores,
        notes=notes,
    )
