"""Numbers that tell whether a message starts a topic: what is known when it comes, and what the next message adds.

One code path for a live message and for a whole transcript: `Trail.read` takes one message at a time.
Only what heads make of vectors can be had for all at once (`known_of`): it differs by rounding.
A row is made of plain floats, which for one message is faster than arrays of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log1p, sqrt
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from topicality.core.segment.cues import SILENT_CUES, Cues, Words, cues_of, overlap, spoken_words
from topicality.core.segment.heads import STYLES, Heads
from topicality.core.segment.phrases import places
from topicality.vectors import Array

LAGS = 8  # earlier messages that are looked at
_DECAY = 0.6  # weight of the past in the exponential mean, a message
_VOCABULARY = 20_000  # content words remembered as already said; when full, only the recent ones are kept
_LONGEST_RUN = 5.0

Features = list[float]

# Cues of the message before, the one before that, and the next one, that are features too.
_BEFORE = tuple(Cues._fields.index(name) for name in (
    "log_words", "question_mark", "question", "first_person", "asking", "greeting", "thanks", "closing", "assent",
    "only_assent", "digits", "offer", "small_talk", "user",
))  # fmt: skip
_EARLIER = tuple(Cues._fields.index(name) for name in ("log_words", "question", "thanks", "closing", "only_assent"))
_NEXT = tuple(Cues._fields.index(name) for name in (
    "log_words", "question_mark", "question", "anaphor", "pronouns", "shift", "asking", "thanks", "closing", "assent",
    "only_assent", "digits", "offer", "small_talk", "user",
))  # fmt: skip

_WAYS = ("subject", "aspect")
_NEAR = tuple(f"{way}{name}" for way in _WAYS for name in ("1", "2", "3", "_best3", "_best8", "1_less_usual"))
CONVERSATION = (
    "mean_cosine", "sd_cosine", "mean_best3", "sd_best3", "mean_log_words", "mean_question", "mean_same_speaker",
    "user_longer", "rate_asking", "rate_assent", "rate_digits", "rate_small_talk", "rate_first_person",
    "mean_overlap", "mean_second_person", "mean_subject", "mean_aspect",
)  # fmt: skip
CAUSAL = (
    "cosine1", "cosine2", "cosine3", "best2", "best3", "best5", "best8", "mean8", "to_recent_mean", "to_whole_mean",
    "z_cosine1", "z_best3", "cosine2_less_cosine1", "best3_before", "overlap1", "overlap2", "overlap_best3",
    "overlap_best8", "new_words_recent", "new_words_ever", "same_speaker", "run", "log_index", "answers", "closed",
    "longer_than_before", "longer_than_mean", *_NEAR,
    *Cues._fields,
    *(f"before_{Cues._fields[k]}" for k in _BEFORE), *(f"earlier_{Cues._fields[k]}" for k in _EARLIER),
    "third_thanks", "third_closing", *CONVERSATION,
)  # fmt: skip
AHEAD = (
    "has_next", "next_cosine", "next_over1", "next_over3", "next_over5", "next_holds3", "next_holds5", "pair_best",
    "pair_least", "next_overlap", "next_overlap_over3", "next_overlap_holds", "next_same_speaker", "next_new_words",
    "next_to_recent_mean", "next_best3_gain", "next_cosine_gain",
    *(f"next_{way}{name}" for way in _WAYS for name in ("1", "_over1", "_over3", "_holds3")),
    *(f"next_{Cues._fields[k]}" for k in _NEXT),
)  # fmt: skip
_NOTHING_AHEAD = [0.0] * len(AHEAD)


def _readings(*numbers: int) -> Callable[[list[float]], tuple[float, ...]]:
    """Picks readings: a topic's first message, the one before, the one after; 0-2 by its vector, 3-5 by its words."""
    return itemgetter(*[number * STYLES + style for number in numbers for style in range(STYLES)])


_OWN = _readings(0, 2, 3, 5)
_PAST = (_readings(0, 1, 3, 4), _readings(0, 1, 3, 4), _readings(0, 3), _readings(0, 3))  # the nearest first
STYLE = (4 + 4 + 4 + 2 + 2) * STYLES  # readings of a message and of the four before it
STYLE_NEXT = 4 * STYLES
_UNREAD = [0.0] * STYLE
_SUMS = 19
_ENDS = itemgetter(STYLES, 4 * STYLES)


