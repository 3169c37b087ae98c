"""The learned way: two parties talking (people, or a person and a model). Decides at once, and once more a message later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.segment.assign import Evidence, assign, evidence
from topicality.core.segment.cues import Cues
from topicality.core.segment.decisions import Candidate, Kind
from topicality.core.segment.features import LAGS, Features, Row, Said, Trail, confirmed
from topicality.core.segment.heads import Heads
from topicality.core.segment.plain import Quantile
from topicality.core.segment.topics import Placed, Slot, Topics
from topicality.vectors import Array

WARM = 50  # messages before the running quantile replaces the shipped threshold
UNLIKELY = 0.05  # below this chance of a boundary the topics are not even compared


class Choice(NamedTuple):
    """What was decided on one message."""

    kind: Kind
    topic: int
    boundary: bool
    score: float
    candidates: tuple[Candidate, ...] = ()


@dataclass(slots=True)
class Pending:
    """A message that was decided at once and waits for the next one."""

    index: int
    row: Row
    placed: Placed
    found: Evidence | None


def boundary_score(heads: Heads, granularity: str, moment: str, rows: Any) -> Array:
    """Probabilities of a boundary, shape (N,), for rows of features.

    "coarse" cuts only where "balanced" would as well, and "fine" wherever it would: the knob is monotone by construction.
    """
    scores = heads.boundary["balanced"][moment](rows)
    if granularity == "balanced":
        return scores
    other = heads.boundary[granularity][moment](rows)
    return np.minimum(scores, other) if granularity == "coarse" else np.maximum(scores, other)


class PairTalk:
    """State of a conversation of two.

    Args:
        heads: learned for the encoder. limit: live topics.
        expected_rate: share of messages that start a segment, (0, 1); None for the shipped threshold.
    """

    def __init__(self, heads: Heads, granularity: str, expected_rate: float | None, limit: int) -> None:
        self.heads = heads
        self.granularity = granularity
        self.rate = expected_rate
        self.trail = Trail(heads)
        self.topics = Topics(heads.subjects.dimension, limit)
        self.seen = {"once": Quantile(), "confirmed": Quantile()}
        self.pending: Pending | None = None

    @property
    def current(self) -> int:
        """Number of the current topic, or -1 before the first message."""
        topics = self.topics
        return int(topics.number[topics.current]) if topics.current >= 0 else -1

    def receive(
        self, index: int, text: str, role: str, speaker: str | None, vector: Array, *, quiet: bool = False
    ) -> tuple[Choice, Choice | None]:
        """Decide on a message, and confirm the one before.

        Args:
            quiet: only listen: the message continues the current topic, whatever it says.
        Returns:
            The choice at once, and the confirmed choice on the message before, if one was pending.
        """
        row = self.trail.read(text, role, vector, speaker)
        settled = self._confirm(row) if self.pending is not None else None
        choice, found, slot = self._decide(index, row, None, None, ahead=False, quiet=quiet)
        placed = self.topics.place(slot, row.said, index)
        if not quiet:
            self.pending = Pending(index, row, placed, found)
        return choice._replace(topic=self.current), settled

    def settle(self) -> bool:
        """Let the pending decision stand. Whether there was one."""
        pending, self.pending = self.pending, None
        return pending is not None

    def _confirm(self, following: Row) -> Choice:
        pending, self.pending = self.pending, None
        if pending is None:
            raise AssertionError("nothing is pending")
        announced = self.topics.next_number
        self.topics.undo(pending.placed)
        row = pending.row
        choice, _, slot = self._decide(pending.index, row, following, pending.found, ahead=True)
        self.topics.place(slot, row.said, pending.index)
        self.topics.next_number = max(self.topics.next_number, announced)  # a number that was told is not told again
        return choice._replace(topic=self.current)

    def _decide(
        self,
        index: int,
        row: Row,
        following: Row | None,
        found: Evidence | None,
        *,
        ahead: bool,
        quiet: bool = False,
    ) -> tuple[Choice, Evidence | None, int | None]:
        topics = self.topics
        if topics.current < 0:
            return Choice("new", -1, boundary=False, score=0.0), None, None
        if quiet:
            return Choice("continue", self.current, boundary=False, score=0.0), None, topics.current
        moment = "confirmed" if ahead else "once"
        features: Features = confirmed(row, following) if ahead else row.once
        score = float(boundary_score(self.heads, self.granularity, moment, [features])[0])
        least = self._threshold(moment, score)
        boundary = score >= least and not row.cues.acknowledges
        stay = Choice("continue", self.current, boundary, score)
        if score < UNLIKELY or row.cues.acknowledges or (self.rate is not None and not boundary):
            return stay, found, topics.current
        if found is None:
            found = evidence(topics, row, index)
        chosen = assign(topics, self.heads, found, features, following, ahead=ahead, granularity=self.granularity)
        if chosen.kind == "continue":
            return stay, found, chosen.slot
        return Choice(chosen.kind, -1, boundary=True, score=score, candidates=chosen.candidates), found, chosen.slot

    def _threshold(self, moment: str, score: float) -> float:
        shipped = self.heads.settings.boundary[self.granularity]
        if self.rate is None:
            return shipped
        seen = self.seen[moment]
        seen.add(score)
        return shipped if len(seen) < WARM else seen.highest(self.rate)

    # As plain values and arrays

    def dump(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything that the next decision depends on."""
        trail, topics, pending = self.trail, self.topics, self.pending
        used = topics.top
        values: dict[str, Any] = {
            "rows": [_row_values(row) for row in trail.rows],
            "squares": trail.squares,
            "sums": trail.sums,
            "said": sorted(trail.seen),
            "speaker": trail.speaker,
            "run": trail.run,
            "count": trail.count,
            "words": [sorted(own.items()) for own in topics.own[:used]],
            "tails": [_tail_values(tail) for tail in topics.tail[:used]],
            "current": topics.current,
            "next": topics.next_number,
            "seen": {moment: list(kept.values) for moment, kept in self.seen.items()},
            "pending": None,
        }
        arrays: dict[str, NDArray[Any]] = {
            "table": trail.table,
            "vectors": np.array([row.vector for row in trail.rows], np.float32).reshape(-1, trail.table.shape[1]),
            **{name: getattr(topics, name)[:used] for name in _TOPIC_ARRAYS},
            "tails": _tail_array([each for tail in topics.tail[:used] for each in tail], trail.heads),
        }
        if pending is not None:
            values["pending"] = {"index": pending.index, "placed": _placed_values(pending.placed)}
            arrays["pending.total"] = pending.placed.total
            if pending.placed.old is not None:
                arrays["pending.old"] = pending.placed.old
            if pending.placed.evicted is not None:
                arrays["pending.evicted.prototypes"] = pending.placed.evicted.prototypes
                arrays["pending.evicted.total"] = pending.placed.evicted.total
                arrays["pending.evicted.tail"] = _tail_array(pending.placed.evicted.tail, trail.heads)
        return values, arrays

    def load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over what `dump` gave."""
        trail, topics = self.trail, self.topics
        trail.rows = [
            _row(row, vector, trail.heads) for row, vector in zip(values["rows"], arrays["vectors"], strict=True)
        ]
        if arrays["table"].shape != trail.table.shape or len(trail.rows) > LAGS:
            raise ValueError("shape")
        trail.table = arrays["table"]
        trail.squares, trail.sums, trail.seen = values["squares"], values["sums"], set(values["said"])
        trail.speaker, trail.run, trail.count = values["speaker"], values["run"], values["count"]
        used = topics.top = len(values["words"])
        for name in _TOPIC_ARRAYS:
            getattr(topics, name)[:used] = arrays[name]
        trail.look_back()
        tails = iter(arrays["tails"])
        for slot, (own, tail) in enumerate(zip(values["words"], values["tails"], strict=True)):
            topics.tail[slot] = _tail(tail, tails, trail.heads)
            topics.own[slot] = dict(own)
            for word, times in own:
                topics.words.setdefault(word, {})[slot] = times
        topics.current, topics.next_number = values["current"], values["next"]
        self.seen = {moment: Quantile(kept) for moment, kept in values["seen"].items()}
        waiting = values["pending"]
        if waiting is not None:
            placed = _placed(waiting["placed"], trail.rows[-1], arrays, trail.heads)
            self.pending = Pending(waiting["index"], trail.rows[-1], placed, None)


_TOPIC_ARRAYS = ("prototypes", "total", "norm", "filled", "size", "said", "last", "number")
_ROW = ("alike", "cosines", "overlaps", "best3", "trail", "new_words", "same", "run", "probes", "causal", "style")
_PLACED = ("slot", "ring", "filled", "last", "current", "top", "next_number", "opened")
_SLOT = ("filled", "size", "said", "last", "number")


def _row_values(row: Row) -> dict[str, Any]:
    cues = [float(value) for value in row.cues]
    return {"cues": cues, "words": sorted(row.words), **{name: getattr(row, name) for name in _ROW}}


def _row(values: dict[str, Any], vector: Array, heads: Heads) -> Row:
    kept = {name: values[name] for name in _ROW}
    kept["trail"], kept["new_words"] = tuple(kept["trail"]), tuple(kept["new_words"])
    kept["alike"] = tuple(values["alike"])
    subject, aspect = heads.subjects(vector), heads.aspects(vector)
    return Row(Cues(*values["cues"]), frozenset(values["words"]), vector, subject, aspect, **kept)


def _tail_values(tail: tuple[Said, ...]) -> list[Any]:
    return [[[float(value) for value in each.cues], sorted(each.words), each.ends] for each in tail]


def _tail_array(tail: Sequence[Said], heads: Heads) -> Array:
    """Shape (N, K + L): subject and aspect of each."""
    width = heads.subjects.dimension + heads.aspects.dimension
    return np.array([np.concatenate([each.subject, each.aspect]) for each in tail], np.float32).reshape(-1, width)


def _tail(values: list[Any], rows: Iterator[Array], heads: Heads) -> tuple[Said, ...]:
    cut = heads.subjects.dimension
    return tuple(
        Said(row[:cut], row[cut:], Cues(*cues), frozenset(words), tuple(ends))
        for (cues, words, ends), row in zip(values, islice(rows, len(values)), strict=True)
    )


def _placed_values(placed: Placed) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(placed, name) for name in _PLACED}
    evicted = placed.evicted
    values["evicted"] = (
        None
        if evicted is None
        else {
            **{name: getattr(evicted, name) for name in _SLOT},
            "words": sorted(evicted.words.items()),
            "tail": _tail_values(evicted.tail),
        }
    )
    return values


def _placed(values: dict[str, Any], row: Row, arrays: dict[str, NDArray[Any]], heads: Heads) -> Placed:
    evicted = None
    if values["evicted"] is not None:
        kept = values["evicted"]
        evicted = Slot(
            prototypes=arrays["pending.evicted.prototypes"],
            total=arrays["pending.evicted.total"],
            words=dict(kept["words"]),
            tail=_tail(kept["tail"], iter(arrays["pending.evicted.tail"]), heads),
            **{name: kept[name] for name in _SLOT},
        )
    return Placed(
        words=row.words,
        old=arrays.get("pending.old"),
        total=arrays["pending.total"],
        evicted=evicted,
        **{name: values[name] for name in _PLACED},
    )
