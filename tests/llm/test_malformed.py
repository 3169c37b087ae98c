"""A thousand malformed replies for each role: none crashes, none lets a message pass, none touches the topics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topicality import Guard, Policy, TopicRule
from topicality.core.expansion import read_expansion
from topicality.core.selection import Selection, read_selection
from topicality.core.worker import Gates
from topicality.layer.labelling import STATE, relabel, setup
from topicality.layer.memory import Layer
from topicality.layer.recall import analyse_all
from topicality.layer.selecting import Candidates, select
from topicality.llm import Asker, Budget, CallableLlm, Roles
from topicality.records import Begin, Change, Complete, PutState, PutTopic, TopicRecord
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

THOUSAND = settings(
    max_examples=1000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def spoil(good: dict[str, Any], wrong: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Replies that a strict reader must refuse, made from one that it would take.

    Args:
        wrong: for each key, values that are never right for it.
    """
    text = json.dumps(good)
    keys = sorted(good)

    def without(key: str) -> Any:
        return {name: value for name, value in good.items() if name != key}

    broken: st.SearchStrategy[Any] = st.one_of(
        st.sampled_from(sorted(wrong)).map(without),
        st.sampled_from(sorted(wrong)).flatmap(lambda key: wrong[key].map(lambda value: {**good, key: value})),
        st.tuples(st.text(max_size=8).filter(lambda key: key not in keys), ODD).map(lambda kv: {**good, kv[0]: kv[1]}),
        st.sampled_from(["result", "answer", "verdict"]).map(lambda key: {key: good}),
        st.just(json.dumps(text)),
        st.integers(1, len(text) - 1).map(lambda cut: text[:cut]),
        st.integers(1, len(text) - 1).map(lambda cut: text[cut:]),
        st.just(text.replace('"', "'")),
        st.just(text.replace(":", "=")),
        st.text(max_size=60).map(lambda junk: junk.replace("{", "(")),
        st.binary(max_size=40).map(lambda junk: junk.replace(b"{", b"(")),
        st.integers(1, 4).map(lambda depth: "[" * 10**depth),
        st.integers(1, 4).map(lambda depth: '{"a":' * 10**depth),
        ODD.filter(lambda value: not isinstance(value, dict)),
    )
    wrap = st.sampled_from(
        ["{}", "```json\n{}\n```", "Sure! {} Hope that helps.", "<think>hm {{</think>{}", "\ufeff{}\x00"]
    )

    def shown(pair: tuple[Any, str]) -> Any:
        value, frame = pair
        if isinstance(value, bytes):
            return value
        try:
            body = value if isinstance(value, str) else json.dumps(value)
        except ValueError:
            return value
        return frame.replace("{{", "\0").replace("{}", body).replace("\0", "{")

    return st.tuples(broken, wrap).map(shown)


NOT_TEXT = ODD.filter(lambda value: not isinstance(value, str))
NOT_BOOL = ODD.filter(lambda value: not isinstance(value, bool)) | st.sampled_from(["true", "false", 0, 1])


class Says:
    """A model that says whatever it is told to."""

    reply: Any = ""
    asked = 0

    def __call__(self, system: str, user: str) -> Any:
        self.asked += 1
        return self.reply


def asker_for(model: Says) -> Asker:
    return Asker(CallableLlm(model), Budget(calls_per_minute=None, pause_after=None))


# Judge.

GOOD_JUDGEMENT = {"verdict": "allowed", "rule": "billing", "confidence": 1.0, "reason": "fine"}
BAD_JUDGEMENTS = spoil(
    GOOD_JUDGEMENT,
    {
        "verdict": ODD.filter(lambda v: v != "allowed") | st.sampled_from(["ALLOWED", "allow", True, ["allowed"]]),
        "rule": ODD.filter(lambda v: v is not None and v != "billing")
        | st.sampled_from(["violence", "Billing", "billing "]),
        "confidence": st.sampled_from(["1", "high", True, None, -0.01, 1.01, 12, 10**400, float("nan"), float("inf")]),
    },
)
JUDGE = Says()
POLICY = Policy(allowed=["billing"], blocked=[TopicRule(name="violence", description="weapons")], judge="always")
GUARD = Guard(POLICY, judge=asker_for(JUDGE))
HARM = "How do I build a bomb to hurt people?"
HARM_BY_WORD = "violence weapons"  # for an encoder that knows words only
LOCAL = Guard(POLICY).check(HARM)


@pytest.mark.slow
@given(BAD_JUDGEMENTS)
@THOUSAND
def test_no_malformed_judgement_lets_a_message_pass(reply: Any) -> None:
    JUDGE.reply = reply
    verdict = GUARD.check(HARM)
    assert LOCAL.action == verdict.action == "block"
    assert verdict.llm is not None
    assert verdict.llm.calls <= 2


# Selector.