class Said(NamedTuple):
    """What a topic keeps of one message.

    Attributes:
        subject, aspect: shape (K,). ends: log-odds, by the vector and by the words, that the next message starts a topic.
    """

    subject: Array
    aspect: Array
    cues: Cues
    words: Words
    ends: tuple[float, ...]


class Known(NamedTuple):
    """What the heads make of a message's vector.

    Attributes:
        subject, aspect, alike: see `Row`. probes: its linear readings.
    """

    subject: Array
    aspect: Array
    alike: tuple[list[float], list[float]]
    probes: list[float]


def known_of(vectors: Array, heads: Heads) -> Iterator[Known]:
    """The same as a `Trail` makes message by message, for the vectors of a whole conversation, shape (N, D), at once.

    Cost: O(N * D), a tenth of the time.
    """
    subjects, aspects = heads.subjects(vectors), heads.aspects(vectors)
    alike = zip(_all_alike(subjects), _all_alike(aspects), strict=True)
    return map(Known, subjects, aspects, alike, heads.probes(vectors))


def _all_alike(rows: Array) -> list[list[float]]:
    found = np.zeros((len(rows), LAGS), np.float32)
    for lag in range(1, min(LAGS, len(rows) - 1) + 1):
        found[lag:, lag - 1] = np.einsum("ij,ij->i", rows[lag:], rows[:-lag])
    return list(found.tolist())


@dataclass(slots=True)
class Row:
    """What is remembered of one message.

    Attributes:
        vector: shape (D,), float32, length 1. subject: shape (K,), the vector among subjects; aspect:
            shape (K,), among what is said of them. alike: cosines of each with the eight messages before, as `cosines`.
        cosines, overlaps: with the eight messages before, the nearest first; -1 and 0 where there is none.
        best3: best cosine with the last three; 0 for the first message.
        trail: cosine with the exponential mean and with the plain mean of everything before.
        new_words: share of content words not among the last eight messages', and never said before.
        same: whether the speaker of the message before speaks on. run: how long that has gone on, at most 5.
        probes: linear readings, of the vector and then of the words, for each: 5 as a topic's first message, 5 as the
            one before, 5 as the one after.
        causal: the features of `CAUSAL`. style: readings of this message and of the four before it.
    """

    cues: Cues
    words: Words
    vector: Array
    subject: Array
    aspect: Array
    alike: tuple[list[float], list[float]]
    cosines: list[float]
    overlaps: list[float]
    best3: float
    trail: tuple[float, float]
    new_words: tuple[float, float]
    same: float
    run: float
    probes: list[float]
    causal: Features = field(default_factory=list)
    style: Features = field(default_factory=list)

    @property
    def said(self) -> Said:
        """What a topic keeps of it."""
        return Said(self.subject, self.aspect, self.cues, self.words, _ENDS(self.probes))

    @property
    def once(self) -> Features:
        """Everything that is known when the message comes."""
        return self.causal + self.style


def confirmed(row: Row, following: Row | None) -> Features:
    """What is known of a message when the next one is there; None at the end of a transcript."""
    after = _UNREAD[:STYLE_NEXT] if following is None else _OWN(following.probes)
    return [*row.causal, *ahead(row, following), *row.style, *after]


