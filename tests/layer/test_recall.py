"""Recall over a store: what it finds, what it leaves out, and what it never does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topicality.core.recall import render
from topicality.core.recall.analysis import PASSAGE_WORDS
from topicality.doors.cli import main
from topicality.embed import load
from topicality.embed.recall import load_recall
from topicality.errors import ConfigError, InputError
from topicality.layer.evaluate_recall import (
    AskedQuestion,
    LabelledConversation,
    evaluate_recall,
    exchanges_of,
    found_in,
    keep,
    read_conversations,
)
from topicality.layer.recall import Recall, analyse, analyse_all, of_topic, recall, token_counter
from topicality.ports import Embedder, Store
from topicality.records import Begin, Change, Complete, Delete, Edit, Fail, PutTopic, Scope, TopicRecord, WordHits
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import Message

DATA = Path(__file__).parents[1] / "data" / "recall" / "chat.jsonl"
CHAT = read_conversations(DATA)[0]
NOW = max(message.at or 0.0 for message in CHAT.messages)
SCOPE = Scope("me", "chat")
TEXTS = {message.id: message.text for message in CHAT.messages}


@pytest.fixture(scope="module")
def encoder() -> Embedder:
    return load("minilm")


@pytest.fixture(scope="module")
def store(encoder: Embedder) -> Iterator[Store]:
    """Mine, and somebody else's."""
    made = open_store("memory://")
    keep(made, encoder, CHAT, "me")
    other = LabelledConversation("chat", (Message("user", "Our Visa Platinum card was rejected by the bank", NOW),))
    keep(made, encoder, other, "somebody else")
    yield made
    made.close()


def ask(store: Store, encoder: Embedder, question: str, budget: int = 500, scope: Scope = SCOPE) -> Recall:
    return recall(store, encoder, scope, question, budget=budget, now=NOW)


def said(*texts: str, name: str | None = None, start: float = 1e9) -> LabelledConversation:
    messages = [Message("user", text, start + 60.0 * n, f"m{n}", name) for n, text in enumerate(texts)]
    return LabelledConversation("c", tuple(messages))


def filled(embedder: Embedder, *conversations: LabelledConversation, owner: str = "me") -> Store:
    store = open_store("memory://")
    for conversation in conversations:
        keep(store, embedder, conversation, owner)
    return store


# --- quality ----------------------------------------------------------------------------------------------------------


def test_the_own_chat_is_remembered(store: Store, encoder: Embedder) -> None:
    """20 questions with synonyms, inflection, another case, dates, long replies; today 97.5, 100, 100 %."""
    report = evaluate_recall([CHAT], encoder, (150, 300, 1000))
    assert report["questions"] == 20
    found = {budget: value["evidence_recall"] for budget, value in report["budgets"].items()}
    assert found["150"] >= 0.9
    assert found["300"] >= 0.95
    assert found["1000"] >= 0.95


def test_nothing_found_is_said_where_there_is_nothing(store: Store, encoder: Embedder) -> None:
    absent = [q for q in CHAT.questions if not q.evidence]
    present = [q for q in CHAT.questions if q.evidence]
    assert len(absent) == len(present) == 20
    said_so = np.mean([ask(store, encoder, q.text).nothing_found for q in absent])
    alarms = np.mean([ask(store, encoder, q.text).nothing_found for q in present])
    assert said_so >= 0.7
    assert alarms <= 0.1


def test_an_answer_with_nothing_found_says_so_first_and_still_shows_the_nearest(
    store: Store, encoder: Embedder
) -> None:
    got = ask(store, encoder, "Which Kubernetes version does the cluster in Frankfurt run?")
    assert got.nothing_found
    assert got.text.split("\n")[0] == render.NOTHING_NOTE
    assert got.passages


@pytest.mark.parametrize(
    ("question", "evidence"),
    [
        ("what did INGRID ask of me", "m4"),  # another case
        ("Why was the Visa declined?", "m8"),  # a synonym
        ("Which laundry item did the dog eat?", "m12"),
        ("painting a cabinet", "m64"),  # inflection
        ("How fast should the 400 metres be?", "m19"),  # inside a long reply
        ("What was my weight in February?", "m16"),
        ("What did I report on 21 July 2025?", "m60"),
    ],
)
def test_bad_luck_with_words_is_covered(store: Store, encoder: Embedder, question: str, evidence: str) -> None:
    assert found_in([TEXTS[evidence]], ask(store, encoder, question, 200).text) == [True]


