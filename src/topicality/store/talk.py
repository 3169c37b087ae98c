"""One conversation in memory, and a turn of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from topicality.errors import InputError
from topicality.records import (
    SIDES,
    Applied,
    Begin,
    Change,
    Complete,
    ConversationRecord,
    Delete,
    Edit,
    Exchange,
    ExchangeStatus,
    Fail,
    LogRun,
    Operation,
    Passage,
    PutState,
    PutTopic,
    RunRecord,
    Scope,
    Side,
    StaleTopicsError,
    TopicRecord,
)
from topicality.store import rules
from topicality.store.transfer import Bundle, Kept, kept
from topicality.types import Space

Place = tuple[int, Side, int]


@dataclass(slots=True)
class Talk:
    """One conversation. Once it is in the store it is never changed: a turn works on a copy and puts that in its place."""

    born: int
    info: ConversationRecord
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    passages: dict[Place, Kept] = field(default_factory=dict)
    numbers: dict[Place, int] = field(default_factory=dict)  # live passages, by when they became so
    next: int = 1
    topics: dict[str, TopicRecord] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    runs: list[RunRecord] = field(default_factory=list)
    changes: dict[str, Applied] = field(default_factory=dict)

    def copy(self) -> Talk:
        """One to work on."""
        fresh = replace(self)
        for name in ("exchanges", "ids", "passages", "numbers", "topics", "states", "runs", "changes"):
            setattr(fresh, name, getattr(self, name).copy())
        return fresh

    def known(self, exchange: str) -> Exchange | None:
        """An exchange by id."""
        return self.exchanges[self.ids[exchange]] if exchange in self.ids else None

    def put(self, exchange: Exchange) -> None:
        """Write an exchange, without its passages."""
        self.exchanges[exchange.sequence] = exchange
        self.ids[exchange.id] = exchange.sequence
        times = [
            message.at for message in (exchange.user, exchange.reply) if message is not None and message.at is not None
        ]
        if self.info.last_at is not None:
            times.append(self.info.last_at)
        self.info = replace(
            self.info, exchanges=max(self.info.exchanges, exchange.sequence), last_at=max(times, default=None)
        )

    def replace(self, exchange: Exchange, side: Side, passages: tuple[Kept, ...]) -> None:
        """Put passages in place of those of one side."""
        for place in [place for place in self.passages if place[:2] == (exchange.sequence, side)]:
            gone = self.passages.pop(place)
            if self.numbers.pop(place, None) is not None:
                self._count(gone, -1)
        for entry in passages:
            self.passages[entry.sequence, entry.side, entry.position] = entry
        if exchange.status == "completed":
            self.index(place for place in self.passages if place[0] == exchange.sequence)

    def index(self, places: Iterable[Place]) -> None:
        """Make passages searchable, in order, those that are not yet."""
        for place in sorted(places, key=order):
            if place not in self.numbers:
                self.numbers[place] = self.next
                self.next += 1
                self._count(self.passages[place], 1)

    def time(self, place: Place) -> float | None:
        """When a passage was said."""
        exchange = self.exchanges[place[0]]
        message = exchange.user if place[1] == "user" else exchange.reply
        return None if message is None else message.at

    def selected(self, scope: Scope, statuses: Sequence[ExchangeStatus]) -> list[Exchange]:
        """Exchanges that pass a scope's sequences and times."""
        return [
            exchange
            for sequence, exchange in sorted(self.exchanges.items())
            if (exchange.status in statuses if statuses else exchange.status != "deleted")
            and inside(scope, sequence, exchange.user.at)
        ]

    def bundle(self) -> Bundle:
        """All of it, for an export."""
        return Bundle(
            self.info.owner,
            self.info.id,
            self.info.topics_version,
            [self.exchanges[key] for key in sorted(self.exchanges)],
            list(self.passages.values()),
            sorted(self.topics.values(), key=lambda topic: topic.number),
            self.states,
            self.runs,
        )

    @classmethod
    def of(cls, born: int, bundle: Bundle) -> Talk:
        """The conversation of an export."""
        info = ConversationRecord(bundle.owner, bundle.conversation, topics_version=bundle.topics_version, born=born)
        talk = cls(born, info)
        talk.passages = {(kept.sequence, kept.side, kept.position): kept for kept in bundle.passages}
        for exchange in bundle.exchanges:
            talk.put(exchange)
        talk.index(place for place in talk.passages if talk.exchanges[place[0]].status == "completed")
        talk.topics = {topic.id: topic for topic in bundle.topics}
        talk.states, talk.runs = dict(bundle.states), list(bundle.runs)
        talk.info = replace(talk.info, topics=len(talk.topics))
        return talk

    def _count(self, kept: Kept, sign: int) -> None:
        terms = sign * len(kept.terms.split())
        self.info = replace(self.info, passages=self.info.passages + sign, words=self.info.words + terms)


