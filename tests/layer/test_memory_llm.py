"""A layer with a language model: closed topics get better names beside the chat, and nobody ever waits for it unasked."""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from topicality.config import Policy
from topicality.core.context import Layout
from topicality.core.segment import Decision
from topicality.errors import ConfigError, LlmError
from topicality.layer.conversation import Conversation
from topicality.layer.labelling import LEASE, STATE
from topicality.layer.memory import Layer, open_layer
from topicality.layer.shelf import Shelf
from topicality.llm import Asker, Budget, CallableLlm, Gates, Roles
from topicality.llm.prompts import read_prompts
from topicality.records import Scope, Side
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import LlmReply, Message

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.layer.memory_talks import FLIGHT, PASTA, ids, sound

ROLES = {text: role for role, text in read_prompts().items()}
SOON = Roles(labels=Gates(completed=1, tail=1))
BAND = Policy(
    allowed=[{"name": "flights", "description": "flight booking, cancel a flight, refund for a flight, Lisbon"}],
    judge="always",
)
JUDGED = {"verdict": "allowed", "rule": "flights", "confidence": 0.9, "reason": "about a flight"}
LABELS = ("trip to Lisbon", "cancelled flight")


def labelled(user: str) -> Any:
    """One topic of all that was shown, with words of it."""
    lines = [json.loads(line) for line in user.splitlines()]
    shown = [line for line in lines if "exchange" in line]
    known = next((line["topic"] for line in lines if "topic" in line), None)
    spans = [{"first": shown[0]["exchange"], "last": shown[-1]["exchange"]}]
    terms = [word.strip("?.,") for word in shown[0]["user"].split() if len(word) > 3]
    topic = {"labels": list(LABELS), "terms": terms, "spans": spans, "status": "open", "continues": known}
    return LlmReply(json.dumps({"topics": [topic]}), 200, 40)


class Model:
    """Answers in the role that it is asked in, remembers what it was asked, and can be held up."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"judge": JUDGED, "labeller": labelled, **answers}
        self.asked: list[tuple[str, str]] = []
        self.entered, self.release = threading.Event(), threading.Event()
        self.release.set()
        self.running = self.most = 0

    def __call__(self, system: str, user: str) -> Any:
        role = ROLES[system]
        self.asked.append((role, user))
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        self.release.wait(100)
        self.running -= 1
        answer = self.answers[role]
        if isinstance(answer, Exception):
            raise answer
        return answer(user) if callable(answer) else answer

    def of(self, role: str) -> list[str]:
        return [user for name, user in self.asked if name == role]


class Scripted:
    """A segmenter that says which topic each message is on."""

    def __init__(self, topics: list[int]) -> None:
        self.topics, self.count = topics, 0

    def receive(self, message: Message, vector: object = None) -> Decision:
        n, self.count = min(self.count, len(self.topics) - 1), self.count + 1
        known = self.topics[n] in self.topics[:n]
        return Decision(self.count - 1, "return" if known else "new", self.topics[n], n > 0, 0.9, confirmed=True)

    def snapshot(self) -> bytes:
        return b""


Make = Callable[..., Layer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Layers that are closed in the end."""
    made: list[Layer] = []

    def layer(model: Any, roles: Roles | None = SOON, *, topics: list[int] | None = None, **more: Any) -> Layer:
        store = more.pop("store", None) or open_store("memory://")
        policy = more.pop("policy", None)
        one = Layer(store, policy, WordEmbedder(), clock=lambda: 1.7e9, ids=ids(), llm=model, roles=roles)
        script = [topic for topic in topics or [] for _ in range(2)]
        if topics is not None:
            one.segmenter.live = lambda: Scripted(script)  # type: ignore[assignment,method-assign,return-value]  # as one lives
        made.append(one)
        return one

    yield layer
    for one in made:
        one.close()


