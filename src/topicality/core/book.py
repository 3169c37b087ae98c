"""The topics of a conversation with their words: one exchange and one decision in, the topics to write out.

It joins `core.topics` (which exchange is where) and `core.label` (what that is about). What it remembers is bounded: the
topics of the recent past and their words; older ones are handed in when a decision returns to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from topicality.core import revise
from topicality.core.grams import Grams, grams_of
from topicality.core.label import Description, Lexicon, Words, describe, words_of
from topicality.core.spans import holds
from topicality.core.topics import RULES, Assigned, Changed, Past, Rules, State, Topic, advance, record_of, topic_of
from topicality.errors import InputError, StoreError
from topicality.records import Exchange, TopicRecord


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts are read. Constant for a conversation.

    Attributes:
        everyday: how telling a stem is against everyday talk, (0, 1] (`Background.rarity`); None when not known.
        fillers: words that name nothing, case-folded, beside the English ones that are built in.
        rules: of the topics.
    """

    everyday: Callable[[str], float] | None = None
    fillers: frozenset[str] = frozenset()
    rules: Rules = RULES

    def grams(self, exchange: Exchange) -> Grams:
        """The candidates of an exchange; speakers' names are none."""
        reply = exchange.reply
        names = tuple(m.name for m in (exchange.user, reply) if m is not None and m.name)
        return grams_of(exchange.user.text, "" if reply is None else reply.text, names=names, fillers=self.fillers)

    def described(self, topic: Topic, words: Words, lexicon: Lexicon) -> Topic:
        """The topic with labels and terms from its words; those of a labeller stay until it looks again."""
        if topic.source != "text" or not topic.spans:
            return topic
        found = describe(words, lexicon, self.everyday)
        return topic if found == Description(topic.labels, topic.terms) else replace(topic, **asdict(found))


