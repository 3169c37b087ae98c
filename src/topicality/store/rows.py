"""Rows to values and back: the reading half of the SQL store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, or_, select

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
from topicality.store.prepared import Prepared, among, listed
from topicality.store.transfer import Bundle, Kept
from topicality.types import Message

RANGES = 200  # in one statement: SQLite refuses expressions nested deeper than 1,000
HELD = "topicality_held"  # option of a connection that sees one moment: what was read of conversations


class Talk(NamedTuple):
    """The row of a conversation: see `schema.conversation`."""

    key: int
    owner: str
    name: str
    exchanges: int
    topics: int
    topics_version: int
    changes: int
    numbers: int
    passages: int
    words: int
    last_at: float | None
    posted: int


def info(row: Talk) -> ConversationRecord:
    """A conversation's counts."""
    return ConversationRecord(
        row.owner, row.name, row.exchanges, row.topics, row.topics_version, row.passages, row.words, row.last_at,
        row.key,
    )  # fmt: skip


def exchange_of(row: Sequence[Any], owner: str, conversation: str) -> Exchange:
    """An exchange."""
    _, sequence, key, status, text, at, name, reply_text, reply_at, reply_name, failure, begun_at, meta = row
    reply = None if reply_text is None else Message("assistant", reply_text, reply_at, name=reply_name)
    user = Message("user", text, at, name=name)
    plain = {} if meta == "{}" else json.loads(meta)
    return Exchange(owner, conversation, sequence, key, status, user, reply, failure, begun_at, plain)


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


def topic_of(row: Sequence[Any]) -> TopicRecord:
    """A topic, from the columns behind its conversation."""
    number, key, status, labels, terms, spans, started_at, ended_at, updated_at, meta = row
    return TopicRecord(
        key,
        number,
        status,
        tuple(json.loads(labels)),
        tuple(json.loads(terms)),
        tuple((first, last) for first, last in json.loads(spans)),
        started_at,
        ended_at,
        updated_at,
        {} if meta == "{}" else json.loads(meta),
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


def run_of(row: Sequence[Any]) -> RunRecord:
    """A run."""
    return RunRecord(row[2], row[3], row[4], json.loads(row[5]))


def passages_of(rows: Sequence[Sequence[Any]], conversation: str) -> list[StoredPassage]:
    """Passages, their vectors decoded."""
    vectors = rules.decoded([row[-1] for row in rows])
    found: list[StoredPassage] = []
    for (_, sequence, side, position, _, first, last, at, terms, _), vector in zip(rows, vectors, strict=True):
        spoken = tuple(terms.split(" ")) if terms else ()
        found.append(StoredPassage(conversation, sequence, SIDES[side], position, first, last, at, spoken, vector))
    return found


def held(connection: Connection, owner: str, conversation: str) -> Talk | None:
    """A conversation's row. PostgreSQL locks it until the transaction ends; SQLite's holds everything anyway."""
    row = _HELD.row(connection, owner=owner, name=conversation)
    return None if row is None else Talk._make(row)


def talks(connection: Connection, scope: Scope) -> list[Talk]:
    """The conversations of a scope by name: the only way in to any row. Read once in a moment that is held."""
    held: dict[tuple[str, str | None], list[Talk]] | None = connection.get_execution_options().get(HELD)
    place = scope.owner, scope.conversation
    if held is not None and place in held:
        return held[place]
    if scope.conversation is None:
        found = [Talk._make(row) for row in _TALKS.rows(connection, owner=scope.owner)]
    else:
        found = [Talk._make(row) for row in _TALK.rows(connection, owner=scope.owner, name=scope.conversation)]
    if held is not None:
        held[place] = found
    return found


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


def listing(scope: Scope) -> list[int] | None:
    """A scope's sequences one by one, where nothing else narrows it and that is how to look them up; else None."""
    if not scope.sequences or scope.since is not None or scope.until is not None or scope.sides:
        return None
    if sum(last - first + 1 for first, last in scope.sequences) > _CHUNK:
        return None
    return sorted({number for first, last in scope.sequences for number in range(first, last + 1)})


def one_exchange(connection: Connection, key: int, exchange: str) -> Sequence[Any] | None:
    """The row of an exchange by id."""
    return _BY_ID.row(connection, key=key, exchange=exchange)


def exchanges(
    connection: Connection,
    scopes: Sequence[Scope],
    statuses: Sequence[ExchangeStatus] = (),
    newest: int | None = None,
    limit: int | None = None,
) -> list[Exchange]:
    """See `ports.Store.exchanges`."""
    found: list[Exchange] = []
    for scope in scopes:
        numbers = listing(scope) if newest is None and limit is None else None
        if numbers is not None:
            for name, *row in _listed(connection, _BY_SEQUENCE, scope, numbers):
                if row[3] in statuses if statuses else row[3] != "deleted":
                    found.append(exchange_of(row, scope.owner, name))
            continue
        if newest is not None and limit is None and statuses and not scope.filtered and scope.conversation is not None:
            place = {"owner": scope.owner, "name": scope.conversation, "most": max(0, newest)}
            latest = _NEWEST.rows(connection, **place, statuses=listed(connection, list(statuses)))
            found += [exchange_of(row, scope.owner, name) for name, *row in reversed(latest)]
            continue
        for talk in talks(connection, scope):
            most = None if limit is None else limit - len(found)
            found += _exchanges(connection, talk, scope, statuses, newest, most)
    found = found if newest is None else found[max(0, len(found) - newest) :]
    return found if limit is None else found[:limit]


def _exchanges(
    connection: Connection,
    talk: Talk,
    scope: Scope,
    statuses: Sequence[ExchangeStatus],
    newest: int | None,
    limit: int | None,
) -> list[Exchange]:
    table = t.exchange
    found: list[Exchange] = []
    for part in ranges(table, scope):
        query = select(table).where(table.c.conversation == talk.key, *narrowed(table, table.c.user_at, scope))
        query = query.where(table.c.status.in_(statuses) if statuses else table.c.status != "deleted")
        query = query if part is None else query.where(part)
        query = query.order_by(table.c.sequence.desc() if newest is not None else table.c.sequence)
        most = newest if newest is not None else None if limit is None else limit - len(found)
        query = query if most is None else query.limit(max(0, most))
        got = [exchange_of(row, talk.owner, talk.name) for row in connection.execute(query)]
        found += got[::-1] if newest is not None else got
    return found


def passages(connection: Connection, scopes: Sequence[Scope]) -> list[StoredPassage]:
    """See `ports.Store.passages`."""
    table = t.passage
    found: list[StoredPassage] = []
    for scope in scopes:
        numbers = listing(scope)
        if numbers is not None:
            listed = _listed(connection, _PASSAGES, scope, numbers)
            found += passages_of([row[1:] for row in listed], scope.conversation or "")
            continue
        for talk in talks(connection, scope):
            for part in ranges(table, scope):
                query = select(table).where(table.c.conversation == talk.key, *narrowed(table, table.c.at, scope))
                query = query.where(table.c.number.is_not(None), *([] if part is None else [part]))
                query = query.order_by(table.c.sequence, table.c.side, table.c.position)
                found += passages_of(connection.execute(query).all(), talk.name)
    return found


def _listed(connection: Connection, statement: Prepared, scope: Scope, numbers: Sequence[int]) -> list[Any]:
    place = {"owner": scope.owner, "name": scope.conversation, "numbers": listed(connection, numbers)}
    return statement.rows(connection, **place)


def topics(connection: Connection, scope: Scope, dropped: bool) -> list[tuple[str, TopicRecord]]:
    """See `ports.Store.topics`."""
    found: list[tuple[str, TopicRecord]] = []
    for talk in talks(connection, scope):
        rows = _TOPICS.rows(connection, key=talk.key)
        found += [(talk.name, topic_of(row[1:])) for row in rows if dropped or row[3] != "dropped"]
    return found


def topics_named(connection: Connection, key: int, ids: Sequence[str]) -> list[TopicRecord]:
    """Topics of a conversation by id, by number; no dropped ones."""
    rows = _TOPICS_NAMED.rows(connection, key=key, ids=listed(connection, ids))
    return [topic_of(row[1:]) for row in rows if row[3] != "dropped"]


def state(connection: Connection, key: int, name: str) -> bytes | None:
    """See `ports.Store.state`."""
    row = _STATE.row(connection, key=key, state=name)
    return None if row is None else bytes(row[0])


def runs(connection: Connection, scope: Scope, limit: int) -> list[RunRecord]:
    """See `ports.Store.runs`."""
    query = select(t.run).join(t.conversation, t.conversation.c.key == t.run.c.conversation)
    query = query.where(t.conversation.c.owner == scope.owner, t.conversation.c.name == scope.conversation)
    return [run_of(row) for row in connection.execute(query.order_by(t.run.c.key.desc()).limit(limit))]


def bundle(connection: Connection, talk: Talk) -> Bundle:
    """All of a conversation, for an export."""

    def every(table: Any, order: Any) -> Sequence[Any]:
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
        [topic_of(row[1:]) for row in every(t.topic, t.topic.c.number)],
        {row.name: bytes(row.value) for row in every(t.state, t.state.c.name)},
        [run_of(row) for row in every(t.run, t.run.c.key)],
    )  # fmt: skip


