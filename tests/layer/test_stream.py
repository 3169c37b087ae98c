"""A streamed reply: nothing of a blocked window is shown, however the reply is cut into pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicality import ConfigError, EmbedError, Guard, InputError, Policy, Space, StreamGuard
from topicality.vectors import Array, unit


class Marks:
    """An encoder that sees only whether a text has the words "bad" or "odd"; fails at "crash". Counts its texts."""

    languages: frozenset[str] | None = None
    space = Space("marks", 3)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> Array:
        self.seen += texts
        if any("crash" in text for text in texts):
            raise EmbedError("down")
        kinds = [1 if "bad" in text.split() else 2 if "odd" in text.split() else 0 for text in texts]
        return unit(np.eye(3)[kinds])

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def guard(**changes: Any) -> Guard:
    rules = {
        "allowed": ["fine"],
        "blocked": ["bad"],
        "scoring": "cosine",
        "allowed_threshold": 0.9,
        "blocked_threshold": 0.9,
    }
    return Guard(Policy(**{**rules, **changes}), Marks())


GUARD = guard()
WORDS = [f"word{number}" for number in range(150)]


def cut(text: str, seed: int, most: int = 60) -> Iterator[str]:
    dice = random.Random(seed)
    start = 0
    while start < len(text):
        size = dice.randint(0, most)
        yield text[start : start + size]
        start += size


def shown(text: str, seed: int, window: int = 12, the_guard: Guard = GUARD) -> tuple[str, StreamGuard]:
    stream = StreamGuard(the_guard, window=window)
    return "".join(stream.filter(cut(text, seed))), stream


def blank(dice: random.Random) -> str:
    return dice.choice([" ", " ", " ", "  ", "\n", " \n\n", "\t"])


@given(st.integers(0, 10_000), st.integers(0, 149), st.integers(10, 60))
@settings(max_examples=60)
def test_nothing_of_a_window_with_a_blocked_word_is_ever_released(seed: int, place: int, window: int) -> None:
    dice = random.Random(seed)
    text = "".join(word + blank(dice) for word in [*WORDS[:place], "bad", *WORDS[place:]])
    out, stream = shown(text, seed, window)
    assert stream.stopped
    assert stream.verdict is not None
    assert stream.verdict.reason_code == "BLOCKED_TOPIC"
    assert text.startswith(out)
    released = out.split()
    assert released == WORDS[: len(released)]
    # The first window with the bad word in it starts at a multiple of the step: no word of it may be out.
    step = window // 3
    first = max(0, -(-(place - window + 1) // step)) * step
    assert len(released) <= first
    assert len(released) >= first - step, "and nothing is held back longer than it has to be"


@given(
    st.lists(st.sampled_from(["word", "odd", "bad", "a-b", "don't", "\n", "  ", "语言", "x" * 70]), max_size=120),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_what_is_released_and_why_does_not_depend_on_the_pieces(parts: list[str], seed: int) -> None:
    text = " ".join(parts)
    one = StreamGuard(GUARD, window=15)
    whole = "".join(one.filter([text]))
    out, stream = shown(text, seed, 15)
    single = StreamGuard(GUARD, window=15)
    assert out == whole == "".join(single.filter(text))
    assert stream.verdict == one.verdict == single.verdict
    assert stream.stopped or out == text


@given(st.text(max_size=400), st.integers(0, 99))
@settings(max_examples=60)
def test_a_reply_that_passes_comes_out_to_the_letter(text: str, seed: int) -> None:
    the_guard = guard(blocked=[])
    out, stream = shown(text, seed, 10, the_guard)
    assert out == text
    assert not stream.stopped


def test_a_reply_is_released_while_it_comes_and_lags_by_at_most_a_window_and_a_word() -> None:
    stream = StreamGuard(GUARD, window=12)
    out = ""
    for number, word in enumerate(WORDS, start=1):
        out += stream.feed(f"{word} ")
        assert number - len(out.split()) <= 12
    assert len(out.split()) > len(WORDS) - 12
    assert out + stream.finish() == " ".join(WORDS) + " "


@pytest.mark.parametrize("text", ["很" * 3000, "x" * 50_000])
def test_text_without_spaces_is_released_while_it_comes_too(text: str) -> None:
    stream = StreamGuard(guard(blocked=[]), window=40)
    out = "".join(stream.feed(piece) for piece in cut(text, 1, 90))
    assert len(text) - len(out) <= 40 * 32
    assert out + stream.finish() == text


def test_the_rules_reply_comes_after_what_was_released() -> None:
    the_guard = guard(replies={"bad": "I cannot say that."})
    out, stream = shown(" ".join([*WORDS[:40], "bad"]), 1, 12, the_guard)
    assert out.endswith("I cannot say that.")
    assert "bad" not in out.removesuffix("I cannot say that.")
    assert stream.finish() == ""


def test_after_a_stop_nothing_comes_out_and_nothing_is_checked() -> None:
    encoder = Marks()
    stream = StreamGuard(Guard(GUARD.policy, encoder), window=12)
    stream.feed("bad " * 20)
    assert stream.stopped
    seen = len(encoder.seen)
    assert stream.feed("word " * 100) == ""
    assert stream.finish() == ""
    assert len(encoder.seen) == seen


def test_a_flagged_reply_passes_and_its_verdict_stays() -> None:
    out, stream = shown(" ".join([*WORDS[:30], "odd", *WORDS[30:]]), 3)
    assert out == " ".join([*WORDS[:30], "odd", *WORDS[30:]])
    assert stream.verdict is not None
    assert (stream.verdict.action, stream.verdict.reason_code) == ("flag", "OFF_TOPIC")


@pytest.mark.parametrize("action", ["redirect", "block"])
def test_an_off_topic_reply_is_cut_off_when_the_policy_says_so(action: str) -> None:
    out, stream = shown(" ".join([*WORDS[:30], "odd", *WORDS[30:]]), 3, 12, guard(off_topic_action=action))
    assert stream.stopped
    assert "odd" not in out


def test_an_encoder_that_fails_in_the_middle_stops_the_reply_as_on_error_says() -> None:
    out, stream = shown(" ".join([*WORDS[:30], "crash", *WORDS[30:]]), 3)
    assert stream.stopped
    assert stream.verdict is not None
    assert (stream.verdict.reason_code, stream.verdict.status) == ("ERROR", "unavailable")
    assert "crash" not in out


def test_the_end_of_a_reply_is_checked_however_short() -> None:
    for words in ([], WORDS[:5], WORDS[:47]):
        out, stream = shown(" ".join([*words, "bad"]), 2)
        assert stream.stopped
        assert "bad" not in out


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_an_empty_reply_needs_no_verdict(text: str) -> None:
    stream = StreamGuard(GUARD)
    assert "".join(stream.filter([text])) == text
    assert stream.verdict is None
    assert not stream.stopped


def test_wrong_use_is_an_error_that_says_what_to_do() -> None:
    stream = StreamGuard(GUARD)
    wrong: Any = b"bytes"
    with pytest.raises(InputError, match="bytes"):
        stream.feed(wrong)
    stream.finish()
    with pytest.raises(InputError, match="new StreamGuard"):
        stream.feed("more")
    assert stream.finish() == ""
    for window in (0, 9, 201, -1):
        with pytest.raises(ConfigError, match="window"):
            StreamGuard(GUARD, window=window)


def test_a_policy_that_checks_input_only_cannot_guard_a_reply() -> None:
    with pytest.raises(ConfigError, match="direction"):
        StreamGuard(guard(direction="input"))


SAFE = (
    "Your invoice is sent every month to the email address that we have on file, and you can change that address in your "
    "settings. Refunds go back to the same card within five working days, and you get a receipt for each of them. "
)
BAD = "First you hit him hard in the face and break his nose, then you stab him with a knife until he is dead. "
REAL = Guard(Policy(allowed=["billing and payments", "technical support"], blocked=["violence"]))


def test_a_real_reply_is_cut_off_before_its_blocked_sentence_and_the_window_is_in_the_whole_reply() -> None:
    text = SAFE * 2 + BAD + SAFE
    outs = {shown(text, seed, 40, REAL)[0] for seed in range(4)}
    assert len(outs) == 1
    out, stream = shown(text, 9, 40, REAL)
    assert text.startswith(out)
    assert len(out) <= text.index(BAD)
    assert stream.verdict is not None
    assert (stream.verdict.action, stream.verdict.rule) == ("block", "violence")
    assert stream.verdict.window is not None
    assert "hit him" in text[stream.verdict.window.start : stream.verdict.window.end]


def test_a_real_reply_on_topic_passes_whole() -> None:
    assert shown(SAFE * 4, 5, 40, REAL)[0] == SAFE * 4


def test_what_was_said_before_is_read_with_the_reply() -> None:
    context = [
        {"role": "user", "text": "I was charged twice for my subscription, can you refund it to my credit card?"}
    ]
    alone, told = StreamGuard(REAL), StreamGuard(REAL, context)
    for stream in (alone, told):
        list(stream.filter(["It takes five days."]))
    assert alone.verdict is not None
    assert told.verdict is not None
    assert (alone.verdict.action, told.verdict.action) == ("flag", "allow")
