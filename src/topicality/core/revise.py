"""Changes of mind about topics: merged, moved, deleted, edited exchanges, and what a labeller found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from topicality.core.spans import Spans, apart, holds, joined, of, removed, size
from topicality.core.topics import (
    RULES,
    Changed,
    Revision,
    Rules,
    State,
    Topic,
    emptied,
    grown,
    noted,
    settled,
    times,
)
from topicality.errors import InputError
from topicality.records import Exchange


@dataclass(frozen=True, slots=True)
class Found:
    """A topic a labeller found in a batch of exchanges, valid (see `core.worker`).

    Attributes:
        spans: exactly its exchanges. continues: id of a topic that existed before, if it goes on with that one.
    """

    labels: tuple[str, ...]
    terms: tuple[str, ...]
    spans: Spans
    secondary: Spans = ()
    continues: str | None = None
    status: str = "open"


def merge(state: State, into: Topic, other: Topic, *, now: float, rules: Rules = RULES) -> Changed:
    """Make one topic of two that turned out to be the same. The first keeps its id; the second one's is still understood.

    Returns:
        Both topics: the second one is "dropped" and has no spans. Which topics are merged first makes no difference to
        the spans and times.
    Raises:
        InputError: they are the same topic, or one of them is dropped.
    """
    if into.id == other.id or "dropped" in (into.status, other.status):
        raise InputError("two different topics are merged, neither of them dropped")
    spans = joined(into.spans, other.spans)
    note = Revision("merged", now, other.spans, other.id, into.id)
    starts = [time for time in (into.started_at, other.started_at) if time is not None]
    ends = [time for time in (into.ended_at, other.ended_at) if time is not None]
    whole = replace(
        into,
        spans=spans,
        secondary=apart(joined(into.secondary, other.secondary), spans),
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None),
        updated_at=now,
        unsure=into.unsure | other.unsure,
    )
    recent = tuple((sequence, into.id if name == other.id else name) for sequence, name in state.recent)
    merged = (*((a, into.id if b == other.id else b) for a, b in state.merged if a != into.id), (other.id, into.id))
    fresh = replace(state, recent=recent, merged=merged[-rules.merged :] if rules.merged else (), past=None)
    changed = {into.id: noted(whole, note, rules), other.id: noted(emptied(other, now), note, rules)}
    return settled(fresh, {**state.live, into.id: into, other.id: other}, changed, rules)


def reassign(
    state: State,
    exchange: Exchange,
    source: Topic,
    target: Topic,
    *,
    now: float,
    rest: Iterable[Exchange],
    rules: Rules = RULES,
) -> Changed:
    """Move one exchange, however old, to another topic (which may be a new one without spans).

    Args:
        rest: the other exchanges of the source, for its times.
    Raises:
        InputError: the exchange is not in the source, or the two are the same.
    """
    sequence = exchange.sequence
    if source.id == target.id or not holds(source.spans, sequence):
        raise InputError(f"exchange {sequence} is not in the topic it is moved from, or that is the one it is moved to")
    note = Revision("moved", now, ((sequence, sequence),), source.id, target.id)
    left = remade(replace(source, spans=removed(source.spans, sequence)), rest, now=now)
    changed = {
        source.id: noted(left, note, rules),
        target.id: noted(grown(target, sequence, *times(exchange), now), note, rules),
    }
    recent = tuple((at, target.id if at == sequence else name) for at, name in state.recent)
    known = {**state.live, source.id: source, target.id: target}
    return settled(replace(state, recent=recent, past=None), known, changed, rules)


def forget(
    state: State,
    sequence: int,
    topic: Topic,
    rest: Iterable[Exchange],
    *,
    now: float,
    rules: Rules = RULES,
    refill: Sequence[tuple[int, str]] = (),
    earlier: Mapping[str, Topic] | None = None,
) -> Changed:
    """An exchange was deleted: make its topic again from what is left, and no other one.

    Args:
        rest: the topic's other exchanges.
        refill: the latest (sequence, topic) assignments, when `short` says that the state remembers too few.
        earlier: topics that are not live: those of `refill`, and those the exchange was secondary in.
    """
    changed = {topic.id: remade(replace(topic, spans=removed(topic.spans, sequence)), rest, now=now)}
    known = {**(earlier or {}), **state.live, topic.id: topic}
    for name, other in known.items():
        if holds(other.secondary, sequence) and name != topic.id:
            changed[name] = replace(other, secondary=removed(other.secondary, sequence), updated_at=now)
    pairs = {*refill, *state.recent}
    recent = tuple(sorted(pair for pair in pairs if pair[0] != sequence))[-rules.window :]
    if not {name for _, name in recent} <= known.keys():
        raise InputError("the topics of `refill` are not all live; hand the others in with `earlier`")
    fresh = replace(state, recent=recent, assigned=max(0, state.assigned - 1), past=None)
    return settled(fresh, known, changed, rules)


def short(state: State, rules: Rules = RULES) -> bool:
    """Whether deletions have left so little of the recent past that the next one needs `refill`."""
    return len(state.recent) <= rules.finalized_after < state.assigned


def remade(topic: Topic, exchanges: Iterable[Exchange], *, now: float) -> Topic:
    """A topic from its exchanges, after an edit or a deletion: those that are completed and in its spans; no others."""
    inside = [e for e in exchanges if e.status == "completed" and holds(topic.spans, e.sequence)]
    bounds = [times(exchange) for exchange in inside]
    spans = of(exchange.sequence for exchange in inside)
    return replace(
        topic,
        spans=spans,
        started_at=min((first for first, _ in bounds if first is not None), default=None),
        ended_at=max((last for _, last in bounds if last is not None), default=None),
        updated_at=now,
        unsure=frozenset(sequence for sequence in topic.unsure if holds(spans, sequence)),
        labels=topic.labels if inside else (),
        terms=topic.terms if inside else (),
    )


def reconcile(
    state: State,
    topics: Sequence[Topic],
    found: Sequence[Found],
    exchanges: Sequence[Exchange],
    *,
    ids: Sequence[str],
    now: float,
    source: str,
    rules: Rules = RULES,
) -> Changed:
    """Bring what a labeller found into the topics that are there, which keep their ids.

    A found topic is the one it says it continues, else the one that shares most exchanges with it (each is taken once, the
    largest overlap first), else a new one. Exchanges outside the batch stay where they are.

    Args:
        topics: every topic that has an exchange of the batch, and those that are continued.
        exchanges: of all of these topics and of the batch.
        ids: for new topics, at least one for each that was found.
        source: the labeller's model.
    Returns:
        The topics that changed; those left without an exchange are "dropped", and their ids understood as that of the topic
        that has most of what was in them.
    """
    known = {**state.live, **{topic.id: topic for topic in topics}}
    batch = joined(*(one.spans for one in found))
    homes = _homes({topic.id: topic for topic in topics}, found, ids)
    changed: dict[str, Topic] = {}
    for topic in topics:
        left = apart(topic.spans, batch)
        if left != topic.spans:
            changed[topic.id] = replace(topic, spans=left)
    for name, one in zip(homes, found, strict=True):
        base = changed.get(name) or known.get(name) or Topic(name)
        spans = joined(base.spans, one.spans)
        secondary = apart(joined(base.secondary, one.secondary), spans)
        changed[name] = replace(
            base, spans=spans, secondary=secondary, labels=one.labels, terms=one.terms, source=source
        )
    for name, topic in changed.items():
        fresh = remade(topic, exchanges, now=now)
        fresh = replace(fresh, secondary=apart(fresh.secondary, fresh.spans))
        changed[name] = noted(fresh, Revision("relabelled", now, batch, target=name), rules)
    new = apart(batch, joined(*(topic.spans for topic in known.values())))  # never assigned before
    where = dict(state.recent)
    where.update((sequence, "") for first, last in new for sequence in range(first, last + 1))
    homed = [
        (sequence, next((name for name, topic in changed.items() if holds(topic.spans, sequence)), old))
        for sequence, old in where.items()
    ]
    recent = tuple(sorted(pair for pair in homed if pair[1]))[-rules.window :]
    merged = _heirs(state.merged, topics, changed)[-rules.merged :] if rules.merged else ()
    fresh_state = replace(state, recent=recent, assigned=state.assigned + size(new), merged=merged, past=None)
    return settled(fresh_state, known, changed, rules)


def _heirs(
    merged: tuple[tuple[str, str], ...], topics: Sequence[Topic], changed: Mapping[str, Topic]
) -> tuple[tuple[str, str], ...]:
    """`State.merged` with the topics that were left without an exchange."""
    for topic in topics:
        if not topic.spans or changed.get(topic.id, topic).spans:
            continue
        shares = ((size(topic.spans) - size(apart(topic.spans, one.spans)), name) for name, one in changed.items())
        heir = max(shares)[1]
        merged = (*((a, heir if b == topic.id else b) for a, b in merged if a != heir), (topic.id, heir))
    return merged


def _homes(topics: Mapping[str, Topic], found: Sequence[Found], ids: Sequence[str]) -> list[str]:
    homes: list[str | None] = [None] * len(found)
    taken: set[str] = set()
    for n, one in enumerate(found):
        if one.continues is not None and one.continues in topics and one.continues not in taken:
            homes[n] = one.continues
            taken.add(one.continues)
    pairs = []
    for n, one in enumerate(found):
        for name, topic in topics.items():
            shared = size(one.spans) - size(apart(one.spans, topic.spans))
            if shared:
                pairs.append((-shared, n, name))
    for _, n, name in sorted(pairs):
        if homes[n] is None and name not in taken:
            homes[n] = name
            taken.add(name)
    fresh = iter(name for name in ids if name not in topics)
    out = []
    for home in homes:
        place = home or next(fresh, None)
        if place is None:
            raise InputError("there are fewer new ids than new topics; give one for each topic that was found")
        out.append(place)
    return out
