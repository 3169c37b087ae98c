"""Which topic a message belongs to: the current one, an earlier one, or a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from topicality.core.segment.decisions import Candidate, Kind
from topicality.core.segment.features import CAUSAL, Features, Row, Said
from topicality.core.segment.heads import Heads
from topicality.core.segment.topics import RETURN_NEXT, SWITCH_NEXT, Topics, View

# What a return depends on besides the topics themselves.
_ABOUT = tuple(CAUSAL.index(name) for name in (
    "overlap_best8", "new_words_recent", "new_words_ever", "best3", "mean8", "log_words", "log_content", "question",
    "anaphor", "pronouns", "asking", "greeting", "assent", "mean_cosine", "mean_best3", "mean_log_words", "closed",
    "shift", "first_person", "user",
))  # fmt: skip

_NO_NEXT, _NO_NEXT_RETURN = [0.0] * len(SWITCH_NEXT), [0.0] * len(RETURN_NEXT)


class Evidence(NamedTuple):
    """A message against the live topics, as the switch head reads it. Kept until the message is confirmed."""

    at: int
    message: Said
    view: View
    switch: Features


class Assignment(NamedTuple):
    """Where a message goes: a slot of the topics, or None for a new one."""

    kind: Kind
    slot: int | None
    candidates: tuple[Candidate, ...]


def evidence(topics: Topics, row: Row, index: int) -> Evidence:
    """How a message sits with the live topics. Cost: O(live topics * D)."""
    message = row.said
    view = topics.look(message)
    return Evidence(index, message, view, topics.switch_features(view, message, index))


def rows_for_heads(
    topics: Topics, found: Evidence, features: Features, following: Row | None, *, ahead: bool
) -> tuple[Features, Callable[[], list[Features]]]:
    """A row for the switch head, and what makes those for the return head, one a candidate: they are seldom needed.

    Args:
        topics: as they were when the evidence was found. features: the message's boundary features at this moment.
        following: the next message. ahead: whether it is known (`following` None then means that there is none).
    """
    view = found.view
    after = None
    if ahead and following is not None:
        after = (topics.table(following.said), following.said)
    switch = features + found.switch
    if ahead:
        switch += _NO_NEXT if after is None else topics.next_switch(view, *after)

    def returns() -> list[Features]:
        rows = topics.return_features(view, found.message, found.at)
        if ahead:
            more = [_NO_NEXT_RETURN] * len(rows) if after is None else topics.next_returns(view, *after)
            rows = [own + extra for own, extra in zip(rows, more, strict=True)]
        about = [features[k] for k in _ABOUT]  # the causal features come first at every moment
        return [own + about for own in rows]

    return switch, returns


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
    rows = returns()
    if not rows:
        return Assignment("new", None, ())
    scores = heads.returning[moment](np.array(rows, np.float32)).tolist()
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    slots = [int(found.view.others[place]) for place in order]
    candidates = tuple(
        Candidate(int(topics.number[slot]), round(scores[place], 6)) for slot, place in zip(slots, order, strict=True)
    )
    if scores[order[0]] >= settings.returning[moment]:
        return Assignment("return", slots[0], candidates)
    return Assignment("new", None, candidates)
