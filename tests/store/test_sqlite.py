"""The store in an SQLite file."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, text

from topicality.errors import ConfigError, MissingExtraError, StoreError
from topicality.ports import Store
from topicality.records import Delete, Edit, ExchangeStatus, NewerSchemaError
from topicality.store import open_store
from topicality.store.connect import _config, revisions, sqlite_engine
from topicality.store.schema import metadata
from topicality.store.sql import SqlStore
from topicality.testing import SharedStoreContract
from topicality.testing.talk import ANN, SPACE, begin, change, passage, say, vector


class TestSqliteStore(SharedStoreContract):
    def url(self, place: Path) -> str:
        return f"sqlite:///{place}/chat.db"

    def make(self, place: Path) -> Store:
        return open_store(self.url(place))


def _filled(path: Path) -> None:
    store = open_store(str(path))
    store.bind(SPACE)
    for n in range(200):
        say(store, f"e{n}", f"text number {n} zebra{n}", f"reply {n}", seed=n)
    store.close()


def test_a_path_and_a_url_are_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _filled(Path("chat #1?.db"))
    for url in ("chat #1?.db", "sqlite:///chat #1?.db", f"sqlite:///{tmp_path}/chat #1?.db"):
        store = open_store(url)
        assert len(store.exchanges(ANN)) == 200
        store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat #1?.db"]


@pytest.mark.parametrize("url", ["", "mysql://host/db", "sqlite://", "sqlite:///"])
def test_an_unknown_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="store"):
        open_store(url)


@pytest.mark.parametrize(
    ("hidden", "url", "extra"), [("alembic", "x.db", "store"), ("psycopg", "postgresql://h/d", "postgres")]
)
def test_a_missing_library_names_its_extra(hidden: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(MissingExtraError, match=rf"topicality\[{extra}\]"):
        open_store(url)


def test_a_server_that_is_not_there_says_so() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="connection to the server"):
        open_store("postgresql://nobody@localhost:1/none", patience=1.0)


def test_what_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database at all\n" * 100)
    with pytest.raises(StoreError, match="not an SQLite database"):
        open_store(str(path))
    assert path.read_text() == "no database at all\n" * 100


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE song (name)")
    with pytest.raises(StoreError, match="another program"):
        open_store(str(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("song",)]


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder exists"):
        open_store(str(tmp_path / "none" / "chat.db"))


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    _filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(StoreError, match="damaged"):  # it may be noticed when opened or when read
        list(open_store(str(path)).export())


def test_a_file_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    _filled(path)
    store = open_store(str(path))
    event.listen(store._engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=ON"))  # type: ignore[attr-defined]
    store._engine.dispose()  # type: ignore[attr-defined]
    before = list(store.export())
    with pytest.raises(StoreError, match="can only be read"):
        say(store, "new", "hi")
    assert list(store.export()) == before
    store.close()


def test_a_full_disk_says_so_and_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    _filled(path)
    store = open_store(str(path))
    event.listen(store._engine, "connect", _small)  # type: ignore[attr-defined]
    store._engine.dispose()  # type: ignore[attr-defined]
    before = list(store.export())
    with pytest.raises(StoreError, match="disk is full"):
        begin(store, "big", "x" * 1_000_000)
    assert list(store.export()) == before
    store.close()
    store = open_store(str(path))
    assert say(store, "next", "hi") == 201
    store.close()


def _small(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0] + 4}")


def test_a_conversation_held_too_long_is_an_error(tmp_path: Path) -> None:
    first = open_store(str(tmp_path / "chat.db"))
    second = open_store(str(tmp_path / "chat.db"), patience=0.1)
    with first.turn("ann", "c1"), pytest.raises(StoreError, match="too long"):
        begin(second, "e1", "hi")
    assert begin(second, "e1", "hi").sequences == {"e1": 1}
    first.close()
    second.close()


def test_removed_text_is_in_no_file(tmp_path: Path) -> None:
    """Deleted, edited and erased words are gone from the database and its log, also while it is open."""
    store = open_store(str(tmp_path / "chat.db"))
    store.bind(SPACE)

    def bytes_now() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))

    for n in range(50):
        say(store, f"e{n}", f"text zebra{n}x", f"reply giraffe{n}x", seed=n)
    for seen in (b"zebra7x", b"giraffe8x", b"zebra30x"):
        assert seen in bytes_now()
    store.apply(change("d", Delete("e7")))
    assert b"zebra7x" not in bytes_now()
    store.apply(change("e", Edit("e8", "assistant", "redacted", passage("redacted", 3))))
    assert b"giraffe8x" not in bytes_now()
    assert b"giraffe9x" in bytes_now()
    store.erase("ann")
    assert b"zebra" not in bytes_now()
    assert b"giraffe" not in bytes_now()
    store.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    _filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(NewerSchemaError, match="9999"):
        open_store(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("revision", revisions())
def test_every_released_schema_is_brought_up_to_date(tmp_path: Path, revision: str) -> None:
    """A store of each release, with rows, opens, keeps them, and has the tables that the code expects."""
    path = tmp_path / "chat.db"
    rows = json.loads(Path(__file__).with_name(f"rows_{revision}.json").read_text("utf-8"))
    engine = sqlite_engine(str(path), 5.0)
    with engine.connect().execution_options(topicality_writes=True) as connection, connection.begin():
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for table, values in rows.items():
            for row in values:
                held = {
                    name: bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
                    for name, value in row.items()
                }
                names = ", ".join(f'"{name}"' for name in held)
                places = ", ".join(f":{name}" for name in held)
                # names come from the file beside this one
                connection.execute(text(f'INSERT INTO "{table}" ({names}) VALUES ({places})'), held)  # noqa: S608
    engine.dispose()
    store = open_store(str(path))
    store.bind(SPACE)
    assert [e.user.text for e in store.exchanges(ANN)] == ["a pear", "waiting"]
    assert store.search_vectors(ANN, vector(1), 1)[0].sequence == 1
    found = store.search_words(ANN, ["pear", "indeed"], 5)
    assert [(hit.sequence, hit.side) for hit in found.hits] == [(1, "assistant"), (1, "user")]
    assert found.frequencies == {"pear": 1, "indeed": 1}
    assert [topic.labels for _, topic in store.topics("ann")] == [("fruit",)]
    assert store.state("ann", "c1", "drift") == b"\x00\x01"
    assert [run.status for run in store.runs("ann", "c1")] == ["accepted"]
    assert begin(store, "e3", "next").sequences == {"e3": 3}
    with store._engine.connect() as connection:  # type: ignore[attr-defined]
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    store.close()


def test_a_new_store_opens_in_many_processes_at_once(tmp_path: Path) -> None:
    script = "import sys; from topicality.store import open_store; open_store(sys.argv[1]).close()"
    command_line = [sys.executable, "-c", script, str(tmp_path / "chat.db")]
    running = [subprocess.Popen(command_line) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4


def test_opening_an_existing_store_does_not_load_alembic(tmp_path: Path) -> None:
    _filled(tmp_path / "chat.db")
    script = (
        "import sys; from topicality.store import open_store; open_store(sys.argv[1]); "
        "print('alembic.command' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "chat.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_what_is_read_in_a_moment_is_of_that_moment_and_no_later_passage_is_lost(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/chat.db")
    assert isinstance(store, SqlStore)
    store.bind(SPACE)
    say(store, "e1", "an early zebra", "yes", seed=1)

    def later() -> None:  # another thread's connection sees what is written now, and fills the index with it
        say(store, "e2", "a late zebra", "yes", seed=2)
        assert {hit.sequence for hit in store.search_vectors(ANN, vector(2), 9)} == {1, 2}

    with store.moment(), ThreadPoolExecutor(1) as pool:
        assert len(store.exchanges(ANN)) == 1
        pool.submit(later).result()
        assert len(store.exchanges(ANN)) == 1
        assert {hit.sequence for hit in store.search_vectors(ANN, vector(2), 9)} == {1}
        assert {hit.sequence for hit in store.search_words(ANN, ["zebra"], 9).hits} == {1}
    assert len(store.exchanges(ANN)) == 2
    assert {hit.sequence for hit in store.search_vectors(ANN, vector(2), 9)} == {1, 2}
    store.close()


@pytest.mark.parametrize("statuses", [("completed",), ("completed", "pending")])
def test_the_newest_are_the_last_of_all_with_these_statuses(
    tmp_path: Path, statuses: tuple[ExchangeStatus, ...]
) -> None:
    store = open_store(f"{tmp_path}/chat.db")
    store.bind(SPACE)
    for n in range(6):
        if n % 2:
            begin(store, f"e{n}", f"text {n}")
        else:
            say(store, f"e{n}", f"text {n}", "yes", seed=n)
    every = store.exchanges(ANN, statuses=statuses)
    for newest in (0, 1, 2, 9):
        assert store.exchanges(ANN, statuses=statuses, newest=newest) == every[max(0, len(every) - newest) :]
    store.close()
