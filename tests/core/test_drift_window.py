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
from topicality.core.drift_heard import Heard
from topicality.core.drift_memory import MESSAGE, memory_of, standing
from topicality.core.drift_network import Network
from topicality.core.drift_state import DriftState
from topicality.core.drift_weights import EVIDENCE, JOINT
from topicality.core.drift_window import (
    ALONE,
    BEGUN,
    FEATURES,
    FIRST,
    KEPT,
    LAST,
    OF_ONE,
    Seen,
    features,
    joint,
    room,
    summed,
)
from topicality.core.landmarks import Landmarks
from topicality.errors import InputError

RANDOM = np.random.default_rng(11)
SIZE = 64
SUBJECTS = RANDOM.normal(size=(40, SIZE))
HERE = Landmarks([(f"subject {index}", "background", subject) for index, subject in enumerate(SUBJECTS)])
TOPIC, OTHER = RANDOM.normal(size=(2, SIZE))
ACROSS = np.random.default_rng(3).normal(size=(SIZE, 24)).astype(np.float32)
ON, OFF, UNSURE = 0.97, 0.03, 0.15


def across(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """A map of subjects: fewer numbers, length 1."""
    found = vectors @ ACROSS
    return np.asarray(found / np.linalg.norm(found, axis=-1, keepdims=True))


MAPPED = Landmarks([(f"subject {index}", "background", one) for index, one in enumerate(SUBJECTS)], subjects=across)


def near(direction: Any, index: int) -> NDArray[np.float64]:
    return drift_talks.near(direction, index, 0.8)


def told(
    messages: Sequence[tuple[Any, Heard | float | None]],
    start: DriftState | None = None,
    settings: Settings | None = None,
) -> tuple[DriftState, list[Reading]]:
    return drift_talks.told(messages, HERE, settings, start)


def talk(about: Any, count: int, probability: float, first: int = 0) -> list[tuple[Any, float | None]]:
    return [(near(about, first + index), probability) for index in range(count)]


LEAD = talk(TOPIC, 12, ON)


@pytest.mark.parametrize(("network", "size"), [(EVIDENCE, len(OF_ONE)), (JOINT, len(FEATURES))])
def test_every_feature_has_its_weights(network: Network, size: int) -> None:
    assert network.mean.shape == network.scale.shape == (size,)
    assert network.inner.shape == (size, len(network.outer))
    assert network.inner_bias.shape == network.outer.shape
    assert all(np.isfinite(table).all() for table in network)
    assert (network.scale > 0).all()


def test_a_new_subject_is_noticed_sooner_than_by_the_rule_alone_and_than_the_same_subject() -> None:
    start, _ = told(LEAD)
    turned, alone = talk(OTHER, 6, UNSURE, 50), Settings(detector=Detector())
    noticed = alarms(told(turned, start)[1])
    assert noticed == [2]
    assert alarms(told(turned, start, alone)[1]) > noticed
    assert not alarms(told(talk(TOPIC, 6, UNSURE, 50), start)[1])


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
        assert len(state.window) <= KEPT
        assert all(abs(one.left) < 20 for one in state.window)


SURE = (0.0, None, None, 2.0, 3.0, 0, -3.0, -3.0, -3.0)  # a message that says little
OLD = np.zeros((0, 3), dtype=np.float32)


def last(*evidence: float) -> tuple[Seen, ...]:
    return tuple(Seen(*SURE)._replace(evidence=one) for one in evidence)


def near_each_other(alike: float, before: Sequence[float]) -> NDArray[np.float32]:
    """Cosines of two or three last messages and one remembered one; the first two are so near to each other, and to that."""
    size = len(before) + 1
    found = np.ones((size, size), dtype=np.float32)
    found[0, 1] = found[1, 0] = alike
    found[-1, :-1] = found[:-1, -1] = before
    return found


def test_it_may_add_more_where_the_last_two_are_nearer_to_each_other_than_to_what_was_said() -> None:
    assert room(last(-3, -3, -3), near_each_other(0.9, [0.8, 0.8, 5.0])) == BEGUN
    assert room(last(-3, -3, -3), near_each_other(0.9, [0.8, 1.0, 0.1])) == ALONE
    assert room(last(-3, -3, -3), near_each_other(0.9, [1.0, 0.8, 0.1])) == ALONE
    assert room(last(-3, -3, -3), np.ones((3, 3), dtype=np.float32)) == ALONE  # nothing was said
    assert room(last(-3), np.ones((2, 2), dtype=np.float32)) == ALONE


def test_it_may_add_more_where_two_of_the_last_three_speak_for_it() -> None:
    cosines = near_each_other(0.1, [1.0, 1.0, 1.0])
    assert room(last(3, -3, 3), cosines) == room(last(-3, 3, 3), cosines) == BEGUN
    assert room(last(3, -3, -3, 3, 3), cosines) == ALONE


def test_the_window_is_read_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def recorded(*given: Any) -> tuple[float, Seen]:
        seen.update(zip(("window", "cosines", "readings", "yardstick"), given, strict=True))
        return joint(*given)

    monkeypatch.setattr("topicality.core.drift_change.joint", recorded)
    messages = [*LEAD[:8], (near(OTHER, 1), Heard(0.4, 0.4, 0.2)), (near(TOPIC, 62), 0.5), (near(SUBJECTS[3], 3), 0.6)]
    told(messages)
    yardstick = HERE.yardstick or 0.0
    units = np.array([vector / np.linalg.norm(vector) for vector, _ in messages])
    every = np.concatenate([units[:-4:-1], units[:8]])
    assert [level_of(one.own) for one in seen["window"]] == pytest.approx([0.6, 0.5, 0.4, ON, ON])
    assert [level_of(seen["window"][2].alone), level_of(seen["window"][2].context)] == pytest.approx([0.4, 0.2])
    assert (seen["window"][0].alone, seen["window"][0].context) == (None, None)
    assert seen["cosines"] == pytest.approx(every @ every.T / yardstick, abs=0.02 / yardstick)
    assert seen["readings"].shape == (8, 3)
    assert np.isnan(seen["readings"][:, :2]).all()
    found = dict(zip(FEATURES, features(*seen.values()), strict=True))
    assert found["count"] == pytest.approx(np.log1p(8))
    assert found["nearest1"] + found["background1"] == pytest.approx(max(every[1] @ units[:8].T) / yardstick, abs=0.2)
    assert found["like02"] == pytest.approx(every[0] @ every[2] / yardstick, abs=0.2)


def test_what_a_message_is_like_and_what_is_usual() -> None:
    """By hand: three remembered messages, and one that is asked about."""
    kept = np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.1], [0.3, 0.1, 1.0]], dtype=np.float32)
    readings = np.array([[2.0, 3.0, 0.1], [4.0, 5.0, 0.2], [0.0, 1.0, 0.3]], dtype=np.float32)
    memory = memory_of(kept, readings, 1.0)
    assert memory.length == pytest.approx((4.8**0.5) / 3)
    assert memory.nearest == pytest.approx((0.4 + 0.3 + 0.0) / 3)
    assert memory.mean == pytest.approx(0.3)
    assert memory.mean_spread == pytest.approx(np.std([0.4, 0.3, 0.2]), abs=1e-6)
    assert memory.readings == pytest.approx([2.0, 3.0])
    asked = np.array([[0.9, 0.6, 0.3]], dtype=np.float32)
    found = standing(asked, [0.2], [[0.0, 9.0]], memory, 1.0)[0]
    spread = np.std([2.0, 4.0, 0.0]) + 1
    centre = 0.6 / memory.length - 0.2
    assert found == pytest.approx([0.7, 0.4, centre, 0.6, -2.0 / spread, 6.0 / spread], abs=1e-5)
    assert len(found) == len(MESSAGE) - 5