def say(chat: Conversation, pairs: list[tuple[str, str]]) -> None:
    for question, answer in pairs:
        chat.receive(question)
        chat.reply(answer)


def done(layer: Layer) -> None:
    assert layer.labeller is not None
    assert layer.labeller.wait(100)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "topicality-labelling"]


# --- without one, and with one that is not needed


def test_without_a_model_there_is_nothing_of_it(make: Make) -> None:
    layer = make(None)
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA, *PASTA])
    chat.receive("Is there a refund?")
    assert (layer.asker, layer.labeller, layer.llm_use(), threads()) == (None, None, {}, [])
    assert chat.recall("the refund", select=5.0).selected is None
    context = chat.context(500, select=5.0)
    assert (context.llm, [note for note in context.notes if "model" in note]) == (None, [])


def test_one_that_is_not_needed_is_not_asked_and_changes_nothing(make: Make) -> None:
    policy = BAND.model_copy(update={"judge": "borderline", "borderline": (0.0, 0.0)})
    model = Model(judge=AssertionError(), labeller=AssertionError(), selector=AssertionError())
    alone, beside = make(None, policy=policy), make(model, Roles(), policy=policy)
    for layer in (alone, beside):
        chat = layer.conversation("c")
        say(chat, [*FLIGHT, *PASTA])
        chat.receive("Is there a refund for the flight?")
    done(beside)
    assert list(beside.store.export()) == list(alone.store.export())
    one, two = beside.conversation("c"), alone.conversation("c")
    assert one.recall("the refund", 200) == two.recall("the refund", 200)
    assert one.context(400).messages == two.context(400).messages
    assert (model.asked, beside.llm_use()) == ([], {})


def test_the_model_is_given_as_the_command_line_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("openai:tiny@http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"):
        with open_layer("memory://", llm=name) as layer:
            assert layer.asker is not None
    for wrong in ("gpt-4", "openai:tiny", 5):
        with pytest.raises(ConfigError):
            open_layer("memory://", llm=wrong)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("key", ["judge", "select", "label_timeout"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", None, True])
def test_times_that_cannot_be_waited(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Roles(**{key: value})
    with pytest.raises(ConfigError, match="label_timeout"):
        Roles(label_timeout=0)


# --- the labeller


def test_a_closed_topic_is_named_while_the_chat_goes_on_and_keeps_its_name(make: Make) -> None:
    model = Model()
    layer = make(model, topics=[0] * 3 + [1] * 12 + [0] * 6)
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA])
    assert chat.topics()[0].labels != LABELS
    say(chat, PASTA)
    done(layer)
    before = chat.topics()
    assert [topic.status for topic in before] == ["finalized", "open"]
    assert (before[0].labels, before[0].terms) == (LABELS, ("need", "cancel", "flight", "Lisbon", "next", "Friday"))
    assert before[1].source == "text"
    say(chat, [*PASTA, *PASTA])
    assert chat.topics()[0] == before[0]
    say(chat, [*FLIGHT, *FLIGHT])  # it is returned to, counted and described anew
    done(layer)
    after = chat.topics()[0]
    assert (after.id, after.number, after.labels, after.status) == (before[0].id, 1, LABELS, "open")
    assert after.spans == ((1, 3), (16, 21))
    sound(layer)
    use = layer.llm_use()["labeller"]
    assert (use["calls"], use["input_tokens"], use["output_tokens"]) == (2, 400, 80)
    assert use["outcomes"] == {"ok": 2}


def test_a_process_that_labelled_reads_nothing_again_and_another_one_goes_on_the_same(make: Make) -> None:
    layer = make(Model(), topics=[0] * 3 + [1] * 9)
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA, *PASTA])
    done(layer)
    with layer.store.turn("default", "c") as turn:
        mine, fresh = layer._kept["default", "c"].shelf, Shelf()
        assert mine.version == turn.info().topics_version, "what the process remembers was kept up to date"
        fresh.read(turn, layer.reading)
        assert (fresh.book.state, fresh.book.words) == (mine.book.state, mine.book.words)
    assert chat.topics()[0].labels == LABELS
    assert {topic.id: topic for topic in chat.topics()} == {
        topic.id: topic for topic in layer.__class__(layer.store, embedder=WordEmbedder()).conversation("c").topics()
    }


