"""Whole transcripts: shape of the result, knobs, fallback, meetings, errors, and agreement of the two code paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.segment_talk import BACK, FLIGHT, HEADS, PASTA, embed

from topicality.core.segment import Segmentation, segment
from topicality.core.segment.features import AHEAD, CAUSAL, STYLE, STYLE_NEXT, Trail, confirmed
from topicality.core.segment.offline import own_threshold, read_rows
from topicality.core.segment.plain import Quantile, cut_by_program
from topicality.core.segment.whole import TWO_SIDED
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import Message, Space


def whole(found: Segmentation, count: int) -> None:
    """Segments are in order and cover everything; boundaries, topics and decisions say the same."""
    assert len(found.topics) == len(found.decisions) == count
    assert [part.first for part in found.segments] == [0, *(part.last + 1 for part in found.segments[:-1])][
        : len(found.segments)
    ]
    assert found.segments[-1].last == count - 1
    assert list(found.boundaries) == [part.first for part in found.segments[1:]]
    assert [decision.index for decision in found.decisions] == list(range(count))
    assert all(decision.confirmed for decision in found.decisions)
    assert list(found.topics) == [decision.topic for decision in found.decisions]


def test_an_empty_transcript_gives_an_empty_result() -> None:
    found = segment([], np.zeros((0, 384)), HEADS)
    assert found == Segmentation(method="none")
    assert segment([], None, HEADS).segments == ()


def test_a_b_a_returns_to_the_topic_of_a() -> None:
    messages, vectors = embed(FLIGHT + PASTA + BACK)
    found = segment(messages, vectors, HEADS)
    whole(found, 10)
    assert found.topics == (0,) * 4 + (1,) * 4 + (0,) * 2
    assert {4, 8} <= set(found.boundaries)
    assert found.decisions[8].kind == "return"
    assert found.method == "learned"
    assert found.fallback is None


def test_tool_exchanges_are_atomic_and_need_no_vector() -> None:
    messages, vectors = embed(FLIGHT[:3])
    calls = [Message("assistant", "cancel()", calls=("c",)), Message("tool", "cancelled", call="c")]
    rest, rows = embed(PASTA)
    vectors = np.concatenate([vectors, np.full((2, 384), np.nan, np.float32), rows])
    found = segment(messages + calls + rest, vectors, HEADS)
    whole(found, 9)
    assert found.topics[3] == found.topics[4] == found.topics[2]
    assert not {3, 4} & set(found.boundaries)


def test_only_silent_messages_are_one_segment() -> None:
    found = segment([Message("system", "Be brief."), Message("user", " ")], None, HEADS)
    whole(found, 2)
    assert found.method == "none"


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_any_talk_gives_a_whole_result(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    texts = ["ok", "I also need a taxi, please", "what about tea?", "no", "thanks, bye", "It is 5.", "?", "hello"]
    messages = [Message(("user", "assistant")[k % 2], texts[int(rng.integers(len(texts)))]) for k in range(count)]
    vectors = rng.normal(size=(count, 384))
    for granularity in ("coarse", "balanced", "fine"):
        whole(segment(messages, vectors, HEADS, granularity=granularity), count)
    whole(segment(messages, vectors, HEADS, fallback="because"), count)


def test_reading_a_transcript_is_reading_its_messages_one_by_one() -> None:
    messages, vectors = embed(FLIGHT + PASTA + BACK)
    rows, known, both = read_rows(messages, vectors, HEADS)
    trail = Trail(HEADS)
    again = [trail.read(message.text, message.role, vector) for message, vector in zip(messages, vectors, strict=True)]
    expected = [confirmed(row, following) for row, following in zip(again, [*again[1:], None], strict=True)]
    assert np.allclose(known, np.array(expected, np.float32), atol=1e-5)  # one product of all, and one of each
    assert len(rows) == 10
    assert both.shape == (10, known.shape[1] + len(TWO_SIDED))
    for grain in HEADS.boundary.values():
        assert grain["once"].features == len(CAUSAL) + STYLE
        assert grain["confirmed"].features == len(CAUSAL) + len(AHEAD) + STYLE + STYLE_NEXT
        assert grain["offline"].features == both.shape[1]


def test_the_knobs_are_monotone() -> None:
    rng = np.random.default_rng(4)
    turns = FLIGHT + PASTA + BACK
    order = [turns[int(k)] for k in rng.integers(0, len(turns), 200)]
    messages, vectors = embed(order)
    counts = [len(segment(messages, vectors, HEADS, granularity=g).boundaries) for g in ("coarse", "balanced", "fine")]
    assert counts[0] < counts[1] < counts[2]
    rates = [len(segment(messages, vectors, HEADS, expected_rate=r).boundaries) / 200 for r in (0.05, 0.2, 0.4)]
    assert rates[0] < rates[1] < rates[2]
    assert rates == pytest.approx([0.05, 0.2, 0.4], abs=0.03)


def test_an_unknown_encoder_falls_back_and_says_why() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 12))
    vectors = np.array([a] * 6 + [b] * 6) + rng.normal(scale=0.3, size=(12, 12))
    messages = [Message("user", f"line {k}") for k in range(12)]
    found = segment(messages, vectors, None, space=Space("elsewhere", 12))
    whole(found, 12)
    assert found.boundaries == (6,)
    assert found.method == "cosine"
    assert found.fallback is not None
    assert "elsewhere" in found.fallback


def test_the_program_cuts_blocks_and_its_knob_is_monotone() -> None:
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(5, 32))
    vectors = np.repeat(centres, 8, axis=0) + rng.normal(scale=0.8, size=(40, 32))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    counts = [len(cut_by_program(vectors.astype(np.float32), g)) for g in ("coarse", "balanced", "fine")]
    assert counts[0] <= counts[1] <= counts[2]
    assert cut_by_program(vectors.astype(np.float32)) == [8, 16, 24, 32]
    assert cut_by_program(vectors[:2].astype(np.float32)) == []


def test_a_long_meeting_gets_no_boundary_unless_asked() -> None:
    rng = np.random.default_rng(1)
    names = ("Chair", "Ms. Roy", "Mr. Lund", "Ms. Bose")
    texts = [f"Let me say {k} words about the budget, the roads and the schools of our town." for k in range(240)]
    messages = [Message("user", text, name=names[int(rng.integers(4))]) for text in texts]
    vectors = np.repeat(rng.normal(size=(4, 384)), 60, axis=0) + rng.normal(scale=1.0, size=(240, 384))
    found = segment(messages, vectors, HEADS)
    assert found.method == "meeting"
    assert found.boundaries == ()
    assert found.notes
    assert segment(messages, vectors, HEADS, granularity="fine").boundaries
    assert segment(messages[:50], vectors[:50], HEADS).method == "learned"  # a short chat of a few friends
    assert segment(messages, vectors, HEADS, talk="pair").method == "learned"


def test_bad_input_is_refused_by_name() -> None:
    messages, vectors = embed(FLIGHT)
    nan = vectors.copy()
    nan[2, 5] = np.nan
    zero = vectors.copy()
    zero[1] = 0
    ids = [Message(m.role, m.text, id=str(k)) for k, m in enumerate(messages)]
    for bad in (nan, zero, vectors[:3], vectors[0], None, [["x"] * 384] * 4):
        with pytest.raises(InputError):
            segment(messages, bad, HEADS)
    with pytest.raises(SpaceMismatchError):
        segment(messages, vectors[:, :100], HEADS)
    with pytest.raises(SpaceMismatchError):
        segment(messages, vectors, HEADS, space=Space("other", 384))
    with pytest.raises(InputError, match="before"):
        segment([ids[0], ids[0]], vectors[:2], HEADS)
    with pytest.raises(InputError, match="order"):
        segment([ids[1], ids[0]], vectors[:2], HEADS)
    for wrong in ({"granularity": "x"}, {"expected_rate": 2.0}, {"talk": "x"}):
        with pytest.raises(ConfigError):
            segment(messages, vectors, HEADS, **wrong)


def test_a_conversation_sets_its_own_threshold_within_bounds() -> None:
    assert own_threshold(np.zeros(0, np.float32), 0.6) == 0.6
    assert own_threshold(np.full(10, 0.01, np.float32), 0.6) == 0.2
    sure = own_threshold(np.array([0.99] * 3 + [0.01] * 20, np.float32), 0.6)
    unsure = own_threshold(np.array([0.4] * 8 + [0.2] * 20, np.float32), 0.6)
    assert 0.2 <= unsure < sure <= 0.6


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=700), st.floats(0.01, 0.99))
def test_the_running_quantile_is_that_of_the_latest(values: list[float], share: float) -> None:
    seen = Quantile()
    for value in values:
        seen.add(value)
    kept = values[-512:]
    assert sum(value >= seen.highest(share) for value in kept) >= share * len(kept) - 1e-9
    assert sum(value > seen.highest(share) for value in kept) < share * len(kept) + 1
    assert sum(value <= seen.lowest(share) for value in kept) >= share * len(kept) - 1e-9
