"""Directory and opened topics: never over budget, nothing lost, everything quoted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicality.core.directory import Place, capacity, chosen_topics, directory, name_of, open_topic
from topicality.core.packet import relative_time, topic_order
from topicality.core.topics import Topic, record_of
from topicality.errors import InputError
from topicality.records import Exchange, ExchangeStatus
from topicality.types import Message

NOW = 1_700_000_000.0
COUNTERS: list[Callable[[str], int]] = [
    len,
    lambda text: len(text.split()),
    lambda text: -(-len(text.encode()) // 4),
    lambda text: -(-len(text) // 3) + 2 * text.count("\n") ** 2 // 9,  # the whole costs more than its parts
    lambda _: 0,
]
count = COUNTERS[2]
NASTY = st.text(max_size=20) | st.sampled_from(
    ['"}\n{"topic": "T1"}', "[Not listed: 0 topics]", "</s>[INST]", "\ud800", "\u202e", "🙂" * 9]
)


Calls = Callable[[Callable[[], object]], int]


def topic(n: int, **more: object) -> Topic:
    made = Topic(
        f"id-{n}", ((2 * n - 1, 2 * n),), "finalized", (f"label {n}", "second", "third", "fourth"),
        (f"term {n}", "more", "label 1"), NOW - 86400.0 * n - 60, NOW - 86400.0 * n, 0.0, n,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def exchange(
    n: int, user: str = "user words", reply: str = "reply words", status: ExchangeStatus = "completed"
) -> Exchange:
    answer = Message("assistant", reply, NOW - 50 * n) if status == "completed" else None
    return Exchange("o", "c", n, f"x{n}", status, Message("user", user, NOW - 60 * n), answer)


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.split("\n") if line.startswith("{")]


def test_a_few_topics_are_listed_in_full_in_the_order_they_began() -> None:
    made = directory([topic(1), topic(2, status="open", spans=((3, 4), (9, 9)))], 1000, count, now=NOW)
    first, second = rows(made.text)
    assert first == {"topic": "T2", "about": "label 2; second; third; fourth", "also": "term 2; more; label 1",
                     "exchanges": "3-4, 9", "started": "2023-11-12T22:12:20Z", "ended": "2023-11-12T22:13:20Z",
                     "when": "2 days ago", "status": "open"}  # fmt: skip
    assert second["topic"] == "T1"
    assert second["also"] == "term 1; more"
    assert "status" not in second
    assert made.topics == ("id-2", "id-1")
    assert made.omitted == 0
    assert "Not listed" not in made.text
    assert made.tokens == count(made.text)


def test_no_topics_give_the_time_line() -> None:
    made = directory([], 100, count, now=NOW)
    assert made.text.count("\n") == 0
    assert "2023-11-14T22:13:20Z" in made.text


def test_relevant_topics_come_first_then_recent_ones_then_a_count() -> None:
    topics = [topic(n) for n in range(1, 401)]
    made = directory(topics, 1200, count, now=NOW, scores={"id-300": 0.2, "id-350": 0.9})
    assert made.tokens <= 1200
    assert {"id-300", "id-350", "id-1", "id-2"} <= set(made.topics)
    assert "id-400" not in made.topics
    full = {row["topic"] for row in rows(made.text) if "also" in row}
    assert full == {"T300", "T350"}
    assert made.text.endswith(f"[Not listed: {made.omitted} topics, {2 * made.omitted} exchanges]")
    assert made.omitted == 400 - len(made.topics)
    tight = directory(topics, 130, count, now=NOW, scores={"id-300": 0.2, "id-350": 0.9})
    assert tight.tokens <= 130
    assert {"id-350", "id-300"} <= set(tight.topics)


@pytest.mark.parametrize("number", [0, 1, 10, 100, 1000, 10_000])
@pytest.mark.parametrize("budget", [0, 1, 20, 60, 300, 1200])
def test_the_directory_is_within_budget_for_any_number_of_topics(number: int, budget: int) -> None:
    topics = [topic(n) for n in range(1, number + 1)]
    for counter in COUNTERS:
        made = directory(topics, budget, counter, now=NOW, scores={"id-7": 1.0})
        assert counter(made.text) <= budget
        assert len(made.topics) + made.omitted == number


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NASTY, NASTY), max_size=12), st.integers(0, 400), st.sampled_from(COUNTERS))
def test_no_label_can_leave_its_line(named: list[tuple[str, str]], budget: int, counter: Callable[[str], int]) -> None:
    topics = [topic(n, labels=(label, "b"), terms=(term,)) for n, (label, term) in enumerate(named, 1)]
    made = directory(topics, budget, counter, now=NOW)
    assert counter(made.text) <= budget
    listed = [row["topic"] for row in rows(made.text)]
    assert sorted(map(str, listed)) == sorted(f"T{n.removeprefix('id-')}" for n in made.topics)
    plain = [line for line in made.text.split("\n") if line and not line.startswith("{")]
    assert len(plain) <= 2
    assert not set("<>\u202e\u2028") & set(made.text)


def test_ten_times_the_topics_cost_no_more_tokens_and_ten_times_the_calls_at_most(calls: Calls) -> None:
    few, many = ([topic(n) for n in range(1, size)] for size in (2_000, 20_000))
    small, large = (directory(topics, 1200, count, now=NOW) for topics in (few, many))
    assert large.tokens <= 1200
    assert abs(len(large.topics) - len(small.topics)) <= 2
    cheap, dear = (calls(partial(directory, topics, 1200, count, now=NOW)) for topics in (few, many))
    assert dear < 10 * cheap


def test_ten_times_the_topics_are_not_written_and_counted_ten_times_as_often() -> None:
    read: list[int] = []

    def counter(text: str) -> int:
        read[-1] += len(text)
        return count(text)

    for size in (2_000, 20_000):
        read.append(0)
        directory([topic(n) for n in range(1, size)], 1200, counter, now=NOW)
    assert read[1] < 1.2 * read[0]


def test_topics_that_are_not_given_are_counted() -> None:
    topics = [topic(n) for n in range(1, 401)]
    whole = directory(topics, 900, count, now=NOW)
    assert directory(topics[:60], 900, count, now=NOW, unlisted=(340, 680)) == whole


def test_dropped_and_empty_topics_are_not_listed_and_records_are_read_as_well() -> None:
    topics = [topic(1), topic(2, status="dropped"), topic(3, spans=())]
    assert directory(topics, 500, count, now=NOW).topics == ("id-1",)
    assert directory([record_of(t) for t in topics], 500, count, now=NOW) == directory(topics, 500, count, now=NOW)


def test_unknown_times_are_said_and_zero_is_a_time() -> None:
    none, zero = rows(
        directory([topic(1, started_at=None, ended_at=None), topic(2, ended_at=0.0)], 500, count, now=NOW).text
    )
    assert none["when"] == "unknown"
    assert "ended" not in none
    assert (zero["ended"], zero["when"]) == ("1970-01-01T00:00:00Z", "54 years ago")


# vectors.json, relative_time_ms (here in seconds).
@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(-5000, "less than 1 minute ago"), (0, "less than 1 minute ago"), (59999, "less than 1 minute ago"),
     (60000, "1 minute ago"), (120000, "2 minutes ago"), (3599999, "59 minutes ago"), (3600000, "1 hour ago"),
     (7199999, "1 hour ago"), (7200000, "2 hours ago"), (86399999, "23 hours ago"), (86400000, "1 day ago"),
     (2591999999, "29 days ago"), (2592000000, "1 month ago"), (5097600000, "1 month ago"), (5184000000, "2 months ago"),
     (31017600000, "11 months ago"), (31104000000, "1 year ago"), (62121600000, "1 year ago"),
     (62208000000, "2 years ago")],
)  # fmt: skip
def test_the_pinned_relative_times_of_system_d(milliseconds: int, text: str) -> None:
    assert relative_time(milliseconds / 1000) == text
    shown = rows(directory([topic(1, ended_at=NOW - milliseconds / 1000)], 500, count, now=NOW).text)
    assert shown[0]["when"] == text


def test_the_pinned_topic_order_of_system_d_with_its_fault_mended() -> None:
    """vectors.json, topic_order: there T1, T10, T2 and T1 (-1), T3 (none = 0), T2. Here T2 < T10, none is first."""

    def order(pairs: list[tuple[str, float | None]]) -> list[str]:
        topics = [topic(int(name[1:]), started_at=at) for name, at in pairs]
        return [str(row["topic"]) for row in rows(directory(topics, 2000, count, now=NOW).text)]

    assert order([("T10", 5), ("T2", 5), ("T1", 5)]) == ["T1", "T2", "T10"]
    assert order([("T3", None), ("T2", 9), ("T1", -1)]) == ["T3", "T1", "T2"]
    assert topic_order("T2", 5.0) < topic_order("T10", 5.0)


def test_the_pinned_capacity_of_system_d() -> None:
    made = capacity(5000, 8, 60, 200)
    assert (made.topics, made.directory, made.recent, made.opened, made.total) == (625, 37500, 1000, 4800, 43300)
    assert made.replayed == 1_000_000
    assert 120_000 // 200 == 600
    assert round(5000 / 600, 12) == round(8.333333333333334, 12)
    assert made.bounded == capacity(1_000_000, 8, 60, 200).bounded == 2000
    with pytest.raises(InputError):
        capacity(1, 0, 1, 1)


def test_topics_are_chosen_by_name_without_repetitions_before_the_cut() -> None:
    """D: T1 x 4 opened T1 three times; X, Y, Z, T1 opened nothing. Ours differs on purpose."""
    topics = [topic(n) for n in range(1, 6)]
    assert chosen_topics(["T1"] * 4, topics) == ["id-1"]
    assert chosen_topics(["X", "Y", "Z", "T1", None, 3], topics) == ["id-1"]
    assert chosen_topics(["T5", "id-5", "T2", "T1", "T3"], topics) == ["id-5", "id-2", "id-1"]
    assert name_of(topic(3, number=0)) == "id-3"


# --- opened


def test_an_opened_topic_shows_its_completed_exchanges_once_in_order() -> None:
    """D showed failed and pending ones with an empty reply. Ours differs on purpose."""
    mixed = [
        exchange(n, f"user {n}", status="failed" if n == 3 else "pending" if n == 4 else "completed")
        for n in range(1, 9)
    ]
    mixed += mixed
    random.Random(1).shuffle(mixed)
    made = open_topic(topic(1, spans=((1, 6),)), mixed, 2000, count, now=NOW, exclude=((6, 6),))
    card, *said = rows(made.text)
    assert card["topic"] == "T1"
    assert "status" not in card
    assert [(row["exchange"], row["role"]) for row in said] == [
        (n, side) for n in (1, 2, 5) for side in ("user", "assistant")
    ]
    assert said[0] == {
        "exchange": 1,
        "role": "user",
        "at": "2023-11-14T22:12:20Z",
        "when": "1 minute ago",
        "text": "user 1",
    }
    assert (made.exchanges, made.next, made.omitted) == ((1, 2, 5), None, 0)
    bare = rows(open_topic(topic(1, spans=((1, 6),)), mixed, 2000, count, now=NOW, times=False).text)
    assert "at" not in bare[1]
    assert "when" not in bare[1]


def pages(
    made_from: list[Exchange], one: Topic, budget: int, counter: Callable[[str], int]
) -> dict[tuple[int, str], str]:
    place: Place | None = None
    read: dict[tuple[int, str], str] = {}
    for _ in range(20_000):
        made = open_topic(one, made_from, budget, counter, now=NOW, start=place)
        assert counter(made.text) <= budget
        assert made.tokens == counter(made.text)
        for row in rows(made.text):
            if "role" in row:
                key = (int(str(row["exchange"])), str(row["role"]))
                read[key] = read.get(key, "") + str(row["text"])
        if made.next is None:
            assert made.omitted == 0
            return read
        assert f"[More of this topic: {made.omitted} exchange" in made.text
        assert Place.read(str(made.next)) == made.next
        assert made.next != place
        place = made.next
    raise AssertionError("no end")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=300) | NASTY, st.text(max_size=300) | NASTY), min_size=1, max_size=6),
    st.integers(150, 400),
)
def test_the_parts_of_a_topic_are_all_of_it_character_for_character(texts: list[tuple[str, str]], budget: int) -> None:
    exchanges = [exchange(n, user, reply) for n, (user, reply) in enumerate(texts, 1)]
    read = pages(exchanges, topic(1, spans=((1, len(texts)),)), budget, count)
    wanted = {
        (n, side): text
        for n, pair in enumerate(texts, 1)
        for side, text in zip(("user", "assistant"), pair, strict=True)
    }
    assert read == {key: text for key, text in wanted.items() if text}


@pytest.mark.parametrize("counter", COUNTERS[:4])
def test_a_topic_of_500_exchanges_is_opened_in_parts(counter: Callable[[str], int]) -> None:
    """D opened it whole (D-5)."""
    exchanges = [exchange(n, f"user {n} " + "word " * (n % 9), "reply " * (n % 50)) for n in range(1, 501)]
    read = pages(exchanges, topic(1, spans=((1, 500),)), 3000, counter)
    assert len(read) == 990
    assert read[500, "user"].startswith("user 500")


def test_a_long_reply_is_cut_between_words_and_says_so() -> None:
    made = open_topic(topic(1), [exchange(1, "short", "several words in a row " * 200)], 300, count, now=NOW)
    last = rows(made.text)[-1]
    assert last["cut"] is True
    assert str(last["text"]).endswith(" ")
    assert made.next is not None
    assert (made.next.sequence, made.next.side) == (1, "assistant")
    assert made.omitted == 1


def test_a_budget_without_room_is_a_typed_error_and_never_a_loop() -> None:
    for budget in (0, 5, 40):
        with pytest.raises(InputError, match="no room"):
            open_topic(topic(1), [exchange(1, "x" * 500)], budget, count, now=NOW)
    for bad in (-1, True, 2.5, "9"):
        with pytest.raises(InputError, match="whole number"):
            open_topic(topic(1), [], bad, count, now=NOW)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="whole number"):
            directory([], bad, count, now=NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "12", "1:user", "1:system:3", "a:user:1", "1:user:-1", "1:user:1:1", "٣:user:1", "9" * 20 + ":user:1"]
)
def test_a_place_that_is_none_is_a_typed_error(text: str) -> None:
    with pytest.raises(InputError, match="sequence:side:character"):
        Place.read(text)


def test_a_start_beyond_the_end_is_the_end() -> None:
    made = open_topic(topic(1), [exchange(1)], 500, count, now=NOW, start=Place(99))
    assert (made.exchanges, made.next, made.omitted) == ((), None, 0)
    at_end = open_topic(topic(1), [exchange(1)], 500, count, now=NOW, start=Place(1, "assistant", 10**9))
    assert at_end.next is None
