"""The passages that one question is ranked over: the candidates and their neighbours, as arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, log, nan

import numpy as np
from numpy.typing import NDArray

from topicality.core.recall.analysis import WORD_CHARACTERS, Facts
from topicality.core.recall.question import Question, is_named
from topicality.records import SIDES, Scope, Side, StoredPassage
from topicality.vectors import Array

SESSION_GAP = 6 * 3600.0  # seconds of silence that start a new session
_APART = 10  # how many passages are assumed between two that were not read in one run
_DAY = 86400.0

Place = tuple[str, int, Side, int]  # conversation, sequence, side, position
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What words count in the whole scope.

    Attributes:
        frequencies: passages each stem stands in. passages: of the scope. mean_length: their terms, on average.
    """

    frequencies: Mapping[str, int]
    passages: int
    mean_length: float

    def idf(self, stem: str) -> float:
        """How much it says that a stem occurs (BM25's, above 0 even for one that is everywhere)."""
        found = self.frequencies.get(stem, 0)
        return log(1.0 + (max(self.passages, found) - found + 0.5) / (found + 0.5))


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """N passages in the order they were said, by conversation. Every array has N rows.

    Attributes:
        passages: as stored. number: place in the conversation; the next passage has the next number, and a jump means that
            something in between was not read. session: runs without six hours of silence. day: the session's days; what
            is shown under one header.
        at: seconds since the epoch, NaN when unknown. user: 1.0 for the user's side.
        counts: how often each stem of the question stands in it, shape (N, S). length: its stems.
        vectors: shape (N, D), zeros where there is none.
        question, time, number_said, standing, proper, mine: see `analysis.Facts`, as numbers; mine in [0, 1].
        named: 1.0 when the speaker is named in the question, -1.0 when only others are, 0.0 when nobody or everybody is.
        words: about how many words it has.
    """

    passages: tuple[StoredPassage, ...]
    number: Ints
    session: Ints
    day: Ints
    at: NDArray[np.float64]
    user: Array
    counts: Array
    length: Array
    vectors: Array
    question: Array
    time: Array
    number_said: Array
    standing: Array
    proper: Array
    mine: Array
    named: Array
    words: Array
    stems: tuple[str, ...]
    idf: Array
    mean_length: float

    def __len__(self) -> int:
        return len(self.passages)

    def inside(self, scope: Scope) -> Mask:
        """Which passages a scope's filters let through (owner and conversation were seen to by the store)."""
        keep = np.ones(len(self), np.bool_)
        if scope.sides:
            keep &= np.isin(self.user, [float(side == "user") for side in scope.sides])
        if scope.since is not None:
            keep &= self.at >= scope.since  # False for NaN
        if scope.until is not None:
            keep &= self.at < scope.until
        if scope.sequences:
            sequences = np.array([p.sequence for p in self.passages], np.int64)
            among = np.zeros(len(self), np.bool_)
            for first, last in scope.sequences:
                among |= (sequences >= first) & (sequences <= last)
            keep &= among
        return keep

    def places(self, wanted: Collection[Place]) -> Ints:
        """Rows of the passages at these places, ascending; those that were not read are left out."""
        return np.array([n for n, p in enumerate(self.passages) if place_of(p) in wanted], np.int64)


def place_of(passage: StoredPassage) -> Place:
    """Where a passage is."""
    return passage.conversation, passage.sequence, passage.side, passage.position


def merged(sequences: Collection[int], radius: int) -> tuple[tuple[int, int], ...]:
    """Ranges of sequences, both ends inclusive, that cover each sequence and `radius` to both sides."""
    found: list[tuple[int, int]] = []
    for sequence in sorted(sequences):
        first, last = max(1, sequence - radius), sequence + radius
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)


