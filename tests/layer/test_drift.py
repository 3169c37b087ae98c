"""`DriftTracker`: bounded, thread-safe, sessions apart, snapshots that resume."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.config import Policy
from topicality.core.drift import Reading, Settings
from topicality.core.landmarks import Landmarks
from topicality.embed import load
from topicality.embed.segment import load_heads
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.layer import drift as layer_drift
from topicality.layer.drift import DriftTracker, Eviction, landmarks_of
from topicality.types import Space

ON, OFF = 0.97, 0.03
PLACE = Landmarks([("a", "allowed", [1, 0]), ("poems", "background", [0, 1])])

events = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["user", "assistant"]), st.sampled_from([ON, OFF, 0.4, None])),
    max_size=60,
)


def tracker(**given: Any) -> DriftTracker:
    return DriftTracker(clock=lambda: 0.0, **given)


def test_a4_sessions_are_bounded_when_none_is_stale() -> None:
    """System A: four of two (row A14)."""
    told: list[Eviction] = []
    drift = tracker(sessions=2, on_evict=told.append)
    for session in ("s1", "s2", "s3", "s4"):
        drift.observe(session, "user", [1, 0], ON)
    assert len(drift) == 2
    assert [(e.session, e.role, e.why, e.state.messages) for e in told] == [
        ("s1", "user", "least_recent", 1),
        ("s2", "user", "least_recent", 1),
    ]
    assert drift.evictions == {"stale": 0, "least_recent": 2}


def test_a4_the_least_recently_seen_goes_not_the_oldest() -> None:
    drift = tracker(sessions=2)
    for session in ("s1", "s2", "s1", "s3"):
        drift.observe(session, "user", None, ON)
    assert drift.state("s2", "user") is None
    assert drift.state("s1", "user") is not None


def test_a13_stale_sessions_go_first_all_of_them_and_only_for_a_new_one() -> None:
    told: list[Eviction] = []
    drift = DriftTracker(Settings(timeout=10), sessions=3, clock=lambda: 0, on_evict=told.append)
    drift.observe("fresh", "user", None, ON, now=95)
    drift.observe("old", "user", None, ON, now=0)
    drift.observe("older", "user", None, ON, now=1)
    drift.observe("fresh", "user", None, ON, now=100)
    assert len(drift) == 3  # a session that is there prunes nothing
    drift.observe("new", "user", None, ON, now=101)
    assert sorted(e.session for e in told) == ["old", "older"]
    assert {e.why for e in told} == {"stale"}
    assert len(drift) == 2


def test_a5_a_stale_session_restarts_also_when_only_looked_at() -> None:
    drift = DriftTracker(Settings(timeout=10), clock=lambda: 0)
    for at in range(3):
        drift.observe("s", "user", None, OFF, now=at)
    assert drift.state("s", "user", now=12) is not None
    assert drift.state("s", "user", now=12.5) is None
    reading = drift.observe("s", "user", None, OFF, now=13)
    assert (reading.restarted, reading.off_topic_streak, reading.messages) == (True, 1, 1)


def test_a6_an_error_changes_nothing_and_evicts_nobody() -> None:
    drift = tracker(sessions=1, landmarks=PLACE)
    drift.observe("s", "user", [1, 0], ON)
    before = drift.snapshot()
    for session, vector, probability, now, error in [
        ("s", [1, 0, 0], ON, 1.0, SpaceMismatchError),
        ("s", [math.nan, 0], ON, 1.0, InputError),
        ("new", [1, 0, 0], ON, 1.0, SpaceMismatchError),
        ("new", [1, 0], 2.0, 1.0, InputError),
        ("new", [1, 0], ON, math.inf, InputError),
        (" ", [1, 0], ON, 1.0, InputError),
        (7, [1, 0], ON, 1.0, InputError),
    ]:
        with pytest.raises(error):
            drift.observe(session, "user", vector, probability, now)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InputError):
        drift.observe("s", "", [1, 0], ON)
    assert drift.snapshot() == before
    assert drift.evictions == {"stale": 0, "least_recent": 0}


def test_a6_another_encoder_is_an_error() -> None:
    drift = tracker(space=Space("minilm", 2))
    drift.observe("s", "user", [1, 0], ON)
    moved = tracker(space=Space("other", 2))
    moved.restore(drift.snapshot())
    with pytest.raises(SpaceMismatchError):
        moved.observe("s", "user", [1, 0], ON)


def test_a11_threads_lose_nothing() -> None:
    drift = tracker(landmarks=PLACE)

    def talk(name: str) -> None:
        for index in range(100):
            drift.observe(name, "user", [1, index], ON)
            drift.observe("shared", "user", [1, 0], ON)

    threads = [threading.Thread(target=talk, args=(f"s{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = [drift.state(f"s{index}", "user") for index in range(4)]
    assert [state.messages for state in states if state] == [100] * 4
    shared = drift.state("shared", "user")
    assert shared is not None
    assert shared.messages == 400


def test_a11_the_eviction_call_may_use_the_tracker() -> None:
    seen: list[int] = []
    drift: DriftTracker = tracker(sessions=1, on_evict=lambda _: seen.append(len(drift)))
    drift.observe("a", "user", None, ON)
    drift.observe("b", "user", None, ON)
    assert seen == [1]


def test_a14_a_new_process_goes_on_where_the_old_one_stopped() -> None:
    drift = tracker(landmarks=PLACE)
    talk = [ON] * 9 + [OFF] * 2
    for index, probability in enumerate(talk):
        drift.observe("s", "user", [1, index / 3], probability)
    script = """