def test_the_same_text_again_is_no_witness() -> None:
    kept = np.array([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.2, 0.2, 1.0]], dtype=np.float32)
    memory = memory_of(kept, np.zeros((3, 3), dtype=np.float32), 1.0)
    assert memory.nearest == pytest.approx(0.2)
    again = standing(kept[:1], [0.0], [[0.0, 0.0]], memory, 1.0)[0]
    assert again[:2] == pytest.approx([0.2, 0.2])
    only = memory_of(kept[:2, :2], np.zeros((2, 3), dtype=np.float32), 1.0)
    assert np.isnan(standing(kept[:1, :2], [0.0], [[0.0, 0.0]], only, 1.0)[0][:2]).all()


def test_evidence_sums_up_and_is_forgotten() -> None:
    start = -3.0
    once = summed(start, 5.0)
    assert start < once < summed(once, 5.0)
    assert summed(start, -5.0) < summed(start, 0.0) < once
    odds = 10.0
    for _ in range(30):
        odds = summed(odds, -5.0)
    assert odds < -3.0


def test_what_is_not_known_is_as_usual() -> None:
    assert np.isfinite(JOINT.log_odds(np.full(len(FEATURES), np.nan)))
    assert EVIDENCE.log_odds(EVIDENCE.mean) == EVIDENCE.log_odds(np.full(len(OF_ONE), np.nan))


