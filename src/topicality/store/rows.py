"""Rows to values and back: the reading half of the SQL store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_, select

from topicality.records import (
    SIDES,
    ConversationRecord,
    Exchange,
    ExchangeStatus,
    RunRecord,
    Scope,
    StoredPassage,
    TopicRecord,
)
from topicality.store import rules
from topicality.store import schema as t
from topicality.store.transfer import Bundle, Kept
from topicality.types import Message

RANGES = 200  # in one statement: SQLite refuses expressions nested deeper than 1,000


def info(row: Row[Any]) -> ConversationRecord:
    """A conversation's counts."""
    return ConversationRecord(
        row.owner, row.name, row.exchanges, row.topics, row.topics_version, row.passages, row.words, row.last_at
    )


def exchange_of(row: Row[Any], owner: str, conversation: str) -> Exchange:
    """An exchange."""
    reply = None if row.reply_text is None else Message("assistant", row.reply_text, row.reply_at, name=row.reply_name)
    return Exchange(
        owner,
        conversation,
        row.sequence,
        row.id,
        row.status,
        Message("user", row.user_text, row.user_at, name=row.user_name),
        reply,
        row.failure,
        row.begun_at,
        json.loads(row.meta),
    )


def exchange_values(key: int, exchange: Exchange) -> dict[str, Any]:
    """The row of an exchange."""
    reply = exchange.reply
    return {
        "conversation": key,
        "sequence": exchange.sequence,
        "id": exchange.id,
        "status": exchange.status,
        "user_text": exchange.user.text,
        "user_at": exchange.user.at,
        "user_name": exchange.user.name,
        "reply_text": None if reply is None else reply.text,
        "reply_at": None if reply is None else reply.at,
        "reply_name": None if reply is None else reply.name,
        "failure": exchange.failure,
        "begun_at": exchange.begun_at,
        "meta": rules.dumped(exchange.meta),
    }


def topic_of(row: Row[Any]) -> TopicRecord:
    """A topic."""
    return TopicRecord(
        row.id,
        row.number,
        row.status,
        tuple(json.loads(row.labels)),
        tuple(json.loads(row.terms)),
        tuple((first, last) for first, last in json.loads(row.spans)),
        row.started_at,
        row.ended_at,
        row.updated_at,
        json.loads(row.meta),
    )


def topic_values(key: int, topic: TopicRecord) -> dict[str, Any]:
    """The row of a topic."""
    return {
        "conversation": key,
        "number": topic.number,
        "id": topic.id,
        "status": topic.status,
        "labels": json.dumps(topic.labels, ensure_ascii=False),
        "terms": json.dumps(topic.terms, ensure_ascii=False),
        "spans": json.dumps(topic.spans),
        "started_at": topic.started_at,
        "ended_at": topic.ended_at,
        "updated_at": topic.updated_at,
        "meta": rules.dumped(topic.meta),
    }


def run_of(row: Row[Any]) -> RunRecord:
    """A run."""
    return RunRecord(row.id, row.created_at, row.status, json.loads(row.data))


def passage_of(row: Row[Any], conversation: str) -> StoredPassage:
    """A passage, its vector decoded."""
    vector = None if row.vector is None else rules.decode(row.vector)
    terms = tuple(row.terms.split(" ")) if row.terms else ()
    place = (row.sequence, SIDES[row.side], row.position, row.first, row.last)
    return StoredPassage(conversation, *place, row.at, terms, vector)


def chosen(scope: Scope) -> Select[Any]:
    """The conversations of a scope: the only way in to any row."""
    query = select(t.conversation).where(t.conversation.c.owner == scope.owner).order_by(t.conversation.c.name)
    return query if scope.conversation is None else query.where(t.conversation.c.name == scope.conversation)


def narrowed(table: Any, at: Any, scope: Scope) -> list[ColumnElement[bool]]:
    """A scope's times as conditions on a time column."""
    return [
        *([] if scope.since is None else [at >= scope.since]),
        *([] if scope.until is None else [at < scope.until]),
        *([table.c.side.in_([SIDES.index(side) for side in scope.sides])] if scope.sides and "side" in table.c else []),
    ]


_LISTED, _CHUNK = 20_000, 5_000  # sequences that are looked up one by one at the most; in one statement


def ranges(table: Any, scope: Scope) -> list[ColumnElement[bool] | None]:
    """A scope's sequences as conditions, one a statement; [None] for all. Sorted, so that statements follow each other."""
    if not scope.sequences:
        return [None]
    merged: list[tuple[int, int]] = []
    for first, last in sorted(scope.sequences):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    column = table.c.sequence
    count = sum(last - first + 1 for first, last in merged)
    if len(merged) > 1 and count <= _LISTED:
        # Many short ranges: a list is looked up by index, while OR makes SQLite read the whole conversation.
        numbers = [number for first, last in merged for number in range(first, last + 1)]
        return [column.in_(numbers[start : start + _CHUNK]) for start in range(0, count, _CHUNK)]
    parts = [merged[start : start + RANGES] for start in range(0, len(merged), RANGES)]
    return [or_(*(and_(column >= first, column <= last) for first, last in part)) for part in parts]