# The statements of every message and search, built once.
_TALKS = Prepared(
    select(t.conversation).where(t.conversation.c.owner == bindparam("owner")).order_by(t.conversation.c.name)
)
_ONE = select(t.conversation).where(
    t.conversation.c.owner == bindparam("owner"), t.conversation.c.name == bindparam("name")
)
_TALK = Prepared(_ONE)
_HELD = Prepared(_ONE.with_for_update())
_STATE = Prepared(
    select(t.state.c.value).where(t.state.c.conversation == bindparam("key"), t.state.c.name == bindparam("state"))
)
_BY_ID = Prepared(
    select(t.exchange).where(t.exchange.c.conversation == bindparam("key"), t.exchange.c.id == bindparam("exchange"))
)


def _of_list(table: Any) -> Select[Any]:
    """Rows of a conversation, with its name before them."""
    here = t.conversation.c
    return (
        select(here.name, table)
        .join(table, table.c.conversation == here.key)
        .where(here.owner == bindparam("owner"), here.name == bindparam("name"))
        .order_by(table.c.sequence)
    )


_BY_SEQUENCE = Prepared(lambda dialect: _of_list(t.exchange).where(among(t.exchange.c.sequence, "numbers", dialect)))
_NEWEST = Prepared(
    lambda dialect: (
        _of_list(t.exchange)
        .where(among(t.exchange.c.status, "statuses", dialect))
        .order_by(None)
        .order_by(t.exchange.c.sequence.desc())
        .limit(bindparam("most"))
    )
)
_PASSAGES = Prepared(
    lambda dialect: (
        _of_list(t.passage)
        .where(among(t.passage.c.sequence, "numbers", dialect), t.passage.c.number.is_not(None))
        .order_by(t.passage.c.side, t.passage.c.position)
    )
)
_TOPICS_NAMED = Prepared(
    lambda dialect: (
        select(t.topic)
        .where(t.topic.c.conversation == bindparam("key"), among(t.topic.c.id, "ids", dialect))
        .order_by(t.topic.c.number)
    )
)
_TOPICS = Prepared(select(t.topic).where(t.topic.c.conversation == bindparam("key")).order_by(t.topic.c.number))