def test_the_segmenter_returns_to_a_topic_that_the_model_joined_to_another(make: Make) -> None:
    def joined(user: str) -> Any:
        lines = [json.loads(line) for line in user.splitlines()]
        shown = [line["exchange"] for line in lines if "exchange" in line]
        if shown[0] > 1:
            raise LlmError("enough")
        spans = [{"first": shown[0], "last": shown[-1]}]
        terms = ["Lisbon", "flight", "booking"]
        return {"topics": [{"labels": list(LABELS), "terms": terms, "spans": spans, "status": "open"}]}

    layer = make(
        Model(labeller=joined), Roles(labels=Gates(completed=1, tail=6)), topics=[0] * 3 + [1] * 3 + [2] * 6 + [1]
    )
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA])
    say(chat, [(f"number {n} of the garden", "yes") for n in range(6)])
    done(layer)
    (whole, garden) = chat.topics()
    assert whole.spans == ((1, 6),)
    say(chat, PASTA[:1])
    assert [(topic.id, topic.spans) for topic in chat.topics()] == [
        (whole.id, ((1, 6), (13, 13))),
        (garden.id, garden.spans),
    ]
    sound(layer)


def test_no_reply_waits_for_the_labeller_and_one_conversation_has_one_run_at_a_time(make: Make) -> None:
    model = Model()
    model.release.clear()
    layer = make(model, topics=[0] * 3 + [1] * 12 + [2] * 6)
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA, *PASTA])
    assert model.entered.wait(100)
    say(chat, [*PASTA, *PASTA, *FLIGHT, *FLIGHT])
    assert model.running == 1
    assert chat.topics()[0].labels != LABELS
    model.release.set()
    done(layer)
    assert [topic.labels for topic in chat.topics()][:2] == [LABELS, LABELS]
    assert model.most == 1
    assert (
        len({tuple(json.loads(line).get("exchange", 0) for line in user.splitlines()) for _, user in model.asked}) == 2
    )
    sound(layer)


@pytest.mark.parametrize("role", ["labeller", "selector", "judge"])
def test_closing_waits_for_no_model_and_leaves_no_thread_and_no_lease(
    tmp_path: Path, make: Make, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sqlalchemy")
    model, url = Model(), str(tmp_path / "chat.db")
    layer = make(model, topics=[0] * 3 + [1] * 6, store=open_store(url))
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA])
    model.release.clear()
    if role == "labeller":
        say(chat, PASTA)
        assert model.entered.wait(100)
    layer.close()
    layer.close()
    assert threads() == []
    assert model.running == (role == "labeller"), "it had not come back"
    model.release.set()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    store = open_store(url)
    assert store.state("default", "c", LEASE) is None
    assert (store.runs("default", "c"), store.state("default", "c", STATE)) == ([], None)
    store.close()


def test_the_thread_ends_when_there_is_nothing_to_do(make: Make) -> None:
    layer = make(Model(), topics=[0] * 3 + [1] * 9)
    say(layer.conversation("c"), [*FLIGHT, *PASTA, *PASTA])
    done(layer)
    assert layer.labeller is not None
    for thread in threading.enumerate():
        if thread.name == "topicality-labelling":
            thread.join(100)
    assert threads() == []
    assert layer.labeller.wake("default", "c")
    done(layer)


