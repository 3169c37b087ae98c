"""Plain cosine scoring, the ancestors' rule: best member, blocked first, thresholds are cosines met at >=."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topicality.core.verdicts import Case, SideReading, by_keywords, reply_for, runner_up, strongest
from topicality.types import RuleScore, Verdict


def decide_by_cosine(case: Case) -> Verdict:
    """Decide one message by cosine to the nearest member, without a background.

    Differs from the ancestors where those contradict each other or are at fault: the best blocked rule is named, not the
    first; a threshold is met at >=; every member counts, not a centroid.
    """
    scores = case.scores()
    worded = by_keywords(case.policy, case.explicit, small_talk=False)
    if worded is not None and worded.action != "allow":
        return replace(worded, scores=scores)
    if case.blocked is not None:
        piece, index = strongest(case.blocked.evidence.best - np.array(case.cuts["blocked"]))
        found = _verdict(case, case.blocked, scores, (piece, index), case.cuts["blocked"][index])
        if found.score is not None and found.threshold is not None and found.score >= found.threshold:
            action = case.policy.blocked_action
            return replace(
                found,
                action=action,
                reason_code="BLOCKED_TOPIC",
                reason=f"on the blocked topic {found.rule!r}: nearest to {found.nearest!r}",
                risk=(1.0 + found.score) / 2.0,
                window=case.window(piece),
                reply=reply_for(case.policy, "blocked", found.rule, action),
            )
    if case.allowed is None:
        return Verdict("allow", "ON_TOPIC", "no blocked topic is met", risk=0.0, method="embedding", scores=scores)
    _, index = strongest(case.allowed.evidence.best[:1] - np.array(case.cuts["allowed"]))
    found = _verdict(case, case.allowed, scores, (0, index), case.cuts["allowed"][index])
    if found.score is not None and found.threshold is not None and found.score >= found.threshold:
        return found
    if worded is not None:
        return replace(worded, scores=scores)
    if case.small_talk and case.policy.small_talk:
        return replace(found, reason_code="SMALL_TALK", reason="small talk", rule=None, method="small_talk")
    action = case.policy.off_topic_action
    return replace(
        found,
        action=action,
        reason_code="OFF_TOPIC",
        reason=f"on no allowed topic; the nearest is {found.rule!r} by {found.nearest!r}",
        reply=reply_for(case.policy, "off_topic", None, action),
    )


def _verdict(
    case: Case, reading: SideReading, scores: tuple[RuleScore, ...], where: tuple[int, int], cut: float
) -> Verdict:
    piece, index = where
    rule, score, nearest = reading.book.rules[index], reading.score(piece, index), reading.nearest(piece, index)
    return Verdict(
        "allow",
        "ON_TOPIC",
        f"on the allowed topic {rule.name!r}: nearest to {nearest!r}",
        rule.name,
        score,
        cut,
        risk=(1.0 - score) / 2.0,
        method="embedding",
        nearest=nearest,
        runner_up=runner_up(scores, rule.name),
        scores=scores,
    )
