"""Words and pairs of words as places, and what is read from them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.core.segment_talk import FLIGHT, HEADS, PASTA, embed

from topicality.core.segment.cues import cues_of, read_cues, spoken_words
from topicality.core.segment.features import STYLE, STYLE_NEXT, Trail, confirmed
from topicality.core.segment.heads import STYLES
from topicality.core.segment.phrases import PLACES, places


@given(st.lists(st.text(max_size=8), max_size=60), st.booleans())
def test_places_are_in_the_table_in_order_and_each_once(words: list[str], asks: bool) -> None:
    found = places(words, asks=asks)
    assert found == sorted(set(found))
    assert found
    assert found[0] >= 0
    assert found[-1] < PLACES
    assert len(found) <= 2 * 40 + 4
    assert places([*words[:40], *["more"] * 9], asks=asks) == places([*words[:40], *["more"] * 99], asks=asks)


def test_order_start_and_question_are_seen() -> None:
    plain = set(places(["also", "the", "hotel"], asks=False))
    assert set(places(["hotel", "the", "also"], asks=False)) != plain
    assert set(places(["the", "hotel"], asks=False)) - plain, "what opens a message is not what stands inside"
    assert len(set(places(["also", "the", "hotel"], asks=True)) - plain) == 1
    one, other = "a b c m n o m x y z", "a b c m o n m x y z"  # the same neighbours, the other way round
    assert places(one.split(), asks=False) != places(other.split(), asks=False)


def test_places_are_the_same_in_every_process() -> None:
    words = ["what", "about", "the", "hotel"]
    code = f"from topicality.core.segment.phrases import places; print(places({words!r}, asks=True))"
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        assert told.stdout.decode().strip() == str(places(words, asks=True))


def test_a_long_message_does_not_count_more_than_a_short_one() -> None:
    read = HEADS.phrases
    few, many = places(["hello"], asks=False), places([f"w{k}" for k in range(40)], asks=False)
    for found in (few, many):
        expected = read.weights[found].sum(axis=0) / np.sqrt(len(found)) + read.bias
        assert np.allclose(read(found), expected, atol=1e-5)
    assert len(read(few)) == 3 * STYLES


def test_cues_are_the_same_in_one_step_and_in_two() -> None:
    text = "I 'm sorry, what about the HOTEL near Lisbon’s station? " * 60
    low, words = spoken_words(text)
    assert len(low) <= 2001
    assert "i'm" in words
    assert cues_of(low, words, "user") == read_cues(text, "user")


def test_readings_of_the_four_messages_before_are_features_and_missing_ones_are_zeros() -> None:
    messages, vectors = embed(FLIGHT + PASTA)
    trail = Trail(HEADS)
    rows = [trail.read(message.text, message.role, vector) for message, vector in zip(messages, vectors, strict=True)]
    own = slice(0, 4 * STYLES)
    for index, row in enumerate(rows):
        first = [row.probes[k * STYLES : (k + 1) * STYLES] for k in range(6)]
        assert row.style[own] == first[0] + first[2] + first[3] + first[5]
        assert len(row.style) == STYLE
        for back, (start, size) in enumerate(((4, 4), (8, 4), (12, 2), (14, 2)), start=1):
            part = row.style[start * STYLES : (start + size) * STYLES]
            if index < back:
                assert part == [0.0] * size * STYLES
            else:
                assert part[:STYLES] == rows[index - back].probes[:STYLES]
                middle = size * STYLES // 2
                assert part[middle : middle + STYLES] == rows[index - back].probes[3 * STYLES : 4 * STYLES]
    after = confirmed(rows[3], rows[4])
    assert after[-STYLE_NEXT:] == rows[4].style[own]
    assert confirmed(rows[3], None)[-STYLE_NEXT:] == [0.0] * STYLE_NEXT
