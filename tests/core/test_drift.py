"""Drift: system A's numbers and edges, each of its faults by number, and what the default method must and must not do."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.core import drift_talks
from tests.core.drift_talks import alarms

from topicality.core.drift import Reading, Settings, fed_by, heard_from, is_stale, step
from topicality.core.drift_change import Detector
from topicality.core.drift_state import DriftState
from topicality.core.landmarks import Landmarks
from topicality.core.score import RuleMembers
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import RuleScore, Space, Verdict

NAN = float("nan")
ONE = Landmarks([("a", "allowed", [1, 0])])
ANCESTOR = Settings(method="ema", strict=True)
ON, OFF = 0.97, 0.03  # the guard is sure


def run(
    probabilities: Sequence[float | None], settings: Settings | None = None, start: DriftState | None = None
) -> list[Reading]:
    return drift_talks.told([(None, one) for one in probabilities], None, settings, start)[1]


def run_vectors(
    vectors: Sequence[Sequence[float]], settings: Settings, landmarks: Landmarks | None = ONE
) -> list[tuple[DriftState, Reading]]:
    state, found = None, []
    for index, vector in enumerate(vectors):
        state, reading = step(state, vector, None, now=float(index), settings=settings, landmarks=landmarks)
        found.append((state, reading))
    return found


# --- system A's numbers (vectors.json: drift_default, drift_alpha_half, drift_latency; rows A8 to A11, A17)

DEFAULT = [
    ([1, 0], [1, 0], 1, 0, False),
    ([0, 1], [0.7, 0.3], 0.91914503, 0, False),
    ([0, 1], [0.49, 0.51], 0.6928260942, 0, False),
    ([0, 1], [0.343, 0.657], 0.4627965483, 0, False),
    ([0, 1], [0.2401, 0.7599], 0.3012814997, 0, False),
    ([0, 1], [0.16807, 0.83193], 0.1980235754, 1, False),
    ([0, 1], [0.117649, 0.882351], 0.1321661484, 2, False),
    ([0, 1], [0.0823543, 0.9176457], 0.089385959, 3, True),
    ([1, 0], [0.35764801, 0.64235199], 0.4864594489, 0, False),
    ([1, 0], [0.550353607, 0.449646393], 0.774400479, 0, False),
    ([0, 1], [0.3852475249, 0.6147524751], 0.5310167394, 0, False),
]
HALF = [
    ([1, 0], [1, 0], 1, 0, False),
    ([0, 1], [0.5, 0.5], 0.7071067811865475, 0, False),
    ([0, 1], [0.25, 0.75], 0.31622776601683794, 1, False),
    ([0, 1], [0.125, 0.875], 0.1414213562373095, 2, False),
    ([0, 1], [0.0625, 0.9375], 0.06651901052377393, 3, True),
    ([1, 0], [0.53125, 0.46875], 0.7498378553650925, 0, False),
]
Row = tuple[list[float], list[float], float, int, bool]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (ANCESTOR, DEFAULT),
        (Settings(method="ema", strict=True, alpha=0.5, similarity=0.5), HALF),
        (Settings(method="ema"), DEFAULT),  # no row lies on the threshold, so both rules give the same numbers
        (Settings(method="ema", alpha=0.5, similarity=0.5), HALF),
    ],
)
def test_ema_gives_system_a_numbers(settings: Settings, rows: list[Row]) -> None:
    for (state, reading), (_, running, score, streak, exceeded) in zip(
        run_vectors([row[0] for row in rows], settings), rows, strict=True
    ):
        assert state.running is not None
        assert state.running == pytest.approx(running, abs=1e-9)
        assert reading.similarity == pytest.approx(score, abs=1e-9)
        assert reading.level == pytest.approx(1 - score, abs=1e-9)
        assert (reading.drift_streak, reading.drifted) == (streak, exceeded)


@pytest.mark.parametrize(
    ("alpha", "first", "limit"),
    [(0.1, 14, 16), (0.2, 7, 9), (0.3, 5, 7), (0.4, 3, 5), (0.5, 3, 5), (0.7, 2, 4), (0.9, 1, 3)],
)
def test_ema_takes_as_many_off_topic_messages_as_system_a(alpha: float, first: int, limit: int) -> None:
    settings = Settings(method="ema", strict=True, alpha=alpha)
    readings = [reading for _, reading in run_vectors([[1, 0]] + [[0, 1]] * 20, settings)]
    assert [r.drift_streak > 0 for r in readings].index(True) == first
    assert [r.drifted for r in readings].index(True) == limit
    assert alarms(readings) == [limit]


@pytest.mark.parametrize(
    ("vector", "strict", "met"),
    [([0.6, 0.8], True, False), ([3, 4], True, False), ([3, 4], False, True), ([0.6001, 0.8], True, True)],
)
def test_equality_is_met_by_our_rule_and_missed_by_system_a(vector: list[float], strict: bool, met: bool) -> None:
    settings = Settings(method="ema", strict=strict, similarity=0.6, alpha=1.0)
    [(_, reading)] = run_vectors([vector], settings)
    assert (reading.drift_streak == 0) is met


def test_a17_slow_drift_below_a_higher_drift_threshold() -> None:
    settings = Settings(method="ema", strict=True, alpha=0.9, similarity=0.35, streak=2)
    place = Landmarks([("x", "allowed", [1, 0, 0])])
    (_, first), (_, second) = run_vectors([[0.2, 0.1, 0.9]] * 2, settings, place)
    assert (first.drifted, second.drifted, second.drift_streak) == (False, True, 2)
    assert second.similarity == pytest.approx(0.21566554640687682, abs=1e-12)


# --- the edge table of ancestors.md 2.3


def test_a_first_message_can_start_a_streak_and_with_limit_one_end_it() -> None:
    [(_, reading)] = run_vectors([[0, 1]], Settings(method="ema", streak=1))
    assert (reading.drifted, reading.alarm, reading.drift_streak) == (True, True, 1)


def test_the_streak_grows_on_after_the_limit_and_one_near_message_ends_it() -> None:
    found = [r.drift_streak for _, r in run_vectors([[0, 1]] * 5 + [[9, 0]], Settings(method="ema"))]
    assert found == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("landmarks", [None, Landmarks([]), Landmarks([("b", "background", [1, 0])])])
def test_without_allowed_landmarks_everything_is_drift(landmarks: Landmarks | None) -> None:
    readings = [r for _, r in run_vectors([[1, 0]] * 3, Settings(method="ema"), landmarks)]
    assert [r.drift_streak for r in readings] == [1, 2, 3]
    assert readings[-1].similarity is None


def test_vectors_that_cancel_have_no_similarity_and_no_heading() -> None:
    found = run_vectors([[1, 0], [-1, 0], [1, 0]], Settings(method="ema", alpha=0.5, similarity=0.9))
    assert (found[1][1].similarity, found[1][1].heading, found[1][1].drift_streak) == (None, (), 1)
    assert found[2][1].drift_streak == 0


def test_negative_similarity_is_floored_at_zero_as_in_system_a() -> None:
    [(_, reading)] = run_vectors([[-1, 0]], Settings(method="ema"))
    assert (reading.similarity, reading.level) == (0.0, 1.0)
    assert reading.heading[0].score == -1.0


def test_the_given_vector_is_copied() -> None:
    vector = np.array([1.0, 0.0])
    state, _ = step(None, vector, ON, now=0)
    vector[:] = 5
    assert state.running is not None
    assert state.running.tolist() == [1, 0]
    with pytest.raises(ValueError, match="read-only"):
        state.running[0] = 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "cusum"),
        ("alpha", 0.0),
        ("alpha", 1.1),
        ("alpha", NAN),
        ("alpha", None),  # system A: undefined overrode the default and made the vector NaN
        ("similarity", 1.5),
        ("streak", 0),  # system A: exceeded even when on-topic
        ("streak", 2.5),
        ("timeout", 0.0),
        ("level", 1.0),
        ("rearm", 0.9),
        ("cooldown", -1),
        ("cooldown", True),
        ("allowed_threshold", -0.1),
    ],
)
def test_settings_out_of_range_are_errors_that_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Settings(**{key: value})


# --- the faults of ancestors.md 2.11


def test_a1_drift_fires_at_the_defaults_with_one_topic() -> None:
    """System A never could: what its guard let through was too near."""
    assert alarms([r for _, r in run_vectors([[1, 0]] + [[0, 1]] * 8, Settings(method="ema"))]) == [7]
    assert alarms(run([ON] * 10 + [OFF] * 5)) == [11]


def test_a2_hopping_among_allowed_topics_never_alarms() -> None:
    """Four orthogonal topics at .36 each, all else shared: system A fires at message 4, the default never."""
    rest = math.sqrt(1 - 0.36**2)
    topics = np.eye(5)[:4]
    messages = [0.36 * topics[index % 4] + rest * np.eye(5)[4] for index in range(60)]
    place = Landmarks([(f"t{index}", "allowed", topic) for index, topic in enumerate(topics)])
    state, first = None, []
    for index, vector in enumerate(messages[:4]):
        state, reading = step(state, vector, ON, now=index, settings=ANCESTOR, landmarks=place)
        first.append(reading.similarity)
    assert first == pytest.approx([0.36, 0.259, 0.184, 0.130], abs=6e-3)
    state = None
    for index, vector in enumerate(messages):
        state, reading = step(state, vector, (0.97, 0.6, 0.9, 0.8)[index % 4], now=index, landmarks=place)
        assert not reading.alarm


def test_a3_off_topic_messages_are_seen_and_the_streaks_are_separate() -> None:
    readings = run([OFF] * 5)
    assert [r.off_topic_streak for r in readings] == [1, 2, 3, 4, 5]
    assert readings[-1].messages == 5
    assert [r.drift_streak for r in readings] == [0, 0, 1, 2, 3]
    after = run([ON] * 9 + [OFF] * 8 + [ON])[-1]
    assert (after.off_topic_streak, after.drift_streak > 0) == (0, True)


def test_a5_a_stale_session_starts_afresh() -> None:
    """System A: two off-topic turns, a long pause, the third exceeded."""
    settings = Settings(method="ema", timeout=100)
    state, _ = step(None, [0, 1], None, now=0, settings=settings, landmarks=ONE)
    state, _ = step(state, [0, 1], None, now=1, settings=settings, landmarks=ONE)
    _, on_time = step(state, [0, 1], None, now=101, settings=settings, landmarks=ONE)
    assert (on_time.drift_streak, on_time.restarted) == (3, False)
    fresh, late = step(state, [0, 1], None, now=101.5, settings=settings, landmarks=ONE)
    assert (late.drift_streak, late.restarted, late.messages, fresh.counted) == (1, True, 1, 1)


@pytest.mark.parametrize(("age", "stale"), [(100, False), (101, True)])
def test_a12_only_older_than_the_timeout_is_stale(age: float, stale: bool) -> None:
    state, _ = step(None, None, ON, now=1000)
    assert is_stale(state, 1000 + age, 100) is stale


@pytest.mark.parametrize("settings", [Settings(), Settings(method="ema")])
@pytest.mark.parametrize(
    ("vector", "probability", "now", "error"),
    [
        ([1], ON, 2, SpaceMismatchError),
        ([1, 0, 0], ON, 2, SpaceMismatchError),
        ([], ON, 2, InputError),
        ([NAN, 0], ON, 2, InputError),
        ([math.inf, 0], ON, 2, InputError),
        ([[1, 0]], ON, 2, InputError),
        (["x", "y"], ON, 2, InputError),
        ([1, 0], NAN, 2, InputError),
        ([1, 0], 1.5, 2, InputError),
        ([1, 0], -0.1, 2, InputError),
        ([1, 0], True, 2, InputError),
        ([1, 0], ON, NAN, InputError),
    ],
)
def test_a6_bad_input_is_a_typed_error_and_changes_nothing(
    settings: Settings, vector: Any, probability: Any, now: float, error: type[Exception]
) -> None:
    state, _ = step(None, [1, 0], ON, now=1, settings=settings)
    before = state.to_dict()
    with pytest.raises(error):
        step(state, vector, probability, now=now, settings=settings)
    assert state.to_dict() == before


def test_a6_spaces_never_meet() -> None:
    one, two = Space("one", 2), Space("two", 2)
    state, _ = step(None, [1, 0], ON, now=0, space=one)
    assert state.space == str(one)
    with pytest.raises(SpaceMismatchError):
        step(state, [1, 0], ON, now=1, space=two)
    with pytest.raises(SpaceMismatchError):
        step(None, [1, 0], ON, now=1, space=two, landmarks=Landmarks([("a", "allowed", [1, 0])], one))
    with pytest.raises(SpaceMismatchError):
        step(None, [1, 0], ON, now=1, space=Space("one", 3))
    with pytest.raises(SpaceMismatchError):
        step(None, [1, 0, 0], ON, now=1, landmarks=ONE)


def test_a7_a_rule_whose_members_cancel_still_has_a_direction() -> None:
    rule = RuleMembers("r", ("r", "s"), np.array([[1, 0], [-1, 0]], dtype=np.float32))
    assert Landmarks.of_rules([rule]).nearest(np.array([1.0, 0.0]))[0].score == 1.0


@pytest.mark.parametrize(("level", "met"), [(0.0, True), (1e-12, False)])
def test_a8_the_level_is_met_when_equal(level: float, met: bool) -> None:
    peak = max(reading.level for reading in run([ON] * 5 + [OFF] * 3))
    assert bool(alarms(run([ON] * 5 + [OFF] * 3, Settings(level=peak + level)))) is met


def test_a8_a_probability_equal_to_the_threshold_is_not_off_topic() -> None:
    assert [r.off_topic_streak for r in run([0.3, math.nextafter(0.3, 0)])] == [0, 1]


def test_a9_what_was_not_checked_is_neutral_and_says_so() -> None:
    readings = run([ON, None, ON, None])
    assert [r.counted for r in readings] == [True, False, True, False]
    assert readings[1].level == readings[0].level


def test_a14_a_state_goes_through_json_to_the_last_bit() -> None:
    state = None
    for index in range(7):
        state, _ = step(state, [1 / 3, index / 7], (ON, OFF)[index % 2], now=index / 3, landmarks=ONE)
    assert state is not None
    again = DriftState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again.to_dict() == state.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 5},
        {"messages": -1},
        {"messages": 1.5},
        {"odds": "1"},
        {"odds": NAN},
        {"of": 0},
        {"low": 99.0},
        {"armed": 1},
        {"space": None},
        {"running": "!"},
        {"running": ""},
        {"running": "AAAAAAAA+H8="},  # NaN
        {"since": -1},
        {"likes": -1.0},
        {"alike": NAN},
        {"kept": ""},
        {"kept": "!"},
        {"kept": 1},
        {"kept": ["fwA="]},  # as version 2 had it
        {"kept": "fw=="},  # shorter than the running vector
        {"kept": "fwB/"},  # one and a half
        {"kept": "fwAAAA=="},  # the second all zeros: no direction
        {"running": None, "kept": "fwA="},
        {"version": 2, "kept": "fwA="},
        {"version": 2, "kept": []},
        {"version": 2, "kept": ["!"]},
        {"version": 2, "kept": ["fw==", "fwB/"]},  # three numbers and one make four, not two and two
        {"version": 2, "kept": ["fwA=", "AAA="]},
        {"extra": 1},
    ],
)
def test_a14_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    state, _ = step(None, [1, 0], ON, now=0)
    with pytest.raises(InputError):
        DriftState.from_dict({**state.to_dict(), **change})


@pytest.mark.parametrize("data", [None, [], "x", {}])
def test_a14_what_is_no_state_is_refused(data: object) -> None:
    with pytest.raises(InputError):
        DriftState.from_dict(data)


def test_a17_time_comes_in_and_going_backwards_is_standing_still() -> None:
    state, _ = step(None, None, ON, now=100)
    state, reading = step(state, None, ON, now=-5000)
    assert (state.seen_at, reading.restarted) == (100, False)
    assert step(None, None, ON, now=-5000)[0].seen_at == -5000


def test_a18_the_alarm_is_one_event_while_the_level_stays_readable() -> None:
    readings = run([ON] * 10 + [OFF] * 30)
    assert alarms(readings) == [11]
    assert all(reading.drifted for reading in readings[11:])
    assert alarms([r for _, r in run_vectors([[1, 0]] + [[0, 1]] * 30, Settings(method="ema"))]) == [7]


def test_a18_after_coming_back_it_can_alarm_again_but_not_within_the_cooldown() -> None:
    talk = [ON] * 10 + [OFF] * 4 + [ON] * 6 + [OFF] * 8
    assert alarms(run(talk, Settings(cooldown=0))) == [11, 21]
    assert alarms(run(talk, Settings(cooldown=9))) == [11, 21]  # nine messages lie between
    assert alarms(run(talk, Settings(cooldown=11))) == [11, 23]  # still drifted when the cooldown ends: told then
    assert alarms(run(talk, Settings(cooldown=50))) == [11]


# --- the default method


def test_an_abrupt_turn_is_noticed_within_three_messages() -> None:
    for lead in range(3, 60):
        assert alarms(run([ON] * lead + [OFF] * 6))[0] - lead <= 2


def test_a_conversation_that_starts_off_topic_is_noticed() -> None:
    assert alarms(run([OFF] * 6)) == [2]


def test_a_slow_slide_is_noticed() -> None:
    slide = [1 / (1 + math.exp(-(3.5 - 0.4 * index))) for index in range(20)]
    at = alarms(run([ON] * 10 + slide))
    assert at
    off_topic_before = sum(p < 0.3 for p in slide[: at[0] - 10 + 1])
    assert off_topic_before <= 5


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=120))
def test_messages_that_are_on_topic_never_alarm(probabilities: list[float]) -> None:
    assert not alarms(run([ON] * 3 + probabilities))


@given(st.integers(0, 60), st.floats(0, 1), st.integers(1, 40))
def test_one_tangent_never_alarms(lead: int, tangent: float, after: int) -> None:
    assert not alarms(run([ON] * lead + [tangent] + [ON] * after))


@given(st.integers(0, 60), st.integers(2, 10))
def test_two_tangents_apart_never_alarm(lead: int, gap: int) -> None:
    assert not alarms(run([ON] * lead + [OFF] + [ON] * (gap - 1) + [OFF] + [ON] * 10))


def test_a_conversation_that_often_looks_off_topic_needs_more_than_one_that_never_does() -> None:
    clean_lead, noisy_lead = [ON] * 36, [OFF, ON, ON, ON] * 9
    clean = alarms(run([*clean_lead, *[0.1] * 9]))[0]
    noisy = alarms(run([*noisy_lead, *[0.1] * 9]))[0]
    assert noisy > clean


@given(st.lists(st.sampled_from([ON, OFF, 0.4]), min_size=1, max_size=40), st.data())
def test_neutral_messages_change_nothing_but_the_count(probabilities: list[float], data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(probabilities), max_size=len(probabilities)))
    padded: list[float | None] = []
    for probability, gap in zip(probabilities, gaps, strict=True):
        padded += [None] * gap + [probability]
    plain, spread = run(probabilities), [reading for reading in run(padded) if reading.counted]
    assert [r.level for r in plain] == [r.level for r in spread]
    assert [r.alarm for r in plain] == [r.alarm for r in spread]
    assert len(padded) == spread[-1].messages


def test_a_neutral_message_does_not_move_the_running_vector() -> None:
    state, _ = step(None, [1, 0], ON, now=0)
    after, _ = step(state, [0, 1], None, now=1)
    assert after.running is state.running


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=80),
    st.sampled_from([Detector(), Detector(leave=0.5, back=0.5), Detector(steepness=20.0), Detector(looks_on=1e-6)]),
)
def test_the_level_is_a_probability_whatever_comes(probabilities: list[float], detector: Detector) -> None:
    for reading in run(probabilities, Settings(detector=detector)):
        assert 0 <= reading.level <= 1
        assert reading.mean is not None
        assert 0 <= reading.mean <= 1


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 20),
    st.sampled_from([Settings(), Settings(method="ema")]),
)
def test_resuming_from_a_snapshot_gives_the_same_decisions_and_never_nan(
    messages: list[tuple[list[float], float | None]], cut: int, settings: Settings
) -> None:
    place = Landmarks([("a", "allowed", [1, 0, 0]), ("b", "background", [0, 1, 0])])
    through, resumed = None, None
    for index, (vector, probability) in enumerate(messages):
        if index == cut and resumed is not None:
            resumed = DriftState.from_dict(json.loads(json.dumps(resumed.to_dict())))
        through, one = step(through, vector, probability, now=index, settings=settings, landmarks=place)
        resumed, two = step(resumed, vector, probability, now=index, settings=settings, landmarks=place)
        assert one == two
        json.dumps(through.to_dict(), allow_nan=False)
        assert all(math.isfinite(entry.score) for entry in one.heading)


@pytest.mark.parametrize(("lower", "higher"), list(pairwise([0.02, 0.1, 0.3, 0.6, 0.9, 0.99])))
def test_a_less_likely_message_never_lowers_the_level(lower: float, higher: float) -> None:
    assert run([ON] * 5 + [lower])[-1].level >= run([ON] * 5 + [higher])[-1].level


# --- likeness to what was said before in the conversation

RANDOM = np.random.default_rng(7)
SUBJECTS = RANDOM.normal(size=(24, 16))
HERE = Landmarks([(f"subject {index}", "background", subject) for index, subject in enumerate(SUBJECTS)])
TOPIC = RANDOM.normal(size=16)
SEE = Settings(detector=Detector())  # the same constants with vectors and without


def near(direction: Any, index: int) -> NDArray[np.float64]:
    return drift_talks.near(direction, index, 0.3)


def told(
    messages: Sequence[tuple[Any, float]], landmarks: Landmarks | None = HERE, start: DriftState | None = None
) -> tuple[DriftState, list[Reading]]:
    return drift_talks.told(messages, landmarks, SEE, start)


def test_a_message_unlike_the_conversation_speaks_more_for_drift_than_one_like_it() -> None:
    start, _ = told([(near(TOPIC, index), ON) for index in range(8)])
    unlike = [(near(SUBJECTS[index], index), 0.3) for index in range(5)]
    like = [(near(TOPIC, 20 + index), 0.3) for index in range(5)]
    away, here, blind = told(unlike, start=start)[1], told(like, start=start)[1], run([ON] * 8 + [0.3] * 5, SEE)[8:]
    for far, unknown, close in zip(away, blind, here, strict=True):
        assert far.level > unknown.level > close.level
    assert alarms(away)
    assert not alarms(here)


def test_without_enough_of_a_background_vectors_change_nothing() -> None:
    few = Landmarks([(f"subject {index}", "background", subject) for index, subject in enumerate(SUBJECTS[:19])])
    same = Landmarks([(f"subject {index}", "background", SUBJECTS[0]) for index in range(30)])
    messages = [(near(SUBJECTS[index % 3], index), (ON, 0.3, OFF)[index % 3]) for index in range(12)]
    plain = [reading.level for reading in run([probability for _, probability in messages], SEE)]
    for place in (few, same, None):
        state, readings = told(messages, place)
        assert state.kept is None
        assert [reading.level for reading in readings] == plain
    assert [reading.level for reading in told(messages)[1]] != plain


def test_likeness_means_the_same_in_a_space_where_everything_is_alike() -> None:
    """An encoder whose vectors all share a large part: every cosine is high, the differences are small."""

    def shared(vector: Any) -> NDArray[np.float64]:
        return np.append(math.sqrt(0.2) * vector / np.linalg.norm(vector), math.sqrt(0.8))

    narrow = Landmarks([(f"subject {index}", "background", shared(one)) for index, one in enumerate(SUBJECTS)])
    messages = [(near(TOPIC, index), ON) for index in range(8)] + [
        (near(SUBJECTS[index], index), 0.3) for index in range(4)
    ]
    wide = [reading.level for reading in told(messages)[1]]
    close = [reading.level for reading in told([(shared(vector), p) for vector, p in messages], narrow)[1]]
    assert close == pytest.approx(wide, abs=0.05)  # but for the rounding of remembered vectors
    assert (narrow.yardstick or 0) < 0.3 * (HERE.yardstick or 0)


def test_only_the_last_on_topic_messages_are_remembered() -> None:
    most = Detector().keep
    first, _ = told([(near(TOPIC, index), ON) for index in range(most + 5)])
    assert first.kept is not None
    assert first.kept.shape == (most, 16)
    newest = near(TOPIC, most + 4)
    assert first.kept[-1] / 127 == pytest.approx(newest / np.abs(newest).max(), abs=0.005)
    away, _ = told([(near(SUBJECTS[index], index), OFF) for index in range(20)], start=first)
    assert away.kept is first.kept
    size = len(json.dumps(first.to_dict()))
    longer, _ = told([(near(TOPIC, index), ON) for index in range(200)], start=first)
    assert len(json.dumps(longer.to_dict())) < size + 50


@pytest.mark.parametrize(("probability", "kept"), [(0.29, False), (0.31, True)])
def test_a_message_that_the_guard_rejects_is_not_remembered(probability: float, kept: bool) -> None:
    sure = Settings(detector=replace(Detector(), surely_on=0.0))
    start, _ = told([(near(TOPIC, index), ON) for index in range(5)])
    state, _ = step(start, near(TOPIC, 9), probability, now=9, settings=sure, landmarks=HERE)
    assert (state.kept is not start.kept) is kept


def test_being_unlike_counts_less_the_surer_a_message_is_allowed() -> None:
    start, _ = told([(near(TOPIC, index), ON) for index in range(8)])
    odds = []
    for probability in (0.3, 0.8, 0.98):
        with_vector, _ = told([(near(SUBJECTS[2], 0), probability)], start=start)
        without, _ = told([(None, probability)], start=start)
        ratio = (with_vector.low - start.low) / (without.low - start.low)  # how much more it looks off-topic
        odds.append(ratio)
    assert odds[0] > odds[1] > odds[2] > 1


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 23), st.integers(1, 30))
def test_one_tangent_never_alarms_whatever_it_is_about(lead: int, tangent: float, subject: int, after: int) -> None:
    before = [(near(TOPIC, index), ON) for index in range(lead)]
    back = [(near(TOPIC, 100 + index), ON) for index in range(after)]
    assert not alarms(told([*before, (SUBJECTS[subject], tangent), *back])[1])


@pytest.mark.parametrize("stay", [1, 2, 3, 12, 25])
def test_hopping_and_moving_among_allowed_topics_never_alarms_with_vectors(stay: int) -> None:
    topics = np.random.default_rng(5).normal(size=(4, 16))
    messages = [(near(topics[index // stay % 4], index), (0.9, 0.97, 0.7)[index % 3]) for index in range(120)]
    assert not alarms(told(messages)[1])


def test_a_state_of_version_1_goes_on() -> None:
    messages = [(near(TOPIC, index), ON) for index in range(9)]
    old = told(messages, None)[0].to_dict()
    for name in ("kept", "alike", "likes", "readings"):
        del old[name]
    state = DriftState.from_dict({**old, "version": 1})
    assert told([(near(SUBJECTS[0], 0), OFF)], start=state)[1][0].level == run([ON] * 9 + [OFF], SEE)[-1].level
    assert told(messages, start=state)[0].kept is not None
    with pytest.raises(InputError):
        DriftState.from_dict({**old, "version": 2})


def test_a_state_of_version_2_goes_on() -> None:
    messages = [(near(TOPIC, index), ON) for index in range(9)]
    state, _ = told(messages)
    assert state.kept is not None
    rows = [base64.b64encode(row.tobytes()).decode() for row in state.kept]
    given = {**state.to_dict(), "version": 2, "kept": rows}
    del given["readings"]
    old = DriftState.from_dict(given)
    assert old.to_dict() == {**state.to_dict(), "readings": None}
    assert told(messages, start=old)[1] == told(messages, start=state)[1]
    assert DriftState.from_dict({**DriftState().to_dict(), "version": 2}).to_dict() == DriftState().to_dict()


def test_a_restored_vector_cannot_be_written_into() -> None:
    state = DriftState.from_dict(told([(near(TOPIC, index), ON) for index in range(9)])[0].to_dict())
    assert state.running is not None
    assert state.kept is not None
    assert not state.running.flags.writeable
    assert not state.kept.flags.writeable


def test_a_vector_of_no_direction_is_no_evidence() -> None:
    start, _ = told([(near(TOPIC, index), ON) for index in range(8)])
    state, readings = told([(np.zeros(16), 0.3)], start=start)
    assert state.kept is start.kept
    assert readings[0].level == told([(None, 0.3)], start=start)[1][0].level


@given(st.lists(st.sampled_from([ON, OFF, 0.4, 0.7]), min_size=2, max_size=40), st.integers(1, 39))
def test_resuming_with_remembered_messages_gives_the_same_decisions(probabilities: list[float], cut: int) -> None:
    messages = [(near((TOPIC, SUBJECTS[index % 24])[p < 0.5], index), p) for index, p in enumerate(probabilities)]
    first, _ = told(messages[:cut])
    again = DriftState.from_dict(json.loads(json.dumps(first.to_dict())))
    rest = [*messages[cut:], *((near(SUBJECTS[3], index), OFF) for index in range(3))]
    assert told(rest, start=again)[1] == told(rest, start=first)[1]
    assert again.to_dict() == first.to_dict()


# --- heading


def test_heading_names_the_nearest_three_of_rules_and_subjects() -> None:
    place = Landmarks(
        [
            ("billing", "allowed", [1, 0, 0]),
            ("violence", "blocked", [-1, 0, 0]),
            ("poems", "background", [0, 1, 0]),
            ("cooking", "background", [0, 0.9, 0.2]),
            ("cooking", "background", [0, 1, 0.1]),
        ]
    )
    state = None
    for index in range(6):
        state, reading = step(state, [1, 0, 0] if index < 2 else [0, 1, 0], OFF, now=index, landmarks=place)
    assert [(h.name, h.side) for h in reading.heading] == [
        ("poems", "background"),
        ("cooking", "background"),
        ("billing", "allowed"),
    ]
    assert reading.heading[0].score > reading.heading[1].score
    assert len(place) == 4


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([(" ", "allowed", [1])], InputError),
        ([("a", "other", [1])], InputError),
        ([("a", "allowed", [0, 0])], InputError),
        ([("a", "allowed", [NAN])], InputError),
        ([("a", "allowed", ["x"])], InputError),
        ([("a", "allowed", [1, 0]), ("b", "allowed", [1])], SpaceMismatchError),
    ],
)
def test_malformed_landmarks_are_errors(entries: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Landmarks(entries)


# --- what the guard's verdict feeds


def scored(*pairs: tuple[str, float]) -> tuple[RuleScore, ...]:
    return tuple(RuleScore("r", side, 0.2, chance, "n") for side, chance in pairs)  # type: ignore[arg-type]  # sides


@pytest.mark.parametrize(
    ("verdict", "fed"),
    [
        (Verdict("allow", "ON_TOPIC", "", probability=0.9, scores=scored(("allowed", 0.9))), 0.9),
        (Verdict("allow", "FOLLOW_UP", "", probability=0.8, scores=scored(("allowed", 0.1))), 0.8),
        (Verdict("flag", "OFF_TOPIC", "", probability=0.2, scores=scored(("allowed", 0.4), ("blocked", 0.9))), 0.4),
        (Verdict("block", "BLOCKED_TOPIC", "", probability=0.9, scores=scored(("allowed", 0.7))), 0.1),
        (Verdict("block", "BLOCKED_TOPIC", "", probability=0.9, scores=scored(("allowed", 0.05))), 0.05),
        (Verdict("flag", "OFF_TOPIC", "", probability=0.1, method="judge", scores=scored(("allowed", 0.4))), 0.1),
        (Verdict("allow", "ON_TOPIC", "", probability=0.1, scores=scored(("blocked", 0.1))), None),
        (Verdict("allow", "SMALL_TALK", "", probability=0.8, scores=scored(("allowed", 0.1))), None),
        (Verdict("allow", "NOT_CHECKED", ""), None),
        (Verdict("block", "ERROR", "", status="unavailable"), None),
        (Verdict("allow", "LANGUAGE_NOT_COVERED", "", status="uncovered"), None),
        (Verdict("allow", "ON_TOPIC", "", probability=0.9, method="keywords", status="degraded"), 0.9),
        (Verdict("block", "BLOCKED_TOPIC", ""), None),
    ],
)
def test_what_a_verdict_feeds(verdict: Verdict, fed: float | None) -> None:
    assert fed_by(verdict) == (None if fed is None else pytest.approx(fed))
    heard = heard_from(verdict)
    assert (None if heard is None else heard.probability) == (None if fed is None else pytest.approx(fed))


@pytest.mark.parametrize(
    ("verdict", "heard"),
    [
        (
            Verdict("allow", "FOLLOW_UP", "", probability=0.8, method="embedding", scores=scored(("allowed", 0.1))),
            (0.8, 0.1, 0.8),
        ),
        (
            Verdict("flag", "OFF_TOPIC", "", probability=0.2, method="embedding", scores=scored(("allowed", 0.4))),
            (0.4, 0.4, 0.2),
        ),
        (
            Verdict("allow", "ON_TOPIC", "", probability=0.95, method="keywords", scores=scored(("allowed", 0.4))),
            (0.95,) * 3,
        ),
        (
            Verdict("allow", "ON_TOPIC", "", probability=0.9, method="judge", scores=scored(("allowed", 0.4))),
            (0.9,) * 3,
        ),
        (
            Verdict(
                "block", "BLOCKED_TOPIC", "", probability=0.75, method="embedding", scores=scored(("allowed", 0.7))
            ),
            (0.25,) * 3,
        ),
    ],
)
def test_both_readings_of_a_verdict(verdict: Verdict, heard: tuple[float, float, float]) -> None:
    assert heard_from(verdict) == heard