class Trail:
    """A conversation as far as it has been read: the last eight messages, means, and running sums. Bounded.

    Args:
        heads: learned for the encoder; their linear readings are used.
    """

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.rows: list[Row] = []  # the last LAGS, oldest first
        # of the last messages, message i is in row i % LAGS; in `table` after the exponential mean and the sum
        self.table = np.zeros((LAGS + 2, heads.space.dimension), np.float32)
        self.near = [np.zeros((LAGS, way.dimension), np.float32) for way in (heads.subjects, heads.aspects)]
        self.squares = [0.0, 0.0]  # squared lengths of the first two
        self.sums = [0.0] * _SUMS
        self.seen: set[str] = set()
        self.speaker: str | None = None
        self.run = 0.0
        self.count = 0

    def read(self, text: str, role: str, vector: Array, speaker: str | None = None, known: Known | None = None) -> Row:
        """Read one message; the trail moves on.

        Args:
            vector: shape (D,), float32, length 1. speaker: who speaks, where that is more than the role.
            known: from `known_of`; then for every message.
        Cost: O(D) and O(words); about 150 microseconds, 90 if `known`.
        """
        low, spoken = spoken_words(text)
        cues, words = cues_of(low, spoken, role)
        dots = (self.table @ vector).tolist()
        cosines = _newest_first(dots[2:], self.count)
        square = float(vector @ vector)
        past = self.rows[::-1]
        depth = len(past)
        subject, aspect, alike, probes = known or self._known(vector)
        speaker = role if speaker is None else speaker
        same = float(self.count > 0 and speaker == self.speaker)
        self.run = min(self.run + 1.0, _LONGEST_RUN) if same else 0.0
        row = Row(
            cues,
            words,
            vector,
            subject,
            aspect,
            alike,
            cosines[:depth] + [-1.0] * (LAGS - depth),
            # most share nothing, which is told here without a call
            [0.0 if words.isdisjoint(other.words) else overlap(words, other.words) for other in past]
            + [0.0] * (LAGS - depth),
            max(cosines[: min(depth, 3)], default=0.0),
            (dots[0] / (sqrt(self.squares[0]) + 1e-6), dots[1] / (sqrt(self.squares[1]) + 1e-6)),
            self._new_words(words, past),
            same,
            self.run,
            probes + self.heads.phrases(places(spoken, asks=cues.question_mark > 0)),
        )
        self._count(row)
        row.causal = _causal(row, past, self.sums, self.count)
        row.style = _style(row, past)
        self._move(row, dots, square)
        self.speaker = speaker
        return row

    def look_back(self) -> None:
        """Make anew what is kept of the last messages beside their rows, after these were put in place."""
        for age, row in enumerate(reversed(self.rows), 1):
            place = (self.count - age) % LAGS
            self.near[0][place], self.near[1][place] = row.subject, row.aspect

    def _known(self, vector: Array) -> Known:
        subject, aspect = self.heads.subjects(vector), self.heads.aspects(vector)
        first, second = ((near @ own).tolist() for near, own in zip(self.near, (subject, aspect), strict=True))
        self.near[0][self.count % LAGS], self.near[1][self.count % LAGS] = subject, aspect
        alike = _newest_first(first, self.count), _newest_first(second, self.count)
        return Known(subject, aspect, alike, self.heads.probes(vector))

    def _new_words(self, words: Words, past: list[Row]) -> tuple[float, float]:
        if not words:
            return 0.0, 0.0
        recent = words.difference(*(other.words for other in past))
        return len(recent) / len(words), len(words - self.seen) / len(words)

    def _count(self, row: Row) -> None:
        cues = row.cues
        cosine = row.cosines[0] if self.count else 0.0
        user = float(cues.user > 0.5)
        new = (
            1.0, cues.log_words, cues.question, row.same, cosine, cosine * cosine, row.best3, row.best3 * row.best3,
            cues.log_words * user, user, cues.asking, cues.assent, cues.digits, cues.small_talk, cues.first_person,
            row.overlaps[0], cues.second_person, row.alike[0][0], row.alike[1][0],
        )  # fmt: skip
        self.sums = [total + value for total, value in zip(self.sums, new, strict=True)]

    def _move(self, row: Row, dots: list[float], square: float) -> None:
        table, squares = self.table, self.squares
        table[0] *= _DECAY
        table[:2] += row.vector
        table[2 + self.count % LAGS] = row.vector
        squares[0] = max(0.0, _DECAY**2 * squares[0] + 2 * _DECAY * dots[0] + square)
        squares[1] = max(0.0, squares[1] + 2 * dots[1] + square)
        self.rows.append(row)
        if len(self.rows) > LAGS:
            del self.rows[0]
        self.seen |= row.words
        if len(self.seen) > _VOCABULARY:
            self.seen = set().union(*(other.words for other in self.rows))
        self.count += 1


def _newest_first(ring: list[float], count: int) -> list[float]:
    newest = count % LAGS
    return ring[:newest][::-1] + ring[newest:][::-1]


