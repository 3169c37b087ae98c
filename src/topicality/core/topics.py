"""Topics of a conversation, built one exchange at a time from the segmenter's decisions.

A topic is a set of exchange sequences, written as spans. Only completed exchanges are ever put into one. The state is the
recent past: what was assigned last, and the topics that had a part in it; older topics rest in the store and are handed in
when they are returned to, so one more exchange costs the same in a conversation of any length.

Statuses. `provisional`: nothing but an assignment that may still be revised. `open`: the topic of the latest exchange, or
one with fewer than `Rules.finalized_after` (4) completed exchanges of other topics after its last one. `finalized`: at
least that many; a return opens it again. `dropped`: it has no exchange left, or was merged into another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from topicality.core.spans import Spans, added, apart, holds, size
from topicality.errors import InputError
from topicality.records import Exchange, TopicRecord, TopicStatus

Decision = Literal["continue", "new", "return"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of the topics room.

    Attributes:
        finalized_after: completed exchanges of other topics after which a topic is finalized (system D: 4).
        window: assigned exchanges the state remembers, at least twice `finalized_after`.
        history: revisions a topic keeps, the latest ones. merged: merged topics whose id is still understood.
    """

    finalized_after: int = 4
    window: int = 32
    history: int = 20
    merged: int = 64

    def __post_init__(self) -> None:
        if self.finalized_after < 1 or self.window < 2 * self.finalized_after or self.history < 0 or self.merged < 0:
            raise InputError("topic rules need finalized_after >= 1, window >= 2 * finalized_after, and no negatives")


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Assigned:
    """The segmenter's decision on one completed exchange.

    Attributes:
        sequence: of the exchange. topic: stable id of its topic, chosen by the caller.
        decision: "new" is the first of its topic; "return" and "continue" name one that exists.
        provisional: the segmenter may still revise it when the next exchange has come.
        revised: an earlier exchange and the topic it belongs to after all; it is applied first.
        secondary: further topics it is also about.
        score: of the decision, for the host; kept nowhere.
    """

    sequence: int
    topic: str
    decision: Decision = "continue"
    provisional: bool = False
    revised: tuple[int, str] | None = None
    secondary: tuple[str, ...] = ()
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """A change of mind: what happened ("moved", "merged", "relabelled"), to which exchanges, to or from which topic."""

    kind: Literal["moved", "merged", "relabelled"]
    at: float
    spans: Spans = ()
    source: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its spans are exactly its exchanges, ascending and apart.

    Attributes:
        started_at, ended_at: the earliest and latest known time of a message in it.
        unsure: exchanges whose assignment may still be revised. secondary: spans it is also about.
        labels, terms: as last described; `source` says by whom ("text", or a labeller's model).
    """

    id: str
    spans: Spans = ()
    status: TopicStatus = "open"
    labels: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    updated_at: float = 0.0
    number: int = 0
    unsure: frozenset[int] = frozenset()
    secondary: Spans = ()
    revisions: tuple[Revision, ...] = ()
    source: str = "text"

    @property
    def count(self) -> int:
        """How many exchanges it has."""
        return size(self.spans)

    @property
    def last(self) -> int:
        """Its last sequence; 0 when it has none."""
        return self.spans[-1][1] if self.spans else 0


@dataclass(frozen=True, slots=True)
class Past:
    """What it takes to revise the latest assignment: the exchange with its times, its topic, and that topic before it."""

    sequence: int
    home: str
    before: Topic | None
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class State:
    """The recent past of a conversation's topics.

    Attributes:
        recent: the last assigned (sequence, topic), ascending by sequence. assigned: how many there are in all.
        live: the topics in `recent`, by id. merged: ids of merged topics and where they went. past: see `Past`.
    """

    recent: tuple[tuple[int, str], ...] = ()
    assigned: int = 0
    live: Mapping[str, Topic] = field(default_factory=dict)
    merged: tuple[tuple[str, str], ...] = ()
    past: Past | None = None

    def resolve(self, topic: str) -> str:
        """The id a topic has now, after merges."""
        for source, target in self.merged:
            if source == topic:
                topic = target
        return topic


@dataclass(frozen=True, slots=True)
class Changed:
    """The next state, and the topics that are different now: those to write."""

    state: State
    topics: tuple[Topic, ...]


def advance(
    state: State,
    assigned: Assigned,
    exchange: Exchange,
    *,
    now: float,
    rules: Rules = RULES,
    earlier: Mapping[str, Topic] | None = None,
) -> Changed:
    """Put one completed exchange into its topic.

    Args:
        exchange: for its status and times. now: for `updated_at`.
        earlier: topics that are named and not live (see `missing`), from the store.
    Returns:
        The same state and no topics when the exchange is pending, failed or deleted, or already in that topic.
    Raises:
        InputError: the decision contradicts the topics: "new" with an id that is known, another one with an unknown id,
            an exchange that is in another topic, a revision of an exchange other than the latest assigned (move that
            one with `reassign`), a sequence that is not the exchange's.
    Cost: O(window + spans of the topic).
    """
    if assigned.sequence != exchange.sequence:
        raise InputError(
            f"the decision is about exchange {assigned.sequence}, the exchange given is {exchange.sequence}"
        )
    if exchange.status != "completed":
        return Changed(state, ())
    topics = {**(earlier or {}), **state.live}
    changed: dict[str, Topic] = {}
    if assigned.revised is not None:
        state, changed = _revised(state, assigned.revised, topics, now, rules)
    name = state.resolve(assigned.topic)
    home = dict(state.recent).get(assigned.sequence)
    topic = changed.get(name) or topics.get(name)
    if topic is not None and holds(topic.spans, assigned.sequence):
        return settled(state, topics, changed, rules)
    if home is not None:
        raise InputError(f"exchange {assigned.sequence} is in another topic already; move it with `reassign`")
    if topic is None:
        if assigned.decision != "new":
            raise InputError(
                f"decision {assigned.decision!r} names a topic that is not known; hand it in with `earlier`"
            )
        topic = Topic(name)
    elif assigned.decision == "new" and name == assigned.topic:
        raise InputError("a new topic was given the id of one that exists; ids are never used twice")
    started, ended = times(exchange)
    before = changed.get(name) or topics.get(name)
    changed[name] = grown(topic, assigned.sequence, started, ended, now, unsure=assigned.provisional)
    for other in map(state.resolve, assigned.secondary):
        if other == name:
            continue
        also = changed.get(other) or topics.get(other)
        if also is None:
            raise InputError("a secondary topic is not known; hand it in with `earlier`")
        changed[other] = replace(also, secondary=added(also.secondary, assigned.sequence), updated_at=now)
    recent = tuple(sorted((*state.recent, (assigned.sequence, name))))[-rules.window :]
    past = Past(assigned.sequence, name, before, started, ended)
    fresh = replace(state, recent=recent, assigned=state.assigned + 1, past=past)
    return settled(fresh, topics, changed, rules, sure=assigned.sequence)


def _revised(
    state: State, revised: tuple[int, str], topics: Mapping[str, Topic], now: float, rules: Rules
) -> tuple[State, dict[str, Topic]]:
    sequence, target = revised[0], state.resolve(revised[1])
    past = state.past
    if past is None or past.sequence != sequence:
        raise InputError(f"exchange {sequence} is not the latest one assigned; move it with `reassign`")
    if past.home == target:
        return state, {}
    note = Revision("moved", now, ((sequence, sequence),), past.home, target)
    old = past.before or emptied(topics[past.home], now)
    goal = topics.get(target) or Topic(target)
    changed = {
        past.home: noted(replace(old, updated_at=now), note, rules),
        target: noted(grown(goal, sequence, past.started_at, past.ended_at, now), note, rules),
    }
    recent = tuple((at, target if at == sequence else name) for at, name in state.recent)
    return replace(state, recent=recent, past=None), changed


def settled(
    state: State, topics: Mapping[str, Topic], changed: Mapping[str, Topic], rules: Rules, sure: int | None = None
) -> Changed:
    """The state with the statuses as they are now, and the topics that differ from before.

    Args:
        topics: those that may be live. changed: what was done to some of them. sure: the latest exchange; what was
            assigned before it is not revised any more.
    Cost: O(window).
    """
    everything = {**topics, **changed}
    out: dict[str, Topic] = {}
    live: dict[str, Topic] = {}
    names = dict.fromkeys(name for _, name in state.recent)
    for name in [*changed, *(name for name in names if name not in changed)]:
        known = everything[name]
        unsure = known.unsure if sure is None or not known.unsure else known.unsure & {sure}
        status = _status(replace(known, unsure=unsure), state, rules)
        fresh = (
            known if (unsure, status) == (known.unsure, known.status) else replace(known, unsure=unsure, status=status)
        )
        if name in names:
            live[name] = fresh
        if fresh is not topics.get(name):
            out[name] = fresh
    return Changed(replace(state, live=live), tuple(out.values()))


def _status(topic: Topic, state: State, rules: Rules) -> TopicStatus:
    if not topic.spans:
        return "dropped"
    later = sum(sequence > topic.last for sequence, _ in state.recent)
    if later >= rules.finalized_after:
        return "finalized"
    return "provisional" if len(topic.unsure) == topic.count else "open"


def grown(
    topic: Topic, sequence: int, started: float | None, ended: float | None, now: float, *, unsure: bool = False
) -> Topic:
    """A topic with one more exchange."""
    starts = [time for time in (topic.started_at, started) if time is not None]
    ends = [time for time in (topic.ended_at, ended) if time is not None]
    return replace(
        topic,
        spans=added(topic.spans, sequence),
        secondary=apart(topic.secondary, ((sequence, sequence),)) if topic.secondary else (),
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None),
        updated_at=now,
        unsure=topic.unsure | {sequence} if unsure else topic.unsure - {sequence},
    )


def emptied(topic: Topic, now: float) -> Topic:
    """A topic that has no exchange left: it keeps its id, number and history."""
    return replace(
        topic,
        spans=(),
        secondary=(),
        labels=(),
        terms=(),
        unsure=frozenset(),
        started_at=None,
        ended_at=None,
        updated_at=now,
    )


def times(exchange: Exchange) -> tuple[float | None, float | None]:
    """The earliest and the latest known time of an exchange's messages."""
    known = [m.at for m in (exchange.user, exchange.reply) if m is not None and m.at is not None]
    return min(known, default=None), max(known, default=None)


def noted(topic: Topic, revision: Revision, rules: Rules) -> Topic:
    """A topic with one more entry in its history, of which the latest are kept."""
    return replace(topic, revisions=((*topic.revisions, revision)[-rules.history :] if rules.history else ()))


def topic_at(topics: Iterable[Topic], sequence: int) -> Topic | None:
    """The topic an exchange is in; None when it is in none (failed, pending, deleted, or not read yet)."""
    return next((topic for topic in topics if holds(topic.spans, sequence)), None)


def missing(state: State, assigned: Assigned) -> tuple[str, ...]:
    """Ids of the topics a decision needs that are not live: what to read from the store and hand in as `earlier`."""
    named = [*assigned.secondary, *([] if assigned.decision == "new" else [assigned.topic])]
    if assigned.revised is not None:
        named.append(assigned.revised[1])
    return tuple(dict.fromkeys(name for name in map(state.resolve, named) if name not in state.live))


def record_of(topic: Topic) -> TopicRecord:
    """A topic as the store keeps it; what has no column goes into `meta`."""
    meta: dict[str, object] = {"source": topic.source}
    if topic.secondary:
        meta["secondary"] = [list(span) for span in topic.secondary]
    if topic.unsure:
        meta["unsure"] = sorted(topic.unsure)
    if topic.revisions:
        meta["revisions"] = [
            {"kind": r.kind, "at": r.at, "spans": [list(s) for s in r.spans], "source": r.source, "target": r.target}
            for r in topic.revisions
        ]
    return TopicRecord(
        topic.id,
        topic.number,
        topic.status,
        topic.labels,
        topic.terms,
        topic.spans,
        topic.started_at,
        topic.ended_at,
        topic.updated_at,
        meta,
    )


def topic_of(record: TopicRecord) -> Topic:
    """A topic from what the store has; the inverse of `record_of`."""
    meta = record.meta
    return Topic(
        record.id,
        tuple((first, last) for first, last in record.spans),
        record.status,
        tuple(record.labels),
        tuple(record.terms),
        record.started_at,
        record.ended_at,
        record.updated_at,
        record.number,
        frozenset(meta.get("unsure", ())),
        tuple((first, last) for first, last in meta.get("secondary", ())),
        tuple(
            Revision(r["kind"], r["at"], tuple((a, b) for a, b in r["spans"]), r["source"], r["target"])
            for r in meta.get("revisions", ())
        ),
        str(meta.get("source", "text")),
    )
