"""Learning when the current topic is left, and which earlier one is taken up: the switch and the return heads.

Used by tools/train_segment.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from segment_data import Dialogue
from segment_fit import Shape, train_net

from topicality.core.segment.assign import evidence, rows_for_heads
from topicality.core.segment.features import Features, Row
from topicality.core.segment.heads import Net
from topicality.core.segment.topics import Topics

STYLES = (0.65, 0.13, 0.07, 0.15)  # of documents, tasks, chats and everyday questions in what a change of topic is
ROUNDS = 2  # of reading the dialogues again with the heads learned so far
LEAVE, SURE = (0.4, 0.75), (0.35, 0.65)  # thresholds drawn for those rounds


@dataclass
class Read:
    """A dialogue as the package reads it: rows, and the features of each moment."""

    dialogue: Dialogue
    rows: list[Row]
    features: dict[str, np.ndarray]


class Lessons(NamedTuple):
    """What the two heads see along a dialogue, and what would be right; `back` is None where no topic is earlier."""

    leave: np.ndarray
    leaves: np.ndarray
    back: np.ndarray | None
    right: np.ndarray


def lessons(each: Read, moment: str, run: tuple[Net, Net, float, float] | None) -> Lessons:
    """Along one dialogue.

    Without `run` the topics are the gold ones. With (switch head, return head, two thresholds) they are the segmenter's
    own, and right is read off what most of each topic is: a step of DAgger (Ross et al. 2011).
    """
    ahead = moment == "confirmed"
    features, rows, told = each.features[moment], each.rows, each.dialogue.topics
    topics = Topics(len(rows[0].subject), 64)
    content: dict[int, dict[int, int]] = {}
    switch: list[Features] = []
    leaves: list[int] = []
    returns: list[Features] = []
    right: list[int] = []

    def mostly(slot: int) -> int:
        return max(content[slot], key=lambda topic: content[slot][topic])

    for index, row in enumerate(rows):
        slot: int | None = None
        if index:
            following = rows[index + 1] if index + 1 < len(rows) else None
            found = evidence(topics, row, index)
            wide, make_narrow = rows_for_heads(topics, found, features[index].tolist(), following, ahead=ahead)
            narrow = make_narrow()
            slots = found.view.others[: len(narrow)].tolist()
            leaves.append(int(mostly(topics.current) != told[index]))
            switch.append(wide)
            if leaves[-1]:
                returns += narrow
                right += [int(mostly(candidate) == told[index]) for candidate in slots]
            if run is None:
                slot = next((s for s in content if mostly(s) == told[index]), None)
            else:
                leave, back, least, sure = run
                slot = topics.current
                if not row.cues.acknowledges and leave.one(wide) >= least:
                    scores = back(np.array(narrow, np.float32)) if narrow else np.zeros(1)
                    slot = slots[int(scores.argmax())] if scores.max() >= sure else None
        topics.place(slot, row.said, index)
        counts = content.setdefault(topics.current, {})
        counts[told[index]] = counts.get(told[index], 0) + 1
    back_rows = np.array(returns, np.float32) if returns else None
    return Lessons(np.array(switch, np.float32), np.array(leaves), back_rows, np.array(right, int))


def learn_topics(reads: Sequence[tuple[int, Read]], moment: str) -> tuple[Net, Net]:
    """The switch and the return head of one moment, from dialogues and the number of their style.

    First along the true topics, then along those that the heads find themselves.
    """
    styles = [style for style, _ in reads]
    found = [lessons(each, moment, None) for _, each in reads]
    heads = _fit(found, styles, last=False)
    rng = np.random.default_rng(5)
    for number in range(ROUNDS):
        found += [lessons(each, moment, (*heads, rng.uniform(*LEAVE), rng.uniform(*SURE))) for _, each in reads]
        heads = _fit(found, styles * (number + 2), last=number == ROUNDS - 1)
    return heads


def _fit(found: Sequence[Lessons], styles: Sequence[int], *, last: bool) -> tuple[Net, Net]:
    """Each style of talk counts with its share, however many rows it has."""
    choices = [(each, style) for each, style in zip(found, styles, strict=True) if each.back is not None]
    leave = np.concatenate([np.full(len(each.leaves), style) for each, style in zip(found, styles, strict=True)])
    back = np.concatenate([np.full(len(each.right), style) for each, style in choices])
    shares = np.array(STYLES)
    bags = 4 if last else 2
    return (
        train_net(
            np.concatenate([each.leave for each in found]),
            np.concatenate([each.leaves for each in found]),
            (shares / np.bincount(leave, minlength=len(shares)))[leave],
            Shape(bags=bags, epochs=10 if last else 5, batch=1024, rate=3e-3),
        ),
        train_net(
            np.concatenate([each.back for each, _ in choices if each.back is not None]),
            np.concatenate([each.right for each, _ in choices]),
            (shares / np.bincount(back, minlength=len(shares)))[back],
            Shape(hidden=16, bags=bags, epochs=15 if last else 10, drop=0.1, batch=1024, rate=3e-3),
        ),
    )
