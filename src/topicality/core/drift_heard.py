"""What a verdict tells drift about a message. Pure."""

from __future__ import annotations

from typing import NamedTuple

from topicality.types import Verdict

_NOT_READ = frozenset({"SMALL_TALK", "NOT_CHECKED", "LANGUAGE_NOT_COVERED", "ERROR"})


class Heard(NamedTuple):
    """A message's best allowed probability, [0, 1], by each of two readings.

    Attributes:
        probability: by the better one (`fed_by`). alone: of the message alone. context: with what was said before. None when
            it is not known.
    """

    probability: float
    alone: float | None = None
    context: float | None = None


def fed_by(verdict: Verdict) -> float | None:
    """The best allowed probability of a message, from the guard's verdict, whatever that decided.

    The better one of two readings counts: the message alone, and with what was said before. Alone, a follow-up ("on
    Saturday") looks off-topic; with its context, a message that stands alone is blurred by its neighbours (docs/drift.md).

    Returns:
        A probability, or None for a message that says nothing about drift: small talk, not checked, no allowed rule.
    """
    if verdict.reason_code in _NOT_READ:
        return None
    allowed = [entry.probability for entry in verdict.scores if entry.side == "allowed"]
    own = verdict.probability
    if verdict.reason_code == "BLOCKED_TOPIC":
        return min([*allowed, 1.0 - own]) if own is not None else None
    if verdict.scores and not allowed:
        return None
    if verdict.reason_code == "OFF_TOPIC" and verdict.method == "judge":
        return own
    return max([*allowed, own]) if own is not None else None


def heard_from(verdict: Verdict) -> Heard | None:
    """Both readings of a verdict, which notice drift sooner than the better one alone; None where `fed_by` gives None.

    Where something else than the embeddings decided, or a blocked rule did, that counts as both.
    """
    better = fed_by(verdict)
    if better is None:
        return None
    allowed = [entry.probability for entry in verdict.scores if entry.side == "allowed"]
    if verdict.method != "embedding" or verdict.reason_code == "BLOCKED_TOPIC" or not allowed:
        return Heard(better, better, better)
    return Heard(better, max(allowed), verdict.probability)
