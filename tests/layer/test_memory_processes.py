"""Memory: several processes on one conversation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.layer.memory_talks import layer_on, sound

HERE = Path(__file__).parents[2]
WORK = """
import os, sys
sys.path.insert(0, {here!r})
from tests.layer.memory_talks import FLIGHT, PASTA, layer_on
url, name, times = sys.argv[1:]
layer = layer_on(url, prefix=f"{{name}}-{{os.getpid()}}-")
chat = layer.conversation("c")
done = {{exchange.id: exchange.status for exchange in chat.exchanges()}}
for number in range(int(times)):
    question, answer = [*FLIGHT, *PASTA][number // 2 % 6]
    key = f"{{name}}-{{number}}"
    if done.get(key) == "completed":
        continue
    chat.receive(question, id=key)
    chat.reply(answer, exchange=key)
    print(key, flush=True)
layer.close()
"""


def start(url: str, name: str, times: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORK.format(here=str(HERE)), url, name, str(times)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_on_one_conversation_lose_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "chat.db")
    layer_on(url).close()
    workers = [start(url, name, 15) for name in ("a", "b")]
    for worker in workers:
        _, errors = worker.communicate(timeout=100)
        assert worker.returncode == 0, errors
    layer = layer_on(url)
    exchanges = layer.conversation("c").exchanges()
    assert {e.id for e in exchanges} == {f"{name}-{n}" for name in "ab" for n in range(15)}
    assert {e.status for e in exchanges} == {"completed"}
    sound(layer)
    layer.close()


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_half_written_and_is_resumed(tmp_path: Path) -> None:
    url = str(tmp_path / "chat.db")
    layer_on(url).close()
    for round_ in range(3):
        worker = start(url, "a", 20)
        assert worker.stdout is not None
        for _ in range(2 + 2 * round_):
            worker.stdout.readline()
        worker.kill()
        worker.communicate()
        layer = layer_on(url, prefix=f"check{round_}")
        sound(layer)
        layer.close()
    last = start(url, "a", 20)
    _, errors = last.communicate(timeout=100)
    assert last.returncode == 0, errors
    layer = layer_on(url)
    exchanges = layer.conversation("c").exchanges()
    assert [e.id for e in exchanges] == [f"a-{n}" for n in range(20)]
    assert {e.status for e in exchanges} == {"completed"}
    sound(layer)
    layer.close()
