"""A conversation's passages and their words' postings, written inside a transaction that holds it.

Posting a word costs a page of the database, and most words of a passage stand in others too. So the passages wait until they
are `UNPOSTED`; a search reads the words of those that wait themselves.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from sqlalchemy import Connection, LargeBinary, bindparam, cast, delete, insert, select, update

from topicality.records import SIDES, Exchange, Passage, Side
from topicality.store import schema as t
from topicality.store import words
from topicality.store.prepared import Prepared
from topicality.store.transfer import Bundle, Kept, kept
from topicality.types import Space

Spoken = tuple[int, Sequence[str]]

UNPOSTED = 32  # live passages whose words wait, at most; a search reads as many rows of each conversation


def _posted(dialect: Any) -> Any:
    table = t.posting
    statement = dialect.insert(table)
    appended = cast(table.c.data.op("||")(statement.excluded.data), LargeBinary)  # SQLite joins bytes as text otherwise
    return statement.on_conflict_do_update(
        index_elements=[table.c.conversation, table.c.word, table.c.block],
        set_={"data": appended, "frequency": table.c.frequency + statement.excluded.frequency},
    )


_SIDE = (
    t.passage.c.conversation == bindparam("key"),
    t.passage.c.sequence == bindparam("turn"),
    t.passage.c.side == bindparam("half"),
)
_POST = Prepared(_posted)
_PASSAGE = Prepared(insert(t.passage))
_UNPOSTED = Prepared(
    select(t.passage.c.number, t.passage.c.terms)
    .where(t.passage.c.conversation == bindparam("key"), t.passage.c.number > bindparam("posted"))
    .order_by(t.passage.c.number)
)
_SAID = Prepared(
    select(t.passage.c.position, t.passage.c.number, t.passage.c.terms).where(*_SIDE).order_by(t.passage.c.position)
)
_WOKEN = Prepared(
    update(t.passage).where(*_SIDE, t.passage.c.position == bindparam("place")).values(number=bindparam("number"))
)
_TAKE = Prepared(delete(t.passage).where(*_SIDE))


class Index:
    """What recall searches. `add` and the others work in memory; `flush` writes.

    Args:
        counts: of the conversation; "numbers", "posted", "passages" and "words" are kept up to date here.
    """

    def __init__(self, connection: Connection, key: int, counts: MutableMapping[str, Any], space: Space | None) -> None:
        self._connection = connection
        self._key = key
        self._counts = counts
        self._space = space
        self._waiting: dict[int, tuple[Exchange, Sequence[Passage]]] = {}  # begun in this change, not written yet
        self._fresh: list[dict[str, Any]] = []
        self._woken: list[dict[str, Any]] = []
        self._spoken: list[Spoken] = []  # live passages that are not in the tables yet

    def wait(self, exchange: Exchange, passages: Sequence[Passage]) -> None:
        """The passages of a message that has no reply yet."""
        self._waiting[exchange.sequence] = (exchange, passages)

    def wake(self, exchange: Exchange) -> None:
        """There is a reply: the passages that waited for it are live."""
        waiting = self._waiting.pop(exchange.sequence, None)
        if waiting is not None:
            self.add(exchange, "user", waiting[1], live=True)
            return
        if self._fresh:  # edited in this very change, perhaps
            self.flush()
        place = {"key": self._key, "turn": exchange.sequence, "half": 0}
        for position, _, terms in _SAID.rows(self._connection, **place):
            self._woken.append({**place, "place": position, "number": self._live(terms)})

    def add(self, exchange: Exchange, side: Side, passages: Sequence[Passage], *, live: bool) -> None:
        """The passages of one side; live ones get the next numbers, and their words are posted."""
        message = exchange.user if side == "user" else exchange.reply
        at = None if message is None else message.at
        for position, passage in enumerate(passages):
            self._put(kept(exchange.sequence, side, position, passage, self._space), at, live=live)

    def take(self, sequence: int, side: Side) -> None:
        """Remove one side's passages, with the postings of live ones."""
        self.flush()
        place = {"key": self._key, "turn": sequence, "half": SIDES.index(side)}
        found = _SAID.rows(self._connection, **place)
        if not found:
            return
        _TAKE.run(self._connection, place)
        live = [(number, _split(terms)) for _, number, terms in found if number is not None]
        table = t.posting
        posted = [one for one in live if one[0] <= self._counts["posted"]]
        for word, block in sorted(words.postings(posted)):
            where = (table.c.conversation == self._key, table.c.word == word, table.c.block == block)
            data = self._connection.execute(select(table.c.data).where(*where)).scalar_one()
            left, count = words.without(data, [number for number, _ in live], block)
            if count:
                self._connection.execute(update(table).where(*where).values(data=left, frequency=count))
            else:
                self._connection.execute(delete(table).where(*where))
        self._counts["passages"] -= len(live)
        self._counts["words"] -= sum(len(terms) for _, terms in live)

    def restore(self, bundle: Bundle) -> None:
        """The passages of an import."""
        exchanges = {exchange.sequence: exchange for exchange in bundle.exchanges}
        for entry in sorted(bundle.passages, key=lambda one: (one.sequence, SIDES.index(one.side), one.position)):
            exchange = exchanges[entry.sequence]
            message = exchange.user if entry.side == "user" else exchange.reply
            self._put(entry, None if message is None else message.at, live=exchange.status == "completed")
            if len(self._fresh) >= 4096:
                self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what is only in memory yet; a word's postings together, and only when many passages wait for it."""
        for exchange, passages in self._waiting.values():
            self.add(exchange, "user", passages, live=False)
        if self._counts["numbers"] - self._counts["posted"] >= UNPOSTED:
            self._post([*unposted(self._connection, self._key, self._counts["posted"]), *self._spoken])
        _PASSAGE.many(self._connection, self._fresh)
        _WOKEN.many(self._connection, self._woken)
        self.forget()

    def forget(self) -> None:
        """Drop what is only in memory."""
        self._waiting, self._fresh, self._woken, self._spoken = {}, [], [], []

    def _post(self, spoken: Sequence[Spoken]) -> None:
        packed = sorted(words.postings(spoken).items())  # in one order: no deadlocks
        _POST.many(
            self._connection,
            [
                {"conversation": self._key, "word": word, "block": block, "frequency": count, "data": data}
                for (word, block), (data, count) in packed
            ],
        )
        self._counts["posted"] = self._counts["numbers"]

    def _put(self, entry: Kept, at: float | None, *, live: bool) -> None:
        self._fresh.append(
            {
                "conversation": self._key,
                "sequence": entry.sequence,
                "side": SIDES.index(entry.side),
                "position": entry.position,
                "number": self._live(entry.terms) if live else None,
                "first": entry.start,
                "last": entry.end,
                "at": at,
                "terms": entry.terms,
                "vector": entry.vector,
            }
        )

    def _live(self, terms: str) -> int:
        spoken = _split(terms)
        self._counts["numbers"] += 1
        self._counts["passages"] += 1
        self._counts["words"] += len(spoken)
        self._spoken.append((self._counts["numbers"], spoken))
        return int(self._counts["numbers"])


def unposted(connection: Connection, key: int, posted: int) -> list[Spoken]:
    """The live passages behind number `posted`, by number, with their words."""
    return [(number, _split(terms)) for number, terms in _UNPOSTED.rows(connection, key=key, posted=posted)]


def _split(terms: str) -> list[str]:
    return terms.split(" ") if terms else []