def test_a_time_in_the_question_decides_between_equal_texts(encoder: Embedder) -> None:
    days = [1.7e9 + 86400.0 * n for n in range(0, 60, 2)]
    messages = tuple(Message("user", f"Lunch was {dish} again", at, dish) for dish, at in zip(
        [f"dish number {n}" for n in range(30)], days, strict=True))  # fmt: skip
    store = filled(encoder, LabelledConversation("c", messages))
    got = recall(store, encoder, Scope("me", "c"), "What was lunch 20 days ago?", budget=40, now=days[-1])
    assert "dish number 19" in got.text


def test_the_first_or_the_latest_is_preferred_where_one_is_asked_for(encoder: Embedder) -> None:
    weights = [f"I weigh {kilos} kilos." for kilos in range(90, 70, -1)]
    messages = tuple(Message("user", text, 1.7e9 + 864000.0 * n, f"m{n}") for n, text in enumerate(weights))
    store = filled(encoder, LabelledConversation("c", messages))
    now = 1.71e9
    scored = {
        word: {p.sequence: p.score for p in recall(
            store, encoder, Scope("me", "c"), f"What was my {word} weight?", budget=2000, now=now).passages}
        for word in ("first", "latest")
    }  # fmt: skip
    early, late = range(1, 6), range(16, 21)
    gain = {word: sum(s[n] for n in late) - sum(s[n] for n in early) for word, s in scored.items()}
    assert gain["latest"] > gain["first"] + 5


# --- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 7, 20, 45, 100, 333, 1000, 5000])
def test_an_answer_keeps_its_promises_at_any_budget(store: Store, encoder: Embedder, budget: int) -> None:
    count = token_counter(encoder)
    for question in CHAT.questions[::3]:
        got = ask(store, encoder, question.text, budget)
        assert got.tokens == count(got.text) <= budget
        lines = render.read(got.text)
        assert [line.text for line in lines] == [" ".join(passage.text.split()) for passage in got.passages]
        order = [(passage.sequence, passage.side == "assistant", passage.start) for passage in got.passages]
        assert order == sorted(set(order))
        times = [passage.at or 0.0 for passage in got.passages]
        assert times == sorted(times)
        for passage in got.passages:
            whole = CHAT.messages[2 * passage.sequence - (2 if passage.side == "user" else 1)].text
            assert whole[passage.start : passage.end] == passage.text
            assert passage.cut is (passage.text.strip() != whole.strip())


def test_the_same_question_gets_the_same_answer_from_every_store(
    store: Store, encoder: Embedder, tmp_path: Path
) -> None:
    pytest.importorskip("sqlalchemy")
    again = open_store(str(tmp_path / "chat.db"))
    keep(again, encoder, CHAT, "me")
    for question in CHAT.questions[:12]:
        one = ask(store, encoder, question.text)
        assert ask(store, encoder, question.text) == one
        assert ask(again, encoder, question.text).text == one.text
    again.close()


def test_an_owner_never_sees_another_owners_words(store: Store, encoder: Embedder) -> None:
    question = "Was the Visa Platinum card rejected by the bank?"
    for scope in (SCOPE, Scope("me")):
        assert "by the bank" not in ask(store, encoder, question, 5000, scope).text
    other = ask(store, encoder, question, 5000, Scope("somebody else"))
    assert [passage.text for passage in other.passages] == ["Our Visa Platinum card was rejected by the bank"]
    assert ask(store, encoder, question, 500, Scope("nobody")).text == ""


def test_all_of_an_owners_conversations_are_searched_and_named(encoder: Embedder) -> None:
    one = replace(said("We keep the spare key under the blue flowerpot."), id="house")
    two = replace(said("The spare key of the car is with Jonas.", start=9e8), id="car")
    got = recall(filled(encoder, one, two), encoder, Scope("me"), "Where are the spare keys?", budget=200, now=NOW)
    assert [passage.conversation for passage in got.passages] == ["car", "house"]
    assert '#1 9 Jul 1998 in "car"' in got.text


