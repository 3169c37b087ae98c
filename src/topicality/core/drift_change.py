"""The rule of "change": the probability that a conversation has left its topics, after one more message. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.drift_heard import Heard
from topicality.core.drift_memory import bounded
from topicality.core.drift_state import DriftState
from topicality.core.drift_window import KEPT, LAST, Seen, joint
from topicality.core.landmarks import Landmarks

_FURTHEST = 1e-9  # a probability of 0 or 1 is far away, not infinite


@dataclass(frozen=True, slots=True)
class Detector:
    """Constants of "change", fitted on conversations made of labelled messages (`tools/fit_drift.py`).

    Likeness is how much nearer a message is to what was said on-topic in its conversation than to the nearest background
    subject, in standard deviations of the cosine between two subjects (`core.landmarks`), so that it means the same with
    any encoder.

    Attributes:
        leave: probability that a conversation leaves its topics, a message. back: that it comes back by itself.
        looks_on: share of off-topic messages that look on-topic (the guard's misses).
        low: on-topic messages that look off-topic, before anything was seen: (how many, of how many).
        usual: log-odds of an on-topic message before anything was seen; it counts as `usual_weight` messages.
        turn: log-odds that speak for neither side, when the conversation is a usual one; moved by `follow` of how far the
            conversation's own messages lie from `usual`. steepness: of the evidence, for each unit of log-odds.
        lowest, highest: log-odds beyond these count as these, so that no one message decides.
        likeness: evidence for each unit of likeness. alike: likeness that speaks for neither side; moved by `alike_follow`
            of how far the conversation's own messages lie from it. least_alike, most_alike: bounds, counted from `alike`.
        most: evidence of one message, at most, so that a tangent alone never raises the alarm.
        doubt: log-odds of a message at which being unlike counts half; surely allowed, it may be unlike.
        few: so many remembered messages make likeness count half.
        keep: most messages that are remembered, the last ones. surely_on: probability that the conversation is on-topic,
            and own_part: log-odds of the message itself, from which it is remembered.
        memory: most on-topic messages that the averages remember; older ones fade.
    """

    leave: float = 0.06
    back: float = 0.03
    looks_on: float = 0.2
    low: tuple[float, float] = (0.2, 3.2)
    usual: float = 3.5
    usual_weight: float = 4.0
    turn: float = 0.0
    follow: float = 0.5
    steepness: float = 0.6
    lowest: float = -6.0
    highest: float = 4.0
    likeness: float = 0.3
    alike: float = -1.5
    alike_follow: float = 0.2
    least_alike: float = -5.0
    most_alike: float = 1.0
    most: float = 2.75
    doubt: float = 2.0
    few: float = 0.5
    keep: int = 32
    surely_on: float = 0.8
    own_part: float = -0.85
    memory: float = 30.0


SEEING = Detector()
BLIND = Detector(back=0.01, follow=0.2, lowest=-4.0, highest=8.0, most=50.0, memory=40.0)  # without vectors


def changed(
    state: DriftState,
    heard: Heard,
    vector: NDArray[np.float64] | None,
    detector: Detector | None,
    landmarks: Landmarks | None,
) -> DriftState:
    """Bayes' rule for "has left", and what the message teaches about this conversation if it has not.

    Args:
        heard: the message's best allowed probability, by one reading or both.
        vector: the message's embedding, shape (D,); without it, or without a background among the landmarks, only the
            probability speaks. detector: None for `SEEING` and the last messages together, or `BLIND`, as there is
            something to see or not.
    Cost: O(D · (landmarks + `keep`)).
    """
    direction = None if vector is None or landmarks is None else landmarks.measurable(vector)
    state = state if direction is None else _measured_alike(state, len(direction))
    together = detector is None and direction is not None  # the window was fitted with the constants of SEEING
    detector = detector or (BLIND if direction is None else SEEING)
    start, low, of, total, weight, alike, likes = _so_far(state, detector)
    own = log_odds(heard.probability)
    x = min(max(own, detector.lowest), detector.highest)
    left = level_of(start)
    prior = left * (1 - detector.back) + (1 - left) * detector.leave
    middle = detector.turn + detector.follow * (total / weight - detector.usual)
    evidence = -detector.steepness * (x - middle)
    trust, like, near = 0.0, 0.0, None
    if direction is not None and landmarks is not None:
        near = _near(state, direction, landmarks, together)
        held = len(near.cosines) - near.asked
        if held:
            trust = held / (held + detector.few)
            far = float(near.cosines[0, near.asked :].max()) - near.background - detector.alike
            like = min(max(far, detector.least_alike), detector.most_alike)
            like_usual = like - detector.alike_follow * alike / likes
            if like_usual < 0:  # unlike what was said before, but perhaps another allowed topic
                like_usual *= level_of(detector.doubt - x)
            evidence -= detector.likeness * trust * like_usual
    ratio = math.exp(min(evidence, detector.most))
    share = low / of  # of this conversation's on-topic messages that look off-topic
    under_on = share * ratio + 1 - share
    odds = log_odds(prior) + math.log(((1 - detector.looks_on) * ratio + detector.looks_on) / under_on)
    on = 1 - level_of(odds)
    low, of = low + on * share * ratio / under_on, of + on
    total, weight = total + on * max(x, -1.0), weight + on
    alike, likes = alike + on * trust * max(like, -2.0), likes + on * trust
    fade, dim, pale = (min(1.0, detector.memory / count) for count in (of, weight, likes))
    kept, readings = state.kept, state.readings
    alone, context = (None if one is None else log_odds(one) for one in (heard.alone, heard.context))
    if direction is not None and near is not None and x >= detector.own_part and on >= detector.surely_on:
        kept = remembered(kept, direction, detector.keep)
        readings = _noted(readings, (alone, context, near.background), len(kept))
    felt: float | None = None
    window: tuple[Seen, ...] = ()
    if together and near is not None:
        mine = int(kept is not state.kept)
        seen = Seen(own, alone, context, near.background, near.distinct, mine, odds)
        felt, window = _read_together(state, seen, near)
    return state.but(
        odds=odds,
        felt=felt,
        window=window,
        lately=None if not window or direction is None else remembered(state.lately, direction, LAST - 1),
        low=low * fade,
        of=of * fade,
        total=total * dim,
        weight=weight * dim,
        alike=alike * pale,
        likes=likes * pale,
        kept=kept,
        readings=readings,
    )


def _so_far(state: DriftState, detector: Detector) -> tuple[float, ...]:
    """Log-odds that the conversation has left, and its sums: low, of, total, weight, alike, likes."""
    if state.odds is None:
        usual = detector.usual_weight
        return log_odds(detector.leave), *detector.low, detector.usual * usual, usual, 0.0, usual
    likes = state.likes or detector.usual_weight
    return state.odds, state.low, state.of, state.total, state.weight, state.alike, likes


def _measured_alike(state: DriftState, size: int) -> DriftState:
    """The state; with its memory begun anew if what is remembered was measured elsewhere, with or without a map."""
    kept, lately = state.kept, state.lately
    if (kept is None or kept.shape[1] == size) and (lately is None or lately.shape[1] == size):
        return state
    return state.but(alike=0.0, likes=0.0, kept=None, readings=None, window=(), lately=None)


def _read_together(state: DriftState, seen: Seen, near: _Near) -> tuple[float, tuple[Seen, ...]]:
    window = (seen, *state.window)[:KEPT]
    held = 0 if state.kept is None else len(state.kept)
    old = max(0, held - sum(one.kept for one in window[1:LAST]))  # what the window itself left there is no witness
    size = near.asked + old
    readings = np.full((old, 3), np.nan, np.float32) if state.readings is None else state.readings[:old]
    felt, newest = joint(window, near.cosines[:size, :size], readings, near.yardstick)
    return felt, (newest, *window[1:])


class _Near(NamedTuple):
    """Cosines in standard deviations of the cosine between two background subjects: the `yardstick`.

    Attributes:
        background: to the nearest background subject. distinct: see `Landmarks.among_background`.
        cosines: shape (A + K, A + K), to each other, of the A last messages, newest first (the message alone if they are not
            read together), and the K remembered ones. asked: A.
    """

    background: float
    distinct: float
    yardstick: float
    cosines: NDArray[np.float32]
    asked: int


def _near(state: DriftState, direction: NDArray[np.float32], landmarks: Landmarks, together: bool) -> _Near:
    yardstick = landmarks.yardstick or 1.0
    background, distinct = landmarks.among_background(direction)
    lately = state.lately[::-1] if together and state.lately is not None else None
    rows = [one for one in (lately, state.kept) if one is not None]
    every = direction[None]
    if rows:
        every = np.concatenate([every, *rows])
    dots = every @ every.T
    lengths = np.sqrt(dots.diagonal())
    cosines = dots / (lengths[:, None] * (lengths * np.float32(yardstick)))
    return _Near(background / yardstick, distinct, yardstick, cosines, 1 + (0 if lately is None else len(lately)))


def _noted(
    readings: NDArray[np.float32] | None, reading: tuple[float | None, float | None, float], count: int
) -> NDArray[np.float32]:
    """The readings of `count` remembered messages, shape (count, 3), with one more; NaN for what is not known."""
    found = np.full((count, 3), np.nan, dtype=np.float32)
    if readings is not None and count > 1:
        found[-1 - min(len(readings), count - 1) : -1] = readings[-(count - 1) :]
    found[-1] = (bounded(reading[0]), bounded(reading[1]), reading[2])
    found.flags.writeable = False
    return found


def remembered(kept: NDArray[np.int8] | None, direction: NDArray[np.floating], most: int) -> NDArray[np.int8]:
    """`kept` with one direction more, in one byte a number; the oldest goes when there are more than `most`."""
    row = np.rint(direction * (127.0 / np.abs(direction).max())).astype(np.int8)[None]
    rows = row if kept is None else np.concatenate([kept[-most + 1 :] if most > 1 else kept[:0], row])
    rows.flags.writeable = False
    return rows


def level_of(odds: float | None) -> float:
    """The probability of log-odds; 0 for None."""
    if odds is None:
        return 0.0
    return 1.0 / (1.0 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1.0 + math.exp(odds))


def log_odds(chance: float) -> float:
    """The log-odds of a probability; 0 and 1 are far away, not infinite."""
    clipped = min(max(chance, _FURTHEST), 1.0 - _FURTHEST)
    return math.log(clipped / (1.0 - clipped))
