"""Encoders of a host's own that break their contract: the policy decides what happens, as for any that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from topicality import EmbedError, Guard, Policy
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

RULES: dict[str, Any] = {"allowed": ["billing"], "blocked": ["violence"]}
TEXTS = ["I have a billing question", "so much violence", "quantum physics"]


class Faulty(WordEmbedder):
    """Raises, or gives, what it is told to, once it is broken."""

    def __init__(self, fault: Any) -> None:
        super().__init__()
        self.fault, self.broken = fault, True

    def embed(self, texts: Sequence[str]) -> Any:
        if self.broken:
            if isinstance(self.fault, BaseException):
                raise self.fault
            return self.fault
        return super().embed(texts)


FAULTS = [
    EmbedError("down"),
    RuntimeError("SECRET"),
    KeyError("SECRET"),
    MemoryError(),
    OSError(5, "SECRET"),
    None,
    "vectors",
    [[0.0, "x"]],
    np.zeros((1, 64), np.float32),
    np.ones((1, 7), np.float32),
    np.ones(64, np.float32),
    np.ones((99, 64), np.float32),
]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_whatever_an_encoder_does_the_words_and_then_the_policy_decide(fault: Any, late: bool) -> None:
    encoder = Faulty(fault)
    guard = Guard(Policy(**RULES), encoder)
    if late:
        encoder.broken = False
        guard.warm_up()
        encoder.broken = True
    for verdicts in (guard.check_many(TEXTS), [guard.check(text) for text in TEXTS]):
        assert [verdict.action for verdict in verdicts] == ["allow", "block", "block"]
        assert [verdict.status for verdict in verdicts] == ["degraded", "degraded", "unavailable"]
        assert [verdict.reason_code for verdict in verdicts] == ["ON_TOPIC", "BLOCKED_TOPIC", "ERROR"]
        assert "SECRET" not in str(verdicts)


@pytest.mark.parametrize("action", ["allow", "flag", "block"])
def test_the_policy_says_what_happens_on_each_side(action: str) -> None:
    policy = Policy(**RULES, on_error={"allowed": action, "blocked": action})
    assert Guard(policy, Faulty(RuntimeError())).check(TEXTS[2]).action == action


def test_the_cause_is_chained_where_there_is_an_error_to_chain_it_to() -> None:
    fault = RuntimeError("x")
    with pytest.raises(EmbedError, match="RuntimeError") as caught:
        Guard(Policy(**RULES), Faulty(fault)).warm_up()
    assert caught.value.__cause__ is fault
    chat = Layer(open_store("memory://"), None, Faulty(fault)).conversation("c")
    with pytest.raises(EmbedError) as caught:
        chat.receive("hello")
    assert caught.value.__cause__ is fault
    assert chat.exchanges() == []


def test_a_space_that_cannot_be_told_is_a_failure_of_the_encoder() -> None:
    class Nowhere:
        languages = None
        gone = False

        @property
        def space(self) -> Any:
            if self.gone:
                raise ConnectionError("SECRET")
            return WordEmbedder().space

        def embed(self, texts: Sequence[str]) -> Any:
            raise AssertionError("asked")

        def windows(self, text: str) -> list[tuple[int, int]]:
            return [(0, len(text))]

    guard, Nowhere.gone = Guard(Policy(**RULES), Nowhere()), True
    verdict = guard.check(TEXTS[1], vector=np.ones(64))
    assert (verdict.action, verdict.status) == ("block", "degraded")


def test_who_interrupts_is_not_an_encoder_that_fails() -> None:
    with pytest.raises(KeyboardInterrupt):
        Guard(Policy(**RULES), Faulty(KeyboardInterrupt())).check("hello")