def test_filters_hold_for_neighbours_too(store: Store, encoder: Embedder) -> None:
    question = "What about the running plan, weight and the wedding?"
    sides = ask(store, encoder, question, 3000, replace(SCOPE, sides=("user",)))
    assert {passage.side for passage in sides.passages} == {"user"}
    since, until = 1.738e9, 1.745e9
    times = ask(store, encoder, question, 3000, replace(SCOPE, since=since, until=until))
    assert times.passages
    assert all(since <= (passage.at or 0.0) < until for passage in times.passages)
    part = ask(store, encoder, question, 3000, replace(SCOPE, sequences=((3, 5), (20, 20))))
    assert {passage.sequence for passage in part.passages} <= {3, 4, 5, 20}


def test_a_topic_narrows_to_its_spans(encoder: Embedder) -> None:
    store = filled(encoder, said("the ferry to Oslo", "cheese", "the ferry to Kiel", "more cheese", "the ferry again"))
    topic = TopicRecord("t1", spans=((1, 1), (3, 3)))
    store.apply(Change("topic", "me", "c", (PutTopic(topic),)))
    scope = of_topic(store, Scope("me", "c"), "t1")
    got = recall(store, encoder, scope, "the ferry", budget=300, now=NOW)
    assert {passage.sequence for passage in got.passages} == {1, 3}
    assert of_topic(store, Scope("me", "c", ((2, 9),)), "t1").sequences == ((3, 3),)
    assert of_topic(store, Scope("me", "c", ((5, 9),)), "t1").sequences == ((0, 0),)
    with pytest.raises(InputError, match="no topic"):
        of_topic(store, Scope("me", "c"), "t2")
    with pytest.raises(InputError, match="conversation"):
        of_topic(store, Scope("me"), "t1")


def test_topics_are_shown_where_they_are_known(store: Store, encoder: Embedder) -> None:
    got = recall(
        store, encoder, SCOPE, "Which card did we reject?", budget=120, now=NOW,
        topic_of=lambda _, sequence: "cards" if sequence in (5, 6) else None,
    )  # fmt: skip
    assert '#5 18 Jan 2025 "cards"' in got.text
    assert {passage.topic for passage in got.passages if passage.sequence == 5} == {"cards"}


def test_only_completed_exchanges_are_evidence_and_removed_ones_are_gone(encoder: Embedder) -> None:
    store = filled(encoder, said("The vault code is 4711."))

    def texts(question: str = "What is the vault code?") -> list[str]:
        got = recall(store, encoder, Scope("me", "c"), question, budget=200, now=NOW)
        return [passage.text for passage in got.passages]

    text = "The new vault code is 0815."
    store.apply(Change("2", "me", "c", (Begin("late", text, analyse(text, encoder)),)))
    assert text not in texts()
    store.apply(Change("3", "me", "c", (Complete("late", "Noted."),)))
    assert text in texts()
    edited = "The vault code is secret."
    store.apply(Change("4", "me", "c", (Edit("late", "user", edited, analyse(edited, encoder)),)))
    assert edited in texts()
    assert text not in texts()
    store.apply(Change("5", "me", "c", (Delete("late"), Begin("x", text, analyse(text, encoder)), Fail("x", "no"))))
    assert texts() == ["The vault code is 4711."]


def test_a_message_longer_than_a_passage_is_found_at_its_end(encoder: Embedder) -> None:
    filler = " ".join(f"Paragraph {n} is about gardening and the weather of the week." for n in range(260))
    text = filler + " By the way, the lighthouse keeper is called Augustin. " + "And so on and on. " * 30
    assert len(text.split()) > 3 * PASSAGE_WORDS
    parts = analyse(text, encoder)
    assert len(parts) > 3
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    store = filled(encoder, said("Hello there.", text, "Good night."))
    got = recall(store, encoder, Scope("me", "c"), "Who is the lighthouse keeper?", budget=120, now=NOW)
    assert any("called Augustin" in passage.text and passage.cut for passage in got.passages)


