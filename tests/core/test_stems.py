"""Stems are the same however many threads ask: the library's stemmers keep the word they work on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from topicality.core import text

WORDS = [
    f"{stem}{end}"
    for stem in ("relat", "nation", "hop", "generaliz", "communic")
    for end in ("ing", "ed", "ational", "izations", "fulness", "ly")
]


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads that take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
def test_threads_do_not_spoil_each_others_stems() -> None:
    stem: Callable[[str], str] = text.stemmed.__wrapped__  # without the cache
    wanted = [stem(word) for word in WORDS]

    def again(_: int) -> list[str]:
        return [stem(word) for word in WORDS]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(again, range(200)):
            assert found == wanted
