"""Times that a question names, against the calendar. Now is Wednesday, 15 May 2024, 10:30 UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.core.recall.dates import YEARS_BACK, time_ranges

NOW = datetime(2024, 5, 15, 10, 30, tzinfo=UTC).timestamp()


def shown(question: str) -> list[str]:
    return sorted(
        f"{datetime.fromtimestamp(a, UTC):%Y-%m-%d} {datetime.fromtimestamp(b, UTC):%Y-%m-%d}"
        for a, b in time_ranges(question, NOW)
    )


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did I say yesterday?", ["2024-05-14 2024-05-15"]),
        ("the day before yesterday", ["2024-05-13 2024-05-14"]),
        ("What did we decide today?", ["2024-05-15 2024-05-16"]),
        ("what did I ask last Tuesday?", ["2024-05-14 2024-05-15"]),
        ("what did I ask last Wednesday?", ["2024-05-08 2024-05-09"]),
        ("who called on Friday", ["2024-05-10 2024-05-11"]),
        ("last week", ["2024-05-06 2024-05-13"]),
        ("this week", ["2024-05-13 2024-05-20"]),
        ("What happened last weekend?", ["2024-05-11 2024-05-13"]),
        ("last month", ["2024-04-01 2024-05-01"]),
        ("this month", ["2024-05-01 2024-06-01"]),
        ("last year", ["2023-01-01 2024-01-01"]),
        ("last summer", ["2023-06-01 2023-09-01"]),
        ("last winter", ["2023-12-01 2024-03-01"]),
        ("3 days ago", ["2024-05-12 2024-05-13"]),
        ("two weeks ago", ["2024-04-28 2024-05-05"]),
        ("a month ago", ["2024-03-31 2024-05-01"]),
        ("the past ten days", ["2024-05-05 2024-05-16"]),
        ("on 14 February 2023", ["2023-02-14 2023-02-15"]),
        ("on February 14th, 2023", ["2023-02-14 2023-02-15"]),
        ("on the 3rd of Sept. 2023", ["2023-09-03 2023-09-04"]),
        ("on 2023-02-14", ["2023-02-14 2023-02-15"]),
        ("in 2023-02", ["2023-02-01 2023-03-01"]),
        ("in december 2023", ["2023-12-01 2024-01-01"]),
        ("in 2022", ["2022-01-01 2023-01-01"]),
        ("on 25/12/2023", ["2023-12-25 2023-12-26"]),
        ("on 25.12.2023", ["2023-12-25 2023-12-26"]),
        ("on 29 February 2024", ["2024-02-29 2024-03-01"]),
        ("on 29 February 2023", []),
        ("on 2023-13-40", []),
        ("May I march on?", []),
        ("may I ask what was said", []),
        ("Is it second to none?", []),
        ("in 1000 days", []),
        ("", []),
    ],
)
def test_a_phrase_means_these_days(question: str, expected: list[str]) -> None:
    assert shown(question) == expected


@pytest.mark.parametrize(
    "question", ["What did I do in March?", "what did I do in march?", "since Mar, what happened?"]
)
def test_a_month_without_a_year_is_any_of_the_last_few(question: str) -> None:
    expected = [f"{year}-03-01 {year}-04-01" for year in range(2024 - YEARS_BACK, 2025)]
    assert shown(question) == expected


def test_a_month_that_is_still_to_come_is_last_years() -> None:
    assert shown("What did I plan in October?")[-1] == "2023-10-01 2023-11-01"


def test_both_readings_of_a_slashed_date_are_kept() -> None:
    assert shown("on 3/4/2023") == ["2023-03-04 2023-03-05", "2023-04-03 2023-04-04"]


@pytest.mark.parametrize("now", [math.nan, math.inf, -1e18, 1e18])
def test_a_time_outside_the_calendar_names_nothing(now: float) -> None:
    assert time_ranges("last week", now) == ()


@given(st.text(max_size=80), st.floats(-6e10, 2e11))
def test_any_text_gives_ranges_that_are_in_order(question: str, now: float) -> None:
    for start, end in time_ranges(question, now):
        assert start < end


def test_ranges_do_not_depend_on_the_machines_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    if not hasattr(time, "tzset"):
        pytest.skip("no time zones to set here")
    before = shown("yesterday")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        assert shown("yesterday") == before
    finally:
        monkeypatch.undo()
        time.tzset()