def test_closing_with_a_full_queue_ends_the_thread(make: Make) -> None:
    model = Model()
    layer = make(model, topics=[0] * 3 + [1] * 6)
    assert layer.labeller is not None
    layer.labeller._most = 1
    model.release.clear()
    say(layer.conversation("c"), [*FLIGHT, *PASTA, *PASTA])
    assert model.entered.wait(100)
    assert [layer.labeller.wake("default", name) for name in "wxyz"][1:] == [False] * 3
    layer.close()
    assert threads() == []
    model.release.set()
    assert not layer.labeller.wake("default", "c")


@pytest.mark.parametrize("what", ["erase the owner", "erase the conversation", "delete", "edit"])
def test_what_went_away_while_the_model_was_thinking_stays_away(make: Make, what: str) -> None:
    model = Model()
    model.release.clear()
    layer = make(model, topics=[0] * 3 + [1] * 9)
    chat = layer.conversation("c")
    say(chat, [*FLIGHT, *PASTA, *PASTA])
    assert model.entered.wait(100)
    match what:
        case "erase the owner":
            layer.erase("default")
        case "erase the conversation":
            layer.erase("default", "c")
        case "delete":
            chat.delete(chat.exchanges()[0].id)
        case _:
            chat.edit(chat.exchanges()[0].id, "something else")
    assert layer.labeller is not None
    with layer.labeller._changed:  # the run under way is the last: what came since may have woken it again
        layer.labeller._waiting.clear()
    left = [line for line in layer.store.export() if LEASE not in line]
    model.answers["labeller"] = LlmError("enough")
    model.release.set()
    done(layer)
    if what.startswith("erase"):
        assert layer.conversations() == []
    assert [line for line in layer.store.export() if LEASE not in line] == left
    assert "Lisbon next" not in json.dumps([asdict(run) for run in layer.store.runs("default", "c")])


