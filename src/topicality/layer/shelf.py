"""The topics of a conversation over a store: read what is remembered, take an exchange in, say what to write.

What a process remembers itself is good as long as the topics have the version it knows; everything else is read again.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from topicality.core import book as books
from topicality.core.book import Book, Reading, Recorded
from topicality.core.grams import Grams
from topicality.core.label import Words, words_of
from topicality.core.revise import short
from topicality.core.spans import Spans, apart, holds
from topicality.core.topics import Assigned, State, Topic, missing, record_of, topic_of
from topicality.errors import StoreError
from topicality.ports import Turn
from topicality.records import Exchange, Operation, PutState, PutTopic

_KNOWN = 512  # topics a process remembers of a conversation

_log = logging.getLogger("topicality")


@dataclass(slots=True)
class Shelf:
    """What a process remembers of a conversation's topics. Used inside one turn at a time.

    Attributes:
        version: of the topics, as the store counts their changes; -1 when nothing is remembered.
        known: topics lately used, by id.
    """

    version: int = -1
    book: Book = field(default_factory=Book)
    known: OrderedDict[str, Topic] = field(default_factory=OrderedDict)

    def read(self, turn: Turn, reading: Reading) -> None:
        """Be what the store has. Cost: nothing when this process wrote last; otherwise all topics are read once."""
        if self.version == turn.info().topics_version:
            return
        records = {topic.id: topic for topic in map(topic_of, turn.topics())}
        self.known.clear()
        self.book = _loaded(turn, list(records.values()), reading)
        for topic in records.values():
            self._remember(topic)
        self.version = turn.info().topics_version

    def take(
        self,
        turn: Turn,
        topic: str,
        exchange: Exchange,
        *,
        now: float,
        reading: Reading,
        provisional: bool = False,
        late: Iterable[tuple[int, str]] = (),
        foreign: bool = False,
    ) -> list[Operation]:
        """Put a completed exchange into its topic; what to write.

        Args:
            topic: id; a new one makes a new topic. provisional: whether the decision may still be revised.
            foreign: whether the id may be of a topic that was not made here (a labeller's).
            late: exchanges that belong to another topic after all. Only the latest one taken in can still be moved.
        """
        past = self.book.state.past
        revised = next((one for one in late if past is not None and one[0] == past.sequence), None)
        resolve = self.book.state.resolve
        name = resolve(topic)
        found = self._topics(turn, [name, *([] if revised is None else [resolve(revised[1])])], foreign)
        known = name in found or (revised is not None and resolve(revised[1]) == name)
        assigned = Assigned(exchange.sequence, topic, "continue" if known else "new", provisional, revised)
        wanted = missing(self.book.state, assigned)
        earlier = {one: (found[one], _words(turn, found[one], reading)) for one in wanted if one in found}
        done = books.record(self.book, assigned, exchange, now=now, reading=reading, earlier=earlier)
        if not provisional:  # nothing will revise it
            done = replace(done, book=_sure(done.book))
        return self.keep(done)

    def keep(self, done: Recorded) -> list[Operation]:
        """Remember what came of a change; what to write of it."""
        self.book = done.book
        for topic in done.topics:
            self._remember(topic)
        values = books.dump(replace(done.book, words={}))
        values.update((f"words:{name}", words.dump()) for name, words in done.words.items())
        out: list[Operation] = [PutTopic(record_of(topic)) for topic in done.topics]
        out += [PutState(name, value) for name, value in values.items()]
        gone = [topic.id for topic in done.topics if topic.status == "dropped" and topic.id not in done.book.state.live]
        return out + [PutState(f"words:{name}", None) for name in gone]

    def written(self, turn: Turn, numbers: Mapping[str, int]) -> None:
        """The change is in the store: note its version, and the numbers new topics were given."""
        live = dict(self.book.state.live)
        for name, number in numbers.items():
            topic = self.known.get(name)
            if topic is not None and topic.number != number:
                self.known[name] = replace(topic, number=number)
            if name in live and live[name].number != number:
                live[name] = replace(live[name], number=number)
        self.book = replace(self.book, state=replace(self.book.state, live=live))
        self.version = turn.info().topics_version

    def edited(self, turn: Turn, old: Exchange, new: Exchange, *, now: float, reading: Reading) -> list[Operation]:
        """A completed exchange has another text: its topic is read again."""
        topic = _home(turn, old.sequence)
        if topic is None:
            return []
        rest = _inside(turn, apart(topic.spans, ((old.sequence, old.sequence),)))
        return self.keep(books.edited(self.book, topic, old, new, rest, now=now, reading=reading))

    def deleted(self, turn: Turn, old: Exchange, *, now: float, reading: Reading) -> list[Operation]:
        """A completed exchange is gone: its topic is made again from what is left."""
        topics = [topic_of(record) for record in turn.topics()]
        topic = next((one for one in topics if holds(one.spans, old.sequence)), None)
        if topic is None:
            return []
        refill: list[tuple[int, str]] = []
        if short(self.book.state, reading.rules):
            window = reading.rules.window + 1
            pairs = (
                (n, one.id)
                for one in topics
                for first, last in one.spans
                for n in range(max(first, last - window), last + 1)
            )
            refill = sorted(pairs)[-window:]
        names = {name for _, name in refill} | {one.id for one in topics if holds(one.secondary, old.sequence)}
        wanted = [one for one in topics if one.id in names - self.book.state.live.keys()]
        done = books.deleted(
            self.book,
            topic,
            old,
            _inside(turn, apart(topic.spans, ((old.sequence, old.sequence),))),
            now=now,
            reading=reading,
            refill=refill,
            earlier={one.id: (one, _words(turn, one, reading)) for one in wanted},
        )
        return self.keep(done)

    def _remember(self, topic: Topic) -> None:
        self.known[topic.id] = topic
        self.known.move_to_end(topic.id)
        while len(self.known) > _KNOWN:
            self.known.popitem(last=False)

    def _topics(self, turn: Turn, names: Sequence[str], foreign: bool) -> dict[str, Topic]:
        """Topics by id, from memory or (all at once) from the store. Dropped ones count as unknown."""
        live = self.book.state.live
        absent = [name for name in names if name not in live and name not in self.known]
        if any(foreign or turn.state(f"words:{name}") is not None for name in absent):  # a new topic has no words yet
            for record in turn.topics():
                if record.id in absent:
                    self._remember(topic_of(record))
        found = {name: live.get(name) or self.known.get(name) for name in names}
        return {name: topic for name, topic in found.items() if topic is not None and topic.status != "dropped"}


def _loaded(turn: Turn, topics: Sequence[Topic], reading: Reading) -> Book:
    """The book as it was kept; made from the topics and their exchanges where it was not, or cannot be read."""
    kept = turn.state("topics")
    if kept is None and not topics:
        return Book()
    try:
        names = [str(name) for _, name in json.loads(kept or b"{}")["recent"]]
        values = {"topics": kept or b""}
        for name in ("lexicon", "latest", *(f"words:{one}" for one in dict.fromkeys(names))):
            value = turn.state(name)
            if value is not None:
                values[name] = value
        sequence = (json.loads(values["topics"])["past"] or [0])[0]
        latest = turn.exchanges(sequences=((sequence, sequence),)) if sequence else []
        return books.load(values, [record_of(topic) for topic in topics], latest[0] if latest else None, reading)
    except (StoreError, ValueError, TypeError, KeyError) as error:
        if kept is not None:
            _log.warning("what was kept of the topics cannot be read (%s); made from the exchanges", type(error).__name__)
        return _reread(turn, topics, reading)


def _reread(turn: Turn, topics: Sequence[Topic], reading: Reading) -> Book:
    window = reading.rules.window
    pairs = sorted(
        (n, t.id) for t in topics for first, last in t.spans for n in range(max(first, last - window), last + 1)
    )
    recent = tuple(pairs[-window:])
    live = {topic.id: topic for topic in topics if topic.id in {name for _, name in recent}}
    book = Book(State(recent, sum(topic.count for topic in topics), live))
    lexicon, words = book.lexicon, {}
    for topic in live.values():
        grams = [(exchange.sequence, reading.grams(exchange)) for exchange in _inside(turn, topic.spans)]
        words[topic.id] = words_of(grams)
        for _, one in grams:
            lexicon = lexicon.added(one)
    return replace(book, lexicon=lexicon, words=words)


def _words(turn: Turn, topic: Topic, reading: Reading) -> Words:
    kept = turn.state(f"words:{topic.id}")
    if kept is not None:
        try:
            return Words.load(kept)
        except StoreError:
            _log.warning("the words kept for a topic cannot be read; made from its exchanges")
    return words_of((exchange.sequence, reading.grams(exchange)) for exchange in _inside(turn, topic.spans))


def _inside(turn: Turn, spans: Spans) -> list[Exchange]:
    return turn.exchanges(sequences=spans, statuses=("completed",)) if spans else []


def _home(turn: Turn, sequence: int) -> Topic | None:
    return next((topic_of(record) for record in turn.topics() if holds(record.spans, sequence)), None)


def _sure(book: Book) -> Book:
    """The book without what it takes to revise the latest assignment."""
    return replace(book, state=replace(book.state, past=None), before=Words(), latest=Grams())