def test_the_nearest_subject_and_how_distinct_it_is() -> None:
    direction = near(OTHER, 1) / np.linalg.norm(near(OTHER, 1))
    cosines = SUBJECTS @ direction / np.linalg.norm(SUBJECTS, axis=1)
    nearest, distinct = HERE.among_background(direction)
    assert nearest == pytest.approx(cosines.max())
    assert distinct == pytest.approx((cosines.max() - cosines.mean()) / cosines.std())


def test_the_rule_before_the_window_counts_too() -> None:
    window = last(-3, -3, -3)
    alike = np.ones((LAST + FIRST, LAST + FIRST), dtype=np.float32)
    old = np.zeros((FIRST, 3), dtype=np.float32)
    found = {joint((*window, Seen(*SURE)._replace(odds=odds)), alike, old, 1.0)[0] for odds in (-2.0, 0.0)}
    assert len(found) == 2


@pytest.mark.parametrize("place", [HERE, MAPPED])
@pytest.mark.parametrize("lead", range(FIRST + 2))
@pytest.mark.parametrize("probability", [OFF, UNSURE])
def test_a_conversation_that_begins_off_topic_or_turns_at_once_alarms(
    lead: int, probability: float, place: Landmarks
) -> None:
    away = [(subject, probability) for subject in SUBJECTS[:8]]
    found = alarms(drift_talks.told([*talk(TOPIC, lead, ON), *away], place)[1])
    assert len(found) == 1
    assert lead < found[0] <= lead + 5


def test_with_little_remembered_the_window_says_no_less_than_the_rule() -> None:
    window, odds = last(-3, -3, -3), 2.0
    for known in range(FIRST + 2):
        alike = np.ones((LAST + known, LAST + known), dtype=np.float32)
        old = np.zeros((known, 3), dtype=np.float32)
        felt, _ = joint((window[0]._replace(odds=odds), *window[1:]), alike, old, 1.0)
        assert (felt >= odds) is (known < FIRST)


def test_what_the_window_itself_left_among_the_remembered_is_no_witness() -> None:
    """A new subject that the guard takes for allowed is remembered, but does not vouch for itself."""
    start, _ = told(LEAD)
    state, _ = told(talk(OTHER, 2, ON, 50), start)
    assert [seen.kept for seen in state.window] == [1] * KEPT
    assert state.kept is not None
    own = near(OTHER, 70)
    vouched, _ = step(state, own, UNSURE, now=20, landmarks=HERE)
    forgotten = DriftState.from_dict(
        {**state.to_dict(), "window": [list(seen._replace(kept=0)) for seen in state.window]}
    )  # as if both had been said before
    other, _ = step(forgotten, own, UNSURE, now=20, landmarks=HERE)
    assert vouched.odds == other.odds
    assert vouched.felt is not None
    assert other.felt is not None
    assert vouched.felt > other.felt