def build(
    asked: Question,
    passages: Sequence[StoredPassage],
    runs: Mapping[str, Ranges],
    statistics: Statistics,
    dimension: int,
) -> Pool:
    """Arrays of the passages that were read.

    Args:
        passages: by conversation, sequence, side (user first) and position.
        runs: by conversation, the ranges of sequences that were read, ascending.
        dimension: of the vectors.
    Cost: O(N * (terms + D)).
    """
    size = len(passages)
    speakers = [tuple(term[1:] for term in p.terms[-6:] if term[0] == "@") for p in passages]
    naming = {parts: is_named(parts, asked.words) for parts in dict.fromkeys(speakers) if parts}
    named_all = all(naming.get(parts, False) for parts in dict.fromkeys(speakers))
    anyone = any(naming.values())
    stems = asked.without({part for parts in naming for part in parts}) if anyone else asked.stems
    column = {stem: n for n, stem in enumerate(stems)}
    counts = np.zeros((size, max(1, len(stems))), np.float32)
    sizes: list[int] = []
    vectors = np.zeros((size, dimension), np.float32)
    marks = np.zeros((size, 6), np.float32)
    extra, wanted = 0, frozenset(column)
    for row, passage in enumerate(passages):
        spoken = passage.terms
        whole = size_of = len(spoken)
        while size_of and spoken[size_of - 1][0] in "@?":  # the speaker and the mark stand last
            size_of -= 1
            if spoken[size_of][0] == "?":
                marks[row] = _marks(spoken[size_of])
        for term in wanted.intersection(spoken):
            counts[row, column[term]] = spoken.count(term)
        sizes.append(size_of)
        extra += whole - size_of
    known = [row for row, passage in enumerate(passages) if passage.vector is not None]
    if known:
        vectors[known] = [passages[row].vector for row in known]
    at = np.array([np.nan if p.at is None else p.at for p in passages], np.float64)
    number, session, day = _order(passages, at.tolist(), runs)
    idf = np.array([statistics.idf(stem) for stem in stems] or [0.0], np.float32)
    return Pool(
        passages=tuple(passages),
        number=number,
        session=session,
        day=day,
        at=at,
        user=np.array([p.side == SIDES[0] for p in passages], np.float32),
        counts=counts,
        length=np.array(sizes, np.float32),
        vectors=vectors,
        question=marks[:, 0],
        time=marks[:, 1],
        number_said=marks[:, 2],
        standing=marks[:, 3],
        proper=marks[:, 4],
        mine=marks[:, 5],
        named=np.array(
            [0.0 if named_all or not anyone else 1.0 if naming.get(parts) else -1.0 for parts in speakers], np.float32
        ),
        words=np.array([max(1.0, (p.end - p.start) / WORD_CHARACTERS) for p in passages], np.float32),
        stems=stems,
        idf=idf,
        mean_length=max(1.0, statistics.mean_length - extra / max(1, size)),
    )


def _marks(mark: str) -> tuple[float, ...]:
    known = _KNOWN_MARKS.get(mark)
    if known is None:
        facts = Facts.of_mark(mark)
        flags = (facts.question, facts.time, facts.number, facts.standing, facts.proper)
        known = (*(float(flag) for flag in flags), min(1.0, facts.mine / 3))
        if len(_KNOWN_MARKS) < 1024:
            _KNOWN_MARKS[mark] = known
    return known


_KNOWN_MARKS: dict[str, tuple[float, ...]] = {}


def _order(
    passages: Sequence[StoredPassage], at: Sequence[float], runs: Mapping[str, Ranges]
) -> tuple[Ints, Ints, Ints]:
    """Numbers, sessions and days of passages. Without times a session is what was read in one run."""
    found: list[tuple[int, int, int]] = []
    number = session = day = run = 0
    conversation, before = "", nan
    for passage, now in zip(passages, at, strict=True):
        ranges = runs.get(passage.conversation, ())
        if passage.conversation != conversation:
            fresh, jump, run = True, _APART, 0
        else:
            was = run
            while run + 1 < len(ranges) and passage.sequence > ranges[run][1]:
                run += 1
            known = not (isnan(now) or isnan(before))
            fresh = now - before > SESSION_GAP if known else run != was
            jump = _APART if run != was else 1
        number += jump
        session += fresh
        day += fresh or now // _DAY != before // _DAY if not (isnan(now) or isnan(before)) else fresh
        found.append((number, session, day))
        conversation, before = passage.conversation, now
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]
