"""The topics of a conversation over a store: read what is remembered, take an exchange in, say what to write.

What a process remembers itself is good as long as the topics have the version it knows; everything else is read again.

An exchange is put into its topic at once. Its words are counted, and labels chosen anew, with every fourth exchange, and
sooner where a topic has no labels yet; which ones the counts lack until then is kept ("unread").
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from topicality.core import book as books
from topicality.core.book import Book, Reading, Recorded
from topicality.core.grams import Grams
from topicality.core.label import Lexicon, Words, words_of
from topicality.core.revise import short
from topicality.core.spans import Spans, apart, holds
from topicality.core.topics import Assigned, Decision, State, Topic, missing, record_of, topic_of
from topicality.errors import StoreError
from topicality.ports import Turn
from topicality.records import Exchange, Operation, PutState, PutTopic

_KNOWN = 512  # topics a process remembers of a conversation
_UNREAD = 4  # exchanges whose words are counted together; fewer than a book's window, so their topics are live

Unread = list[tuple[int, str]]

_log = logging.getLogger("topicality")


@dataclass(frozen=True, slots=True)
class Placed:
    """A completed exchange and where it belongs.

    Attributes:
        topic: id; a new one makes a new topic. provisional: whether that may still be revised.
        late: exchanges that belong to another topic after all. Only the latest one taken in can still be moved.
        foreign: whether the id may be of a topic that was not made here (a labeller's).
    """

    topic: str
    exchange: Exchange
    provisional: bool
    late: tuple[tuple[int, str], ...]
    foreign: bool


class _Silent(Reading):
    """Puts exchanges into topics, counts no words and chooses no labels."""

    def grams(self, exchange: Exchange) -> Grams:
        """None."""
        return _NOTHING

    def described(self, topic: Topic, words: Words, lexicon: Lexicon) -> Topic:
        """The topic as it is."""
        return topic


_NOTHING = Grams()


@dataclass(slots=True)
class Shelf:
    """What a process remembers of a conversation's topics. Used inside one turn at a time.

    Attributes:
        version: of the topics, as the store counts their changes; -1 when nothing is remembered.
        known: topics lately used, by id. latest: what was last written under that name.
    """

    version: int = -1
    book: Book = field(default_factory=Book)
    known: OrderedDict[str, Topic] = field(default_factory=OrderedDict)
    latest: bytes = b""

    def read(self, turn: Turn, reading: Reading) -> None:
        """Be what the store has. Cost: nothing when this process wrote last; otherwise the live topics are read."""
        if self.version == turn.info().topics_version:
            return
        self.known.clear()
        self.book, topics = _loaded(turn, reading)
        self.latest = b""
        for topic in topics:
            self._remember(topic)
        self.version = turn.info().topics_version

    def take(self, turn: Turn, placed: Placed, *, now: float, reading: Reading, unread: Unread) -> list[Operation]:
        """Put a completed exchange into its topic; what to write.

        Args:
            unread: exchanges with their topics, in order, that the word counts lack; brought up to date.
        """
        topics = self._record(turn, placed, now, reading, unread)
        name = unread[-1][1]
        topic = self.book.state.live.get(name)
        held = {placed.exchange.sequence} if placed.provisional else set()
        if len(unread) < _UNREAD and topic is not None:
            if not topic.labels:
                settled = [n for n, home in unread if home == name and n not in held]
                topics[name] = self._first_labels(turn, topic, reading, settled, placed.exchange)
            blank = [one for one in topics if one in self.book.words and not self.book.words[one].docs]
            out = self.keep(Recorded(self.book, tuple(topics.values())), whole=False)
            out += [PutState(f"words:{one}", Words().dump()) for one in blank]  # whoever goes on looks for them
            return out if self.book.lexicon.exchanges else [*out, PutState("lexicon", self.book.lexicon.dump())]
        known = {placed.exchange.sequence: placed.exchange}
        return self.keep(self.count(turn, topics, unread, reading, known=known, held=held))

    def take_many(
        self, turn: Turn, placed: Iterable[Placed], *, now: float, reading: Reading, unread: Unread
    ) -> list[Operation]:
        """Many exchanges at once, as `take` would one by one; words are counted and labels chosen once, at the end."""
        topics: dict[str, Topic] = {}
        known: dict[int, Exchange] = {}
        held: set[int] = set()
        for one in placed:
            topics.update(self._record(turn, one, now, reading, unread))
            known[one.exchange.sequence] = one.exchange
            held = {one.exchange.sequence} if one.provisional else set()
        return self.keep(self.count(turn, topics, unread, reading, known=known, held=held))

    def flush(self, turn: Turn, reading: Reading, unread: Unread) -> list[Operation]:
        """Count what is unread, before something of it changes; what to write."""
        return self.keep(self.count(turn, {}, unread, reading)) if unread else []

    def count(
        self,
        turn: Turn,
        topics: Mapping[str, Topic],
        unread: Unread,
        reading: Reading,
        *,
        known: Mapping[int, Exchange] | None = None,
        held: Collection[int] = (),
    ) -> Recorded:
        """Count the words of unread exchanges, in order, and choose the labels of their topics anew.

        Args:
            topics: what is to be written anyway. known: exchanges that need not be read.
            held: those that stay unread, since they may still move.
        """
        batch = [one for one in unread if one[0] not in held]
        wanted = tuple((sequence, sequence) for sequence, _ in batch if sequence not in (known or {}))
        said = {e.sequence: e for e in turn.exchanges(sequences=wanted, statuses=("completed",))} if wanted else {}
        said.update(known or {})
        grams = {sequence: reading.grams(said[sequence]) for sequence, _ in batch if sequence in said}
        book = self.book
        lexicon, live = book.lexicon, dict(book.state.live)
        for sequence in _lacking([n for n, _ in batch], book.state.assigned - len(held) - lexicon.exchanges):
            lexicon = lexicon.added(grams.get(sequence, _NOTHING))
        changed, words = dict(topics), dict[str, Words]()
        for name in dict.fromkeys(name for _, name in batch):
            topic = live.get(name) or self.known.get(name)
            if topic is None:
                continue
            mine = book.words.get(name) or _words(turn, topic, reading)
            waiting = sum(home == name for sequence, home in unread if sequence in held)
            inside = [sequence for sequence, home in batch if home == name]
            for sequence in _lacking(inside, topic.count - waiting - mine.docs):
                mine = mine.added(grams.get(sequence, _NOTHING), sequence)
            words[name] = mine
            changed[name] = reading.described(topic, mine, lexicon)
            if name in live:
                live[name] = changed[name]
        unread[:] = [one for one in unread if one[0] in held]
        kept = {**book.words, **{name: mine for name, mine in words.items() if name in live}}
        fresh = replace(book, lexicon=lexicon, words=kept, state=replace(book.state, live=live))
        return Recorded(fresh, tuple(changed.values()), words)

    def keep(self, done: Recorded, *, whole: bool = True) -> list[Operation]:
        """Remember what came of a change; what to write of it. `whole` is with the word counts."""
        self.book = done.book
        for topic in done.topics:
            self._remember(topic)
        light = replace(done.book, words={}) if whole else replace(done.book, words={}, lexicon=Lexicon())
        values = books.dump(light)
        if not whole:
            del values["lexicon"]
        if values["latest"] == self.latest:
            del values["latest"]
        else:
            self.latest = values["latest"]
        if whole:
            values.update((f"words:{name}", known.dump()) for name, known in done.words.items())
        gone = [topic.id for topic in done.topics if topic.status == "dropped" and topic.id not in done.book.state.live]
        out: list[Operation] = [PutTopic(record_of(topic)) for topic in done.topics]
        out += [PutState(name, value) for name, value in values.items()]
        return out + [PutState(f"words:{name}", None) for name in gone]

    def _record(self, turn: Turn, placed: Placed, now: float, reading: Reading, unread: Unread) -> dict[str, Topic]:
        """Put an exchange into its topic, words uncounted: the topics that are different now."""
        past = self.book.state.past
        revised = next((one for one in placed.late if past is not None and one[0] == past.sequence), None)
        resolve = self.book.state.resolve
        name = resolve(placed.topic)
        found = self._topics(turn, [name, *([] if revised is None else [resolve(revised[1])])], placed.foreign)
        known = name in found or (revised is not None and resolve(revised[1]) == name)
        kind: Decision = "continue" if known else "new"
        assigned = Assigned(placed.exchange.sequence, placed.topic, kind, placed.provisional, revised)
        wanted = missing(self.book.state, assigned)
        earlier = {one: (found[one], _words(turn, found[one], reading)) for one in wanted if one in found}
        silent = _Silent(reading.everyday, reading.fillers, reading.rules)
        done = books.record(self.book, assigned, placed.exchange, now=now, reading=silent, earlier=earlier)
        counted = {**{one: words for one, (_, words) in earlier.items()}, **self.book.words}
        words = {one: counted.get(one, Words()) for one in done.book.words}
        book = replace(done.book, words=words, lexicon=self.book.lexicon)
        self.book = book if placed.provisional else _sure(book)  # nothing will revise it
        if revised is not None:
            home = resolve(revised[1])
            unread[:] = [(n, home if n == revised[0] else one) for n, one in unread]
        unread.append((placed.exchange.sequence, name))
        for topic in done.topics:
            self._remember(topic)
        return {topic.id: topic for topic in done.topics}

    def _first_labels(
        self, turn: Turn, topic: Topic, reading: Reading, inside: Sequence[int], latest: Exchange
    ) -> Topic:
        """A topic that has no labels yet, with those that these exchanges of it give; nothing is counted for good."""
        if not inside:
            return topic
        stored = tuple((sequence, sequence) for sequence in inside if sequence != latest.sequence)
        said = turn.exchanges(sequences=stored, statuses=("completed",)) if stored else []
        lexicon, words = self.book.lexicon, Words()
        for exchange in [*said, *([latest] if latest.sequence in inside else [])]:
            grams = reading.grams(exchange)
            lexicon, words = lexicon.added(grams), words.added(grams, exchange.sequence)
        named = reading.described(topic, words, lexicon)
        live = {**self.book.state.live, topic.id: named}
        self.book = replace(self.book, state=replace(self.book.state, live=live))
        return named

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
            for record in turn.topics(absent):
                self._remember(topic_of(record))
        found = {name: live.get(name) or self.known.get(name) for name in names}
        return {name: topic for name, topic in found.items() if topic is not None and topic.status != "dropped"}


def _loaded(turn: Turn, reading: Reading) -> tuple[Book, list[Topic]]:
    """The book as it was kept, and its topics; made from all topics and their exchanges where it cannot be read."""
    kept = turn.state("topics")
    if kept is None and not turn.info().topics:
        return Book(), []
    try:
        state = json.loads(kept or b"{}")
        names = list(dict.fromkeys(str(name) for _, name in state["recent"]))
        values = {"topics": kept or b""}
        for name in ("lexicon", "latest", *(f"words:{one}" for one in names)):
            value = turn.state(name)
            if value is not None:
                values[name] = value
        sequence = (state["past"] or [0])[0]
        latest = turn.exchanges(sequences=((sequence, sequence),)) if sequence else []
        records = turn.topics(names)
        return books.load(values, records, latest[0] if latest else None, reading), [topic_of(one) for one in records]
    except (StoreError, ValueError, TypeError, KeyError) as error:
        if kept is not None:
            _log.warning(
                "what was kept of the topics cannot be read (%s); made from the exchanges", type(error).__name__
            )
        topics = [topic_of(record) for record in turn.topics()]
        return _reread(turn, topics, reading), topics


def _lacking(sequences: Sequence[int], count: int) -> Sequence[int]:
    """The last so many of them: those that are not counted yet."""
    return sequences[max(0, len(sequences) - max(0, count)) :]


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
    return replace(book, lexicon=Lexicon(lexicon.counts, book.state.assigned), words=words)


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
