"""One change, written inside a transaction that holds the conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

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
    Fail,
    LogRun,
    Operation,
    PutState,
    PutTopic,
    RunRecord,
    StaleTopicsError,
    TopicRecord,
)
from topicality.store import rows, rules
from topicality.store import schema as t
from topicality.store.index import Index
from topicality.store.prepared import Prepared
from topicality.store.rows import Talk
from topicality.store.transfer import Bundle
from topicality.types import Space

_COUNTED = ("exchanges", "topics", "topics_version", "changes", "numbers", "passages", "words", "last_at", "posted")
_PLACE = ("conversation", "sequence", "number", "id")
_EXCHANGE = tuple(column.name for column in t.exchange.c if column.name not in _PLACE)
_REMARKS = tuple(column.name for column in t.topic.c if column.name not in _PLACE)
_REPLY = ("status", "reply_text", "reply_at", "reply_name", "failure", "meta")  # what completing or failing changes


def _names(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


_KEY: Any = bindparam("key")
_ID: Any = bindparam("given")
_NUMBER: Any = bindparam("place")
_MAKE = Prepared(
    lambda dialect: dialect.insert(t.conversation).values(_names("owner", "name")).on_conflict_do_nothing()
)
_APPLIED = Prepared(select(t.change.c.applied).where(t.change.c.conversation == _KEY, t.change.c.id == _ID))
_CHANGE = Prepared(insert(t.change))
_COUNTS = Prepared(update(t.conversation).where(t.conversation.c.key == _NUMBER).values(_names(*_COUNTED)))
_BEGUN = Prepared(insert(t.exchange))
_ENDED = Prepared(
    update(t.exchange)
    .where(t.exchange.c.conversation == _KEY, t.exchange.c.sequence == _NUMBER)
    .values(_names(*_REPLY))
)
_REWRITTEN = Prepared(
    update(t.exchange)
    .where(t.exchange.c.conversation == _KEY, t.exchange.c.sequence == _NUMBER)
    .values(_names(*_EXCHANGE))
)
_TOPIC_NUMBER = Prepared(select(t.topic.c.number).where(t.topic.c.conversation == _KEY, t.topic.c.id == _ID))
_NEW_TOPIC = Prepared(insert(t.topic))
_TOPIC = Prepared(
    update(t.topic).where(t.topic.c.conversation == _KEY, t.topic.c.number == _NUMBER).values(_names(*_REMARKS))
)
_NO_STATE = Prepared(delete(t.state).where(t.state.c.conversation == _KEY, t.state.c.name == _ID))


def _put_state(dialect: Any) -> Any:
    statement = dialect.insert(t.state).values(_names("conversation", "name", "value"))
    return statement.on_conflict_do_update(
        index_elements=[t.state.c.conversation, t.state.c.name], set_={"value": statement.excluded.value}
    )


_STATE = Prepared(_put_state)


def hold(connection: Connection, owner: str, conversation: str) -> Talk:
    """The conversation's row, locked until the transaction ends; made if it is new."""
    found = rows.held(connection, owner, conversation)
    if found is None:
        _MAKE.run(connection, {"owner": owner, "name": conversation})
        found = rows.held(connection, owner, conversation)
        assert found is not None  # noqa: S101  # just made, or by another process meanwhile
    return found