def test_nothing_of_a_deleted_exchange_stays_in_labels_or_in_the_log(tmp_path: Path, make: Make) -> None:
    pytest.importorskip("sqlalchemy")
    said = [("My code is zebra-stripe-42 here", "Noted zebra-stripe-42."), *FLIGHT[1:]]

    def quoting(user: str) -> Any:
        reply = json.loads(labelled(user).text)
        reply["topics"][0].update(labels=["zebra-stripe-42", "code"], terms=["zebra-stripe-42", "code", "Noted"])
        return reply

    layer = make(Model(labeller=quoting), topics=[0] * 3 + [1] * 9, store=open_store(str(tmp_path / "chat.db")))
    chat = layer.conversation("c")
    say(chat, [*said, *PASTA, *PASTA])
    done(layer)
    assert "zebra-stripe-42" in chat.topics()[0].labels
    assert len(layer.store.runs("default", "c")) == 1
    chat.delete(chat.exchanges()[0].id)
    assert chat.topics()[0].source == "text"
    assert chat.topics()[0].labels
    assert "zebra" not in "".join(layer.store.export())
    layer.close()
    assert all(b"zebra" not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_model_that_fails_leaves_the_labels_of_the_text(make: Make) -> None:
    plain, layer = make(None, topics=[0] * 3 + [1] * 9), make(Model(labeller=OSError()), topics=[0] * 3 + [1] * 9)
    for one in (plain, layer):
        say(one.conversation("c"), [*FLIGHT, *PASTA, *PASTA])
    done(layer)
    assert layer.conversation("c").topics() == plain.conversation("c").topics()
    assert layer.llm_use()["labeller"]["outcomes"] == {"failed": 1}


def wild(seed: int) -> Callable[[str], Any]:
    """A labeller that sorts exchanges at random, within the rules."""
    dice = random.Random(seed)

    def answer(user: str) -> Any:
        lines = [json.loads(line) for line in user.splitlines()]
        shown = [line for line in lines if "exchange" in line]
        known: list[Any] = [line["topic"] for line in lines if "topic" in line]
        groups: dict[int, list[Any]] = {}
        most = dice.randint(1, 3)
        for place, line in enumerate(shown):
            number = dice.randrange(most) if dice.random() < 0.4 else place * most // len(shown)
            groups.setdefault(number, []).append(line)
        if any(len(group) == 1 for group in groups.values()):  # more than one such is against the rules
            groups = {0: shown}
        topics = []
        for group in groups.values():
            words = " ".join(line["user"] for line in group).replace("?", " ").replace(".", " ").replace(",", " ")
            spans = [{"first": line["exchange"], "last": line["exchange"]} for line in group]
            terms = list(dict.fromkeys(word for word in words.split() if len(word) > 2))[:6]
            kept = known.pop() if known and dice.random() < 0.5 else None
            labels = ["this one", "that one"]
            topics.append({"labels": labels, "terms": terms, "spans": spans, "status": "open", "continues": kept})
        return {"topics": topics}

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_valid_labeller_says_topics_are_sound_and_another_process_sees_the_same(
    make: Make, seed: int
) -> None:
    asker = Asker(CallableLlm(Model(labeller=wild(seed))), Budget(calls_per_minute=None))
    layer, dice, subject = make(asker), random.Random(seed), 0
    chat = layer.conversation("c")
    for number in range(70):
        subject = dice.randrange(2) if dice.random() < 0.25 else subject
        say(chat, [dice.choice((FLIGHT, PASTA)[subject])])
        if dice.random() < 0.15:
            one = dice.choice(chat.exchanges())
            side: Side = dice.choice(("user", "assistant"))
            chat.delete(one.id) if dice.random() < 0.5 else chat.edit(one.id, f"text about basil {number}", side=side)
        if dice.random() < 0.7:
            done(layer)
            sound(layer)
    done(layer)
    with layer.store.turn("default", "c") as turn:
        fresh, mine = Shelf(), layer._kept["default", "c"].shelf
        mine.read(turn, layer.reading)
        fresh.read(turn, layer.reading)
        assert fresh.book.state.recent == mine.book.state.recent
        assert fresh.book.state.merged == mine.book.state.merged
        assert fresh.book.state.live == mine.book.state.live
    assert layer.llm_use()["labeller"]["calls"] > 2
    assert any(topic.source == "Model" for topic in chat.topics())


# --- the judge


def test_the_judge_has_its_say_within_the_budget_of_each_conversation(make: Make) -> None:
    asker = Asker(CallableLlm(Model()), Budget(calls_per_conversation=1, calls_per_minute=4))
    layer = make(asker, Roles(labels=None), policy=BAND)

    def method(owner: str, name: str) -> tuple[str, str]:
        verdict = layer.conversation(name, owner).receive("Tell me a poem about snow").verdict
        assert verdict is not None
        return verdict.method, verdict.status

    ours, theirs = ("judge", "checked"), ("embedding", "degraded")
    assert [method("a", "c"), method("a", "c"), method("b", "c"), method("a", "d")] == [ours, theirs, ours, ours]
    assert [method("a/b", "c"), method("a", "b/c")] == [ours, theirs], "the minute's budget is used up"
    use = layer.llm_use()["judge"]
    assert (use["calls"], use["outcomes"]) == (4, {"ok": 4, "over budget": 2})


def test_names_with_slashes_share_no_budget(make: Make) -> None:
    layer = make(Asker(CallableLlm(Model()), Budget(calls_per_conversation=1)), Roles(labels=None), policy=BAND)
    for owner, name in (("a/b", "c"), ("a", "b/c"), ('a", "b', "c"), ("a", 'b", "c')):
        verdict = layer.conversation(name, owner).receive("Tell me a poem about snow").verdict
        assert verdict is not None
        assert verdict.method == "judge"


@pytest.mark.parametrize("wait", [0.1, 0])
def test_a_judge_that_hangs_or_is_left_out_leaves_the_local_verdict(make: Make, wait: float) -> None:
    model = Model()
    model.release.clear()
    layer = make(model, Roles(judge=wait, labels=None), policy=BAND)
    turn = layer.conversation("c").receive("Tell me a poem about snow")
    assert turn.verdict is not None
    assert (turn.verdict.method, turn.verdict.status) == ("embedding", "degraded" if wait else "checked")
    assert (turn.status, model.running) == ("pending", 1 if wait else 0)
    model.release.set()


# --- the selector


def selects(*names: str, needed: bool = True) -> dict[str, Any]:
    return {"needs_memory": needed, "topics": list(names), "needs_time": False}


def told(make: Make, model: Model, roles: Roles | None = None) -> Conversation:
    layer = make(model, roles or Roles(labels=None), topics=[0] * 9 + [1] * 9)
    chat = layer.conversation("c")
    for subject in (FLIGHT, PASTA):
        say(chat, [(f"{question} ({n})", f"{answer} ({n})") for n in range(3) for question, answer in subject])
    return chat


QUESTION = "How long does the salt refund take?"  # words of both


def test_the_selector_is_asked_when_the_call_gives_it_time_and_its_topics_come_first(make: Make) -> None:
    model = Model(selector=LlmReply(json.dumps(selects("T2")), 50, 9))
    chat = told(make, model)
    plain = chat.recall(QUESTION, 60)
    assert (plain.selected, model.of("selector")) == (None, [])
    found = chat.recall(QUESTION, 60, select=50.0)
    topics = chat.topics()
    assert found.selected is not None
    assert (found.selected.strategy, found.selected.topics) == ("llm", (topics[1].id,))
    assert found.selected.llm is not None
    assert (found.selected.llm.calls, found.selected.llm.input_tokens) == (1, 50)
    assert found.tokens <= 60
    assert found.passages
    assert all(passage.sequence >= 10 for passage in found.passages)
    model.answers["selector"] = selects("T1")
    assert all(passage.sequence < 10 for passage in chat.recall(QUESTION, 60, select=50.0).passages)
    assert chat.layer.llm_use()["selector"]["calls"] == 2
    asked = json.loads(model.of("selector")[0])
    assert asked["message"] == QUESTION
    assert [topic["topic"] for topic in asked["directory"]] == ["T1", "T2"]
    assert asked["recent"][-1].startswith(PASTA[-1][1])


def test_the_whole_answer_has_room_for_other_topics_too(make: Make) -> None:
    chat = told(make, Model(selector=selects("T2")))
    sequences = {passage.sequence for passage in chat.recall("the refund for the flight", 500, select=50.0).passages}
    assert min(sequences) < 10 <= max(sequences)
    assert len(sequences) == len(set(sequences))


def test_the_layer_may_be_set_to_ask_and_a_call_not_to(make: Make) -> None:
    model = Model(selector=selects())
    chat = told(make, model, Roles(labels=None, select=50.0))
    found = chat.recall(QUESTION, 60)
    assert found.selected is not None
    assert (found.selected.strategy, found.selected.topics) == ("llm", ())
    assert found.passages == chat.recall(QUESTION, 60, select=0).passages
    assert len(model.of("selector")) == 1
    assert chat.recall("  ", 60).selected is None


@pytest.mark.parametrize("reply", ["nonsense", selects("T9"), selects("T1", needed=False), OSError("SECRET")])
def test_when_it_fails_or_wants_nothing_the_local_ranking_stands_and_the_answer_says_so(make: Make, reply: Any) -> None:
    chat = told(make, Model(selector=reply))
    plain, found = chat.recall(QUESTION, 60), chat.recall(QUESTION, 60, select=50.0)
    assert (found.text, found.passages) == (plain.text, plain.passages)
    assert found.selected is not None
    failed = any("the local ranking stands" in note for note in found.selected.notes)
    assert failed == (found.selected.strategy == "local") == (reply != selects("T1", needed=False))
    assert "SECRET" not in str(found)


@pytest.mark.parametrize("what", ["recall", "context"])
def test_a_selector_that_hangs_delays_by_no_more_than_was_allowed(make: Make, what: str) -> None:
    model = Model(selector=selects("T2"))
    chat = told(make, model)
    model.release.clear()
    notes: tuple[str, ...] = ()
    if what == "recall":
        found = chat.recall(QUESTION, 60, select=0.1)
        assert found.selected is not None
        notes = found.selected.notes
    else:
        notes = chat.context(500, question=QUESTION, select=0.1).notes
    assert model.running == 1, "it had not come back"
    model.release.set()
    assert any("no reply within 0.1 s" in note and "local ranking stands" in note for note in notes)


def test_a_context_has_what_the_selector_reopened_and_says_what_that_cost(make: Make) -> None:
    model = Model(selector=selects("T1"))
    chat = told(make, model)

    def words(text: str) -> int:
        return len(text.split())

    context = chat.context(300, question=QUESTION, select=50.0, count=words)
    assert context.llm is not None
    assert (context.llm.role, context.llm.calls) == ("selector", 1)
    assert "topics that the language model reopened: 1" in context.notes
    assert sum(Layout().overhead + words(message.text) for message in context.messages) <= 300
    assert chat.context(300, question=QUESTION, count=words).llm is None


def test_other_conversations_are_no_part_of_what_is_reopened(make: Make) -> None:
    model = Model(selector=selects("T2"))
    chat = told(make, model)
    other = chat.layer.conversation("other")
    other.layer.segmenter.live = lambda: Scripted([0] * 40)  # type: ignore[assignment,method-assign,return-value]  # as above
    say(other, [("The salt refund takes a week, ZEBRA.", "A week, for the refund of salt.")] * 12)
    found = chat.recall(QUESTION, 400, everywhere=True, select=50.0)
    assert {passage.conversation for passage in found.passages} == {"c", "other"}
    assert "ZEBRA" not in model.of("selector")[0]
    mine = [passage for passage in found.passages if passage.conversation == "c" and passage.sequence >= 10]
    assert {passage.conversation for passage in chat.recall(QUESTION, 40, everywhere=True).passages} == {"other"}
    few = chat.recall(QUESTION, 40, everywhere=True, select=50.0).passages
    assert {passage.conversation for passage in few} == {"c"}, "numbers alone do not make a passage one of the topic"
    assert mine
    assert all(passage.conversation == "c" for passage in chat.recall(QUESTION, 400, select=50.0).passages)


@pytest.mark.parametrize("wait", [-1, float("nan"), "5", True])
def test_a_time_that_cannot_be_waited_is_refused(make: Make, wait: Any) -> None:
    chat = told(make, Model())
    with pytest.raises(ConfigError, match="select"):
        chat.recall(QUESTION, select=wait)
    with pytest.raises(ConfigError, match="select"):
        chat.context(500, question=QUESTION, select=wait)


# --- owners


def test_no_owner_reads_another_ones_words_in_any_role(make: Make) -> None:
    model = Model(selector=selects("T1"))
    layer = make(model, policy=BAND, topics=None)
    for owner, word in (("ann", "aardvark"), ("bob", "baboon")):
        chat = layer.conversation("c", owner)
        say(chat, [(f"{question} {word}", f"{answer} {word}") for question, answer in [*FLIGHT, *PASTA] * 4])
        chat.recall(f"the refund {word}", everywhere=True, select=50.0)
        chat.receive(f"and the flight {word}?")
        chat.context(1000, everywhere=True, select=50.0)
    done(layer)
    assert {role for role, _ in model.asked} == {"judge", "labeller", "selector"}
    assert not [user for _, user in model.asked if "aardvark" in user and "baboon" in user]
    for owner, word in (("ann", "baboon"), ("bob", "aardvark")):
        assert word not in str(layer.conversation("c", owner).topics())
        assert word not in str(layer.store.exchanges(Scope(owner)))
