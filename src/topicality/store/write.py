"""One change, written inside a transaction that holds the conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row, bindparam, cast, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from topicality.errors import InputError
from topicality.records import (
    SIDES,
    Applied,
    Begin,
    Change,
    Complete,
    Delete,
    Edit,
    Exchange,
    Fail,
    LogRun,
    Operation,
    PutState,
    PutTopic,
    RunRecord,
    Side,
    StaleTopicsError,
    TopicRecord,
)
from topicality.store import rows, rules, words
from topicality.store import schema as t
from topicality.store.transfer import Bundle, Kept, kept
from topicality.types import Space

_COUNTED = ("exchanges", "topics", "topics_version", "changes", "numbers", "passages", "words", "last_at")


def hold(connection: Connection, owner: str, conversation: str) -> Row[Any]:
    """The conversation's row, locked until the transaction ends; made if it is new."""
    place = {"owner": owner, "name": conversation}
    row = connection.execute(
        _HOLD, place
    ).first()  # SQLite has no FOR UPDATE and needs none: the transaction holds it all
    if row is None:
        connection.execute(_insert(connection, t.conversation).values(place).on_conflict_do_nothing())
        row = connection.execute(_HOLD, place).one()
    return row


def _posted(dialect: Any) -> Any:
    table = t.posting
    statement = dialect.insert(table)
    appended = cast(table.c.data.op("||")(statement.excluded.data), LargeBinary)  # SQLite joins bytes as text otherwise
    return statement.on_conflict_do_update(
        index_elements=[table.c.conversation, table.c.word, table.c.block],
        set_={"data": appended, "frequency": table.c.frequency + statement.excluded.frequency},
    )


# The statements of every message, built once: building one costs as much as running it.
_HOLD = (
    select(t.conversation)
    .where(t.conversation.c.owner == bindparam("owner"), t.conversation.c.name == bindparam("name"))
    .with_for_update()
)
_APPLIED = select(t.change.c.applied).where(
    t.change.c.conversation == bindparam("key"), t.change.c.id == bindparam("change")
)
_COUNTS = (
    update(t.conversation)
    .where(t.conversation.c.key == bindparam("place"))
    .values({name: bindparam(name) for name in _COUNTED})
)
_EXCHANGE = (
    update(t.exchange)
    .where(t.exchange.c.conversation == bindparam("place"), t.exchange.c.sequence == bindparam("turn"))
    .values({column.name: bindparam(column.name) for column in t.exchange.c if not column.primary_key})
)
_PASSAGES = (
    t.passage.c.conversation == bindparam("key"),
    t.passage.c.sequence == bindparam("turn"),
    t.passage.c.side == bindparam("half"),
)
_TAKEN = select(t.passage).where(*_PASSAGES).order_by(t.passage.c.position)
_TAKE = delete(t.passage).where(*_PASSAGES)
_POST = {"postgresql": _posted(postgresql), "sqlite": _posted(sqlite)}
_INSERT = {table.name: insert(table) for table in (t.change, t.exchange, t.passage)}


