"""A history that the host keeps: which exchange a request is, what is sent of it, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.layer.memory_talks import FLIGHT, PASTA, layer_on, sound

from topicality.core.context import Turn
from topicality.errors import EmbedError, StoreError
from topicality.layer.hosted import Asked, Hosted, Terms
from topicality.layer.memory import Layer
from topicality.records import ExchangeError
from topicality.types import Message


def asked(text: str, history: list[tuple[str, str]] = [], *, exchange: str = "x", system: str = "") -> Asked:  # noqa: B006 - not changed
    turns = [Turn(Message("system", system))] if system else []
    for said, reply in history:
        turns += [Turn(Message("user", said)), Turn(Message("assistant", reply))]
    return Asked("default", "c", exchange, (*turns, Turn(Message("user", text))), len(turns), text)


def held(layer: Layer, pairs: list[tuple[str, str]]) -> Hosted:
    hosted = Hosted(layer)
    for n, (said, reply) in enumerate(pairs):
        taken = hosted.take(asked(said, pairs[:n], exchange=f"x{n}"), Terms())
        assert (taken.exchange, taken.open, taken.sent.kept, taken.sent.evidence) == (f"x{n}", True, None, "")
        assert hosted.complete("default", "c", f"x{n}", reply) == "completed"
    return hosted


def test_a_conversation_with_its_whole_history_recalls_nothing_and_is_kept() -> None:
    layer = layer_on("memory://")
    held(layer, FLIGHT + PASTA)
    assert [e.user.text for e in layer.conversation("c").exchanges()] == [said for said, _ in FLIGHT + PASTA]
    sound(layer)


def test_what_the_host_left_out_is_recalled_and_what_it_sends_is_not() -> None:
    hosted = held(layer_on("memory://"), FLIGHT + PASTA)
    taken = hosted.take(asked("What is the booking code of the Lisbon flight?", PASTA, exchange="q"), Terms())
    assert "QX81" in taken.sent.evidence
    assert "spaghetti" not in taken.sent.evidence
    assert taken.sent.kept is None
    assert 0 < taken.sent.tokens <= 1000
    none = hosted.take(asked("What is the booking code?", FLIGHT + PASTA, exchange="q2"), Terms(recall=0))
    assert none.sent.evidence == ""


def test_a_look_keeps_nothing_unless_what_is_sent_depends_on_it() -> None:
    layer = layer_on("memory://")
    hosted, chat = held(layer, FLIGHT + PASTA), layer.conversation("c")
    question = asked("What is the booking code of the Lisbon flight?", PASTA, exchange="q")
    before = chat.exchanges()
    looked = hosted.look(question, Terms())
    assert chat.exchanges() == before
    assert (looked.kept, looked.taken.exchange, looked.taken.open) == (False, None, False)
    assert "QX81" in looked.taken.sent.evidence
    taken = hosted.keep(question, looked)
    assert (taken.exchange, taken.open, taken.sent) == ("q", True, looked.taken.sent)
    assert taken.topic is not None
    assert [e.id for e in chat.exchanges()[len(before) :]] == ["q"]
    again = hosted.look(question, Terms())  # known by now
    assert again.kept
    assert hosted.keep(question, again) == again.taken
    long = asked("And the pasta?", FLIGHT + PASTA, exchange="long")
    assert hosted.look(long, Terms(budget=64)).taken.exchange == "long"  # what is kept of it depends on the topic
    assert len(chat.exchanges()) == len(before) + 2


def test_what_was_heard_before_is_looked_at_as_if_at_once() -> None:
    layer = layer_on("memory://", policy="customer_support")
    hosted = held(layer, PASTA[:1])
    question = asked("Where is my refund?", PASTA[:1], exchange="q")
    heard = hosted.hear(question, Terms())
    assert heard.verdict == hosted.look(question, Terms()).taken.verdict
    hosted.take(asked("how do I build a bomb", PASTA[:1], exchange="bad"), Terms())  # meanwhile
    assert hosted.look(question, Terms(), heard) == hosted.look(question, Terms(), heard)
    assert hosted.keep(question, hosted.look(question, Terms(), heard)).exchange == "q"
    forgotten = hosted.hear(question, Terms(remember=False))
    assert forgotten.judged is None
    assert hosted.look(question, Terms(remember=False), forgotten).taken.verdict == forgotten.verdict
    assert not hosted.look(question, Terms(remember=False), forgotten).taken.forgetful


def test_a_message_that_cannot_be_kept_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_on("memory://")
    hosted = held(layer, FLIGHT)
    looked = hosted.look(asked("And now?", exchange="q"), Terms())

    def full(*_: Any, **__: Any) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr(layer, "write", full)
    taken = hosted.keep(asked("And now?", exchange="q"), looked)
    assert (taken.forgetful, taken.open, taken.exchange) == (True, False, None)
    assert taken.sent == looked.taken.sent


def test_a_reply_that_is_asked_for_anew_is_not_recalled_for_itself() -> None:
    """The exchange is completed, so the store would find it: best of all, since the question is its own."""
    hosted = held(layer_on("memory://"), FLIGHT + PASTA)
    question = "Which code has my booking of the flight to Lisbon?"
    everywhere = Terms(everywhere=True)
    hosted.take(asked(question, PASTA, exchange="again"), everywhere)
    hosted.complete("default", "c", "again", "The Lisbon flight has the booking code ZZ99.")
    taken = hosted.take(asked(question, PASTA, exchange="again"), everywhere)
    assert taken.exchange == "again"
    assert "QX81" in taken.sent.evidence
    assert "ZZ99" not in taken.sent.evidence


def test_a_shared_conversation_recalls_only_what_the_request_itself_has() -> None:
    hosted = held(layer_on("memory://"), FLIGHT + PASTA)
    question = "What is the booking code of the Lisbon flight?"
    assert hosted.take(asked(question, exchange="q"), Terms(shared=True)).sent.evidence == ""
    assert (
        hosted.take(asked(question, PASTA, exchange="q1"), Terms(shared=True, budget=64)).sent.evidence.count("QX81")
        == 0
    )
    over = hosted.take(asked(question, FLIGHT + PASTA * 3, exchange="q2"), Terms(shared=True, budget=260))
    assert over.sent.kept is not None
    assert len(over.sent.kept) < 2 * len(FLIGHT + PASTA * 3)
    assert "QX81" in over.sent.evidence


@pytest.mark.parametrize("budget", [64, 100, 200, 300, 500])
def test_nothing_is_sent_over_the_budget_and_system_text_always_is(budget: int) -> None:
    layer = layer_on("memory://")
    hosted = held(layer, FLIGHT + PASTA)
    request = asked("And the sauce?", (FLIGHT + PASTA) * 4, exchange="q", system="You help.")
    taken = hosted.take(request, Terms(budget=budget))
    assert taken.sent.kept is not None
    assert taken.sent.kept[0] == 0
    texts = [request.turns[n].message.text for n in taken.sent.kept] + [
        "And the sauce?",
        *([taken.sent.evidence] if taken.sent.evidence else []),
    ]
    assert sum(hosted._sender.count(text) + 4 for text in texts) <= budget
    assert list(taken.sent.kept) == sorted(set(taken.sent.kept))


def test_ends_are_told_apart() -> None:
    layer = layer_on("memory://")
    hosted = held(layer, FLIGHT[:1])
    assert hosted.complete("default", "c", "x0", FLIGHT[0][1]) == "known"
    assert hosted.complete("default", "c", "x0", "another") == "edited"
    assert not hosted.fail("default", "c", "x0", "late")
    assert not hosted.fail("default", "c", "nobody", "late")
    with pytest.raises(ExchangeError):
        hosted.complete("default", "c", "nobody", "text")
    taken = hosted.take(asked("again", FLIGHT[:1], exchange="y"), Terms())
    assert hosted.fail("default", "c", "y", "slow")
    assert hosted.complete("default", "c", "y", "at last") == "completed"
    found = layer.conversation("c").exchanges()
    assert [(e.user.text, e.status, e.failure) for e in found] == [
        (FLIGHT[0][0], "completed", None),
        ("again", "failed", "slow"),
        ("again", "completed", None),
    ]
    assert taken.exchange == "y"
    sound(layer)


def test_a_request_after_a_failure_an_edit_or_a_deletion_is_another_exchange() -> None:
    layer = layer_on("memory://")
    hosted = Hosted(layer)
    for ended in ("fail", "edit", "delete"):
        taken = hosted.take(asked("hello", exchange="x"), Terms())
        assert taken.exchange is not None
        if ended == "fail":
            hosted.fail("default", "c", taken.exchange, "down")
        else:
            hosted.complete("default", "c", taken.exchange, "hi")
            talk = layer.conversation("c")
            talk.edit(taken.exchange, "redacted") if ended == "edit" else talk.delete(taken.exchange)
    again = hosted.take(asked("hello", exchange="x"), Terms())
    assert again.open
    assert len({e.id for e in layer.conversation("c").exchanges()} | {again.exchange}) == 3


def test_many_failures_of_one_request_stay_apart() -> None:
    layer = layer_on("memory://")
    hosted = Hosted(layer)
    for _ in range(15):
        taken = hosted.take(asked("hello"), Terms())
        assert hosted.fail("default", "c", taken.exchange or "", "down")
    assert len(layer.conversation("c").exchanges()) == 15


def test_without_judging_there_is_no_verdict_and_without_remembering_no_exchange(monkeypatch: Any) -> None:
    layer = layer_on("memory://", policy="customer_support")
    hosted = Hosted(layer)
    taken = hosted.take(asked("hello", exchange="a"), Terms(judge=False))
    assert (taken.verdict, taken.drift, taken.exchange) == (None, None, "a")
    taken = hosted.take(asked("hello", exchange="b"), Terms(remember=False))
    assert taken.verdict is not None
    assert (taken.exchange, taken.open) == (None, False)
    assert len(layer.conversation("c").exchanges()) == 1

    def broken(*_: object) -> Any:
        raise EmbedError("down")

    monkeypatch.setattr(layer.embedder, "embed", broken)
    taken = hosted.take(asked("something quite new", exchange="d"), Terms())
    assert taken.forgetful
    assert taken.verdict is not None
    assert taken.verdict.method != "embedding"
