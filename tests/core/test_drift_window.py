"""Drift: what the last messages together say, and what they must never do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.core import drift_talks
from tests.core.drift_talks import alarms

from topicality.core.drift import Reading, Settings, reading_of, step
from topicality.core.drift_change import Detector, level_of
from topicality.core.drift_state import DriftState
from topicality.core.drift_weights import INNER, INNER_BIAS, MEAN, OUTER, SCALE
from topicality.core.drift_window import ALONE, BEGUN, FEATURES, LAST, Seen, joint
from topicality.core.landmarks import Landmarks
from topicality.errors import InputError

RANDOM = np.random.default_rng(11)
SIZE = 64
SUBJECTS = RANDOM.normal(size=(40, SIZE))
HERE = Landmarks([(f"subject {index}", "background", subject) for index, subject in enumerate(SUBJECTS)])
TOPIC, OTHER = RANDOM.normal(size=(2, SIZE))
ON, OFF, UNSURE = 0.97, 0.03, 0.15


def near(direction: Any, index: int) -> NDArray[np.float64]:
    return drift_talks.near(direction, index, 0.8)


def told(
    messages: Sequence[tuple[Any, float | None]], start: DriftState | None = None, settings: Settings | None = None
) -> tuple[DriftState, list[Reading]]:
    return drift_talks.told(messages, HERE, settings, start)


def talk(about: Any, count: int, probability: float, first: int = 0) -> list[tuple[Any, float | None]]:
    return [(near(about, first + index), probability) for index in range(count)]


LEAD = talk(TOPIC, 12, ON)


def test_every_feature_has_its_constants() -> None:
    assert MEAN.shape == SCALE.shape == (len(FEATURES),)
    assert INNER.shape == (len(FEATURES), len(OUTER))
    assert INNER_BIAS.shape == OUTER.shape
    assert all(np.isfinite(table).all() for table in (MEAN, SCALE, INNER, INNER_BIAS, OUTER))
    assert (SCALE > 0).all()


def test_a_new_subject_is_noticed_sooner_than_by_the_rule_alone_and_than_the_same_subject() -> None:
    start, _ = told(LEAD)
    turned, alone = talk(OTHER, 6, UNSURE, 50), Settings(detector=Detector())
    noticed = alarms(told(turned, start)[1])
    assert noticed == [2]
    assert alarms(told(turned, start, alone)[1]) > noticed
    assert alarms(told(talk(TOPIC, 6, UNSURE, 50), start)[1]) > noticed


@given(st.integers(0, 40), st.floats(0, 1), st.integers(0, 39), st.integers(1, 30))
def test_one_tangent_never_alarms(lead: int, tangent: float, subject: int, after: int) -> None:
    messages = [*talk(TOPIC, lead, ON), (SUBJECTS[subject], tangent), *talk(TOPIC, after, ON, 100)]
    assert not alarms(told(messages)[1])


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 39), st.integers(3, 10))
def test_two_tangents_apart_never_alarm(lead: int, first: int, second: int, gap: int) -> None:
    messages = [*talk(TOPIC, lead, ON), (SUBJECTS[first], OFF), *talk(TOPIC, gap, ON, 60)]
    assert not alarms(told([*messages, (SUBJECTS[second], OFF), *talk(TOPIC, 8, ON, 80)])[1])


@pytest.mark.parametrize("stay", [1, 2, 3, 12, 25])
def test_hopping_and_moving_among_allowed_topics_never_alarms(stay: int) -> None:
    topics = np.random.default_rng(5).normal(size=(4, SIZE))
    messages = [(near(topics[index // stay % 4], index), (0.9, 0.97, 0.7)[index % 3]) for index in range(120)]
    assert not alarms(told(messages)[1])


def test_a_lasting_drift_alarms_once() -> None:
    assert len(alarms(told([*LEAD, *talk(OTHER, 40, OFF, 50)])[1])) == 1
    away: list[tuple[Any, float | None]] = [(SUBJECTS[index % 40], OFF) for index in range(40)]
    assert len(alarms(told([*LEAD, *away])[1])) == 1


@given(st.lists(st.tuples(st.integers(0, 39), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_window_adds_only_so_much_to_the_rule(messages: list[tuple[int, float]]) -> None:
    state, _ = told(LEAD)
    for index, (subject, probability) in enumerate(messages):
        state, reading = step(state, SUBJECTS[subject], probability, now=float(index), landmarks=HERE)
        assert state.felt is not None
        assert state.odds is not None
        assert state.felt <= state.odds + BEGUN
        assert reading.level == level_of(state.felt)
        assert reading_of(state, now=float(index), landmarks=HERE).level == reading.level
        assert len(state.window) <= LAST


SURE = (0.0, -3.0, 2.0, 3.0, 0)  # a message that says little


def least(before: Sequence[float], alike: float, odds: float = -3.0) -> float:
    """The log-odds of a window of two that looks as far off as can be."""
    window = (Seen(-6.0, odds, 6.0, 6.0, 0), Seen(-6.0, 8.0, 6.0, 6.0, 0), Seen(-6.0, 8.0, 6.0, 6.0, 0))
    return joint(window, before, [[9.0, alike, 9.0], [alike, 9.0, 9.0], [9.0, 9.0, 9.0]], 3.5, 0.06, 20)


def test_it_may_add_more_only_where_the_last_two_are_nearer_to_each_other_than_to_what_was_said() -> None:
    assert least([1.0, 1.0, 1.0], 0.9) == pytest.approx(-3.0 + ALONE)
    assert least([0.8, 1.0, 1.0], 0.9) == pytest.approx(-3.0 + ALONE)
    assert least([], 0.9) == pytest.approx(-3.0 + ALONE)
    assert least([0.8], 0.9) == pytest.approx(-3.0 + ALONE)
    assert -3.0 + ALONE < least([0.8, 0.8, 5.0], 0.9) <= -3.0 + BEGUN


def test_the_window_is_read_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def recorded(*given: Any) -> float:
        seen.update(zip(("window", "before", "alike", "usual", "low", "count"), given, strict=True))
        return joint(*given)

    monkeypatch.setattr("topicality.core.drift_change.joint", recorded)
    messages = [*LEAD[:8], (near(OTHER, 1), 0.4), (near(TOPIC, 2), 0.5), (near(SUBJECTS[3], 3), 0.6)]
    told(messages)
    units = [vector / np.linalg.norm(vector) for vector, _ in messages]
    last, yardstick = np.array(units[:-4:-1]), HERE.yardstick or 0.0
    assert [level_of(one.own) for one in seen["window"]] == pytest.approx([0.6, 0.5, 0.4, ON])
    assert np.array(seen["alike"]) == pytest.approx(last @ last.T / yardstick, abs=0.02 / yardstick)
    assert seen["before"] == pytest.approx((last @ np.array(units[:8]).T).max(axis=1) / yardstick, abs=0.02 / yardstick)
    assert seen["count"] == len(messages) - 1


def test_the_nearest_subject_and_how_distinct_it_is() -> None:
    direction = near(OTHER, 1) / np.linalg.norm(near(OTHER, 1))
    cosines = SUBJECTS @ direction / np.linalg.norm(SUBJECTS, axis=1)
    nearest, distinct = HERE.among_background(direction)
    assert nearest == pytest.approx(cosines.max())
    assert distinct == pytest.approx((cosines.max() - cosines.mean()) / cosines.std())


def test_the_rule_before_the_window_counts_too() -> None:
    window = (Seen(0.0, 0.0, 2.0, 3.0, 0),) * LAST
    alike = [[1.0] * LAST] * LAST
    found = {joint((*window, Seen(0.0, odds, 2.0, 3.0, 0)), [2.0] * LAST, alike, 3.5, 0.06, 9) for odds in (-2.0, 0.0)}
    assert len(found) == 2


def test_what_the_window_itself_left_among_the_remembered_is_no_witness() -> None:
    """A new subject that the guard takes for allowed is remembered, but does not vouch for itself."""
    start, _ = told(LEAD)
    state, _ = told(talk(OTHER, 2, ON, 50), start)
    assert [seen.kept for seen in state.window] == [1, 1, 1]
    assert state.kept is not None
    own = near(OTHER, 70)
    vouched, _ = step(state, own, UNSURE, now=20, landmarks=HERE)
    forgotten = DriftState.from_dict(
        {**state.to_dict(), "window": [[*seen[:4], 0] for seen in state.window]}
    )  # as if both had been said before
    other, _ = step(forgotten, own, UNSURE, now=20, landmarks=HERE)
    assert vouched.odds == other.odds
    assert vouched.felt is not None
    assert other.felt is not None
    assert vouched.felt > other.felt


def test_without_a_vector_the_rule_speaks_alone_and_the_window_begins_anew() -> None:
    start, _ = told([*LEAD, *talk(OTHER, 1, UNSURE, 50)])
    assert len(start.window) == LAST
    blind, reading = told([(None, UNSURE)], start)
    assert (blind.felt, blind.window, blind.lately) == (None, (), None)
    assert reading[0].level == level_of(blind.odds)
    again, _ = told(talk(OTHER, 1, UNSURE, 60), blind)
    assert len(again.window) == 1
    assert again.felt is not None


def test_constants_of_ones_own_are_the_rule_alone() -> None:
    state, readings = told(LEAD, settings=Settings(detector=Detector()))
    assert (state.felt, state.window, state.lately) == (None, (), None)
    assert readings[-1].level == level_of(state.odds)


def test_a_message_that_is_not_read_leaves_the_window() -> None:
    start, _ = told(LEAD)
    state, readings = told([(near(OTHER, 1), None)], start)
    assert state.window is start.window
    assert state.lately is start.lately
    assert readings[0].level == level_of(start.felt)


@given(st.lists(st.sampled_from([ON, OFF, 0.4, 0.7, None]), min_size=2, max_size=30), st.integers(1, 29))
def test_resuming_gives_the_same_decisions(probabilities: list[float | None], cut: int) -> None:
    messages = [(near((TOPIC, OTHER)[p == OFF], index), p) for index, p in enumerate(probabilities)]
    first, _ = told(messages[:cut])
    again = DriftState.from_dict(json.loads(json.dumps(first.to_dict(), allow_nan=False)))
    rest = [*messages[cut:], *talk(OTHER, 4, 0.3, 90)]
    assert told(rest, again)[1] == told(rest, first)[1]
    assert again.to_dict() == first.to_dict()


def test_the_state_stays_bounded() -> None:
    first, _ = told(talk(TOPIC, 30, ON))
    longer, _ = told(talk(TOPIC, 200, ON, 30), first)
    assert len(json.dumps(longer.to_dict())) < len(json.dumps(first.to_dict())) + 100
    assert longer.lately is not None
    assert longer.lately.shape == (LAST - 1, SIZE)


@pytest.mark.parametrize(
    "change",
    [
        {"window": None},
        {"window": "x"},
        {"window": []},  # directions of none
        {"window": [list(SURE)]},  # of two for one
        {"window": [list(SURE)] * 4},
        {"window": [list(SURE[:4])] * 3},
        {"window": [[*SURE[:4], 2]] * 3},
        {"window": [["1", *SURE[1:]]] * 3},
        {"window": [[float("nan"), *SURE[1:]]] * 3},
        {"window": [3, 3, 3]},
        {"lately": None},
        {"lately": "!"},
        {"lately": ["fwA="]},
        {"felt": "1"},
        {"felt": float("inf")},
    ],
)
def test_a_damaged_window_is_refused(change: dict[str, Any]) -> None:
    state, _ = told(LEAD)
    assert DriftState.from_dict(state.to_dict()).to_dict() == state.to_dict()
    with pytest.raises(InputError):
        DriftState.from_dict({**state.to_dict(), **change})


def test_a_state_of_version_2_goes_on_and_learns_its_window() -> None:
    state, _ = told(LEAD, settings=Settings(detector=Detector()))
    old = {**state.to_dict(), "version": 2, "kept": None}
    for name in ("felt", "window", "lately"):
        del old[name]
    resumed = DriftState.from_dict(old)
    assert (resumed.felt, resumed.window, resumed.lately) == (None, (), None)
    assert told(talk(TOPIC, 4, ON, 40), resumed)[0].felt is not None
