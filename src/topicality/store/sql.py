"""The store on SQLite or PostgreSQL: one schema, one code path, through SQLAlchemy Core."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from numpy.typing import ArrayLike
from sqlalchemy import Connection, Engine, select

from topicality.errors import SpaceMismatchError, StoreError
from topicality.records import (
    Applied,
    Change,
    ConversationRecord,
    Delete,
    Edit,
    Exchange,
    ExchangeStatus,
    Fail,
    Hit,
    Imported,
    RunRecord,
    Scope,
    StoredPassage,
    TopicRecord,
    WordHits,
)
from topicality.store import rows, rules, transfer
from topicality.store import schema as t
from topicality.store.connect import migrate, translated
from topicality.store.find import Finder
from topicality.store.prepared import literally
from topicality.store.rows import Talk
from topicality.store.transfer import Bundle
from topicality.store.write import Writer, erase, hold, put_setting
from topicality.types import Space


class SqlTurn:
    """See `ports.Turn`."""

    def __init__(self, connection: Connection, scope: Scope, writer: Writer, space: Space | None) -> None:
        self._connection = connection
        self._scope = scope
        self._writer = writer
        self._space = space
        self.changed = False
        self.ended = False
        self.removed = False

    def info(self) -> ConversationRecord:
        """See `ports.Turn.info`."""
        return self._writer.info()

    def exchange(self, exchange: str) -> Exchange | None:
        """See `ports.Turn.exchange`."""
        return self._writer.exchange(exchange)

    def exchanges(
        self,
        *,
        sequences: tuple[tuple[int, int], ...] = (),
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
    ) -> list[Exchange]:
        """See `ports.Turn.exchanges`."""
        scope = Scope(self._scope.owner, self._scope.conversation, sequences)
        return rows.exchanges(self._connection, [scope], statuses, newest)

    def topics(self, ids: Sequence[str] | None = None) -> list[TopicRecord]:
        """See `ports.Turn.topics`."""
        if ids is not None:
            return rows.topics_named(self._connection, self._writer.key, ids)
        return [topic for _, topic in rows.topics(self._connection, self._scope, dropped=False)]

    def state(self, name: str) -> bytes | None:
        """See `ports.Turn.state`."""
        return rows.state(self._connection, self._writer.key, name)

    def apply(self, change: Change) -> Applied:
        """See `ports.Turn.apply`."""
        rules.check(change, self._space)
        if self.ended:
            raise StoreError("an earlier error ended this turn; begin another one")
        counts = dict(self._writer.counts)
        literally(self._connection, "SAVEPOINT topicality")
        try:
            applied = self._writer.apply(change)
        except BaseException:
            self._writer.undo(counts)
            self.ended = True
            with suppress(Exception):  # a full disk or a lost connection has undone everything, and left no savepoint
                literally(self._connection, "ROLLBACK TO SAVEPOINT topicality")
                self.ended = False
            raise
        literally(self._connection, "RELEASE SAVEPOINT topicality")
        self.note(change, applied)
        return applied

    def note(self, change: Change, applied: Applied) -> None:
        """Remember that something was written, and whether something was taken away."""
        self.changed = self.changed or not applied.repeated
        self.removed = self.removed or any(isinstance(operation, Edit | Delete) for operation in change.operations)


class SqlStore:
    """See `ports.Store`.

    Args:
        engine: from `connect.sqlite_engine` or `connect.postgres_engine`. where: what errors call the store.
        runs: how many runs a conversation's log keeps. room: bytes of vectors kept in memory (see `near`).
    """

    def __init__(self, engine: Engine, where: str, *, runs: int = 100, room: int = 256 << 20) -> None:
        self._engine = engine
        self._writes = engine.execution_options(topicality_writes=True)
        self._where = where
        self._runs = runs
        self._finder = Finder(room)
        self._closed = False
        self._shared = threading.local()
        try:
            with translated(where):
                migrate(engine)
                with self._reading() as connection:
                    self._space = _space(connection)
        except BaseException:
            engine.dispose()
            raise

    @property
    def space(self) -> Space | None:
        """See `ports.Store.space`."""
        return self._space

    def bind(self, space: Space) -> None:
        """See `ports.Store.bind`."""
        if self._space is None:
            with self._writing() as connection:
                put_setting(connection, "space", _dumped(space))
                have = _space(connection)
            self._space = have
        if self._space != space:
            raise SpaceMismatchError(
                self._space, space, hint="open another store for this encoder, or embed the transcripts again"
            )

    @contextmanager
    def turn(self, owner: str, conversation: str) -> Iterator[SqlTurn]:
        """See `ports.Store.turn`."""
        scope = Scope(owner, conversation or "")
        with self._writing() as connection:
            space = self._bound(connection)
            writer = Writer(connection, hold(connection, owner, conversation), space, self._runs)
            turn = SqlTurn(connection, scope, writer, space)
            yield turn
            if turn.changed and not turn.ended:
                writer.finish()
            else:
                connection.get_transaction().rollback()  # type: ignore[union-attr]  # begun in `_writing`
        if turn.removed:
            self._tidy()

    def apply(self, change: Change) -> Applied:
        """See `ports.Store.apply`."""
        rules.check(change, self.space if self._space is not None else self._reread())
        with self._writing() as connection:
            held = hold(connection, change.owner, change.conversation)
            writer = Writer(connection, held, self._space, self._runs)
            applied = writer.apply(change)
            writer.finish()
        if any(isinstance(operation, Edit | Delete) for operation in change.operations):
            self._tidy()
        return applied

    def conversations(self, owner: str, *, after: str = "", limit: int | None = None) -> list[ConversationRecord]:
        """See `ports.Store.conversations`."""
        query = select(t.conversation).where(t.conversation.c.owner == owner, t.conversation.c.name > after)
        query = query.order_by(t.conversation.c.name).limit(limit)
        with self._reading() as connection:
            return [rows.info(Talk._make(row)) for row in connection.execute(query)]

    def conversation(self, owner: str, conversation: str) -> ConversationRecord:
        """See `ports.Store.conversation`."""
        with self._reading() as connection:
            found = rows.talks(connection, Scope(owner, conversation))
            return rows.info(found[0]) if found else ConversationRecord(owner, conversation)

    def exchange(self, owner: str, conversation: str, exchange: str) -> Exchange | None:
        """See `ports.Store.exchange`."""
        with self._reading() as connection:
            found = rows.talks(connection, Scope(owner, conversation))
            row = rows.one_exchange(connection, found[0].key, exchange) if found else None
            return None if row is None else rows.exchange_of(row, owner, conversation)

    def exchanges(
        self,
        *scopes: Scope,
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
        limit: int | None = None,
    ) -> list[Exchange]:
        """See `ports.Store.exchanges`."""
        with self._reading() as connection:
            return rows.exchanges(connection, scopes, statuses, newest, limit)

    def passages(self, *scopes: Scope) -> list[StoredPassage]:
        """See `ports.Store.passages`."""
        with self._reading() as connection:
            return rows.passages(connection, scopes)

    def topics(
        self, owner: str, conversation: str | None = None, *, dropped: bool = False
    ) -> list[tuple[str, TopicRecord]]:
        """See `ports.Store.topics`."""
        with self._reading() as connection:
            return rows.topics(connection, Scope(owner, conversation), dropped)

    def state(self, owner: str, conversation: str, name: str) -> bytes | None:
        """See `ports.Store.state`."""
        with self._reading() as connection:
            found = rows.talks(connection, Scope(owner, conversation))
            return rows.state(connection, found[0].key, name) if found else None

    def runs(self, owner: str, conversation: str, *, limit: int = 100) -> list[RunRecord]:
        """See `ports.Store.runs`."""
        with self._reading() as connection:
            return rows.runs(connection, Scope(owner, conversation), limit)

    def search_vectors(self, scope: Scope, vector: ArrayLike, limit: int) -> list[Hit]:
        """See `ports.Store.search_vectors`."""
        query = rules.checked(vector, self.space if self._space is not None else self._reread())
        with self._reading() as connection:
            return self._finder.vectors(connection, scope, query, limit) if limit > 0 else []

    def search_words(self, scope: Scope, terms: Sequence[str], limit: int) -> WordHits:
        """See `ports.Store.search_words`."""
        with self._reading(snapshot=True) as connection:
            space = self._bound(connection)
            return self._finder.words(connection, scope, terms, limit, 1 if space is None else space.dimension)

    def sweep(self, now: float, timeout: float, *, owner: str | None = None) -> int:
        """See `ports.Store.sweep`."""
        table = t.exchange
        query = (
            select(t.conversation.c.owner, t.conversation.c.name, table.c.id, table.c.sequence)
            .join(t.conversation, t.conversation.c.key == table.c.conversation)
            .where(table.c.status == "pending", table.c.begun_at <= now - timeout)
        )
        with self._reading() as connection:
            late = connection.execute(query if owner is None else query.where(t.conversation.c.owner == owner)).all()
        swept = 0
        for who, name, exchange, sequence in late:
            with self.turn(who, name) as turn:
                known = turn.exchange(exchange)
                if known is not None and known.status == "pending":
                    turn.apply(Change(f"sweep:{sequence}", who, name, (Fail(exchange, "timed out"),)))
                    swept += 1
        return swept

    def export(self, owner: str | None = None, conversation: str | None = None) -> Iterator[str]:
        """See `ports.Store.export`."""
        query = select(t.conversation).order_by(t.conversation.c.owner, t.conversation.c.name)
        query = query if owner is None else query.where(t.conversation.c.owner == owner)
        query = query if conversation is None else query.where(t.conversation.c.name == conversation)
        with self._reading(snapshot=True) as connection:
            yield transfer.header(self._bound(connection))
            for row in connection.execute(query).all():
                yield from rows.bundle(connection, Talk._make(row)).lines()

    def load(self, lines: Iterable[str]) -> Imported:
        """See `ports.Store.load`."""
        with self._writing() as connection:
            have = self._bound(connection)
            space, bundles = transfer.read(lines, have)
            if have is None and space is not None:
                put_setting(connection, "space", _dumped(space))

            def existing(owner: str, conversation: str) -> Bundle | None:
                found = rows.talks(connection, Scope(owner, conversation))
                return rows.bundle(connection, found[0]) if found else None

            def put(bundle: Bundle) -> None:
                held = hold(connection, bundle.owner, bundle.conversation)
                writer = Writer(connection, held, have or space, self._runs)
                writer.restore(bundle)
                writer.finish()

            imported = transfer.merge(bundles, existing, put)
        self._space = have or space
        return imported

    def erase(self, owner: str, conversation: str | None = None) -> int:
        """See `ports.Store.erase`. On SQLite the bytes are overwritten; PostgreSQL frees them at its next vacuum."""
        query = select(t.conversation.c.key).where(t.conversation.c.owner == owner)
        query = query.order_by(t.conversation.c.name)  # in one order: no deadlocks
        query = query if conversation is None else query.where(t.conversation.c.name == conversation)
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                query = query.with_for_update()
            gone = erase(connection, connection.execute(query).scalars().all())
        self._finder.clear()
        self._tidy()
        return gone

    def close(self) -> None:
        """See `ports.Store.close`."""
        self._closed = True
        self._finder.clear()
        self._engine.dispose()

    @contextmanager
    def moment(self) -> Iterator[None]:
        """See `ports.Store.moment`."""
        with self._reading(snapshot=True) as connection:
            before = getattr(self._shared, "connection", None)
            if before is None:
                connection.execution_options(**{rows.HELD: {}})
            self._shared.connection = connection
            try:
                yield
            finally:
                self._shared.connection = before

    @contextmanager
    def _reading(self, *, snapshot: bool = False) -> Iterator[Connection]:
        self._check_open()
        shared = getattr(self._shared, "connection", None)
        if shared is not None:
            with translated(self._where):
                yield shared
            return
        with translated(self._where), self._engine.connect() as connection:
            if snapshot and connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")  # noqa: PLW2901 - same connection
            with connection.begin():
                yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._check_open()
        with translated(self._where), self._writes.begin() as connection:
            yield connection

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where} is closed; open it again")

    def _bound(self, connection: Connection) -> Space | None:
        if self._space is None:
            self._space = _space(connection)  # another process may have bound it since
        return self._space

    def _reread(self) -> Space | None:
        with self._reading() as connection:
            return self._bound(connection)

    def _tidy(self) -> None:
        """Move what was overwritten from SQLite's log to the file, so that removed text is in neither."""
        if self._engine.dialect.name == "sqlite":
            with translated(self._where), self._engine.connect() as connection:
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]  # open


def _dumped(space: Space) -> str:
    return json.dumps(asdict(space))


def _space(connection: Connection) -> Space | None:
    value = connection.execute(select(t.setting.c.value).where(t.setting.c.name == "space")).scalar()
    return None if value is None else Space(**json.loads(value))
