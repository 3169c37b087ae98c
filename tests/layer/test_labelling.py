"""The labeller over a store: closed topics get better labels, nothing else is touched, nobody waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from topicality.core import book as books
from topicality.core.book import Book, Reading
from topicality.core.label import Words
from topicality.core.spans import size
from topicality.core.topics import Assigned, record_of
from topicality.core.worker import Gates, Setup, WorkerState
from topicality.errors import LlmError, StoreError
from topicality.layer.labeller import BackgroundLabeller
from topicality.layer.labelling import LEASE, STATE, Background, Relabelled, relabel, relabel_all, setup, tokens
from topicality.llm import Asker, Budget, CallableLlm
from topicality.ports import Store
from topicality.records import Begin, Change, Complete, Delete, Edit, Exchange, PutState, PutTopic, Scope, TopicRecord
from topicality.store import open_store
from topicality.types import LlmReply, Message

GARDEN = ["tomatoes on the balcony", "watering tomatoes daily", "bigger pots for the balcony", "tomatoes need sun"]
TRAINS = ["night trains to Oslo", "Oslo tickets by train", "the train leaves at nine", "a seat on the night train"]
READING = Reading()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        pytest.importorskip("sqlalchemy")
    opened = open_store("memory://" if request.param == "memory" else str(tmp_path / "chat.db"))
    yield opened
    opened.close()


def fill(store: Store, plan: list[tuple[str, str]], *, start: int = 0, keep: bool = True) -> None:
    """Exchanges with their topics, written as the memory does: topics, and the book's state."""
    operations: list[Any] = []
    for n, (text, _) in enumerate(plan, start):
        operations += [Begin(f"e{n}", text, at=float(n)), Complete(f"e{n}", f"I see: {text}.", at=n + 0.5)]
    store.apply(Change(f"fill{start}", "o", "x", tuple(operations)))
    book, topics = Book(), dict[str, Any]()
    for exchange, (_, topic) in zip(store.exchanges(Scope("o", "x")), plan, strict=True):
        known = {name: (one, Words()) for name, one in topics.items() if name not in book.state.live}
        decision: Any = "new" if topic not in topics else "continue"
        assigned = Assigned(exchange.sequence, topic, decision)
        done = books.record(book, assigned, exchange, now=100.0, reading=READING, earlier=known)
        book = done.book
        topics.update((one.id, one) for one in done.topics)
    state = [PutState(name, value) for name, value in books.dump(book).items()] if keep else []
    records = [PutTopic(record_of(topic)) for topic in topics.values()]
    store.apply(Change(f"topics{start}", "o", "x", (*records, *state)))


def two_topics(store: Store, **how: Any) -> None:
    """Exchange 1 to 4 about a garden (closed), 5 to 8 about trains (open)."""
    fill(store, [(text, "garden") for text in GARDEN] + [(text, "trains") for text in TRAINS], **how)