import json, sys
from topicality.core.landmarks import Landmarks
from topicality.layer.drift import DriftTracker
place = Landmarks([("a", "allowed", [1, 0]), ("poems", "background", [0, 1])])
drift = DriftTracker(landmarks=place, clock=lambda: 0.0)
drift.restore(json.load(sys.stdin))
print(repr([drift.observe("s", "user", [0, 1], 0.03) for _ in range(5)]))
"""
    there = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(drift.snapshot()), capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == repr([drift.observe("s", "user", [0, 1], OFF) for _ in range(5)])


@given(events, st.integers(0, 60), st.integers(1, 8), st.sampled_from(["change", "ema"]))
def test_a14_resuming_gives_the_same_decisions_and_evictions(
    told: list[tuple[str, str, float | None]], cut: int, sessions: int, method: Any
) -> None:
    settings = Settings(method=method)
    through = tracker(settings=settings, landmarks=PLACE, sessions=sessions)
    resumed = tracker(settings=settings, landmarks=PLACE, sessions=sessions)
    for index, (session, role, probability) in enumerate(told):
        if index == cut:
            kept = json.loads(json.dumps(resumed.snapshot(), allow_nan=False))
            resumed = tracker(settings=settings, landmarks=PLACE, sessions=sessions)
            resumed.restore(kept)
        vector = [index, 1]
        assert through.observe(session, role, vector, probability) == resumed.observe(
            session, role, vector, probability
        )
    assert through.snapshot() == resumed.snapshot()


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: {**s, "version": 99},
        lambda s: {**s, "method": "ema"},
        lambda s: {**s, "sessions": None},
        lambda s: {**s, "sessions": [{}]},
        lambda s: {**s, "sessions": s["sessions"] * 2},
        lambda s: {**s, "sessions": [{**s["sessions"][0], "session": " "}]},
        lambda s: {**s, "sessions": [{**s["sessions"][0], "state": {}}]},
        lambda s: {**s, "sessions": [{**s["sessions"][0], "state": None}]},
        lambda _: [],
        lambda _: {},
    ],
)
def test_a14_a_damaged_snapshot_is_refused_and_changes_nothing(damage: Any) -> None:
    drift = tracker()
    drift.observe("s", "user", [1, 0], ON)
    before = drift.snapshot()
    with pytest.raises(InputError):
        drift.restore(damage(before))
    assert drift.snapshot() == before


def test_a14_a_snapshot_larger_than_the_tracker_keeps_the_latest() -> None:
    big = tracker()
    for session in "abc":
        big.observe(session, "user", None, ON)
    told: list[Eviction] = []
    small = tracker(sessions=2, on_evict=told.append)
    small.restore(big.snapshot())
    assert [entry["session"] for entry in small.snapshot()["sessions"]] == ["b", "c"]
    assert [eviction.session for eviction in told] == ["a"]


def test_a14_one_session_can_be_kept_elsewhere_and_taken_back() -> None:
    shelf: list[Eviction] = []
    drift = tracker(sessions=1, on_evict=shelf.append)
    for _ in range(5):
        drift.observe("a", "user", None, OFF)
    drift.observe("b", "user", None, ON)
    drift.put("a", "user", shelf[0].state)
    assert [eviction.session for eviction in shelf] == ["a", "b"]
    assert drift.observe("a", "user", None, OFF).off_topic_streak == 6


def test_a15_what_is_said_and_what_is_replied_are_two_streams() -> None:
    drift = tracker()
    for _ in range(6):
        said = drift.observe("s", "user", [0, 1], OFF)
        replied = drift.observe("s", "assistant", [1, 0], ON)
    assert said.drifted
    assert not replied.drifted
    assert drift.forget("s") == 2
    assert drift.forget("s") == 0
    assert len(drift) == 0


def test_a17_the_clock_is_the_callers() -> None:
    times = iter([0.0, 5.0, 100.0])
    drift = DriftTracker(Settings(timeout=10), clock=lambda: next(times))
    found = [drift.observe("s", "user", None, ON).restarted for _ in range(3)]
    assert found == [False, False, True]


def test_a18_the_alarm_comes_once() -> None:
    drift = tracker()
    readings = [drift.observe("s", "user", None, p) for p in [ON] * 6 + [OFF] * 20]
    assert sum(reading.alarm for reading in readings) == 1
    assert readings[-1].drifted


@pytest.mark.parametrize("sessions", [0, -1, 1.5, True])
def test_a_tracker_needs_a_place(sessions: Any) -> None:
    with pytest.raises(ConfigError, match="sessions"):
        DriftTracker(sessions=sessions)


@given(events, st.integers(1, 5))
def test_never_more_sessions_than_places(told: list[tuple[str, str, float | None]], sessions: int) -> None:
    gone: list[Eviction] = []
    drift = tracker(sessions=sessions, on_evict=gone.append)
    for session, role, probability in told:
        drift.observe(session, role, None, probability)
        assert len(drift) <= sessions
        assert drift.state(session, role) is not None
    assert sum(drift.evictions.values()) == len(gone)


@given(events)
def test_sessions_do_not_influence_each_other(told: list[tuple[str, str, float | None]]) -> None:
    together, apart = tracker(landmarks=PLACE), tracker(landmarks=PLACE)
    mixed: dict[tuple[str, str], list[Reading]] = {}
    for session, role, probability in told:
        reading = together.observe(session, role, [1, ord(session) % 3], probability)
        mixed.setdefault((session, role), []).append(reading)
    alone: dict[tuple[str, str], list[Reading]] = {}
    for session, role, probability in sorted(told, key=lambda event: event[:2]):  # stable: order within a session stays
        reading = apart.observe(session, role, [1, ord(session) % 3], probability)
        alone.setdefault((session, role), []).append(reading)
    assert mixed == alone


def test_messages_are_compared_by_the_encoders_map_of_subjects_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, policy = load("minilm"), Policy(allowed=["refunds"])
    [vector] = embedder.embed(["Where is my refund?"])
    heads = load_heads(embedder)
    assert heads is not None
    found = landmarks_of(policy, embedder).measurable(vector.astype(np.float64))
    assert found == pytest.approx(heads.subjects(vector), abs=1e-5)
    monkeypatch.setattr(layer_drift, "load_heads", lambda _: None)
    found = landmarks_of(policy, embedder).measurable(vector.astype(np.float64))
    assert found == pytest.approx(vector / np.linalg.norm(vector), abs=1e-5)