TOPICS = [TopicRecord(f"id{n}", n, labels=(f"label {n}",), spans=((n, n),)) for n in range(1, 6)]
GOOD_SELECTION = {"needs_memory": True, "topics": ["T4"], "needs_time": False}
BAD_SELECTIONS = spoil(
    GOOD_SELECTION,
    {
        "needs_memory": NOT_BOOL,
        "needs_time": NOT_BOOL,
        "topics": ODD.filter(lambda v: not isinstance(v, list)) | st.lists(NOT_TEXT, min_size=1, max_size=3),
    },
)
SELECTOR = Says()
SELECTING = asker_for(SELECTOR)
CANDIDATES = Candidates(TOPICS, {"id2": 0.5, "id1": 0.9}, 10_000, len, 0.0)


@pytest.mark.slow
@given(BAD_SELECTIONS)
@THOUSAND
def test_after_a_malformed_selection_the_local_ranking_stands(reply: Any) -> None:
    SELECTOR.reply = reply
    chosen = select(SELECTING, "what about trains?", [], CANDIDATES, timeout=5)
    assert (chosen.topics, chosen.strategy, chosen.needs_time) == (("id1", "id2"), "local", False)
    assert chosen.llm is not None
    assert chosen.llm.outcome in ("refused", "failed")


@given(
    st.lists(st.sampled_from(["T1", "T2", "T3", "T4", "T5", "id2", "T9", "t1", "", "T1 "]), max_size=12), st.booleans()
)
@settings(max_examples=200)
def test_a_selection_has_known_topics_each_once_at_most_three(names: list[str], wanted: bool) -> None:
    reply = json.dumps({"needs_memory": wanted, "topics": names, "needs_time": True})
    found = read_selection(reply, TOPICS)
    known = [
        {"T": f"id{name[1:]}"}.get(name[:1], name) for name in names if name in {"T1", "T2", "T3", "T4", "T5", "id2"}
    ]
    if wanted and names and not known:
        assert isinstance(found, list)
        return
    assert isinstance(found, Selection)
    assert found.topics == (tuple(dict.fromkeys(known))[:3] if wanted else ())
    assert bool(found.notes) == (len(known) < len(names) or (wanted and len(set(known)) > 3))


# Labeller.

TALK = [
    "tomatoes on the balcony",
    "watering tomatoes",
    "balcony pots",
    "trains to Oslo",
    "night trains",
    "Oslo tickets",
]
GOOD_TOPICS = {
    "topics": [
        {
            "status": "open",
            "labels": ["a b", "c d"],
            "terms": ["tomatoes", "balcony", "pots"],
            "spans": [{"first": 1, "last": 3}],
        },
        {
            "status": "open",
            "labels": ["e f", "g h"],
            "terms": ["trains", "Oslo", "tickets"],
            "spans": [{"first": 4, "last": 6}],
        },
    ]
}


def topics_with(**changes: Any) -> dict[str, Any]:
    first, second = GOOD_TOPICS["topics"]
    return {"topics": [{**first, **changes}, second]}


SPAN = st.fixed_dictionaries({"first": ODD, "last": ODD}) | st.fixed_dictionaries(
    {"first": st.integers(), "last": st.integers()}
)
BAD_TOPICS = spoil(GOOD_TOPICS, {"topics": ODD}) | st.one_of(
    ODD.filter(lambda v: v not in ("open", "provisional", "finalized")).map(lambda v: topics_with(status=v)),
    st.lists(SPAN | ODD, max_size=4)
    .filter(lambda v: v != [{"first": 1, "last": 3}])
    .map(lambda v: topics_with(spans=v)),
    NOT_TEXT.map(lambda v: topics_with(labels=v)),
    st.lists(NOT_TEXT, max_size=6).map(lambda v: topics_with(terms=v)),
    st.sampled_from([10**12, 2**63, 1.0, "1", None, True]).map(lambda v: topics_with(spans=[{"first": 1, "last": v}])),
    ODD.filter(lambda v: v is not None).map(lambda v: topics_with(continues=v)),
    ODD.map(lambda v: topics_with(id=v)),
)
COUNT = itertools.count()
HOW = setup(Gates(completed=1, tail=1))


@pytest.fixture(scope="module")
def talk() -> Iterator[Any]:
    store = open_store("memory://")
    operations: list[Any] = []
    for n, text in enumerate(TALK):
        operations += [Begin(f"e{n}", text), Complete(f"e{n}", "I see.")]
    operations.append(PutTopic(TopicRecord("old", status="finalized", labels=("everything",), spans=((1, 6),))))
    store.apply(Change("start", "o", "x", tuple(operations)))
    yield store
    store.close()


def forget(store: Any) -> None:
    """As if the labeller had never been asked: no cool-down, no input that was refused."""
    store.apply(Change(f"forget {next(COUNT)}", "o", "x", (PutState(STATE, None),)))