def one_exchange(connection: Connection, key: int, exchange: str) -> Row[Any] | None:
    """The row of an exchange by id."""
    return connection.execute(_BY_ID, {"key": key, "exchange": exchange}).first()


def exchanges(
    connection: Connection,
    scope: Scope,
    statuses: Sequence[ExchangeStatus],
    newest: int | None,
    limit: int | None,
) -> list[Exchange]:
    """See `ports.Store.exchanges`."""
    table = t.exchange
    found: list[Exchange] = []
    for talk in connection.execute(chosen(scope)).all():
        inside: list[Exchange] = []
        for part in ranges(table, scope):
            query = select(table).where(table.c.conversation == talk.key, *narrowed(table, table.c.user_at, scope))
            query = query.where(table.c.status.in_(statuses) if statuses else table.c.status != "deleted")
            query = query if part is None else query.where(part)
            query = query.order_by(table.c.sequence.desc() if newest is not None else table.c.sequence)
            most = newest if newest is not None else None if limit is None else limit - len(found) - len(inside)
            query = query if most is None else query.limit(max(0, most))
            got = [exchange_of(row, scope.owner, talk.name) for row in connection.execute(query)]
            inside += got[::-1] if newest is not None else got
        found += inside
        if limit is not None and newest is None and len(found) >= limit:
            break
    found = found if newest is None else found[max(0, len(found) - newest) :]
    return found if limit is None else found[:limit]


def passages(connection: Connection, scope: Scope) -> list[StoredPassage]:
    """See `ports.Store.passages`."""
    table = t.passage
    found: list[StoredPassage] = []
    for talk in connection.execute(chosen(scope)).all():
        for part in ranges(table, scope):
            query = select(table).where(table.c.conversation == talk.key, *narrowed(table, table.c.at, scope))
            query = query.where(table.c.number.is_not(None), *([] if part is None else [part]))
            query = query.order_by(table.c.sequence, table.c.side, table.c.position)
            found += [passage_of(row, talk.name) for row in connection.execute(query)]
    return found


def topics(connection: Connection, scope: Scope, dropped: bool) -> list[tuple[str, TopicRecord]]:
    """See `ports.Store.topics`."""
    query = (
        select(t.topic, t.conversation.c.name.label("talk"))
        .join(t.conversation, t.conversation.c.key == t.topic.c.conversation)
        .where(t.conversation.c.owner == scope.owner)
        .order_by(t.conversation.c.name, t.topic.c.number)
    )
    if scope.conversation is not None:
        query = query.where(t.conversation.c.name == scope.conversation)
    if not dropped:
        query = query.where(t.topic.c.status != "dropped")
    return [(row.talk, topic_of(row)) for row in connection.execute(query)]


def state(connection: Connection, scope: Scope, name: str) -> bytes | None:
    """See `ports.Store.state`."""
    query = select(t.state.c.value).join(t.conversation, t.conversation.c.key == t.state.c.conversation)
    query = query.where(t.conversation.c.owner == scope.owner, t.conversation.c.name == scope.conversation)
    value = connection.execute(query.where(t.state.c.name == name)).scalar()
    return None if value is None else bytes(value)


def runs(connection: Connection, scope: Scope, limit: int) -> list[RunRecord]:
    """See `ports.Store.runs`."""
    query = select(t.run).join(t.conversation, t.conversation.c.key == t.run.c.conversation)
    query = query.where(t.conversation.c.owner == scope.owner, t.conversation.c.name == scope.conversation)
    return [run_of(row) for row in connection.execute(query.order_by(t.run.c.key.desc()).limit(limit))]


def bundle(connection: Connection, talk: Row[Any]) -> Bundle:
    """All of a conversation, for an export."""

    def every(table: Any, order: Any) -> Sequence[Row[Any]]:
        return connection.execute(select(table).where(table.c.conversation == talk.key).order_by(order)).all()

    return Bundle(
        talk.owner,
        talk.name,
        talk.topics_version,
        [exchange_of(row, talk.owner, talk.name) for row in every(t.exchange, t.exchange.c.sequence)],
        [
            Kept(
                row.sequence, SIDES[row.side], row.position, row.first, row.last, row.terms,
                None if row.vector is None else bytes(row.vector),
            )
            for row in every(t.passage, t.passage.c.sequence)
        ],
        [topic_of(row) for row in every(t.topic, t.topic.c.number)],
        {row.name: bytes(row.value) for row in every(t.state, t.state.c.name)},
        [run_of(row) for row in every(t.run, t.run.c.key)],
    )  # fmt: skip


def _by_id() -> Select[Any]:
    from sqlalchemy import bindparam

    return select(t.exchange).where(
        t.exchange.c.conversation == bindparam("key"), t.exchange.c.id == bindparam("exchange")
    )


_BY_ID = _by_id()
