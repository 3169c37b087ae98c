"""Where conversations are kept: `open_store(url)` gives a `Store`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from topicality.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from topicality.ports import Store

__all__ = ["open_store"]


def open_store(url: str, *, runs: int = 100, patience: float = 30.0, cache: int = 256 << 20) -> Store:
    """Open a store, making it or bringing it up to date where needed.

    Args:
        url: "memory://"; "sqlite:///chat.db" (three slashes: relative, four: absolute) or just a path;
            "postgresql://user:password@host/database" (PostgreSQL 14 or later).
        runs: how many runs of background workers each conversation's log keeps.
        patience: seconds to wait for somebody else who holds a conversation.
        cache: bytes of vectors kept in memory for searching; more conversations than fit are read again.
    Returns:
        A store that many threads may use, beside other processes that opened the same URL. Close it when done.
    Raises:
        ConfigError: an address of no known kind. MissingExtraError: its libraries are not installed.
        NewerSchemaError: a later release wrote it. StoreError: it cannot be opened; says what to do.
    """
    kind, separator, rest = url.partition("://")
    if not url.strip() or (separator and kind not in ("memory", "sqlite", "postgresql", "postgres")):
        accepted = "memory://, sqlite:///PATH, a path, or postgresql://…"
        raise ConfigError("unknown kind of store", key="store", got=kind if separator else url, accepted=accepted)
    if separator and kind == "memory":
        from topicality.store.memory import MemoryStore

        return MemoryStore(runs=runs, patience=patience)
    try:
        from topicality.store.connect import postgres_engine, sqlite_engine
        from topicality.store.sql import SqlStore

        if find_spec("alembic") is None:  # not loaded unless there is something to migrate
            raise ModuleNotFoundError("alembic")
    except ImportError as error:
        raise MissingExtraError("keeping conversations in a database", "store") from error
    if separator and kind != "sqlite":
        return SqlStore(postgres_engine(url, patience), "PostgreSQL", runs=runs, room=cache)
    path = rest.removeprefix("/") if separator else url
    if not path:
        raise ConfigError(
            "no file is named", key="store", got=url, accepted="sqlite:///PATH, or memory:// to keep nothing"
        )
    return SqlStore(sqlite_engine(path, patience), path, runs=runs, room=cache)
