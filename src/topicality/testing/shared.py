"""What a store has to do that several processes open at the same address."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from topicality.errors import SpaceMismatchError
from topicality.ports import Store
from topicality.records import Begin, Change, Complete, Delete, Edit, PutState, PutTopic, Scope, TopicRecord
from topicality.store import open_store
from topicality.testing.store import StoreContract
from topicality.testing.talk import ANN, SPACE, begin, change, passage, say, vector
from topicality.types import Space

WRITERS = 4
EACH = 40  # exchanges of a writer
KILLS = 6  # before a writer may go on to its second half, however fast the machine is
PATIENCE = 120.0  # seconds for all of them


class SharedStoreContract(StoreContract):
    """Inherit, and define `url`: an address `open_store` takes, new for each place and the same again for the same one."""

    def url(self, place: Path) -> str:
        """Address of a store. `place` is a folder of the test's own."""
        raise NotImplementedError

    def make(self, place: Path) -> Store:
        return open_store(self.url(place))

    @pytest.fixture
    def other(self, store: Store, tmp_path: Path) -> Iterator[Store]:
        """A second instance on the same data, as another process has it."""
        other = open_store(self.url(tmp_path))
        yield other
        other.close()

    def test_everything_survives_closing(self, store: Store, tmp_path: Path) -> None:
        self._fill(store)
        lines = list(store.export())
        near = store.search_vectors(ANN, vector(1), 9)
        store.close()
        again = open_store(self.url(tmp_path))
        assert again.space == SPACE
        assert list(again.export()) == lines
        assert again.search_vectors(ANN, vector(1), 9) == near
        with pytest.raises(SpaceMismatchError):
            again.bind(Space("other", 24))
        again.close()

    def test_two_instances_see_each_others_writes_at_once(self, store: Store, other: Store) -> None:
        for n, (writer, reader) in enumerate([(store, other), (other, store)] * 3, 1):
            assert say(writer, f"e{n}", f"word{n}", seed=n) == n
            assert reader.search_vectors(ANN, vector(n), 1)[0].sequence == n
            assert reader.search_words(ANN, [f"word{n}"], 1).hits[0].sequence == n
            assert reader.search_vectors(Scope("ann"), vector(n), 1)[0].sequence == n

    def test_what_one_instance_removes_the_other_does_not_find(self, store: Store, other: Store) -> None:
        for n in range(1, 5):
            say(store, f"e{n}", f"word{n} all", seed=n)
        assert len(other.search_vectors(ANN, vector(1), 9)) == 8
        store.apply(change("d", Delete("e1"), Edit("e2", "user", "new all", passage("new all", 9))))
        assert {hit.sequence for hit in other.search_vectors(ANN, vector(1), 9)} == {2, 3, 4}
        assert all(hit.score < 0.99 for hit in other.search_vectors(ANN, vector(2), 9))
        assert other.search_vectors(ANN, vector(9), 1)[0].sequence == 2
        only_users = Scope("ann", "c1", sides=("user",))
        assert [hit.sequence for hit in other.search_words(only_users, ["all"], 9).hits] == [2, 4, 3]
        store.erase("ann")
        assert other.search_vectors(ANN, vector(1), 9) == []
        say(store, "e1", "fresh", seed=1)
        assert [hit.sequence for hit in other.search_vectors(ANN, vector(1), 9)] == [1, 1]

    def test_the_space_another_instance_bound_counts(self, tmp_path: Path) -> None:
        first, second = open_store(self.url(tmp_path)), open_store(self.url(tmp_path))
        first.bind(SPACE)
        begin(second, "e1", "hi", 1)
        with pytest.raises(SpaceMismatchError):
            second.bind(Space("other", 24))
        first.close()
        second.close()

    @pytest.mark.slow
    def test_processes_killed_at_random_lose_and_double_nothing(self, store: Store, tmp_path: Path) -> None:
        """Writers share one conversation; one that was killed is started again and knows nothing of what it had done."""
        url = self.url(tmp_path)
        gate = tmp_path / "second half"
        dice = random.Random(20)  # noqa: S311  # when to kill is not a secret
        context = multiprocessing.get_context("spawn")
        deadline = time.monotonic() + PATIENCE

        def start(name: int) -> SpawnProcess:
            process = context.Process(target=_write, args=(url, name, gate), daemon=True)
            process.start()
            return process

        running = {name: start(name) for name in range(WRITERS)}
        kills = 0
        while running:
            assert time.monotonic() < deadline, "the writers did not come to an end"
            time.sleep(dice.uniform(0.1, 0.5))
            done = len(store.exchanges(ANN, statuses=["completed"]))
            victim = dice.choice(sorted(running))
            if kills < 2 * KILLS and done and running[victim].is_alive():
                os.kill(running[victim].pid or 0, signal.SIGKILL)
                running[victim].join()
                kills += 1
                running[victim] = start(victim)
            if kills == KILLS:
                gate.touch()
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    assert process.exitcode == 0, f"a writer failed ({process.exitcode})"
                    del running[name]
        print(f"{kills} kills", file=sys.stderr)  # noqa: T201  # pytest shows it when the test fails
        assert kills >= KILLS
        self._check_whole(store)

    def _check_whole(self, store: Store) -> None:
        found = store.exchanges(ANN)
        assert [e.sequence for e in found] == list(range(1, WRITERS * EACH + 1))
        assert {e.id for e in found} == {f"w{name}.{n}" for name in range(WRITERS) for n in range(EACH)}
        assert {e.status for e in found} == {"completed"}
        assert all(e.reply is not None and e.reply.text == f"reply {e.id}" for e in found)
        topics = [topic for _, topic in store.topics("ann", "c1")]
        assert [topic.number for topic in topics] == list(range(1, len(topics) + 1))
        assert {topic.id for topic in topics} == {f"w{name}.{n}" for name in range(WRITERS) for n in range(0, EACH, 4)}
        assert store.state("ann", "c1", "count") == str(WRITERS * EACH).encode()
        info = store.conversations("ann")[0]
        assert (info.exchanges, info.passages, info.words) == (len(found), 2 * len(found), 4 * len(found))
        assert len(store.passages(ANN)) == 2 * len(found)
        words = store.search_words(ANN, ["said", "reply", "w1.3"], 999)
        assert dict(words.frequencies) == {"said": len(found), "reply": len(found), "w1.3": 2}
        assert len(store.search_vectors(ANN, vector(0), 999)) == 2 * len(found)


def _write(url: str, name: int, gate: Path) -> None:
    """One writer: begins, completes, counts, and opens a topic now and then; all of it safe to do again."""
    store = open_store(url)
    store.bind(SPACE)
    for n in range(EACH):
        while n == EACH // 2 and not gate.exists():
            time.sleep(0.01)
        key = f"w{name}.{n}"
        said, reply = f"said {key}", f"reply {key}"
        store.apply(Change(f"b{key}", "ann", "c1", (Begin(key, said, passage(said, n)),)))
        with store.turn("ann", "c1") as turn:
            count = int(turn.state("count") or b"0")
            topics = (PutTopic(TopicRecord(key)),) if n % 4 == 0 else ()
            done = Complete(key, reply, passage(reply, n + 1000))
            turn.apply(Change(f"c{key}", "ann", "c1", (done, PutState("count", str(count + 1).encode()), *topics)))
    store.close()