def _style(row: Row, past: list[Row]) -> Features:
    found = [*_OWN(row.probes)]
    for earlier, picked in zip(past, _PAST, strict=False):
        found += picked(earlier.probes)
    return found + _UNREAD[: STYLE - len(found)]


def conversation(sums: list[float]) -> Features:
    """What kind of talk it has been so far, from the running sums (`CONVERSATION`)."""
    count, words, question, same, cosine, cosine2, best, best2, user_words, users = sums[:10]
    asking, assent, digits, small_talk, first, shared, second, subject, aspect = sums[10:]
    pairs = max(count - 1, 1.0)
    mean, mean_best = cosine / pairs, best / pairs
    return [
        mean,
        sqrt(max(cosine2 / pairs - mean * mean, 0.0)) + 0.05,
        mean_best,
        sqrt(max(best2 / pairs - mean_best * mean_best, 0.0)) + 0.05,
        words / count,
        question / count,
        same / pairs,
        (user_words + 2) / (users + 1) - (words - user_words + 2) / (count - users + 1),
        (asking + 0.3) / (count + 1),
        (assent + 0.3) / (count + 1),
        digits / count,
        (small_talk + 0.1) / (count + 1),
        (first + 0.2) / (count + 1),
        shared / pairs,
        second / count,
        subject / pairs,
        aspect / pairs,
    ]


def _causal(row: Row, past: list[Row], sums: list[float], index: int) -> Features:
    cues, cosines, overlaps = row.cues, row.cosines, row.overlaps
    before = past[0].cues if past else SILENT_CUES
    earlier = past[1].cues if len(past) > 1 else SILENT_CUES
    third = past[2].cues if len(past) > 2 else SILENT_CUES
    talk = conversation(sums)
    one, two = cosines[0], cosines[1]
    best3 = max(cosines[:3])
    return [
        one,
        two,
        cosines[2],
        max(one, two),
        best3,
        max(cosines[:5]),
        max(cosines),
        sum(cosines[: len(past)]) / max(len(past), 1),
        row.trail[0],
        row.trail[1],
        (one - talk[0]) / talk[1],
        (best3 - talk[2]) / talk[3],
        two - one,
        past[0].best3 if past else 0.0,
        overlaps[0],
        overlaps[1],
        max(overlaps[:3]),
        max(overlaps),
        row.new_words[0],
        row.new_words[1],
        row.same,
        row.run,
        log1p(index),
        before.question * (1 - cues.question),
        before.closing + earlier.closing + before.thanks + earlier.thanks,
        cues.log_words - before.log_words,
        cues.log_words - talk[4],
        *_near(row.alike[0], talk[-2]),
        *_near(row.alike[1], talk[-1]),
        *cues,
        *[before[k] for k in _BEFORE],
        *[earlier[k] for k in _EARLIER],
        third.thanks,
        third.closing,
        *talk,
    ]


def _near(alike: list[float], usual: float) -> Features:
    """`_NEAR` of a message, from its cosines with the ones before and their usual value."""
    first, second, third = alike[:3]
    best3 = max(first, second, third)
    return [first, second, third, best3, max(alike), first - usual]


def ahead(row: Row, following: Row | None) -> Features:
    """What the next message adds: does it hold to this one, or to the ones before? Zeros when there is none."""
    if following is None:
        return _NOTHING_AHEAD
    cosines, overlaps = following.cosines, following.overlaps
    here, over = cosines[0], cosines[1:]
    over3, over5, best3 = max(over[:3]), max(over[:5]), max(row.cosines[:3])
    shared = max(overlaps[1:4])
    return [
        1.0,
        here,
        over[0],
        over3,
        over5,
        here - over3,
        here - over5,
        max(over3, best3),
        min(over3, best3),
        overlaps[0],
        shared,
        overlaps[0] - shared,
        following.same,
        following.new_words[0],
        following.trail[0],
        following.best3 - row.best3,
        here - row.cosines[0],
        *_holds(following.alike[0]),
        *_holds(following.alike[1]),
        *[following.cues[k] for k in _NEXT],
    ]


def _holds(alike: list[float]) -> Features:
    """Is the next message nearer to this one than to the three before it? From the next one's cosines."""
    over3 = max(alike[1:4])
    return [alike[0], alike[1], over3, alike[0] - over3]