def test_messages_without_times_are_found_in_their_order(encoder: Embedder) -> None:
    messages = tuple(Message("user", text) for text in ("The cat is called Miso.", "Hm.", "Miso the cat likes tuna."))
    store = filled(encoder, LabelledConversation("c", messages))
    got = recall(store, encoder, Scope("me", "c"), "What is the cat called?", budget=100, now=NOW)
    assert got.text.startswith("#1\n")
    assert got.passages[0].sequence == 1


def test_an_encoder_without_weights_has_a_plain_method() -> None:
    words = WordEmbedder()
    store = filled(words, said("We moved to Oslo in May.", "I like cheese.", "It rains a lot."))
    got = recall(store, words, Scope("me", "c"), "Where did we move?", budget=10**4, now=NOW)
    assert got.method == "plain"
    assert load_recall(words)[0] is None
    assert "We moved to Oslo in May." in got.text
    gone = recall(store, words, Scope("me", "c"), "Kubernetes ingress controllers Frankfurt", budget=100, now=NOW)
    assert gone.nothing_found


def test_without_vectors_words_still_find(encoder: Embedder) -> None:
    store = open_store("memory://")
    store.bind(encoder.space)
    text = "The ferry leaves at noon."
    store.apply(Change("1", "me", "c", (Begin("e", text, analyse(text)), Complete("e", "Fine.", analyse("Fine.")))))
    got = recall(store, encoder, Scope("me", "c"), "When does the ferry leave?", budget=100, now=NOW)
    assert "ferry leaves at noon" in got.text


