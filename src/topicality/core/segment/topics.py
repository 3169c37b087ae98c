"""The live topics of a conversation: what each has been about, and how a message sits with them. Bounded, reversible.

A topic is kept as its opening message and a ring of five later ones that said something, their sum, and its words. When
all places are taken, the topic not visited for longest is forgotten: a return to it is then a new topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.segment.cues import Words
from topicality.core.segment.features import Said
from topicality.core.segment.thread import KEPT, NO_THREAD, NO_THREAD_NEXT, THREAD, THREAD_NEXT, near, thread
from topicality.vectors import Array

PROTOTYPES = 6
CANDIDATES = 4  # earlier topics that are looked at closely for a return
_PLACES = np.arange(PROTOTYPES)
_CLOSE = 12  # beyond this many topics, only the likeliest have their prototypes compared

_TABLE = ("best", "best_two", "centroid", "opening", "words")
SWITCH = (
    *(f"current_{name}" for name in _TABLE), *(f"other_{name}" for name in _TABLE), "gain_best", "gain_centroid",
    "gain_words", "log_topics", "log_size", "log_age", "gain_blend", *THREAD,
)  # fmt: skip
SWITCH_NEXT = (
    *(f"next_current_{name}" for name in _TABLE), *(f"next_other_{name}" for name in _TABLE), "next_gain_best",
    "next_gain_centroid", "next_gain_words", *THREAD_NEXT,
)  # fmt: skip
RETURN = (
    *_TABLE, "log_age", "log_size", "rank", "margin", "gain_best", "gain_centroid", "gain_words", "z_blend",
    "log_topics", "mean_centroid", "best_other", *THREAD,
)  # fmt: skip
RETURN_NEXT = (
    *(f"next_{name}" for name in _TABLE), *(f"next_gain_{name}" for name in _TABLE), "next_margin", *THREAD_NEXT,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slot:
    """Everything that one place holds, so that an eviction can be undone."""

    prototypes: Array
    total: Array
    filled: int
    size: int
    said: int
    last: int
    number: int
    words: dict[str, int]
    tail: tuple[Said, ...]


class Placed(NamedTuple):
    """How to take back one `place`: see `Topics.undo`."""

    slot: int
    words: Words
    ring: int  # place in the ring that was written, or -1
    old: Array | None  # what stood there
    total: Array  # the topic's sum before
    filled: int
    last: int
    current: int
    top: int
    next_number: int
    opened: bool
    evicted: Slot | None


class View(NamedTuple):
    """A message against the live topics.

    Attributes:
        table: shape (M, 5), a row for each slot: best, mean of the two best, centroid and opening cosine, word overlap.
        others: slots of the topics that are not the current one, likeliest first. blend: shape (M,), for ranking.
    """

    table: Array
    others: NDArray[np.intp]
    blend: Array


class Topics:
    """Live topics, at most `limit`.

    Args:
        dimension: of the vectors. limit: live topics, at least 2.
    """

    def __init__(self, dimension: int, limit: int) -> None:
        self.limit = limit
        self.prototypes = np.zeros((limit, PROTOTYPES, dimension), np.float32)
        self.total = np.zeros((limit, dimension), np.float32)
        self.norm = np.full(limit, 1e-6, np.float32)
        self.filled = np.zeros(limit, np.intp)  # prototypes in use
        self.size = np.zeros(limit, np.intp)  # messages
        self.said = np.zeros(limit, np.intp)  # messages that became prototypes
        self.last = np.full(limit, -1, np.intp)  # index of the latest message
        self.number = np.full(limit, -1, np.intp)  # the topic's number, or -1: a free place
        self.words: dict[str, dict[int, int]] = {}  # word -> slot -> messages
        self.own: list[dict[str, int]] = [{} for _ in range(limit)]
        self.tail: list[tuple[Said, ...]] = [() for _ in range(limit)]  # last messages, oldest first
        self.current = -1
        self.top = 0  # places in use: those below are live, those from here on free
        self.next_number = 0

    def __len__(self) -> int:
        return self.top

    def place(self, slot: int | None, message: Said, index: int) -> Placed:
        """Put a message into a topic, or (None) into a new one, which becomes the current one.

        Cost: O(D) and O(words).
        """
        current, top, next_number = self.current, self.top, self.next_number
        vector, words = message.subject, message.words
        evicted = None
        opened = slot is None
        if slot is None:
            slot, evicted = self._open()
        ring, old = -1, None
        filled, last = int(self.filled[slot]), int(self.last[slot])
        if message.cues.only_assent < 0.5 or filled == 0:
            said = int(self.said[slot])
            ring = 0 if said == 0 else 1 + (said - 1) % (PROTOTYPES - 1)
            old = self.prototypes[slot, ring].copy()
            self.prototypes[slot, ring] = vector
            self.filled[slot] = max(filled, ring + 1)
            self.said[slot] = said + 1
        own = self.own[slot]
        for word in words:
            times = own.get(word, 0) + 1
            own[word] = times
            self.words.setdefault(word, {})[slot] = times
        total = self.total[slot]
        before = total.copy()
        total += vector
        self.norm[slot] = sqrt(float(total @ total)) + 1e-6
        self.size[slot] += 1
        self.last[slot] = index
        self.current = slot
        self.tail[slot] = (*self.tail[slot], message)[-KEPT:]
        return Placed(slot, words, ring, old, before, filled, last, current, top, next_number, opened, evicted)

    def undo(self, placed: Placed) -> None:
        """Take back the latest `place`: afterwards the topics are as they were before it, the evicted one included."""
        slot = placed.slot
        if placed.opened:
            self._clear(slot)
            if placed.evicted is not None:
                self._restore(slot, placed.evicted)
        else:
            if placed.old is not None:
                self.prototypes[slot, placed.ring] = placed.old
                self.filled[slot] = placed.filled
                self.said[slot] -= 1
            own = self.own[slot]
            for word in placed.words:
                own[word] -= 1
                if own[word]:
                    self.words[word][slot] = own[word]
                else:
                    del own[word]
                    self._forget_word(word, slot)
            self._set_total(slot, placed.total)
            self.size[slot] -= 1
            self.last[slot] = placed.last
            self.tail[slot] = self.tail[slot][:-1]
        self.current, self.top, self.next_number = placed.current, placed.top, placed.next_number

    def look(self, message: Said) -> View:
        """How a message sits with every live topic. There must be a current topic. Cost: O(live topics * D)."""
        table = self.table(message)
        blend = blended(table)
        ranked = -blend
        ranked[self.current] = np.inf
        others = np.argsort(ranked, kind="stable")[:-1]
        return View(table, others, blend)

    def table(self, message: Said) -> Array:
        """The table of a `View`."""
        count, vector = self.top, message.subject
        centroid = (self.total[:count] @ vector) / self.norm[:count]
        table = np.empty((count, 5), np.float32)
        table[:, 2] = centroid
        table[:, 4] = overlaps = self._word_overlaps(message.words)
        if count > _CLOSE:
            close = np.argpartition(-0.4 * overlaps - centroid, _CLOSE)[:_CLOSE]
            if not (close == self.current).any():
                close[-1] = self.current
            table[:, 0] = table[:, 1] = table[:, 3] = 0.9 * centroid
        else:
            close = np.arange(count)
        cosines = self.prototypes[close] @ vector
        opening = cosines[:, 0].copy()
        cosines[self.filled[close][:, None] <= _PLACES] = -1.0
        cosines.sort(axis=1)
        best, second = cosines[:, -1], cosines[:, -2]
        table[close, 0] = best
        table[close, 1] = np.where(second > -1.0, (best + second) / 2, best)
        table[close, 3] = opening
        return table

    def _word_overlaps(self, words: Words) -> Array:
        """Share of a message's words that each topic has used, rare words counting more: [0, 1), shape (top,)."""
        count = self.top
        slots: list[int] = []
        weights: list[int] = []  # millionths: sums of whole numbers do not depend on the order of a set
        topics: list[int] = []
        total = 500_000
        unknown = int(1e6 * log1p(count))
        for word in words:
            at = self.words.get(word)
            if at:
                weight = int(1e6 * log(1.0 + count / (1.0 + len(at))))
                total += weight
                slots += at
                weights.append(weight)
                topics.append(len(at))
            else:
                total += unknown
        if not slots:
            return np.zeros(count, np.float32)
        found = np.bincount(slots, np.repeat(np.array(weights, np.float64), topics), count)
        shares: Array = (found / total).astype(np.float32)
        return shares

    def _open(self) -> tuple[int, Slot | None]:
        evicted = None
        if self.top < self.limit:
            slot = self.top
        else:
            order = np.argsort(self.last, kind="stable")
            slot = int(order[0] if order[0] != self.current else order[1])
            evicted = Slot(
                self.prototypes[slot].copy(),
                self.total[slot].copy(),
                int(self.filled[slot]),
                int(self.size[slot]),
                int(self.said[slot]),
                int(self.last[slot]),
                int(self.number[slot]),
                self.own[slot],
                self.tail[slot],
            )
            self._clear(slot)
        self.number[slot] = self.next_number
        self.next_number += 1
        self.top = max(self.top, slot + 1)
        return slot, evicted

    def _clear(self, slot: int) -> None:
        for word in self.own[slot]:
            self._forget_word(word, slot)
        self.own[slot] = {}
        self.tail[slot] = ()
        self.prototypes[slot] = 0.0
        self.total[slot] = 0.0
        self.norm[slot] = 1e-6
        self.filled[slot] = self.size[slot] = self.said[slot] = 0
        self.last[slot] = self.number[slot] = -1

    def _restore(self, slot: int, kept: Slot) -> None:
        self.prototypes[slot] = kept.prototypes
        self._set_total(slot, kept.total)
        self.filled[slot], self.size[slot], self.said[slot] = kept.filled, kept.size, kept.said
        self.last[slot], self.number[slot] = kept.last, kept.number
        self.own[slot] = kept.words
        self.tail[slot] = kept.tail
        for word, times in kept.words.items():
            self.words.setdefault(word, {})[slot] = times

    def _set_total(self, slot: int, total: Array) -> None:
        self.total[slot] = total
        self.norm[slot] = sqrt(float(total @ total)) + 1e-6

    def _forget_word(self, word: str, slot: int) -> None:
        at = self.words[word]
        del at[slot]
        if not at:
            del self.words[word]

    def switch_features(self, view: View, message: Said, index: int) -> list[float]:
        """How a message sits with the current topic against the best other one (`SWITCH`)."""
        current = view.table[self.current].tolist()
        if len(view.others):
            first = int(view.others[0])
            other = view.table[first].tolist()
            age = log1p(index - int(self.last[first]))
            blend = float(view.blend[first])
        else:
            other, age, blend = [0.0] * 5, 0.0, 0.0
        return [
            *current,
            *other,
            other[0] - current[0],
            other[2] - current[2],
            other[4] - current[4],
            log(self.top),
            log1p(int(self.size[self.current])),
            age,
            blend - float(view.blend[self.current]),
            *(self._threads(view, message, 1)[0] if len(view.others) else NO_THREAD),
        ]

    def _threads(self, view: View, message: Said, count: int) -> list[list[float]]:
        here = near(message, self.tail[self.current])
        return [thread(message, self.tail[slot], here) for slot in view.others[:count].tolist()]

    def return_features(self, view: View, message: Said, index: int) -> list[list[float]]:
        """One row of `RETURN` for each of the likeliest earlier topics, at most `CANDIDATES`."""
        others = view.others[: CANDIDATES + 1].tolist()
        if not others:
            return []
        current = view.table[self.current].tolist()
        count = self.top
        mean, centroid, topics = float(view.blend.sum()) / count, float(view.table[:, 2].sum()) / count, log(count)
        scale = 1.0 / (sqrt(max(float(view.blend @ view.blend) / count - mean * mean, 0.0)) + 0.05)
        first = float(view.blend[others[0]])
        second = float(view.blend[others[1]]) if len(others) > 1 else 0.0
        rows = []
        threads = self._threads(view, message, CANDIDATES)
        for place, slot in enumerate(others[:CANDIDATES]):
            own, blend = view.table[slot].tolist(), float(view.blend[slot])
            rest = first if place else second
            rows.append(
                [
                    *own,
                    log1p(index - int(self.last[slot])),
                    log1p(int(self.size[slot])),
                    float(place),
                    blend - rest,
                    own[0] - current[0],
                    own[2] - current[2],
                    own[4] - current[4],
                    (blend - mean) * scale,
                    topics,
                    centroid,
                    rest,
                    *threads[place],
                ]
            )
        return rows

    def next_switch(self, view: View, table: Array, following: Said) -> list[float]:
        """What the next message adds (`SWITCH_NEXT`); its table is `table`."""
        current = table[self.current].tolist()
        other, after = [0.0] * 5, NO_THREAD_NEXT
        if len(view.others):
            first = int(view.others[0])
            other, after = table[first].tolist(), near(following, self.tail[first])
        return [*current, *other, other[0] - current[0], other[2] - current[2], other[4] - current[4], *after]

    def next_returns(self, view: View, table: Array, following: Said) -> list[list[float]]:
        """The same for each candidate (`RETURN_NEXT`)."""
        slots = view.others[:CANDIDATES].tolist()
        if not slots:
            return []
        current = table[self.current].tolist()
        blend = blended(table)[view.others]
        top = int(blend.argmax())
        best = float(blend[top])
        blend[top] = -np.inf
        second = float(blend.max()) if len(blend) > 1 else 0.0
        blend[top] = best
        rows = []
        for place, slot in enumerate(slots):
            own, rest = table[slot].tolist(), second if place == top else best
            gains = [mine - held for mine, held in zip(own, current, strict=True)]
            rows.append([*own, *gains, float(blend[place]) - rest, *near(following, self.tail[slot])])
        return rows


def blended(table: Array) -> Array:
    """One number a topic, for ranking: best, two best, centroid and words together."""
    # not a matrix product: on rows of five numbers some kernels read past their end, and warn of what they find there
    mixed: Array = (table * _BLEND).sum(axis=1)
    return mixed


_BLEND = np.array([0.5, 0.3, 0.2, 0.0, 0.3], np.float32)
