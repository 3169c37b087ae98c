"""The selector picks from the directory; whatever it does, there is an answer."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from topicality.layer.selecting import Candidates, Selected, select
from topicality.llm import Asker, Budget, CallableLlm
from topicality.records import TopicRecord
from topicality.types import LlmReply

TOPICS = [
    TopicRecord("a", 1, labels=("balcony", "tomatoes"), terms=("watering",), spans=((1, 4),), ended_at=1000.0),
    TopicRecord("b", 2, labels=("trains",), spans=((5, 6),), ended_at=2000.0),
    TopicRecord("c", 3, labels=("taxes",), spans=((7, 9),)),
    TopicRecord("d", 4, "dropped", labels=("gone",), spans=()),
    TopicRecord("e", 5, labels=("dogs",), spans=((10, 10),)),
]
SCORES = {"b": 0.2, "a": 0.9, "d": 1.0, "e": 0.5, "c": 0.1, "unknown": 3.0}
LOCAL = ("a", "e", "b")


def chosen(reply: Any, *, topics: list[TopicRecord] = TOPICS, budget: int = 5000, timeout: float = 5.0) -> Selected:
    asked.clear()

    def model(system: str, user: str) -> Any:
        asked.append(json.loads(user))
        if isinstance(reply, Exception):
            raise reply
        return reply

    candidates = Candidates(topics, SCORES, budget, len, 3000.0)
    return select(Asker(CallableLlm(model)), "what about trains?", ["hello"], candidates, timeout=timeout)


asked: list[Any] = []


def says(*names: Any, memory: Any = True, when: Any = False) -> dict[str, Any]:
    return {"needs_memory": memory, "topics": list(names), "needs_time": when}


def test_without_a_model_the_local_ranking_is_the_answer_and_costs_no_call() -> None:
    found = select(None, "x", [], Candidates(TOPICS, SCORES, 5000, len, 0.0), timeout=5)
    assert found == Selected(LOCAL)
    assert found.llm is None


def test_it_sees_the_directory_and_chooses_by_name() -> None:
    found = chosen(says("T3", "T1", when=True))
    assert (found.topics, found.needs_time, found.strategy, found.notes) == (("c", "a"), True, "llm", ())
    assert found.llm is not None
    assert (found.llm.role, found.llm.calls) == ("selector", 1)
    (question,) = asked
    assert (question["message"], question["recent"]) == ("what about trains?", ["hello"])
    assert [topic["topic"] for topic in question["directory"]] == ["T1", "T2", "T3", "T5"]
    assert question["directory"][0]["about"] == "balcony; tomatoes"


def test_it_may_want_none() -> None:
    assert chosen(says("T1", memory=False)).topics == ()
    assert chosen(says()).topics == ()


def test_unknown_names_and_repetitions_drop_out_before_the_cut() -> None:
    found = chosen(says("T9", "T8", "T4", "T2", "T2", "T1", "T2", "T3", "T5"))
    assert found.topics == ("b", "a", "c")
    assert len(found.notes) == 2


def test_nothing_but_unknown_names_is_mended_or_refused() -> None:
    found = chosen(says("T9"))
    assert (found.topics, found.strategy) == (LOCAL, "local")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "reply",
    [says("T1", memory="true"), says("T1", when="false"), says(1), "T1", {}, "", RuntimeError("x"), LlmReply("")],
)
def test_any_failure_leaves_the_local_ranking(reply: Any) -> None:
    found = chosen(reply)
    assert (found.topics, found.strategy, found.needs_time) == (LOCAL, "local", False)
    assert found.llm is not None
    assert any("the selector failed" in note for note in found.notes)


def test_answers_that_contradict_each_other_are_none() -> None:
    assert chosen(json.dumps(says("T1")) + json.dumps(says("T2"))).strategy == "local"
    assert chosen(json.dumps(says("T1")) * 2).topics == ("a",)


def test_nothing_to_choose_from_is_not_asked_about() -> None:
    for found in (chosen(says("T1"), topics=[]), chosen(says("T1"), topics=[TOPICS[3]]), chosen(says("T1"), budget=0)):
        assert (found.strategy, found.llm, asked) == ("local", None, [])


def test_only_what_fits_the_budget_is_shown_and_may_be_chosen() -> None:
    many = [TopicRecord(f"t{n}", n, labels=(f"label {n}",), spans=((n, n),)) for n in range(1, 200)]
    chosen(says("T1"), topics=many, budget=2000)
    shown = [topic["topic"] for topic in asked[0]["directory"]]
    assert 5 < len(shown) < 60


def test_a_slow_selector_is_not_waited_for_longer_than_asked() -> None:
    release, returned = threading.Event(), []

    def slow(system: str, user: str) -> Any:
        returned.append(release.wait(100))
        return says("T1")

    candidates = Candidates(TOPICS, SCORES, 5000, len, 0.0)
    found = select(Asker(CallableLlm(slow)), "x", [], candidates, timeout=0.1)
    assert returned == []
    release.set()
    assert found.topics == LOCAL
    assert found.llm is not None
    assert found.llm.outcome == "timeout"


def test_a_conversation_over_its_budget_is_answered_locally() -> None:
    asker = Asker(CallableLlm(lambda system, user: says("T2")), Budget(calls_per_conversation=1))
    candidates = Candidates(TOPICS, SCORES, 5000, len, 0.0)
    kinds = [select(asker, "x", [], candidates, timeout=5, conversation="k").strategy for _ in range(3)]
    assert kinds == ["llm", "local", "local"]
