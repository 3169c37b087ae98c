"""What every store has to do: all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topicality.errors import InputError, SpaceMismatchError
from topicality.ports import Store
from topicality.records import (
    Begin,
    Complete,
    Delete,
    Edit,
    Fail,
    LogRun,
    PutState,
    PutTopic,
    RunRecord,
    Scope,
    TopicRecord,
)
from topicality.testing.finding import FindingContract
from topicality.testing.talk import ANN, SPACE, begin, change, passage, say, vector

ALL = Scope("ann")


class StoreContract(FindingContract):
    """Inherit, and define `make`: a new, empty store each time it is called."""

    def test_an_export_imports_byte_for_byte_and_twice_is_once(self, store: Store, tmp_path: Path) -> None:
        self._fill(store)
        lines = list(store.export())
        (tmp_path / "copy").mkdir()
        copy = self.make(tmp_path / "copy")
        counts = copy.load(lines)
        assert (counts.conversations, counts.exchanges, counts.known) == (2, 5, 0)
        assert list(copy.export()) == lines
        again = copy.load(lines)
        assert (again.conversations, again.exchanges, again.known) == (0, 0, 5)
        assert list(copy.export()) == lines
        assert copy.space == SPACE
        assert copy.search_vectors(ANN, vector(1), 9) == store.search_vectors(ANN, vector(1), 9)
        assert copy.search_words(ALL, ["pear"], 9) == store.search_words(ALL, ["pear"], 9)
        assert copy.conversations("ann") == store.conversations("ann")
        assert copy.apply(change("new", Complete("e4", "late", passage("pear", 8)))).sequences == {"e4": 4}
        assert say(copy, "e6", "more") == 5
        copy.close()

    @pytest.mark.parametrize("damage", ["cut", "gap", "kind", "json", "vector", "status", "version", "order", "twice"])
    def test_a_damaged_export_changes_nothing(self, store: Store, tmp_path: Path, damage: str) -> None:
        self._fill(store)
        lines = list(store.export())
        place = next(n for n, line in enumerate(lines) if '"kind":"exchange"' in line and '"sequence":2' in line)
        kept = next(n for n, line in enumerate(lines) if '"kind":"passage"' in line)
        bad = {
            "cut": [*lines[:place], lines[place][:20]],
            "gap": lines[:place] + lines[place + 1 :],
            "kind": [*lines, '{"kind":"song"}'],
            "json": [*lines, "{"],
            "vector": [*lines[:kept], json.dumps({**json.loads(lines[kept]), "vector": "AAAA"}), *lines[kept + 1 :]],
            "status": [*lines[:place], lines[place].replace('"deleted"', '"perhaps"'), *lines[place + 1 :]],
            "version": [lines[0].replace('"version":1', '"version":2'), *lines[1:]],
            "order": [lines[0], *lines[2:]],
            "twice": [*lines[: kept + 1], *lines[kept:]],
        }[damage]
        (tmp_path / "copy").mkdir()
        copy = self.make(tmp_path / "copy")
        say(copy, "here", "before", scope=Scope("zoe", "z"))
        before = list(copy.export())
        with pytest.raises(InputError):
            copy.load(bad)
        assert list(copy.export()) == before
        copy.close()

    def test_importing_over_other_content_is_refused(self, store: Store) -> None:
        self._fill(store)
        lines = list(store.export())
        store.apply(change("edit", Edit("e1", "user", "changed")))
        before = list(store.export())
        with pytest.raises(InputError, match="other content"):
            store.load(lines)
        with pytest.raises(SpaceMismatchError):
            store.load([line.replace('"contract"', '"another"') for line in lines])
        assert list(store.export()) == before

    def _fill(self, store: Store) -> None:
        say(store, "e1", "a pear\u2028", "yes\nno", seed=1, at=10.0)
        say(store, "e2", "pear pear", seed=2)
        store.apply(change("d", Delete("e2"), Begin("e3", "x"), Fail("e3", "why")))
        begin(store, "e4", "waiting pear", 4, at=0.1 + 0.2)
        say(store, "e5", "pear", seed=5, scope=Scope("ann", "c2"))
        topic = TopicRecord("t1", 0, "open", ("ä",), ("b",), ((1, 2),), 0.0, None, 1.5, {"x": 1.5})
        run = LogRun(RunRecord("r", 2.0, "accepted", {"a": []}))
        store.apply(
            change("t", PutTopic(topic), PutTopic(TopicRecord("t2", status="dropped")), PutState("s", b"\0"), run)
        )