def test_without_a_vector_the_rule_speaks_alone_and_the_window_begins_anew() -> None:
    start, _ = told([*LEAD, *talk(OTHER, 1, UNSURE, 50)])
    assert len(start.window) == KEPT
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
    first, _ = told(talk(TOPIC, 40, ON))
    longer, _ = told(talk(TOPIC, 200, ON, 40), first)
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
        {"window": [list(SURE)] * 6},
        {"window": [list(SURE[:4])] * 3},
        {"window": [[*SURE[:5], 2, *SURE[6:]]] * 3},
        {"window": [["1", *SURE[1:]]] * 3},
        {"window": [[float("nan"), *SURE[1:]]] * 3},
        {"window": [3, 3, 3]},
        {"lately": None},
        {"lately": "!"},
        {"lately": ["fwA="]},
        {"readings": "!"},
        {"readings": "AACAPwAAgD8AAIA/"},  # of one message
        {"kept": None},  # readings of none
        {"felt": "1"},
        {"felt": float("inf")},
    ],
)
def test_a_damaged_window_is_refused(change: dict[str, Any]) -> None:
    state, _ = told(LEAD)
    assert DriftState.from_dict(state.to_dict()).to_dict() == state.to_dict()
    with pytest.raises(InputError):
        DriftState.from_dict({**state.to_dict(), **change})


def test_with_a_map_messages_are_compared_there_and_headings_stay_where_they_are() -> None:
    state, readings = drift_talks.told(LEAD, MAPPED)
    assert state.kept is not None
    assert state.lately is not None
    assert state.running is not None
    assert (state.kept.shape, state.lately.shape, state.running.shape) == ((12, 24), (2, 24), (SIZE,))
    newest = across(LEAD[-1][0].astype(np.float32))
    assert state.kept[-1] / 127 == pytest.approx(newest / np.abs(newest).max(), abs=0.005)
    assert MAPPED.yardstick is not None
    cosine = across(SUBJECTS.astype(np.float32)) @ newest
    assert state.window[0].background == pytest.approx(cosine.max() / MAPPED.yardstick, abs=1e-4)
    assert readings[-1].heading == told(LEAD)[1][-1].heading


def test_with_a_map_decisions_go_on_after_json() -> None:
    messages = [*LEAD, *talk(OTHER, 8, UNSURE, 50)]
    whole = drift_talks.told(messages, MAPPED)[1]
    state = drift_talks.told(messages[:13], MAPPED)[0]
    for index, (vector, probability) in enumerate(messages[13:], 13):
        state = DriftState.from_dict(json.loads(json.dumps(state.to_dict())))
        state, reading = step(state, vector, probability, now=float(index), landmarks=MAPPED)
        assert reading == whole[index]


@pytest.mark.parametrize(("first", "then", "size"), [(HERE, MAPPED, 24), (MAPPED, HERE, SIZE)])
def test_a_state_that_was_measured_elsewhere_begins_its_memory_anew(
    first: Landmarks, then: Landmarks, size: int
) -> None:
    start, _ = drift_talks.told(LEAD, first)
    state, _ = step(start, near(TOPIC, 70), ON, now=20, landmarks=then)
    assert state.kept is not None
    assert state.kept.shape == (1, size)
    assert state.readings is not None
    assert state.readings.shape == (1, 3)
    assert len(state.window) == 1
    assert (state.messages, state.alike) == (13, 0.0)
    assert state.weight > start.weight
    assert state.odds is not None
    assert DriftState.from_dict(state.to_dict()).to_dict() == state.to_dict()
    assert not alarms(drift_talks.told(talk(TOPIC, 20, ON, 100), then, start=state)[1])