def test_the_name_of_somebody_who_speaks_is_no_word_to_look_for(
    encoder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken_to = said("Hello Nora!", "Nora, how are you?", "We adopted a cat")
    speaks = said("Hello Ben!", "We adopted a cat", "It is raining", name="Nora Lind")
    for chat, word in ((spoken_to, True), (speaks, False)):
        store = filled(encoder, chat)
        found, looked_for = store.search_words, list[Sequence[str]]()

        def listening(scope: Scope, terms: Sequence[str], limit: int) -> WordHits:
            looked_for.append(terms)  # noqa: B023 - called at once
            return found(scope, terms, limit)  # noqa: B023 - called at once

        monkeypatch.setattr(store, "search_words", listening)
        ask(store, encoder, "What did Nora adopt?", scope=Scope("me", "c"))
        assert ("nora" in looked_for[-1]) is word
        assert "adopt" in looked_for[-1]
        assert len(looked_for) == (1 if word else 2)


@pytest.mark.parametrize("question", ["", "   ", "\n"])
def test_a_blank_question_finds_nothing(store: Store, encoder: Embedder, question: str) -> None:
    assert ask(store, encoder, question) == Recall("", (), 0, True, "learned", 0)


@pytest.mark.parametrize("question", ["?", "the of", "😂", "订阅", "a" * 5000, "@caroline ?qt1"])
def test_any_question_is_answered(store: Store, encoder: Embedder, question: str) -> None:
    got = ask(store, encoder, question, 300)
    render.read(got.text)
    assert got.tokens <= 300


def test_an_empty_store_finds_nothing(encoder: Embedder) -> None:
    store = open_store("memory://")
    assert ask(store, encoder, "Anything?").nothing_found
    store.bind(encoder.space)
    assert ask(store, encoder, "Anything?").nothing_found


@pytest.mark.parametrize("budget", [0, -5, True])
def test_a_budget_that_is_none_is_refused(store: Store, encoder: Embedder, budget: int) -> None:
    with pytest.raises(ConfigError, match="budget"):
        ask(store, encoder, "Anything?", budget)


def test_many_messages_are_analysed_in_one_call_of_the_encoder() -> None:
    words = WordEmbedder()
    found = analyse_all([Message("user", "We moved", name="Ann"), "", "to Oslo " * 1200], words)
    assert len(words.calls) == 1
    assert [len(passages) for passages in found] == [1, 0, 3]
    assert found[0][0].terms == ("move", "@ann", "?1")
    assert all(passage.vector is not None for passages in found for passage in passages)
    assert analyse_all([], words) == []


def test_a_passage_becomes_evidence_for_the_context(store: Store, encoder: Embedder) -> None:
    passage = ask(store, encoder, "Which card did we reject?").passages[0]
    evidence = passage.evidence()
    assert (evidence.sequence, evidence.message.text, evidence.cut) == (passage.sequence, passage.text, passage.cut)


# --- measuring --------------------------------------------------------------------------------------------------------


def test_messages_become_exchanges_in_their_order() -> None:
    u, a = Message("user", "u"), Message("assistant", "a")
    assert exchanges_of([a, u, u, a, a, u]) == [(None, a), (u, None), (u, a), (None, a), (u, None)]


def test_a_message_is_found_whole_or_by_forty_words_in_a_row() -> None:
    text = " ".join(f"w{n}" for n in range(60))

    def line(first: int, last: int) -> str:
        return "user: " + json.dumps(" ".join(f"w{n}" for n in range(first, last)))

    assert found_in([text, "w3  w4", "w9 w9"], line(0, 60)) == [True, True, False]
    assert found_in([text], line(20, 60)) == [True]
    assert found_in([text], line(21, 60)) == [False]
    assert found_in([text], line(0, 30) + "\n" + line(30, 60)) == [False]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["eval", "recall", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_the_documented_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = replace(CHAT, questions=CHAT.questions[:4])
    rows = {
        "id": few.id,
        "messages": [{"id": m.id, "role": m.role, "name": m.name, "text": m.text, "at": m.at} for m in few.messages],
        "questions": [
            {"question": q.text, "category": q.category, "evidence": list(q.evidence)} for q in few.questions
        ],
    }
    path = tmp_path / "few.jsonl"
    path.write_text(json.dumps(rows) + "\n\n", "utf-8")
    code, out, _ = run(capsys, "--data", str(path), "--budgets", "100,400", "--json")
    report: dict[str, Any] = json.loads(out)
    assert code == 0
    assert set(report) >= {"questions", "budgets", "by_category", "ms_per_question", "llm_calls", "encoder"}
    assert report["questions"] == 4
    assert list(report["budgets"]) == ["100", "400"]
    assert set(report["budgets"]["100"]) == {"evidence_recall", "all_found", "tokens_mean", "tokens_max"}
    assert report["budgets"]["100"]["tokens_max"] <= 100
    assert set(report["by_category"]) == {"synonym", "single", "case"}
    assert set(report["ms_per_question"]) == {"p50", "p95"}
    assert report["llm_calls"] == 0
    code, out, _ = run(capsys, "-d", str(path), "-d", str(DATA), "--budgets", "400", "--json")
    both = json.loads(out)
    assert code == 0
    assert set(both["files"]) == {str(path), str(DATA)}
    values = [report["budgets"]["400"]["evidence_recall"] for report in both["files"].values()]
    assert both["mean"]["400"]["evidence_recall"] == pytest.approx(np.mean(values), abs=1e-4)
    code, out, _ = run(capsys, "-d", str(path), "--budgets", "400")
    assert code == 0
    assert "synonym" in out


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("{", [], "line 1"),
        ('{"id": "a"}', [], "line 1"),
        ('{"id": "a", "messages": [{"id": "m", "role": "user", "text": 3}]}', [], "line 1"),
        ('{"id": "a", "messages": [{"id": "m", "role": "user", "text": "x", "at": "soon"}]}', [], "line 1"),
        ('{"id": "a", "messages": [], "questions": []}', [], "nothing to measure"),
        ("", ["--budgets", "0"], "--budgets"),
        ("", ["--budgets", "many"], "--budgets"),
    ],
)
def test_bad_data_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, arguments: Sequence[str], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, "utf-8")
    code, _, err = run(capsys, "--data", str(path), *arguments)
    assert code == 2
    assert message in err
    assert run(capsys, "--data", str(tmp_path / "none.jsonl"))[0] == 2


def test_questions_without_evidence_do_not_count(encoder: Embedder) -> None:
    asked = (AskedQuestion("Where to?", ("m0",)), AskedQuestion("What?", ()), AskedQuestion("Who?", ("gone",)))
    report = evaluate_recall([replace(said("We moved to Oslo."), questions=asked)], encoder, (50,))
    assert report["questions"] == 1
    assert report["budgets"]["50"]["evidence_recall"] == 1.0
