"""Settings that hold for all tests."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

# No deadline: the machine may be busy. In CI the examples are the same on every run, so that a red run can be repeated.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")


@pytest.fixture
def calls() -> Callable[[Callable[[], object]], int]:
    """Counts the functions that a piece of code calls, Python's and the interpreter's: what it costs on any machine."""

    def counted(work: Callable[[], object]) -> int:
        count = 0

        def seen(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(before)
        return count

    return counted


@pytest.fixture(autouse=True)
def _loggers_stay() -> Iterator[None]:
    """A server that starts in a test sets up the logs of its process, which is ours."""
    loggers = [logging.getLogger(name) for name in ("topicality", "uvicorn")]
    before = [(one.level, one.propagate, one.handlers[:], one.disabled) for one in loggers]
    yield
    for one, (level, propagate, handlers, disabled) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.propagate, one.handlers, one.disabled = propagate, handlers, disabled