class Writer:
    """Writes to one conversation that is held.

    A change works on the exchanges in memory; what came of them is written at its end, many rows a statement. Counts are
    written once, by `finish`.
    """

    def __init__(self, connection: Connection, talk: Talk, space: Space | None, runs: int) -> None:
        self._connection = connection
        self.key = talk.key
        self._talk = talk
        self._place = (talk.owner, talk.name)
        self._runs = runs
        self._was = {name: getattr(talk, name) for name in _COUNTED}
        self.counts: dict[str, Any] = dict(self._was)
        self._index = Index(connection, self.key, self.counts, space)
        self._known: dict[str, Exchange | None] = {}
        self._begun: dict[int, Exchange] = {}
        self._ended: dict[int, Exchange] = {}
        self._states: dict[str, bytes | None] = {}

    def info(self) -> ConversationRecord:
        """Its counts as they are now."""
        return rows.info(self._talk._replace(**self.counts))

    def exchange(self, exchange: str) -> Exchange | None:
        """An exchange by id, as it is now."""
        if exchange not in self._known:
            row = rows.one_exchange(self._connection, self.key, exchange)
            self._known[exchange] = None if row is None else rows.exchange_of(row, *self._place)
        return self._known[exchange]

    def apply(self, change: Change) -> Applied:
        """See `ports.Store.apply`."""
        if (change.owner, change.conversation) != self._place:
            raise InputError("the change is for another conversation than the turn")
        before = _APPLIED.row(self._connection, key=self.key, given=change.id)
        if before is not None:
            sequences, topics = json.loads(before[0])
            return Applied(sequences, topics, repeated=True)
        if change.expect is not None and change.expect != self.counts["topics_version"]:
            raise StaleTopicsError(change.expect, self.counts["topics_version"])
        sequences, topics = {}, {}
        for operation in change.operations:
            self._do(change, operation, sequences, topics)
        self._flush()
        if topics:
            self.counts["topics_version"] += 1
        self.counts["changes"] += 1
        number = self.counts["changes"]
        applied = json.dumps([sequences, topics], ensure_ascii=False)
        values = {"conversation": self.key, "id": change.id, "number": number, "applied": applied}
        _CHANGE.run(self._connection, values)
        if number % 64 == 0:
            table = t.change
            old = delete(table).where(table.c.conversation == self.key, table.c.number <= number - rules.REMEMBERED)
            self._connection.execute(old)
        return Applied(sequences, topics)

    def finish(self) -> None:
        """Write the counts, if any changed."""
        if self.counts != self._was:
            _COUNTS.run(self._connection, {"place": self.key, **self.counts})
            self._was = dict(self.counts)

    def undo(self, counts: Mapping[str, Any]) -> None:
        """Take back what a change that was undone left here."""
        self.counts.update(counts)
        self._index.forget()
        for held in (self._known, self._begun, self._ended, self._states):
            held.clear()

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
        self._index.restore(bundle)
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
                self._states[operation.name] = operation.value
            case LogRun():
                self._log(operation.run)
            case _:
                sequences[operation.exchange] = self._exchange(change, operation)

    def _exchange(self, change: Change, operation: Begin | Complete | Fail | Edit | Delete) -> int:
        known = self.exchange(operation.exchange)
        fresh: Exchange | None
        match operation:
            case Begin():
                fresh = rules.begun(change, operation, known, self.counts["exchanges"] + 1)
                if fresh is not None:
                    self.counts["exchanges"] += 1
                    self._begun[fresh.sequence] = fresh
                    self._index.wait(fresh, operation.passages)
            case Complete():
                fresh = self._end(rules.completed(operation, known))
                self._index.wake(fresh)
                self._index.add(fresh, "assistant", operation.passages, live=True)
            case Fail():
                fresh = self._end(rules.failed(operation, known))
                self._index.take(fresh.sequence, "user")
            case Edit():
                fresh = self._rewrite(rules.edited(operation, known))
                self._index.take(fresh.sequence, operation.side)
                if fresh.status != "failed":
                    live = fresh.status == "completed"
                    self._index.add(fresh, operation.side, operation.passages, live=live)
            case Delete():
                fresh = rules.deleted(operation, known)
                if fresh is not None:
                    self._rewrite(fresh)
                    for side in SIDES:
                        self._index.take(fresh.sequence, side)
        final = fresh or known
        assert final is not None  # noqa: S101  # the rules refuse what is neither known nor begun
        self._known[operation.exchange] = final
        for message in (final.user, final.reply):
            if message is not None and message.at is not None:
                last = self.counts["last_at"]
                self.counts["last_at"] = message.at if last is None else max(last, message.at)
        return final.sequence

    def _end(self, exchange: Exchange) -> Exchange:
        (self._begun if exchange.sequence in self._begun else self._ended)[exchange.sequence] = exchange
        return exchange

    def _rewrite(self, exchange: Exchange) -> Exchange:
        self._flush()
        _REWRITTEN.run(self._connection, self._values(exchange, _EXCHANGE))
        return exchange

    def _flush(self) -> None:
        """Write what is only in memory yet."""
        _BEGUN.many(self._connection, [rows.exchange_values(self.key, one) for one in self._begun.values()])
        _ENDED.many(self._connection, [self._values(one, _REPLY) for one in self._ended.values()])
        kept, gone = dict[str, bytes](), list[str]()
        for name, value in sorted(self._states.items()):  # in one order: no deadlocks
            if value is None:
                gone.append(name)
            else:
                kept[name] = value
        _NO_STATE.many(self._connection, [{"key": self.key, "given": name} for name in gone])
        _STATE.many(self._connection, [{"conversation": self.key, "name": n, "value": v} for n, v in kept.items()])
        self._index.flush()
        for held in (self._begun, self._ended, self._states):
            held.clear()

    def _values(self, exchange: Exchange, names: Sequence[str]) -> dict[str, Any]:
        values = rows.exchange_values(self.key, exchange)
        return {"key": self.key, "place": exchange.sequence, **{name: values[name] for name in names}}

    def _topic(self, topic: TopicRecord) -> int:
        found = _TOPIC_NUMBER.row(self._connection, key=self.key, given=topic.id)
        if found is None:
            self.counts["topics"] += 1
            number = int(self.counts["topics"])
            _NEW_TOPIC.run(self._connection, rows.topic_values(self.key, replace(topic, number=number)))
            return number
        values = rows.topic_values(self.key, topic)
        remarks = {name: values[name] for name in _REMARKS}
        _TOPIC.run(self._connection, {"key": self.key, "place": found[0], **remarks})
        return int(found[0])

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
    table = t.setting
    Prepared(lambda dialect: dialect.insert(table).values(_names("name", "value")).on_conflict_do_nothing()).run(
        connection, {"name": name, "value": value}
    )
    return str(connection.execute(select(table.c.value).where(table.c.name == name)).scalar_one())
