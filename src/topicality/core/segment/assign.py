"""Which topic a message belongs to: the current one, an earlier one, or a new one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topicality.core.segment.decisions import Candidate, Kind
from topicality.core.segment.features import CAUSAL, Features, Row
from topicality.core.segment.heads import Heads
from topicality.core.segment.topics import Topics, View

# What a return depends on besides the topics themselves.
_ABOUT = tuple(CAUSAL.index(name) for name in (
    "overlap_best8", "new_words_recent", "new_words_ever", "best3", "mean8", "log_words", "log_content", "question",
    "anaphor", "pronouns", "asking", "greeting", "assent", "mean_cosine", "mean_best3", "mean_log_words", "closed",
    "shift", "first_person", "user",
))  # fmt: skip


class Evidence(NamedTuple):
    """A message against the live topics, as the heads read it. Kept until the message is confirmed."""

    view: View
    switch: Features
    returns: list[Features]


class Assignment(NamedTuple):
    """Where a message goes: a slot of the topics, or None for a new one."""

    kind: Kind
    slot: int | None
    candidates: tuple[Candidate, ...]


def evidence(topics: Topics, row: Row, index: int) -> Evidence:
    """How a message sits with the live topics. Cost: O(live topics * D)."""
    view = topics.look(row.subject, row.words)
    return Evidence(view, topics.switch_features(view, index), topics.return_features(view, index))


def rows_for_heads(
    topics: Topics, found: Evidence, features: Features, following: Row | None, *, ahead: bool
) -> tuple[Features, list[Features]]:
    """Rows for the switch head and (one a candidate) for the return head.

    Args:
        features: the message's boundary features at this moment. following: the next message.
        ahead: whether the next message is known (`following` None then means that there is none).
    """
    switch, returns = found.switch, found.returns
    if ahead:
        known = None if following is None else (following.subject, following.words)
        more, each = topics.next_features(found.view, known, len(returns))
        switch = switch + more
        returns = [own + extra for own, extra in zip(returns, each, strict=True)]
    about = [features[k] for k in _ABOUT]  # the causal features come first at every moment
    return features + switch, [own + about for own in returns]


def assign(
    topics: Topics,
    heads: Heads,
    found: Evidence,
    features: Features,
    following: Row | None,
    *,
    ahead: bool,
    granularity: str,
) -> Assignment:
    """Stay, go back or start anew.

    An earlier topic is chosen only when its own probability is high: a wrong merge costs more than a missed return.
    """
    moment = "confirmed" if ahead else "once"
    settings = heads.settings
    switch, returns = rows_for_heads(topics, found, features, following, ahead=ahead)
    if heads.switch[moment].one(switch) < settings.switch[granularity][moment]:
        return Assignment("continue", topics.current, ())
    if not returns:
        return Assignment("new", None, ())
    scores = heads.returning[moment](np.array(returns, np.float32)).tolist()
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    slots = [int(found.view.others[place]) for place in order]
    candidates = tuple(
        Candidate(int(topics.number[slot]), round(scores[place], 6)) for slot, place in zip(slots, order, strict=True)
    )
    if scores[order[0]] >= settings.returning[moment]:
        return Assignment("return", slots[0], candidates)
    return Assignment("new", None, candidates)
