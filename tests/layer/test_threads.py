"""One guard, many threads: a message gets the verdict it gets alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from topicality.embed.background import read_corpus
from topicality.layer.guard import Guard
from topicality.types import Verdict


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads that take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
def test_verdicts_are_the_same_however_many_threads_ask() -> None:
    said = read_corpus().utterances[:120]
    context = ["How do I pay my invoice?", "In the account settings."]

    def check(guard: Guard, text: str) -> Verdict:
        return guard.check(text, context=context)

    alone = Guard("customer_support")
    wanted = [check(alone, text) for text in said]
    together = Guard("customer_support")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: check(together, text), said))
    assert [(one.action, one.reason_code, one.rule) for one in found] == [
        (one.action, one.reason_code, one.rule) for one in wanted
    ]
    assert [one.probability for one in found] == pytest.approx([one.probability for one in wanted], abs=1e-6)