def test_what_the_map_has_no_direction_for_is_no_evidence() -> None:
    units = (SUBJECTS / np.linalg.norm(SUBJECTS, axis=1, keepdims=True)).astype(np.float32)

    def only_subjects(vector: NDArray[np.float32]) -> NDArray[np.float32]:
        return across(vector) * np.float32((units @ vector).max() > 0.999)

    empty = Landmarks(
        [(f"subject {index}", "background", one) for index, one in enumerate(SUBJECTS)], subjects=only_subjects
    )
    state, readings = drift_talks.told(LEAD, empty)
    assert state.kept is None
    assert readings[-1].level == drift_talks.told([(None, ON) for _ in LEAD], None)[1][-1].level


def test_directions_of_two_lengths_are_refused() -> None:
    mapped, plain = (drift_talks.told(LEAD, place)[0].to_dict() for place in (MAPPED, HERE))
    with pytest.raises(InputError):
        DriftState.from_dict({**mapped, "lately": plain["lately"]})


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_state_goes_on_and_learns_its_window(version: int) -> None:
    state, _ = told(LEAD)
    old = {**state.to_dict(), "version": version, "window": [[0.5, -3.0, 2.0, 3.0, 1]] * 3}
    del old["readings"]
    if version == 2:
        for name in ("felt", "window", "lately"):
            del old[name]
        old["kept"] = None
    resumed = DriftState.from_dict(old)
    assert (resumed.window, resumed.lately, resumed.readings) == ((), None, None)
    assert resumed.felt == (None if version == 2 else state.felt)
    onward, readings = told(talk(TOPIC, 4, ON, 40), resumed)
    assert onward.felt is not None
    assert onward.readings is not None
    assert onward.kept is not None
    assert len(onward.readings) == len(onward.kept)
    assert not alarms(readings)
    assert DriftState.from_dict(onward.to_dict()).to_dict() == onward.to_dict()


# --- both readings of a verdict


def test_both_readings_of_a_message_are_remembered_with_it() -> None:
    state, _ = told([(near(TOPIC, index), Heard(0.9, 0.5, 0.9)) for index in range(40)])
    assert state.readings is not None
    assert state.kept is not None
    assert len(state.readings) == len(state.kept) == Detector().keep
    assert state.readings[:, 0] == pytest.approx(0.0, abs=1e-6)
    assert state.readings[:, 1] == pytest.approx(np.log(9), abs=1e-5)
    assert not state.readings.flags.writeable


def test_readings_move_the_window_but_not_the_rule() -> None:
    start, _ = told([(near(TOPIC, index), Heard(ON, ON, ON)) for index in range(12)])
    plain, _ = step(start, near(OTHER, 1), 0.4, now=20, landmarks=HERE)
    both, _ = step(start, near(OTHER, 1), Heard(0.4, 0.01, 0.4), now=20, landmarks=HERE)
    assert plain.odds == both.odds
    assert plain.window[0].evidence != both.window[0].evidence


@pytest.mark.parametrize(
    "heard", [Heard(0.5), Heard(0.5, None, 0.5), Heard(0.5, 0.5), Heard(1.0, 0.0, 1.0), Heard(0, 0, 0)]
)
def test_a_reading_may_be_unknown(heard: Heard) -> None:
    state, readings = told([*LEAD, (near(OTHER, 3), heard), (None, heard), *talk(TOPIC, 2, ON, 70)])
    assert all(np.isfinite(reading.level) for reading in readings)
    assert DriftState.from_dict(json.loads(json.dumps(state.to_dict(), allow_nan=False))).to_dict() == state.to_dict()


@pytest.mark.parametrize("heard", [Heard(0.5, 2.0), Heard(0.5, 0.5, float("nan")), Heard(-0.1), Heard(None, 0.5)])  # type: ignore[arg-type]  # on purpose
def test_a_reading_out_of_its_range_is_an_error(heard: Heard) -> None:
    with pytest.raises(InputError):
        step(None, TOPIC, heard, now=0)


def test_without_a_vector_both_readings_are_the_better_one() -> None:
    assert told([(None, Heard(0.4, 0.1, 0.4))] * 5)[1] == told([(None, 0.4)] * 5)[1]