@dataclass(frozen=True, slots=True)
class Book:
    """What is remembered between two exchanges.

    Attributes:
        words: of the live topics. before: of the latest exchange's topic without that exchange. latest: the latest
            exchange's candidates. Both are for the one revision that may come.
    """

    state: State = field(default_factory=State)
    lexicon: Lexicon = field(default_factory=Lexicon)
    words: Mapping[str, Words] = field(default_factory=dict)
    before: Words = field(default_factory=Words)
    latest: Grams = field(default_factory=Grams)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The next book, the topics that are different now, and the words of those that were read: what to write."""

    book: Book
    topics: tuple[Topic, ...] = ()
    words: Mapping[str, Words] = field(default_factory=dict)


def record(
    book: Book,
    assigned: Assigned,
    exchange: Exchange,
    *,
    now: float,
    reading: Reading,
    earlier: Mapping[str, tuple[Topic, Words]] | None = None,
) -> Recorded:
    """Take in one completed exchange.

    Args:
        earlier: topics with their words that the decision names and that are not live (`topics.missing` says which).
    Returns:
        Nothing changes for an exchange that is pending, failed or deleted, or was taken in before.
    Raises:
        InputError: see `topics.advance`.
    Cost: O(size of the exchange + words kept for its topic); the number of exchanges and topics plays no part.
    """
    older = earlier or {}
    changed = advance(
        book.state,
        assigned,
        exchange,
        now=now,
        rules=reading.rules,
        earlier={name: topic for name, (topic, _) in older.items()},
    )
    if changed.state is book.state or not changed.topics:
        return Recorded(replace(book, state=changed.state))
    words = {**{name: known for name, (_, known) in older.items()}, **book.words}
    touched = set()
    past = book.state.past
    if assigned.revised is not None and past is not None:
        target = book.state.resolve(assigned.revised[1])
        if target != past.home:
            words[past.home] = book.before
            words[target] = words.get(target, Words()).added(book.latest, past.sequence)
            touched |= {past.home, target}
    name = changed.state.resolve(assigned.topic)
    lexicon, before, latest = book.lexicon, book.before, book.latest
    if changed.state.assigned > book.state.assigned:
        latest = reading.grams(exchange)
        lexicon = lexicon.added(latest)
        before = words.get(name, Words())
        words[name] = before.added(latest, exchange.sequence)
        touched.add(name)
    fresh = Book(changed.state, lexicon, words, before, latest)
    return _finished(fresh, changed, touched, reading)


def edited(
    book: Book, topic: Topic, old: Exchange, new: Exchange, rest: Iterable[Exchange], *, now: float, reading: Reading
) -> Recorded:
    """One exchange of a topic has another text: read the topic again, and no other one.

    A labeller's labels go: they may have words of the old text.

    Args:
        old, new: the exchange before and after. rest: the topic's other exchanges.
    """
    exchanges = _ordered([*rest, new])
    fresh = replace(revise.remade(topic, exchanges, now=now), source="text")
    lexicon = book.lexicon.removed(reading.grams(old)).added(reading.grams(new))
    live = {**book.state.live, topic.id: fresh} if topic.id in book.state.live else book.state.live
    state = replace(book.state, live=live, past=None)
    return _reread(replace(book, lexicon=lexicon), Changed(state, (fresh,)), {topic.id: exchanges}, reading)


def deleted(
    book: Book,
    topic: Topic,
    old: Exchange,
    rest: Iterable[Exchange],
    *,
    now: float,
    reading: Reading,
    refill: Iterable[tuple[int, str]] = (),
    earlier: Mapping[str, tuple[Topic, Words]] | None = None,
) -> Recorded:
    """An exchange was deleted: see `revise.forget`. A labeller's labels go, as in `edited`.

    Args:
        old: the exchange as it was. rest: the topic's other exchanges.
    """
    older = earlier or {}
    exchanges = _ordered(rest)
    changed = revise.forget(
        book.state,
        old.sequence,
        replace(topic, source="text"),
        exchanges,
        now=now,
        rules=reading.rules,
        refill=tuple(refill),
        earlier={name: known for name, (known, _) in older.items()},
    )
    words = {**{name: known for name, (_, known) in older.items()}, **book.words}
    lexicon = book.lexicon.removed(reading.grams(old))
    return _reread(replace(book, lexicon=lexicon, words=words), changed, {topic.id: exchanges}, reading)


def moved(
    book: Book,
    exchange: Exchange,
    source: Topic,
    target: Topic,
    *,
    rest: Iterable[Exchange],
    others: Iterable[Exchange],
    now: float,
    reading: Reading,
) -> Recorded:
    """Move one exchange, however old: see `revise.reassign`.

    Args:
        rest: the source's other exchanges. others: the target's.
    """
    left, gained = _ordered(rest), _ordered([*others, exchange])
    changed = revise.reassign(book.state, exchange, source, target, now=now, rest=left, rules=reading.rules)
    return _reread(book, changed, {source.id: left, target.id: gained}, reading)


def merged(
    book: Book, into: tuple[Topic, Words], other: tuple[Topic, Words], *, now: float, reading: Reading
) -> Recorded:
    """Make one topic of two: see `revise.merge`. Costs no reading: the words are added up."""
    changed = revise.merge(book.state, into[0], other[0], now=now, rules=reading.rules)
    words = {**book.words, into[0].id: into[1].merged(other[1])}
    fresh = replace(book, state=changed.state, words=words, before=Words(), latest=Grams())
    return _finished(fresh, changed, {into[0].id}, reading)


def relabelled(
    book: Book,
    topics: Sequence[Topic],
    found: Sequence[revise.Found],
    exchanges: Sequence[Exchange],
    *,
    ids: Sequence[str],
    source: str,
    now: float,
    reading: Reading,
) -> Recorded:
    """Bring in what a labeller found: see `revise.reconcile`. Cost: the exchanges of the topics that changed are read."""
    changed = revise.reconcile(
        book.state, topics, found, exchanges, ids=ids, now=now, source=source, rules=reading.rules
    )
    inside = _ordered(exchanges)
    reached = {topic.id for topic in topics} | set(ids)
    return _reread(book, changed, {t.id: inside for t in changed.topics if t.id in reached}, reading)


def rebuilt(
    pairs: Iterable[tuple[Assigned, Exchange]], *, now: float, reading: Reading
) -> tuple[Book, dict[str, Topic]]:
    """Everything from scratch: a book, and all topics, from decisions and exchanges in order."""
    book, topics, words = Book(), dict[str, Topic](), dict[str, Words]()
    for assigned, exchange in pairs:
        earlier = {name: (topic, words[name]) for name, topic in topics.items() if name not in book.state.live}
        done = record(book, assigned, exchange, now=now, reading=reading, earlier=earlier)
        book = done.book
        words.update(done.words)
        topics.update((topic.id, topic) for topic in done.topics)
    return book, topics


def dump(book: Book) -> dict[str, bytes]:
    """A book as named values for a store (`PutState`): "topics", "lexicon", "latest", and "words:<id>" for each live topic.

    The live topics themselves are the store's `TopicRecord`s. Those of `words:` that did not change need not be written.
    """
    past = book.state.past
    state = {
        "recent": book.state.recent,
        "assigned": book.state.assigned,
        "merged": book.state.merged,
        "past": None if past is None else [past.sequence, past.home, past.started_at, past.ended_at],
        "before": None if past is None or past.before is None else asdict(record_of(past.before)),
    }
    return {
        "topics": json.dumps(state, separators=(",", ":")).encode(),
        "lexicon": book.lexicon.dump(),
        "latest": book.before.dump(),
        **{f"words:{name}": known.dump() for name, known in book.words.items() if name in book.state.live},
    }


def load(values: Mapping[str, bytes], topics: Iterable[TopicRecord], latest: Exchange | None, reading: Reading) -> Book:
    """Read what `dump` wrote.

    Args:
        topics: records of the live topics (others do no harm). latest: the exchange that was taken in last.
    Raises:
        StoreError: a value is missing or damaged; make the book again from the exchanges (`rebuilt`).
    """
    try:
        state = json.loads(values["topics"])
        recent = tuple((int(sequence), str(name)) for sequence, name in state["recent"])
        names = dict.fromkeys(name for _, name in recent)
        known = {topic.id: topic_of(topic) for topic in topics if topic.id in names}
        past = None
        if state["past"] is not None and latest is not None and latest.sequence == state["past"][0]:
            sequence, home, started, ended = state["past"]
            before = None if state["before"] is None else topic_of(TopicRecord(**state["before"]))
            past = Past(sequence, home, before, started, ended)
        return Book(
            State(
                recent,
                int(state["assigned"]),
                {name: known[name] for name in names},
                tuple((str(a), str(b)) for a, b in state["merged"]),
                past,
            ),
            Lexicon.load(values["lexicon"]),
            {name: Words.load(values[f"words:{name}"]) for name in names},
            Words.load(values["latest"]),
            reading.grams(latest) if past is not None and latest is not None else Grams(),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError("what was kept of the topics is damaged; make it again from the exchanges") from error


def _reread(book: Book, changed: Changed, exchanges: Mapping[str, Iterable[Exchange]], reading: Reading) -> Recorded:
    words = dict(book.words)
    topics = {topic.id: topic for topic in changed.topics}
    for name, inside in exchanges.items():
        if name in topics:
            spans = topics[name].spans
            words[name] = words_of((e.sequence, reading.grams(e)) for e in inside if holds(spans, e.sequence))
    fresh = replace(book, state=changed.state, words=words, before=Words(), latest=Grams())
    return _finished(fresh, changed, set(exchanges), reading)


def _finished(book: Book, changed: Changed, touched: set[str], reading: Reading) -> Recorded:
    """Describe the touched topics, and keep words only of live ones."""
    topics = []
    live = dict(book.state.live)
    for topic in changed.topics:
        shown = (
            reading.described(topic, book.words.get(topic.id, Words()), book.lexicon) if topic.id in touched else topic
        )
        if topic.id in live:
            live[topic.id] = shown
        topics.append(shown)
    absent = live.keys() - book.words.keys()
    if absent:
        raise InputError(f"the words of {len(absent)} live topics are missing; hand them in with `earlier`")
    kept = {name: book.words[name] for name in live}
    read = {name: book.words[name] for name in sorted(touched)}
    return Recorded(replace(book, state=replace(book.state, live=live), words=kept), tuple(topics), read)


def _ordered(exchanges: Iterable[Exchange]) -> list[Exchange]:
    done = (exchange for exchange in exchanges if exchange.status == "completed")
    return sorted(done, key=lambda exchange: exchange.sequence)