class Writer:
    """Writes to one conversation that is held. Counts are kept here and written once, by `finish`."""

    def __init__(self, connection: Connection, row: Row[Any], space: Space | None, runs: int) -> None:
        self._connection = connection
        self.key: int = row.key
        self._place = (row.owner, row.name)
        self._space = space
        self._runs = runs
        self._was = {name: getattr(row, name) for name in _COUNTED}
        self.counts: dict[str, Any] = dict(self._was)
        self._spoken: list[tuple[int, Sequence[str]]] = []  # live passages whose postings are not written yet

    def apply(self, change: Change) -> Applied:
        """See `ports.Store.apply`."""
        if (change.owner, change.conversation) != self._place:
            raise InputError("the change is for another conversation than the turn")
        table = t.change
        before = self._connection.execute(_APPLIED, {"key": self.key, "change": change.id}).scalar()
        if before is not None:
            sequences, topics = json.loads(before)
            return Applied(sequences, topics, repeated=True)
        if change.expect is not None and change.expect != self.counts["topics_version"]:
            raise StaleTopicsError(change.expect, self.counts["topics_version"])
        sequences, topics = {}, {}
        for operation in change.operations:
            self._do(change, operation, sequences, topics)
        self._post()
        if topics:
            self.counts["topics_version"] += 1
        self.counts["changes"] += 1
        number = self.counts["changes"]
        applied = json.dumps([sequences, topics], ensure_ascii=False)
        values = {"conversation": self.key, "id": change.id, "number": number, "applied": applied}
        self._connection.execute(_INSERT["change"], values)
        if number % 64 == 0:
            old = delete(table).where(table.c.conversation == self.key, table.c.number <= number - rules.REMEMBERED)
            self._connection.execute(old)
        return Applied(sequences, topics)

    def finish(self) -> None:
        """Write the counts, if any changed."""
        if self.counts != self._was:
            self._connection.execute(_COUNTS, {"place": self.key, **self.counts})
            self._was = dict(self.counts)

    def undo(self, counts: dict[str, Any]) -> None:
        """Take back what a change that was undone left here."""
        self.counts = counts
        self._spoken = []

    def restore(self, bundle: Bundle) -> None:
        """Write an import's conversation, which is new."""
        everything: list[tuple[Any, list[dict[str, Any]]]] = [
            (t.exchange, [rows.exchange_values(self.key, exchange) for exchange in bundle.exchanges]),
            (t.topic, [rows.topic_values(self.key, topic) for topic in bundle.topics]),
            (t.state, [{"conversation": self.key, "name": n, "value": v} for n, v in bundle.states.items()]),
            (t.run, [self._run(run) for run in bundle.runs]),
        ]
        for table, values in everything:
            if values:
                self._connection.execute(insert(table), values)
        status = {exchange.sequence: exchange for exchange in bundle.exchanges}
        ordered = sorted(bundle.passages, key=lambda kept: (kept.sequence, SIDES.index(kept.side), kept.position))
        live = [kept for kept in ordered if status[kept.sequence].status == "completed"]
        self._add([kept for kept in ordered if status[kept.sequence].status != "completed"], status, live=False)
        for start in range(0, len(live), 4096):
            self._add(live[start : start + 4096], status, live=True)
            self._post()
        times = [m.at for e in bundle.exchanges for m in (e.user, e.reply) if m is not None and m.at is not None]
        self.counts.update(
            exchanges=len(bundle.exchanges),
            topics=len(bundle.topics),
            topics_version=bundle.topics_version,
            last_at=max(times, default=None),
        )

    def _do(self, change: Change, operation: Operation, sequences: dict[str, int], topics: dict[str, int]) -> None:
        match operation:
            case PutTopic():
                topics[operation.topic.id] = self._topic(operation.topic)
            case PutState():
                self._state(operation.name, operation.value)
            case LogRun():
                self._log(operation.run)
            case _:
                sequences[operation.exchange] = self._exchange(change, operation)

    def _exchange(self, change: Change, operation: Begin | Complete | Fail | Edit | Delete) -> int:
        row = rows.one_exchange(self._connection, self.key, operation.exchange)
        known = None if row is None else rows.exchange_of(row, *self._place)
        fresh: Exchange | None
        match operation:
            case Begin():
                fresh = rules.begun(change, operation, known, self.counts["exchanges"] + 1)
                if fresh is not None:
                    self.counts["exchanges"] += 1
                    self._connection.execute(_INSERT["exchange"], rows.exchange_values(self.key, fresh))
                    self._add(self._kept(fresh, "user", operation), {fresh.sequence: fresh}, live=False)
            case Complete():
                fresh = self._update(rules.completed(operation, known))
                waiting = self._take(fresh.sequence, "user")
                self._add([*waiting, *self._kept(fresh, "assistant", operation)], {fresh.sequence: fresh}, live=True)
            case Fail():
                fresh = self._update(rules.failed(operation, known))
                self._take(fresh.sequence, "user")
            case Edit():
                fresh = self._update(rules.edited(operation, known))
                self._take(fresh.sequence, operation.side)
                if fresh.status != "failed":
                    live = fresh.status == "completed"
                    self._add(self._kept(fresh, operation.side, operation), {fresh.sequence: fresh}, live=live)
            case Delete():
                fresh = rules.deleted(operation, known)
                if fresh is not None:
                    self._update(fresh)
                    for side in SIDES:
                        self._take(fresh.sequence, side)
        final = fresh or known
        assert final is not None  # noqa: S101  # the rules refuse what is neither known nor begun
        times = [m.at for m in (final.user, final.reply) if m is not None and m.at is not None]
        self.counts["last_at"] = max(
            [*times, *([] if self.counts["last_at"] is None else [self.counts["last_at"]])], default=None
        )
        return final.sequence

    def _update(self, exchange: Exchange) -> Exchange:
        values = rows.exchange_values(self.key, exchange)
        self._connection.execute(_EXCHANGE, {**values, "place": self.key, "turn": exchange.sequence})
        return exchange

    def _kept(self, exchange: Exchange, side: Side, operation: Begin | Complete | Edit) -> list[Kept]:
        return [kept(exchange.sequence, side, n, passage, self._space) for n, passage in enumerate(operation.passages)]

    def _add(self, passages: Sequence[Kept], exchanges: dict[int, Exchange], *, live: bool) -> None:
        """Write passages; live ones get the next numbers and their words' postings."""
        if not passages:
            return
        values, spoken = [], []
        for entry in passages:
            if live:
                self.counts["numbers"] += 1
                spoken.append((self.counts["numbers"], entry.terms.split(" ") if entry.terms else []))
            exchange = exchanges[entry.sequence]
            message = exchange.user if entry.side == "user" else exchange.reply
            values.append(
                {
                    "conversation": self.key,
                    "sequence": entry.sequence,
                    "side": SIDES.index(entry.side),
                    "position": entry.position,
                    "number": self.counts["numbers"] if live else None,
                    "first": entry.start,
                    "last": entry.end,
                    "at": None if message is None else message.at,
                    "terms": entry.terms,
                    "vector": entry.vector,
                }
            )
        self._connection.execute(_INSERT["passage"], values)
        if live:
            self.counts["passages"] += len(values)
            self.counts["words"] += sum(len(terms) for _, terms in spoken)
            self._spoken += spoken

    def _post(self) -> None:
        """Write the postings of the passages added since the last time: a word's together, however many there are."""
        packed = words.postings(self._spoken)
        self._spoken = []
        if not packed:
            return
        values = [
            {"conversation": self.key, "word": word, "block": block, "frequency": count, "data": data}
            for (word, block), (data, count) in sorted(packed.items())  # in one order: no deadlocks
        ]
        self._connection.execute(_POST[self._connection.dialect.name], values)

    def _take(self, sequence: int, side: Side) -> list[Kept]:
        """Remove one side's passages, with the postings of live ones; what they were."""
        place = {"key": self.key, "turn": sequence, "half": SIDES.index(side)}
        found = self._connection.execute(_TAKEN, place).all()
        if not found:
            return []
        self._connection.execute(_TAKE, place)
        live = [(row.number, row.terms.split(" ") if row.terms else []) for row in found if row.number is not None]
        self._unpost(live)
        self.counts["passages"] -= len(live)
        self.counts["words"] -= sum(len(terms) for _, terms in live)
        return [Kept(row.sequence, side, row.position, row.first, row.last, row.terms, row.vector) for row in found]

    def _unpost(self, spoken: Sequence[tuple[int, Sequence[str]]]) -> None:
        self._post()
        table = t.posting
        for word, block in sorted(words.postings(spoken)):
            where = (table.c.conversation == self.key, table.c.word == word, table.c.block == block)
            data = self._connection.execute(select(table.c.data).where(*where)).scalar_one()
            left, count = words.without(data, [number for number, _ in spoken], block)
            if count:
                self._connection.execute(update(table).where(*where).values(data=left, frequency=count))
            else:
                self._connection.execute(delete(table).where(*where))

    def _topic(self, topic: TopicRecord) -> int:
        table = t.topic
        where = (table.c.conversation == self.key, table.c.id == topic.id)
        number = self._connection.execute(select(table.c.number).where(*where)).scalar()
        if number is None:
            self.counts["topics"] += 1
            values = rows.topic_values(self.key, replace(topic, number=self.counts["topics"]))
            self._connection.execute(insert(table), values)
            return int(values["number"])
        self._connection.execute(
            update(table).where(*where).values(rows.topic_values(self.key, replace(topic, number=number)))
        )
        return int(number)

    def _state(self, name: str, value: bytes | None) -> None:
        table = t.state
        if value is None:
            self._connection.execute(delete(table).where(table.c.conversation == self.key, table.c.name == name))
            return
        statement = _insert(self._connection, table)
        statement = statement.on_conflict_do_update(
            index_elements=[table.c.conversation, table.c.name], set_={"value": statement.excluded.value}
        )
        self._connection.execute(statement, {"conversation": self.key, "name": name, "value": value})

    def _log(self, run: RunRecord) -> None:
        table = t.run
        self._connection.execute(delete(table).where(table.c.conversation == self.key, table.c.id == run.id))
        self._connection.execute(insert(table), self._run(run))
        mine = select(table.c.key).where(table.c.conversation == self.key).order_by(table.c.key.desc())
        edge = self._connection.execute(mine.offset(self._runs).limit(1)).scalar()
        if edge is not None:
            self._connection.execute(delete(table).where(table.c.conversation == self.key, table.c.key <= edge))

    def _run(self, run: RunRecord) -> dict[str, Any]:
        data = rules.dumped(run.data)
        return {
            "conversation": self.key,
            "id": run.id,
            "created_at": run.created_at,
            "status": run.status,
            "data": data,
        }


def erase(connection: Connection, keys: Sequence[int]) -> int:
    """Remove conversations with all that hangs on them; how many exchanges went."""
    from sqlalchemy import func

    gone = 0
    for start in range(0, len(keys), 500):
        part = keys[start : start + 500]
        counted = select(func.count()).select_from(t.exchange).where(t.exchange.c.conversation.in_(part))
        gone += int(connection.execute(counted).scalar_one())
        for table in t.PARTS:
            connection.execute(delete(table).where(table.c.conversation.in_(part)))
        connection.execute(delete(t.conversation).where(t.conversation.c.key.in_(part)))
    return gone


def put_setting(connection: Connection, name: str, value: str) -> str:
    """Keep a setting unless it is there; what is there then."""
    connection.execute(_insert(connection, t.setting).values(name=name, value=value).on_conflict_do_nothing())
    return str(
        connection.execute(
            select(t.setting.c.value).where(t.setting.c.name == bindparam("wanted")), {"wanted": name}
        ).scalar_one()
    )


def _insert(connection: Connection, table: Any) -> Any:
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
