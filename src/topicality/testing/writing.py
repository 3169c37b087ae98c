"""What every store has to do: writing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from topicality.errors import InputError, SpaceMismatchError, StoreError
from topicality.ports import Store
from topicality.records import (
    Begin,
    Complete,
    ConversationRecord,
    Delete,
    DuplicateExchangeError,
    Edit,
    ExchangeError,
    Fail,
    LogRun,
    Operation,
    Passage,
    PutState,
    PutTopic,
    RunRecord,
    Scope,
    StaleTopicsError,
    TopicRecord,
)
from topicality.testing.talk import ANN, SPACE, begin, change, passage, say, vector
from topicality.types import Space

BOB = Scope("bob", "c1")


class WritingContract:
    """Binding, exchanges, changes, turns, topics, state."""

    def make(self, place: Path) -> Store:
        """A new, empty store. `place` is an empty folder of the test's own."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.make(tmp_path)
        store.bind(SPACE)
        yield store
        store.close()

    # binding, closing

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)

    def test_the_first_space_binds_and_another_is_refused(self, store: Store) -> None:
        store.bind(SPACE)
        with pytest.raises(SpaceMismatchError):
            store.bind(Space("contract", 24, "2"))
        assert store.space == SPACE

    def test_vectors_of_another_dimension_or_unbound_are_refused(self, store: Store, tmp_path: Path) -> None:
        wrong = change("x", Begin("e1", "hi", (Passage(0, 2, ("hi",), np.ones(3, np.float32)),)))
        with pytest.raises(SpaceMismatchError):
            store.apply(wrong)
        with pytest.raises(SpaceMismatchError):
            store.search_vectors(ANN, [1.0, 0.0], 3)
        (tmp_path / "unbound").mkdir()
        fresh = self.make(tmp_path / "unbound")
        assert fresh.space is None
        with pytest.raises(SpaceMismatchError):
            begin(fresh, "e1", "hi", 1)
        assert begin(fresh, "e1", "hi").sequences == {"e1": 1}
        fresh.close()

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.exchanges(ANN)

    # exchanges

    def test_sequences_are_one_two_three_in_each_conversation(self, store: Store) -> None:
        assert [say(store, f"e{n}", "hi") for n in range(3)] == [1, 2, 3]
        assert say(store, "e0", "hi", scope=Scope("ann", "c2")) == 1
        assert say(store, "e0", "hi", scope=BOB) == 1

    def test_an_exchange_comes_back_as_it_was_given(self, store: Store) -> None:
        text = " Ünïcode \u202e 💬\r\n\ttext "
        store.apply(change("1", Begin("e1", text, (), 0.0, "Ann", 5.5, {"a": [1, {"b": None}]})))
        store.apply(change("2", Complete("e1", "", (), 1.25, "Bot")))
        found = store.exchange("ann", "c1", "e1")
        assert found is not None
        assert found.reply is not None
        assert (found.user.text, found.user.at, found.user.name, found.begun_at) == (text, 0.0, "Ann", 5.5)
        assert (found.reply.text, found.reply.at, found.reply.name, found.status) == ("", 1.25, "Bot", "completed")
        assert found.meta == {"a": [1, {"b": None}]}
        assert store.exchanges(ANN) == [found]

    def test_beginning_again_with_the_same_text_changes_nothing(self, store: Store) -> None:
        say(store, "e1", "hello", seed=1)
        lines = list(store.export())
        again = store.apply(change("other id", Begin("e1", "hello", passage("hello", 1))))
        assert again.sequences == {"e1": 1}
        assert list(store.export()) == lines

    def test_beginning_again_with_another_text_is_an_error(self, store: Store) -> None:
        begin(store, "e1", "hello")
        with pytest.raises(DuplicateExchangeError) as error:
            store.apply(change("other id", Begin("e1", "goodbye")))
        assert "goodbye" not in str(error.value)
        assert "hello" not in str(error.value)

    def test_the_same_text_under_two_ids_is_two_exchanges(self, store: Store) -> None:
        assert [say(store, "a", "ok"), say(store, "b", "ok")] == [1, 2]

    @pytest.mark.parametrize("kind", ["completed", "failed", "unknown", "deleted"])
    @pytest.mark.parametrize("operation", [Complete("e1", "late"), Fail("e1", "late")])
    def test_only_a_pending_exchange_completes_or_fails(
        self, store: Store, kind: str, operation: Complete | Fail
    ) -> None:
        if kind != "unknown":
            begin(store, "e1", "hi")
            ends: dict[str, Operation] = {
                "completed": Complete("e1", "yes"),
                "failed": Fail("e1", "no"),
                "deleted": Delete("e1"),
            }
            store.apply(change("end", ends[kind]))
        before = list(store.export())
        with pytest.raises(ExchangeError) as error:
            store.apply(change("late", operation))
        assert error.value.status == (None if kind == "unknown" else kind)
        assert list(store.export()) == before

    def test_pending_and_failed_exchanges_are_never_found(self, store: Store) -> None:
        begin(store, "e1", "zebra", 1)
        begin(store, "e2", "zebra", 1)
        store.apply(change("f", Fail("e2", "model down")))
        assert store.search_vectors(ANN, vector(1), 5) == []
        assert store.search_words(ANN, ["zebra"], 5).hits == ()
        assert [e.status for e in store.exchanges(ANN)] == ["pending", "failed"]
        assert store.passages(ANN) == []

    def test_old_pending_exchanges_time_out(self, store: Store) -> None:
        begin(store, "old", "hi", at=100.0)
        begin(store, "edge", "hi", at=200.0)
        begin(store, "new", "hi", at=201.0)
        begin(store, "theirs", "hi", at=100.0, scope=BOB)
        assert store.sweep(300.0, 100.0, owner="ann") == 2
        assert store.sweep(300.0, 100.0, owner="ann") == 0
        assert [e.status for e in store.exchanges(ANN)] == ["failed", "failed", "pending"]
        assert store.exchanges(ANN)[0].failure == "timed out"
        assert store.sweep(300.0, 100.0) == 1

    def test_exchanges_are_read_by_range_time_status_and_from_the_end(self, store: Store) -> None:
        for n in range(1, 8):
            say(store, f"e{n}", "hi", at=None if n == 4 else n * 10.0)
        begin(store, "e8", "hi", at=80.0)

        def sequences(scope: Scope, **options: int) -> list[int]:
            return [
                e.sequence for e in store.exchanges(scope, newest=options.get("newest"), limit=options.get("limit"))
            ]

        assert sequences(ANN) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert sequences(replace(ANN, sequences=((6, 9), (2, 3)))) == [2, 3, 6, 7, 8]
        assert sequences(replace(ANN, sequences=tuple((n, n) for n in range(1, 2000, 2)))) == [1, 3, 5, 7]
        assert sequences(replace(ANN, since=20.0, until=60.0)) == [2, 3, 5]
        assert sequences(ANN, newest=2) == [7, 8]
        assert sequences(replace(ANN, sequences=((1, 2), (4, 5))), newest=3) == [2, 4, 5]
        assert sequences(ANN, limit=2) == [1, 2]
        assert [e.id for e in store.exchanges(ANN, statuses=["pending"])] == ["e8"]

    # changes and turns

    def test_a_change_is_all_or_nothing(self, store: Store) -> None:
        before = list(store.export())
        bad = change(
            "x", Begin("e1", "hi", passage("hi", 1)), PutState("s", b"1"), PutTopic(TopicRecord("t")), Fail("e9", "")
        )
        with pytest.raises(ExchangeError):
            store.apply(bad)
        assert list(store.export()) == before
        assert say(store, "e2", "hi") == 1

    def test_a_change_applies_once(self, store: Store) -> None:
        first = change("x", Begin("e1", "hi"), PutTopic(TopicRecord("t1")), PutTopic(TopicRecord("t2")))
        one = store.apply(first)
        store.apply(change("y", PutState("s", b"2"), Complete("e1", "yes")))
        two = store.apply(first)
        assert (one.sequences, one.topics, one.repeated) == ({"e1": 1}, {"t1": 1, "t2": 2}, False)
        assert (two.sequences, two.topics, two.repeated) == (one.sequences, one.topics, True)
        assert store.apply(change("y", Complete("e1", "yes"))).repeated
        assert len(store.exchanges(ANN)) == 1
        assert store.apply(replace(first, conversation="c2")).repeated is False

    def test_one_change_may_begin_and_complete(self, store: Store) -> None:
        store.apply(change("x", Begin("e1", "hi", passage("hi", 1)), Complete("e1", "yes", passage("yes", 2))))
        assert [hit.side for hit in store.search_vectors(ANN, vector(2), 1)] == ["assistant"]

    def test_an_error_inside_a_turn_undoes_it(self, store: Store) -> None:
        say(store, "e1", "hi")
        before = list(store.export())

        def fails() -> None:
            with store.turn("ann", "c1") as turn:
                turn.apply(change("x", Begin("e2", "hi"), PutState("s", b"1")))
                assert turn.state("s") == b"1"
                assert turn.info().exchanges == 2
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fails()
        assert list(store.export()) == before

    def test_a_refused_change_leaves_the_rest_of_its_turn(self, store: Store) -> None:
        with store.turn("ann", "c1") as turn:
            turn.apply(change("1", Begin("e1", "hi", passage("hi"))))
            with pytest.raises(ExchangeError):
                turn.apply(change("2", Begin("e2", "hi"), Fail("e9", "")))
            ghost = (Begin("e2", "ghost", passage("ghost", 1)), Complete("e2", "ghost", passage("ghost", 2)))
            with pytest.raises(ExchangeError):
                turn.apply(change("ghost", *ghost, PutState("s", b"ghost"), Fail("e9", "")))
            assert turn.apply(change("3", Begin("e3", "hi"))).sequences == {"e3": 2}
        assert [e.id for e in store.exchanges(ANN)] == ["e1", "e3"]
        assert store.state("ann", "c1", "s") is None
        assert store.search_words(ANN, ["ghost"], 5).frequencies == {"ghost": 0}
        assert store.passages(ANN) == []

    def test_a_turn_that_writes_nothing_leaves_nothing(self, store: Store) -> None:
        with store.turn("ann", "c1") as turn:
            assert (turn.info().exchanges, turn.exchanges(), turn.topics(), turn.state("s")) == (0, [], [], None)
        assert store.conversations("ann") == []

    def test_a_turn_reads_what_a_store_reads(self, store: Store) -> None:
        for n in range(1, 6):
            say(store, f"e{n}", "hi")
        dropped = PutTopic(TopicRecord("t2", status="dropped"))
        store.apply(change("t", PutTopic(TopicRecord("t1")), dropped, PutTopic(TopicRecord("t3"))))
        with store.turn("ann", "c1") as turn:
            assert turn.exchange("e2") == store.exchange("ann", "c1", "e2")
            assert turn.exchange("nope") is None
            assert [e.sequence for e in turn.exchanges(newest=2)] == [4, 5]
            assert [e.sequence for e in turn.exchanges(sequences=((2, 3),), statuses=["completed"])] == [2, 3]
            assert [topic.id for topic in turn.topics()] == ["t1", "t3"]
            assert [topic.id for topic in turn.topics(["t3", "t2", "t1", "t9"])] == ["t1", "t3"]
            assert turn.topics([]) == []
            assert turn.info() == store.conversations("ann")[0]
            with pytest.raises(InputError, match="another conversation"):
                turn.apply(change("x", PutState("s", b""), scope=BOB))

    def test_turns_exclude_each_other(self, store: Store) -> None:
        """Eight threads count in a state: read, add one, write."""

        def count(name: int) -> None:
            for step in range(5):
                with store.turn("ann", "c1") as turn:
                    value = int(turn.state("n") or b"0")
                    turn.apply(change(f"{name}.{step}", PutState("n", str(value + 1).encode())))

        threads = [threading.Thread(target=count, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.state("ann", "c1", "n") == b"40"

    @pytest.mark.parametrize(
        "operation",
        [
            Begin("", "hi"),
            Begin("x" * 201, "hi"),
            Begin("e1", "nul \0"),
            Begin("e1", "half \ud83d"),
            Begin("e1", "hi", at=float("nan")),
            Begin("e1", "hi", meta={"x": object()}),
            Begin("e1", "hi", meta={"x": "\0"}),
            Begin("e1", "hi", (Passage(0, 3),)),
            Begin("e1", "hi", (Passage(0, 2, ("two words",)),)),
            Begin("e1", "hi", (Passage(0, 2, ("",)),)),
            Begin("e1", "hi", (Passage(0, 2, (), np.zeros(SPACE.dimension, np.float32)),)),
            Begin("e1", "hi", (Passage(0, 2, (), np.full(SPACE.dimension, np.nan, np.float32)),)),
            PutTopic(TopicRecord("t", spans=((3, 2),))),
            PutTopic(TopicRecord("t", status="done")),  # type: ignore[arg-type]  # what a caller without types may do
            PutState("", b""),
        ],
    )
    def test_what_cannot_be_kept_is_refused(self, store: Store, operation: Begin | PutTopic | PutState) -> None:
        before = list(store.export())
        with pytest.raises(InputError):
            store.apply(change("x", PutState("s", b"1"), operation))
        assert list(store.export()) == before

    def test_a_scope_names_an_owner(self) -> None:
        with pytest.raises(InputError):
            Scope("")
        with pytest.raises(InputError):
            Scope("ann", "")
        with pytest.raises(InputError):
            Scope("ann", None, ((1, 2),))

    # topics, state, runs

    def test_topics_keep_id_and_number(self, store: Store) -> None:
        topic = TopicRecord("t1", 0, "open", ("a", "b"), ("x",), ((1, 2), (5, 5)), 0.0, None, 3.5, {"k": [1]})
        assert store.apply(change("1", PutTopic(topic), PutTopic(TopicRecord("t2")))).topics == {"t1": 1, "t2": 2}
        store.apply(change("2", PutTopic(replace(topic, status="finalized", labels=("c", "é")))))
        store.apply(change("3", PutTopic(TopicRecord("t2", status="dropped"))))
        assert store.apply(change("4", PutTopic(TopicRecord("t3")))).topics == {"t3": 3}
        first, third = store.topics("ann", "c1")
        assert first == ("c1", replace(topic, number=1, status="finalized", labels=("c", "é")))
        assert (third[1].id, third[1].number) == ("t3", 3)
        assert [t.number for _, t in store.topics("ann", dropped=True)] == [1, 2, 3]

    def test_topics_written_for_an_old_version_are_refused(self, store: Store) -> None:
        store.apply(change("1", PutTopic(TopicRecord("t1"))))
        version = store.conversations("ann")[0].topics_version
        say(store, "e1", "hi")
        store.apply(change("2", PutTopic(TopicRecord("t1", status="finalized")), expect=version))
        with pytest.raises(StaleTopicsError):
            store.apply(change("3", PutTopic(TopicRecord("t1")), PutState("s", b"1"), expect=version))
        assert store.state("ann", "c1", "s") is None
        assert store.topics("ann", "c1")[0][1].status == "finalized"

    def test_state_is_kept_replaced_and_removed(self, store: Store) -> None:
        store.apply(change("1", PutState("drift", b"\x00\xff"), PutState("other", b"")))
        assert (store.state("ann", "c1", "drift"), store.state("ann", "c1", "other")) == (b"\x00\xff", b"")
        store.apply(change("2", PutState("drift", b"2")))
        store.apply(change("3", PutState("drift", None), PutState("none", None)))
        assert store.state("ann", "c1", "drift") is None

    def test_the_run_log_keeps_the_newest(self, store: Store) -> None:
        for n in range(120):
            store.apply(change(f"r{n}", LogRun(RunRecord(f"run{n}", float(n), "accepted", {"n": n}))))
        log = store.runs("ann", "c1", limit=500)
        assert [run.data["n"] for run in log] == list(range(119, 19, -1))
        assert store.runs("ann", "c1", limit=1) == log[:1]
        assert store.runs("bob", "c1") == []

    def test_counts_follow_every_change(self, store: Store) -> None:
        say(store, "e1", "one two three", "four five", at=10.0)
        begin(store, "e2", "six", at=5.0)
        info = store.conversations("ann")[0]
        assert (info.exchanges, info.passages, info.words, info.last_at) == (2, 2, 5, 11.0)
        store.apply(change("d", Edit("e1", "user", "one", passage("one")), Fail("e2", "x")))
        info = store.conversations("ann")[0]
        assert (info.exchanges, info.passages, info.words) == (2, 2, 3)

    def test_conversations_page_without_gaps(self, store: Store) -> None:
        names = sorted(["b", "a", "Z", "é", "c10", "c2", "ä", "_"])
        for name in names:
            say(store, "e", "hi", scope=Scope("ann", name))
        say(store, "e", "hi", scope=BOB)
        seen: list[str] = []
        while page := store.conversations("ann", after=seen[-1] if seen else "", limit=3):
            seen += [info.id for info in page]
        assert seen == names

    def test_a_conversation_is_looked_up_by_its_id(self, store: Store) -> None:
        assert store.conversation("ann", "c1") == ConversationRecord("ann", "c1")
        say(store, "e1", "hi there", at=5.0)
        say(store, "e1", "hi", scope=BOB)
        found = store.conversation("ann", "c1")
        assert [found] == store.conversations("ann")
        with store.turn("ann", "c1") as turn:
            assert turn.info().born == found.born > 0
        assert store.conversation("bob", "c1").born != found.born
        store.erase("ann")
        say(store, "e1", "begun again")
        assert store.conversation("ann", "c1").born not in (0, found.born)
