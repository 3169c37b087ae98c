"""Engines for SQLite and PostgreSQL, the migrations, and the backend's errors in words that help."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.pool import QueuePool

from topicality.errors import MissingExtraError, StoreError
from topicality.records import NewerSchemaError
from topicality.store.prepared import literally
from topicality.store.schema import REVISION

MIGRATIONS = Path(__file__).with_name("migrations")
_LOCK = 0x746F70696373  # PostgreSQL advisory lock of the migrations


def sqlite_engine(path: str, patience: float) -> Engine:
    """An engine on a database file: WAL, synchronous=NORMAL, deleted bytes overwritten, a bounded wait for the lock."""
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=path),
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=24,
        connect_args={"timeout": patience, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, never by the driver
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute(
            "PRAGMA wal_autocheckpoint=4096"
        )  # pages, 16 MiB: a change touches a page for each of its words
        connection.execute("PRAGMA cache_size=-32768")  # 32 MiB
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname.split("_")[1] not in ("READONLY", "BUSY", "LOCKED", "CANTOPEN"):
                    raise  # a file that can only be read is read as it is; a busy one is switched by the next to open it

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("topicality_writes", False)
        literally(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def postgres_engine(url: str, patience: float) -> Engine:
    """An engine on PostgreSQL 14 or later through psycopg 3, with a pool that replaces lost connections.

    Raises:
        MissingExtraError: psycopg is not installed.
    """
    try:
        import psycopg  # noqa: F401  # only to say which extra brings it
    except ImportError as error:
        raise MissingExtraError("the PostgreSQL store", "postgres") from error
    address = "postgresql+psycopg" + url[url.index("://") :]
    engine = create_engine(
        address, pool_pre_ping=True, pool_size=8, max_overflow=24, connect_args={"prepare_threshold": 2}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.execute(f"SET lock_timeout = {int(patience * 1000)}")
        connection.commit()

    return engine


def migrate(engine: Engine) -> None:
    """Bring the schema to this release's, if it is not; several processes may try at once.

    Alembic is loaded only when there is something to do.

    Raises:
        NewerSchemaError: a later release wrote it.
    """
    with engine.connect() as connection:
        found = _revision(connection)
    if found == REVISION:
        return
    with engine.connect().execution_options(topicality_writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        found = _revision(connection)
        if found == REVISION:
            return
        if found is not None and found not in revisions():
            raise NewerSchemaError(found, REVISION)
        if found is None and engine.dialect.name == "sqlite" and inspect(connection).get_table_names():
            raise StoreError(
                "the file is an SQLite database of another program; it was left unchanged. Name another file"
            )
        from alembic import command

        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def revisions() -> list[str]:
    """All released schemas, newest first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def _config() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn a backend's error into a `StoreError` that says what to do. Transactions it ended are undone by then."""
    try:
        yield
    except exc.DBAPIError as error:
        raise StoreError(f"{where}: {_advice(error.orig, error.connection_invalidated)}") from error
    except exc.TimeoutError as error:
        raise StoreError(
            f"{where}: all connections are in use; call from fewer threads at once, or try again"
        ) from error
    except Exception as error:
        if not isinstance(error, (exc.SQLAlchemyError, *_drivers())):
            raise
        raise StoreError(f"{where}: {_advice(error, lost=False)}") from error


def _drivers() -> tuple[type[Exception], ...]:
    """What the drivers raise where they are called without SQLAlchemy between (see `prepared`)."""
    loaded = sys.modules.get("psycopg")
    return (sqlite3.Error,) if loaded is None else (sqlite3.Error, loaded.Error)


_SQLITE = {
    "CORRUPT": "the database file is damaged; restore a backup, or rescue it with the sqlite3 shell's .recover",
    "NOTADB": "the file is not an SQLite database, or is damaged; name another file or restore a backup",
    "FULL": "the disk is full; nothing was written. Free some space and try again",
    "READONLY": "the database can only be read; nothing was written. Check the permissions of the file and its folder",
    "BUSY": "another process held the write lock too long; nothing was written. Try again",
    "LOCKED": "another connection held the lock too long; nothing was written. Try again",
    "CANTOPEN": "the database file cannot be opened; check that its folder exists and may be written",
    "IOERR": "reading or writing the disk failed; nothing was written. Check the disk and its free space",
}
_POSTGRES = {
    "53": "the server is out of disk, memory or connections; nothing was written. Free some and try again",
    "55": "another process held the lock too long; nothing was written. Try again",
    "40": "the server undid the transaction to end a conflict; nothing was written. Try again",
    "25": "the server refused to write (read only?); nothing was written. Check which server this is",
    "28": "the server refused the login; check user and password in the URL",
    "3D": "the database does not exist; create it first",
    "42": "the server refused the statement; check that the user may create and use tables in this schema",
    "57": "the server was stopped or cancelled the statement; nothing was written. Try again when it is back",
    "XX": "the server reports damaged data; restore a backup",
}


def _advice(cause: BaseException | None, lost: bool) -> str:
    name = getattr(cause, "sqlite_errorname", None)
    if name:
        code = name.split("_")[1]
        return _SQLITE.get(code, f"SQLite reports {name} ({cause}); nothing was written")
    state = getattr(cause, "sqlstate", None)
    if state:
        known = _POSTGRES.get(state[:2])
        return f"{known} (SQLSTATE {state})" if known else f"PostgreSQL reports SQLSTATE {state}; nothing was written"
    if lost or type(cause).__name__ in ("OperationalError", "InterfaceError"):
        return (
            "the connection to the server failed or was lost; nothing was written. Check that it runs, then try again"
        )
    return f"the backend failed ({type(cause).__name__}); nothing was written"