@pytest.mark.slow
@given(reply=BAD_TOPICS)
@THOUSAND
def test_no_malformed_topics_touch_those_that_are_there(talk: Any, reply: Any) -> None:
    before = talk.topics("o", "x")
    model = Says()
    model.reply = reply
    forget(talk)
    result = relabel(talk, "o", "x", asker_for(model), how=HOW, scope="all")
    assert result.reason in ("rejected", "failed")
    assert model.asked in (1, 2)
    assert talk.topics("o", "x") == before


def test_the_good_replies_that_the_bad_ones_are_made_from_are_good(talk: Any) -> None:
    JUDGE.reply, SELECTOR.reply = GOOD_JUDGEMENT, GOOD_SELECTION
    assert GUARD.check(HARM).action == "allow"
    assert select(SELECTING, "x", [], CANDIDATES, timeout=5).topics == ("id4",)
    copy = open_store("memory://")
    copy.load(talk.export())
    forget(copy)
    model = Says()
    model.reply = GOOD_TOPICS
    assert relabel(copy, "o", "x", asker_for(model), how=HOW, scope="all").reason == "accepted"


# Expander.

GOOD_EXPANSION = {"includes": ["refunds"], "near_misses": ["a bill in parliament"]}
NOT_PLAIN = st.sampled_from(["a\nb", "\x1b[31mred", "x" * 161, "\u202eevil", 5, None, ["x"]])


@given(
    spoil(
        GOOD_EXPANSION,
        {
            "includes": st.just([])
            | st.lists(NOT_PLAIN, min_size=1, max_size=3)
            | ODD.filter(lambda v: not isinstance(v, list)),
            "near_misses": st.lists(NOT_PLAIN, min_size=1, max_size=3) | ODD.filter(lambda v: not isinstance(v, list)),
        },
    )
)
@settings(max_examples=300)
def test_no_malformed_expansion_gets_into_a_policy(reply: Any) -> None:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    assert isinstance(read_expansion(text, TopicRule(name="billing")), list)


# All of them in a layer.


@pytest.fixture(scope="module")
def wired() -> Iterator[tuple[Layer, Says]]:
    """A layer whose model plays every role; one conversation with two closed topics."""
    model = Says()
    roles = Roles(labels=Gates(completed=1, tail=1))
    layer = Layer(open_store("memory://"), POLICY, WordEmbedder(), llm=asker_for(model), roles=roles)
    operations: list[Any] = []
    for n, (text, passages) in enumerate(zip(TALK, analyse_all(TALK, layer.embedder), strict=True)):
        operations += [Begin(f"e{n}", text, passages), Complete(f"e{n}", "I see.")]
    for name, spans in (("garden", ((1, 3),)), ("trains", ((4, 6),))):
        operations.append(PutTopic(TopicRecord(name, status="finalized", labels=(name,), spans=spans)))
    layer.store.apply(Change("start", "o", "x", tuple(operations)))
    yield layer, model
    layer.close()


@pytest.mark.slow
@given(reply=BAD_JUDGEMENTS)
@THOUSAND
def test_in_a_layer_no_malformed_judgement_lets_a_message_in(wired: tuple[Layer, Says], reply: Any) -> None:
    layer, model = wired
    model.reply = reply
    turn = layer.conversation(f"harm {next(COUNT)}", "judged").receive(HARM_BY_WORD)
    assert turn.verdict is not None
    assert (turn.verdict.action, turn.status) == ("block", "failed")
    assert turn.verdict.llm_calls in (1, 2)


@pytest.mark.slow
@given(reply=BAD_SELECTIONS)
@THOUSAND
def test_in_a_layer_recall_is_the_same_after_a_malformed_selection(wired: tuple[Layer, Says], reply: Any) -> None:
    layer, model = wired
    model.reply = reply
    chat = layer.conversation("x", "o")
    plain, found = chat.recall("trains to Oslo", 40), chat.recall("trains to Oslo", 40, select=50.0)
    assert found.text == plain.text
    assert found.passages
    assert found.selected is not None
    assert (found.selected.strategy, found.selected.llm is None) == ("local", False)


@pytest.mark.slow
@given(reply=BAD_TOPICS)
@THOUSAND
def test_in_a_layer_no_malformed_topics_change_those_that_are_there(wired: tuple[Layer, Says], reply: Any) -> None:
    layer, model = wired
    assert layer.labeller is not None
    before, model.reply, model.asked = layer.store.topics("o", "x"), reply, 0
    layer.store.apply(Change(f"forget {next(COUNT)}", "o", "x", (PutState(STATE, None),)))
    assert layer.labeller.wake("o", "x")
    assert layer.labeller.wait(100)
    assert model.asked in (1, 2)
    assert layer.store.topics("o", "x") == before
