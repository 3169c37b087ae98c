"""What every store has to do: finding, editing, forgetting, keeping owners apart."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from topicality.ports import Store
from topicality.records import (
    Begin,
    Complete,
    Delete,
    Edit,
    ExchangeError,
    ExchangeStatus,
    Fail,
    LogRun,
    Operation,
    Passage,
    PutState,
    PutTopic,
    RunRecord,
    Scope,
    Side,
    TopicRecord,
)
from topicality.testing.talk import ANN, begin, change, passage, say, vector
from topicality.testing.writing import WritingContract

BOB = Scope("bob", "c1")
ALL = Scope("ann")
_BEGIN = Begin("e1", "a pear", passage("a pear", 1), 1.0)
_REPLY = Complete("e1", "yes", passage("yes", 2), 2.0)
_REDACT = Edit("e1", "user", "a new one", passage("a new one", 3))
_NEXT = Begin("e2", "pear", passage("pear", 4), 3.0)


class FindingContract(WritingContract):
    """Search by vector and by words, edits, deletions, owners, erasing."""

    def test_the_nearest_vectors_come_first(self, store: Store) -> None:
        for n in range(30):
            say(store, f"e{n}", f"text {n}", seed=n)
        query = vector(7) + 0.8 * vector(8)
        hits = store.search_vectors(ANN, query, 10)
        assert [(hit.sequence, hit.side) for hit in hits[:2]] == [(8, "user"), (9, "user")]
        exact = {(n + 1, "user"): float(vector(n) @ query / np.linalg.norm(query)) for n in range(30)}
        exact |= {(n + 1, "assistant"): float(vector(n + 100_000) @ query / np.linalg.norm(query)) for n in range(30)}
        for hit in hits:
            assert hit.score == pytest.approx(exact[hit.sequence, hit.side], abs=0.01)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(store.search_vectors(ANN, query, 1000)) == 60
        assert store.search_vectors(ANN, query, 0) == []

    def test_equal_scores_come_newest_first(self, store: Store) -> None:
        for n in range(6):
            say(store, f"e{n}", "same", "", seed=1)
        assert [hit.sequence for hit in store.search_vectors(replace(ANN, sides=("user",)), vector(1), 4)] == [
            6,
            5,
            4,
            3,
        ]
        assert [hit.sequence for hit in store.search_words(ANN, ["same"], 4).hits] == [6, 5, 4, 3]

    def test_words_are_found_with_their_statistics(self, store: Store) -> None:
        say(store, "e1", "the red card the red card", "no card")
        say(store, "e2", "a blue car")
        found = store.search_words(ANN, ["card", "red", "purple", "card"], 10)
        assert [(hit.sequence, hit.side, dict(hit.counts), hit.length) for hit in found.hits] == [
            (1, "user", {"red": 2, "card": 2}, 6),
            (1, "assistant", {"card": 1}, 2),
        ]
        assert dict(found.frequencies) == {"card": 2, "red": 1, "purple": 0}
        assert (found.passages, found.mean_length) == (4, 3.0)
        idf = np.log(1 + (4 - 2 + 0.5) / 2.5)
        assert found.hits[1].score == pytest.approx(idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)))
        assert store.search_words(ANN, [], 5).hits == ()
        assert (
            store.search_words(ANN, ["card"], 1).hits == found.hits[:0] + store.search_words(ANN, ["card"], 9).hits[:1]
        )

    def test_odd_terms_are_found(self, store: Store) -> None:
        terms = ("o'neil", 'quo"te', "50%", "a_b", "日本", "é", "*", "or", "not", "x" * 300)
        store.apply(change("x", Begin("e1", "t", (Passage(0, 1, terms),)), Complete("e1", "r")))
        for term in terms:
            assert len(store.search_words(ANN, [term], 5).hits) == 1, term
        assert store.search_words(ANN, ["neil", "quo", "a"], 5).hits == ()

    def test_filters_narrow_both_searches(self, store: Store) -> None:
        for n in range(1, 7):
            say(store, f"e{n}", "apple", "apple", seed=n, at=None if n == 3 else n * 10.0)

        def found(**filters: object) -> set[tuple[int, Side]]:
            scope = replace(ANN, **filters)  # type: ignore[arg-type]  # the table below is typed by Scope itself
            near = {(hit.sequence, hit.side) for hit in store.search_vectors(scope, vector(1), 50)}
            assert near == {(hit.sequence, hit.side) for hit in store.search_words(scope, ["apple"], 50).hits}
            assert near == {(kept.sequence, kept.side) for kept in store.passages(scope)}
            return near

        assert len(found()) == 12
        assert found(sides=("user",), sequences=((1, 2), (6, 6))) == {(1, "user"), (2, "user"), (6, "user")}
        assert found(since=20.0, until=41.0) == {(2, "user"), (2, "assistant"), (4, "user")}
        assert found(since=1000.0) == set()

    def test_all_of_an_owners_conversations_are_searched(self, store: Store) -> None:
        for name in ("c1", "c2", "c3"):
            say(store, "e1", f"pear {name}", "ok", seed=1, scope=Scope("ann", name))
        assert [hit.conversation for hit in store.search_vectors(ALL, vector(1), 3)] == ["c3", "c2", "c1"]
        found = store.search_words(ALL, ["pear", "c2"], 9)
        assert [hit.conversation for hit in found.hits] == ["c2", "c3", "c1"]
        assert (dict(found.frequencies), found.passages) == ({"pear": 3, "c2": 1}, 6)
        say(store, "e2", "pear", seed=1, scope=Scope("ann", "c1"))
        assert store.search_vectors(ALL, vector(1), 9)[2].conversation == "c1"
        assert len(store.search_words(replace(ALL, sides=("user",)), ["pear"], 9).hits) == 4

    def test_a_search_sees_what_was_just_written(self, store: Store) -> None:
        for n in range(1, 20):
            say(store, f"e{n}", f"word{n}", seed=n)
            assert store.search_vectors(ANN, vector(n), 1)[0].sequence == n
            assert store.search_words(ANN, [f"word{n}"], 1).hits[0].sequence == n

    def test_word_statistics_stay_exact_through_many_changes(self, store: Store) -> None:
        """However a store keeps its words: some written long ago, some just now, some edited and deleted in between."""
        asked = {n: f"shared own{n} mod{n % 7}" for n in range(1, 61)}
        answered = dict.fromkeys(asked, "shared answer")
        for n, text in asked.items():
            say(store, f"e{n}", text, answered[n], seed=n)
            if n % 6 == 0:
                store.apply(change(f"d{n}", Delete(f"e{n - 5}"), Edit(f"e{n}", "user", "new", passage("new", n))))
                asked[n - 5], answered[n - 5], asked[n] = "", "", "new"
            words = {"shared", f"mod{n % 7}", "new", "own1"}
            found = store.search_words(ANN, sorted(words), 200)
            sides: tuple[tuple[Side, dict[int, str]], ...] = (("user", asked), ("assistant", answered))
            so_far = {(m, side): set(texts[m].split()) & words for side, texts in sides for m in range(1, n + 1)}
            assert dict(found.frequencies) == {word: sum(word in own for own in so_far.values()) for word in words}
            hits = {(hit.sequence, hit.side): dict(hit.counts) for hit in found.hits}
            assert hits == {place: dict.fromkeys(own, 1) for place, own in so_far.items() if own}
            assert found.passages == sum(bool(texts[m]) for _, texts in sides for m in range(1, n + 1))

    def test_passages_come_back_with_place_terms_and_vector(self, store: Store) -> None:
        windows = (Passage(0, 3, ("a", "b", "a"), vector(1) * 7), Passage(2, 5))
        store.apply(change("x", Begin("e1", "abcde", windows, 4.0), Complete("e1", "r", (Passage(0, 1, ("r",)),))))
        first, second, third = store.passages(ANN)
        assert (first.start, first.end, first.position, first.terms, first.at) == (0, 3, 0, ("a", "b", "a"), 4.0)
        assert first.vector is not None
        assert float(first.vector @ vector(1)) == pytest.approx(1.0, abs=0.001)
        assert (second.position, second.terms, second.vector) == (1, (), None)
        assert (third.side, third.at) == ("assistant", None)

    def test_several_scopes_are_read_at_once(self, store: Store) -> None:
        for name in ("c1", "c2", "c3"):
            for n in range(1, 5):
                say(store, f"e{n}", f"{name} {n}", seed=n, scope=Scope("ann", name))
        store.apply(change("d", Delete("e2"), scope=Scope("ann", "c2")))
        scopes = (
            Scope("ann", "c2", ((3, 9), (1, 2))), Scope("ann", "c1", ((4, 4),)), Scope("ann", "c9", ((1, 1),)),
            Scope("bob", "c1"),
        )  # fmt: skip
        wanted = [("c2", 1), ("c2", 3), ("c2", 4), ("c1", 4)]
        assert [(e.conversation, e.sequence) for e in store.exchanges(*scopes)] == wanted
        assert [(e.conversation, e.sequence) for e in store.exchanges(*scopes, statuses=("deleted",))] == [("c2", 2)]
        sides: tuple[Side, Side] = ("user", "assistant")
        found = [(kept.conversation, kept.sequence, kept.side) for kept in store.passages(*scopes)]
        assert found == [(*place, side) for place in wanted for side in sides]
        assert store.exchanges() == []
        assert store.passages() == []

    @pytest.mark.parametrize(
        "operations",
        [
            (_BEGIN, Fail("e1", "why"), _NEXT),
            (_BEGIN, Delete("e1"), _NEXT),
            (_BEGIN, _REDACT, _NEXT),
            (_BEGIN, _REDACT, _REPLY, _NEXT),
            (_BEGIN, _REPLY, _REDACT, _NEXT, Edit("e1", "assistant", "new", passage("new", 5))),
            (_BEGIN, _NEXT, _REPLY, Delete("e1")),
            (_BEGIN, _BEGIN, _REPLY, _NEXT),
        ],
    )
    def test_one_change_is_as_good_as_one_for_each_operation(
        self, store: Store, operations: tuple[Operation, ...]
    ) -> None:
        two = Scope("ann", "c2")
        store.apply(change("all", *operations))
        for n, operation in enumerate(operations):
            store.apply(change(f"n{n}", operation, scope=two))

        def seen(scope: Scope) -> list[object]:
            found = store.search_words(scope, ["pear", "new", "yes"], 9)
            return [
                [replace(e, conversation="") for e in store.exchanges(scope, statuses=get_args(ExchangeStatus))],
                [(kept.sequence, kept.side, kept.terms, kept.start, kept.end, kept.at) for kept in store.passages(scope)],
                [(hit.sequence, hit.side, hit.score) for hit in found.hits], found.frequencies, found.passages,
                [(hit.sequence, hit.side, hit.score) for hit in store.search_vectors(scope, vector(1), 9)],
                replace(store.conversation("ann", scope.conversation or ""), id=""),
            ]  # fmt: skip

        assert seen(ANN) == seen(two)

    # editing, deleting, owners

    def test_an_edit_replaces_words_and_vectors(self, store: Store) -> None:
        say(store, "e1", "my pin is 4711", "noted 4711", seed=1)
        say(store, "e2", "other", seed=2)
        store.search_vectors(ANN, vector(1), 1)
        store.apply(
            change("x", Edit("e1", "user", "my pin is ****", passage("my pin is", 3)), Edit("e1", "assistant", "noted"))
        )
        assert store.search_words(ANN, ["4711"], 5).hits == ()
        assert store.search_words(ANN, ["4711"], 5).frequencies == {"4711": 0}
        near = store.search_vectors(ANN, vector(1), 9)
        assert all(hit.score < 0.9 for hit in near)
        assert len(near) == 3
        assert store.search_vectors(ANN, vector(3), 1)[0].sequence == 1
        assert "4711" not in "\n".join(store.export())
        edited = store.exchange("ann", "c1", "e1")
        assert edited is not None
        assert (edited.user.text, edited.status) == ("my pin is ****", "completed")

    def test_an_edit_needs_something_to_edit(self, store: Store) -> None:
        begin(store, "e1", "secret", 1)
        store.apply(change("ok", Edit("e1", "user", "***", passage("***", 2))))
        for operation in (Edit("e1", "assistant", "x"), Edit("e9", "user", "x")):
            with pytest.raises(ExchangeError):
                store.apply(change("no", operation))
        store.apply(change("done", Complete("e1", "yes")))
        assert store.search_words(ANN, ["secret"], 5).hits == ()
        assert len(store.search_words(ANN, ["***"], 5).hits) == 1
        begin(store, "e2", "failing", 1)
        store.apply(change("f", Fail("e2", "x"), Edit("e2", "user", "redacted", passage("redacted", 4))))
        assert store.search_words(ANN, ["redacted"], 5).hits == ()

    def test_a_deleted_exchange_leaves_a_tombstone_and_nothing_else(self, store: Store) -> None:
        for n in range(1, 4):
            say(store, f"e{n}", f"zebra{n} shared", f"reply{n}", seed=n)
        store.search_vectors(ANN, vector(2), 9)
        store.apply(change("d", Delete("e2")))
        store.apply(change("again", Delete("e2")))
        assert "zebra2" not in "\n".join(store.export())
        assert {hit.sequence for hit in store.search_vectors(ANN, vector(2), 9)} == {1, 3}
        assert [hit.sequence for hit in store.search_words(ANN, ["shared"], 9).hits] == [3, 1]
        assert [e.sequence for e in store.exchanges(ANN)] == [1, 3]
        (tombstone,) = store.exchanges(ANN, statuses=["deleted"])
        assert (tombstone.sequence, tombstone.user.text, tombstone.reply, tombstone.meta) == (2, "", None, {})
        with pytest.raises(ExchangeError):
            store.apply(change("b", Begin("e2", "zebra2 shared")))
        with pytest.raises(ExchangeError):
            store.apply(change("u", Delete("e9")))
        assert say(store, "e4", "next") == 4

    def test_owners_never_see_each_other(self, store: Store) -> None:
        for owner, secret, seed in (("ann", "apple", 1), ("bob", "banana", 2)):
            scope = Scope(owner, "c1")
            say(store, "e1", f"the {secret}", f"secret {secret}", seed=seed, scope=scope)
            store.apply(
                change("t", PutTopic(TopicRecord("t1", labels=(secret,))), PutState("s", secret.encode()),
                       LogRun(RunRecord("r1", 0.0, secret)), scope=scope)
            )  # fmt: skip
        for scope in (ANN, ALL):
            seen = [
                store.exchanges(scope), store.topics("ann", scope.conversation), store.runs("ann", "c1"),
                store.state("ann", "c1", "s"), store.conversations("ann"), list(store.export("ann", scope.conversation)),
                [kept.terms for kept in store.passages(scope)],
            ]  # fmt: skip
            assert "banana" not in repr(seen)
            assert len(store.search_vectors(scope, vector(2), 9)) == 2
            words = store.search_words(scope, ["banana", "the"], 9)
            assert (dict(words.frequencies), words.passages) == ({"banana": 0, "the": 1}, 2)
        assert store.exchanges(Scope("an")) == store.exchanges(Scope("ann ")) == []

    def test_a_moment_keeps_owners_and_conversations_apart(self, store: Store) -> None:
        """Each reader answers inside a moment, whatever was read in it before, as it does alone."""
        scopes = [Scope(owner, name) for owner in ("ann", "bob") for name in ("c1", "c2")]
        for number, scope in enumerate(scopes):
            say(store, "e1", f"pear {number}", "ok", seed=1 + number, scope=scope)

        def read(scope: Scope) -> tuple[object, ...]:
            return (
                store.search_words(scope, ["pear"], 9),
                store.search_vectors(scope, vector(1), 9),
                store.exchanges(scope),
                store.topics(scope.owner, scope.conversation),
                None if scope.conversation is None else store.conversation(scope.owner, scope.conversation),
            )

        asked = [*scopes, Scope("ann"), Scope("bob"), Scope("carl"), Scope("ann", "nothing")]
        alone = [read(scope) for scope in asked]
        assert len({repr(one) for one in alone}) == len(asked)
        with store.moment():
            assert [read(scope) for scope in asked] == alone
        with store.moment():
            assert [read(scope) for scope in reversed(asked)] == alone[::-1]

    def test_erasing_an_owner_leaves_the_others(self, store: Store) -> None:
        for scope in (ANN, Scope("ann", "c2"), BOB):
            say(store, "e1", "pear", seed=1, scope=scope)
        store.search_vectors(ALL, vector(1), 9)
        assert store.erase("ann", "c2") == 1
        assert [hit.conversation for hit in store.search_vectors(ALL, vector(1), 9)[:1]] == ["c1"]
        assert store.erase("ann") == 1
        assert store.erase("ann") == 0
        assert store.conversations("ann") == []
        assert store.search_words(ALL, ["pear"], 9).passages == 0
        assert len(store.search_vectors(Scope("bob"), vector(1), 9)) == 2
        assert say(store, "e1", "new", seed=5) == 1
        assert [hit.sequence for hit in store.search_vectors(ANN, vector(1), 9)] == [1, 1]