class MemoryTurn:
    """See `ports.Turn`."""

    def __init__(self, talk: Talk, space: Space | None, runs: int) -> None:
        self._talk = talk
        self._space = space
        self._runs = runs
        self.changed = False

    def info(self) -> ConversationRecord:
        """See `ports.Turn.info`."""
        return self._talk.info

    def exchange(self, exchange: str) -> Exchange | None:
        """See `ports.Turn.exchange`."""
        return self._talk.known(exchange)

    def exchanges(
        self,
        *,
        sequences: tuple[tuple[int, int], ...] = (),
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
    ) -> list[Exchange]:
        """See `ports.Turn.exchanges`."""
        scope = Scope(self._talk.info.owner, self._talk.info.id, sequences)
        return last(self._talk.selected(scope, statuses), newest)

    def topics(self, ids: Sequence[str] | None = None) -> list[TopicRecord]:
        """See `ports.Turn.topics`."""
        live = (topic for topic in self._talk.topics.values() if topic.status != "dropped")
        return [topic for topic in live if ids is None or topic.id in ids]

    def state(self, name: str) -> bytes | None:
        """See `ports.Turn.state`."""
        return self._talk.states.get(name)

    def apply(self, change: Change) -> Applied:
        """See `ports.Turn.apply`."""
        talk = self._talk
        if (change.owner, change.conversation) != (talk.info.owner, talk.info.id):
            raise InputError("the change is for another conversation than the turn")
        rules.check(change, self._space)
        if change.id in talk.changes:
            return replace(talk.changes[change.id], repeated=True)
        if change.expect is not None and change.expect != talk.info.topics_version:
            raise StaleTopicsError(change.expect, talk.info.topics_version)
        sequences: dict[str, int] = {}
        topics: dict[str, int] = {}
        work = talk.copy()
        for operation in change.operations:
            self._do(work, change, operation, sequences, topics)
        if topics:
            work.info = replace(work.info, topics_version=work.info.topics_version + 1)
        work.changes[change.id] = Applied(sequences, topics)
        while len(work.changes) > rules.REMEMBERED:
            del work.changes[next(iter(work.changes))]
        self._talk, self.changed = work, True
        return work.changes[change.id]

    def result(self) -> Talk:
        """The conversation as this turn leaves it."""
        return self._talk

    def _do(
        self, talk: Talk, change: Change, operation: Operation, sequences: dict[str, int], topics: dict[str, int]
    ) -> None:
        match operation:
            case Begin():
                known = talk.known(operation.exchange)
                fresh = rules.begun(change, operation, known, talk.info.exchanges + 1)
                if fresh is not None:
                    talk.put(fresh)
                    talk.replace(fresh, "user", self._kept(fresh.sequence, "user", operation.passages))
                sequences[operation.exchange] = talk.ids[operation.exchange]
            case Complete():
                done = rules.completed(operation, talk.known(operation.exchange))
                talk.put(done)
                talk.replace(done, "assistant", self._kept(done.sequence, "assistant", operation.passages))
                sequences[done.id] = done.sequence
            case Fail():
                failed = rules.failed(operation, talk.known(operation.exchange))
                talk.put(failed)
                talk.replace(failed, "user", ())
                sequences[failed.id] = failed.sequence
            case Edit():
                edited = rules.edited(operation, talk.known(operation.exchange))
                talk.put(edited)
                passages = () if edited.status == "failed" else operation.passages
                talk.replace(edited, operation.side, self._kept(edited.sequence, operation.side, passages))
                sequences[edited.id] = edited.sequence
            case Delete():
                gone = rules.deleted(operation, talk.known(operation.exchange))
                if gone is not None:
                    talk.put(gone)
                    for side in SIDES:
                        talk.replace(gone, side, ())
                sequences[operation.exchange] = talk.ids[operation.exchange]
            case _:
                self._note(talk, operation, topics)

    def _note(self, talk: Talk, operation: PutTopic | PutState | LogRun, topics: dict[str, int]) -> None:
        match operation:
            case PutTopic():
                known_topic = talk.topics.get(operation.topic.id)
                number = known_topic.number if known_topic else talk.info.topics + 1
                talk.topics[operation.topic.id] = replace(
                    operation.topic, number=number, meta=dict(operation.topic.meta)
                )
                talk.info = replace(talk.info, topics=max(number, talk.info.topics))
                topics[operation.topic.id] = number
            case PutState():
                talk.states.pop(operation.name, None)
                if operation.value is not None:
                    talk.states[operation.name] = operation.value
            case LogRun():
                talk.runs = [run for run in talk.runs if run.id != operation.run.id] + [operation.run]
                talk.runs = talk.runs[-self._runs :] if self._runs else []

    def _kept(self, sequence: int, side: Side, passages: Sequence[Passage]) -> tuple[Kept, ...]:
        return tuple(kept(sequence, side, position, passage, self._space) for position, passage in enumerate(passages))


def order(place: Place) -> tuple[int, int, int]:
    """How passages stand in a conversation: by sequence, the user's side first, by position."""
    return place[0], SIDES.index(place[1]), place[2]


def inside(scope: Scope, sequence: int, at: float | None) -> bool:
    """Whether a scope's sequences and times let a message through."""
    if scope.sequences and not any(first <= sequence <= last for first, last in scope.sequences):
        return False
    if scope.since is not None and (at is None or at < scope.since):
        return False
    return scope.until is None or (at is not None and at < scope.until)


def last(exchanges: list[Exchange], newest: int | None) -> list[Exchange]:
    """Only the last so many."""
    return exchanges if newest is None else exchanges[max(0, len(exchanges) - newest) :]