class Labels:
    """A labeller that makes one topic of all that it is shown, or says what it is told to."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.shown: list[list[int]] = []
        self.users: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def __call__(self, system: str, user: str) -> Any:
        lines = [json.loads(line) for line in user.splitlines()]
        sequences = [line["exchange"] for line in lines if "exchange" in line]
        self.shown.append(sequences)
        self.users.append(user)
        self.before()
        if self.replies:
            reply = self.replies[min(len(self.shown), len(self.replies)) - 1]
            if isinstance(reply, Exception):
                raise reply
            return reply
        words = next(line["user"] for line in lines if "exchange" in line).split()
        spans = [{"first": sequences[0], "last": sequences[-1]}]
        topic = {"labels": ["one name", "another name"], "terms": words[:3], "spans": spans, "status": "open"}
        return LlmReply(json.dumps({"topics": [topic]}), 200, 40)


def held(release: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        release.wait(100)

    return wait


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


HOW = setup(Gates(completed=1, tail=1))


def ask(store: Store, model: Labels, *, how: Setup = HOW, budget: Budget | None = None, **more: Any) -> Relabelled:
    return relabel(store, "o", "x", Asker(CallableLlm(model), budget), how=how, **more)


def topics(store: Store) -> dict[str, TopicRecord]:
    return {topic.id: topic for _, topic in store.topics("o", "x")}


def whole(store: Store) -> bool:
    """Whether every completed exchange is in exactly one topic, and the book can be read."""
    spans = [span for topic in topics(store).values() for span in topic.spans]
    inside = sorted(n for first, last in spans for n in range(first, last + 1))
    completed = [e.sequence for e in store.exchanges(Scope("o", "x"), statuses=("completed",))]
    return inside == completed and book_of(store) is not None


def book_of(store: Store) -> Book | None:
    names = ["topics", "lexicon", "latest", *(f"words:{name}" for name in topics(store))]
    values = {name: value for name in names if (value := store.state("o", "x", name)) is not None}
    newest = store.exchanges(Scope("o", "x"), statuses=("completed",), newest=1)
    return books.load(values, topics(store).values(), newest[0], READING)


def test_a_closed_topic_gets_better_labels_and_an_open_one_is_left_alone(store: Store) -> None:
    two_topics(store)
    before, model = topics(store), Labels()
    assert (before["garden"].status, before["trains"].status) == ("finalized", "open")
    result = ask(store, model)
    assert (result.reason, model.shown) == ("accepted", [[1, 2, 3, 4]])
    after = topics(store)
    assert after["garden"].labels == ("one name", "another name")
    assert (after["garden"].status, after["garden"].spans) == ("finalized", ((1, 4),))
    assert after["garden"].number == before["garden"].number
    assert after["trains"] == before["trains"]
    assert whole(store)


def test_what_it_cost_is_told_and_logged(store: Store) -> None:
    two_topics(store)
    asker = Asker(CallableLlm(Labels()))
    result = relabel(store, "o", "x", asker, how=HOW)
    assert result.llm_calls == 1
    assert [(use.role, use.input_tokens, use.output_tokens, use.outcome) for use in result.llm] == [
        ("labeller", 200, 40, "ok")
    ]
    assert asker.counters.to_dict()["labeller"]["calls"] == 1
    (run,) = store.runs("o", "x")
    assert (run.status, run.data["usage"], run.data["exchanges"]) == (
        "accepted",
        {"input": 200, "output": 40},
        [[1, 4]],
    )


def test_what_was_shown_is_not_shown_again(store: Store) -> None:
    two_topics(store)
    model = Labels()
    reasons = [ask(store, model).reason for _ in range(3)]
    assert reasons == ["accepted", "active_tail_gate", "active_tail_gate"]
    assert len(model.shown) == 1


def test_spans_are_corrected_and_ids_stay(store: Store) -> None:
    fill(store, [(text, "all") for text in GARDEN + TRAINS])
    wanted = [
        {"labels": ["garden", "pots"], "terms": ["tomatoes", "balcony", "pots"], "spans": [{"first": 1, "last": 4}]},
        {"labels": ["Oslo", "trains"], "terms": ["Oslo", "train", "seat"], "spans": [{"first": 5, "last": 8}]},
    ]
    reply = {"topics": [{**topic, "status": "open", "continues": None} for topic in wanted]}
    result = ask(store, Labels(reply), scope="all")
    assert result.reason == "accepted"
    found = topics(store)
    assert sorted(topic.spans for topic in found.values()) == [((1, 4),), ((5, 8),)]
    assert "all" in found
    assert set(result.topics) >= set(found)
    assert whole(store)


def test_without_a_book_the_statuses_are_still_right(store: Store) -> None:
    two_topics(store, keep=False)
    assert ask(store, Labels()).reason == "accepted"
    assert {name: topic.status for name, topic in topics(store).items()} == {"garden": "finalized", "trains": "open"}
    assert store.state("o", "x", "topics") is None


def test_a_damaged_book_is_made_again(store: Store) -> None:
    two_topics(store)
    store.apply(Change("damage", "o", "x", (PutState("topics", b'{"recent": [[1, 2'),)))
    assert ask(store, Labels()).reason == "accepted"
    assert topics(store)["garden"].labels == ("one name", "another name")
    assert whole(store)


def test_a_refused_reply_changes_nothing_and_the_same_input_is_not_sent_again(store: Store) -> None:
    two_topics(store)
    before, clock, model = topics(store), Clock(), Labels("nonsense")
    result = ask(store, model, background=Background(clock=clock))
    assert (result.reason, len(model.shown), result.llm_calls) == ("rejected", 2, 2)
    assert result.faults
    assert topics(store) == before
    clock.now += 30.0
    assert ask(store, model, background=Background(clock=clock)).reason == "cooldown"
    clock.now += 10_000.0
    again = ask(store, model, background=Background(clock=clock)).reason
    assert again in ("batch_gate", "unchanged_input", "rejected", "active_tail_gate")
    assert len({user for user in model.users if "refused" not in user}) == len(
        [u for u in model.users if "refused" not in u]
    )
    assert topics(store) == before


def test_a_model_that_fails_is_tried_again_after_a_pause(store: Store) -> None:
    two_topics(store)
    before, clock, model = topics(store), Clock(), Labels(LlmError("down"))
    result = ask(store, model, background=Background(clock=clock))
    assert (result.reason, result.faults) == ("failed", ("down",))
    assert topics(store) == before
    assert ask(store, model, background=Background(clock=clock)).reason == "cooldown"
    clock.now += 61.0
    model.replies = []
    assert ask(store, model, background=Background(clock=clock)).reason == "accepted"


def test_over_the_budget_is_a_failure_that_passes(store: Store) -> None:
    two_topics(store)
    model = Labels()
    result = ask(store, model, budget=Budget(calls_per_minute=0))
    assert (result.reason, model.shown, result.llm_calls) == ("failed", [], 0)
    assert result.llm[0].outcome == "over budget"


def test_chatting_goes_on_while_the_labeller_works(store: Store) -> None:
    two_topics(store)
    model = Labels()

    def chat() -> None:
        with store.turn("o", "x") as turn:
            (trains,) = [topic for topic in turn.topics() if topic.id == "trains"]
            grown = TopicRecord("trains", trains.number, "open", ("newer",), (), ((5, 9),))
            turn.apply(
                Change(
                    "chat",
                    "o",
                    "x",
                    (Begin("late", "more trains"), Complete("late", "ok"), PutTopic(grown), PutState("topics", None)),
                )
            )

    model.before = chat
    assert ask(store, model).reason == "accepted"
    found = topics(store)
    assert found["garden"].labels == ("one name", "another name")
    assert (found["trains"].labels, found["trains"].spans) == (("newer",), ((5, 9),))


@pytest.mark.parametrize("operation", [Edit("e1", "user", "something else"), Delete("e2")])
def test_a_reply_for_exchanges_that_were_changed_meanwhile_is_thrown_away(store: Store, operation: Any) -> None:
    two_topics(store)
    before, model = topics(store), Labels()

    def meanwhile() -> None:
        store.apply(Change("meanwhile", "o", "x", (operation,)))

    model.before = meanwhile
    result = ask(store, model)
    assert result.reason == "stale"
    assert topics(store) == before
    assert store.state("o", "x", STATE) is None
    assert store.state("o", "x", LEASE) is None


def test_one_run_at_a_time(store: Store) -> None:
    two_topics(store)
    model, inner = Labels(), []
    model.before = lambda: inner.append(ask(store, Labels()).reason)
    assert ask(store, model).reason == "accepted"
    assert inner == ["running"]
    assert store.state("o", "x", LEASE) is None


@pytest.mark.parametrize(
    ("left", "reason"), [(b'{"key": "k", "until": 1500.0}', "running"), (b"junk", "accepted"), (b"[1]", "accepted")]
)
def test_a_run_whose_process_died_blocks_only_for_a_while(store: Store, left: bytes, reason: str) -> None:
    two_topics(store)
    store.apply(Change("lease", "o", "x", (PutState(LEASE, left),)))
    clock = Clock()
    assert ask(store, Labels(), background=Background(clock=clock)).reason == reason
    clock.now = 1500.0
    assert ask(store, Labels(), background=Background(clock=clock)).reason in ("accepted", "active_tail_gate")


def test_batches_keep_to_their_tokens_and_their_number(store: Store) -> None:
    fill(store, [(f"tomatoes balcony watering number {n} " + "soil " * 40, "all") for n in range(30)])
    model = Labels()
    results = relabel_all(
        store, "o", "x", Asker(CallableLlm(model)), how=setup(Gates(completed=1, tail=1, batch=12, tokens=2500))
    )
    assert {result.reason for result in results} == {"accepted"}
    assert sorted(n for shown in model.shown for n in shown) == list(range(1, 31))
    assert max(map(len, model.shown)) <= 12
    assert all(tokens(user) <= 2500 for user in model.users)
    assert size(topics(store)["all"].spans) == 30
    assert whole(store)


def test_an_owner_without_anything_is_no_work(store: Store) -> None:
    model = Labels()
    assert ask(store, model).reason == "completed_exchange_gate"
    assert model.shown == []


def test_a_state_that_is_damaged_starts_afresh(store: Store) -> None:
    two_topics(store)
    store.apply(Change("junk", "o", "x", (PutState(STATE, b"\xff"),)))
    assert ask(store, Labels()).reason == "accepted"
    state = WorkerState.load(store.state("o", "x", STATE))
    assert state.done == ((1, 4),)


# In the background.


def test_waking_never_waits_and_never_queues_twice(store: Store) -> None:
    two_topics(store)
    release, model = threading.Event(), Labels()
    model.before = held(release)
    results: list[str] = []
    worker = BackgroundLabeller(
        store, Asker(CallableLlm(model)), how=HOW, on_done=lambda owner, talk, result: results.append(result.reason)
    )
    for _ in range(50):
        assert worker.wake("o", "x")
    assert results == [], "all of them came back while the model held up the first"
    release.set()
    assert worker.wait(100)
    assert results == ["accepted", "active_tail_gate"]
    assert len(model.shown) == 1
    worker.close()
    assert not worker.wake("o", "x")


def test_what_goes_wrong_in_the_background_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store("memory://")
    two_topics(store)
    done: list[str] = []

    class Broken:
        def turn(self, owner: str, conversation: str) -> Any:
            if owner == "bad":
                raise StoreError("SECRET")
            if owner == "worse":
                raise ZeroDivisionError("SECRET")
            return store.turn(owner, conversation)

    broken: Any = Broken()
    worker = BackgroundLabeller(
        broken, Asker(CallableLlm(Labels())), how=HOW, on_done=lambda owner, talk, result: done.append(result.reason)
    )
    for owner in ("bad", "worse", "o"):
        worker.wake(owner, "x")
    worker.wait()
    worker.close()
    assert done == ["accepted", "active_tail_gate"]
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "StoreError" in text
    assert "ZeroDivisionError" in text
    assert "SECRET" not in text


def test_a_full_queue_drops_the_wake() -> None:
    store, release, model = open_store("memory://"), threading.Event(), Labels()
    two_topics(store)
    asked, hold = threading.Event(), held(release)

    def before() -> None:
        asked.set()
        hold()

    model.before = before
    worker = BackgroundLabeller(store, Asker(CallableLlm(model)), how=HOW, waiting=1)
    worker.wake("o", "x")
    assert asked.wait(100)
    assert [worker.wake("o", "y"), worker.wake("o", "z")] == [True, False]
    release.set()
    worker.wait()
    worker.close()


def test_an_exchange_is_the_same_only_with_the_same_texts() -> None:
    from topicality.layer.labelling import _same

    one = Exchange("o", "x", 1, "e", "completed", Message("user", "a"), Message("assistant", "b"))
    assert _same(one, one)
    assert not _same(one, None)
    assert not _same(one, Exchange("o", "x", 1, "e", "completed", Message("user", "a"), Message("assistant", "c")))
