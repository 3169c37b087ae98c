"""Has a conversation wandered off its allowed topics? A state, a message, the next state: pure.

Two methods. "change" (the default) reads each message's best allowed probability and keeps the probability that the
conversation has left the allowed topics, weighing each message by what is usual *in this conversation*. "ema" is the
rule of system A: the running mean of the vectors has to stay near an allowed topic. Both keep the running mean, which
tells where the conversation is heading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.core.drift_change import SEEING, Detector, changed, level_of
from topicality.core.drift_heard import Heard, fed_by, heard_from
from topicality.core.drift_state import DriftState, is_count, is_number
from topicality.core.landmarks import Heading, Landmarks
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import Space

__all__ = ["Heard", "Method", "Reading", "Settings", "fed_by", "heard_from", "is_stale", "reading_of", "step"]

Method = Literal["change", "ema"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How drift is decided.

    Attributes:
        method: "change" or "ema".
        level: probability, (0, 1), from which a conversation counts as drifted ("change"; met at >=).
        rearm: level below which the alarm is ready again, at most `level`.
        cooldown: messages that must lie between two alarms, at least.
        allowed_threshold: probability below which a message counts for the off-topic streak; the policy's own.
        timeout: seconds without a message after which a conversation starts afresh (when exceeded).
        alpha: weight, (0, 1], of a new message in the running means.
        similarity: cosine, [-1, 1], that the running vector must have to an allowed topic ("ema"; met at >=).
        streak: messages in a row below it that make a drift ("ema").
        detector: constants of "change"; None for the fitted ones, with vectors or without. Others than None are for the rule
            alone: the network that reads the last messages together knows only the fitted ones.
        strict: "ema" counts a similarity equal to the threshold as below it, as system A did.
    """

    method: Method = "change"
    level: float = 0.75
    rearm: float = 0.5
    cooldown: int = 5
    allowed_threshold: float = 0.3
    timeout: float = 3600.0
    alpha: float = 0.3
    similarity: float = 0.3
    streak: int = 3
    strict: bool = False
    detector: Detector | None = None

    def __post_init__(self) -> None:
        _setting("method", self.method, self.method in {"change", "ema"}, '"change" or "ema"')
        _setting("level", self.level, is_number(self.level) and 0 < self.level < 1, "a number in (0, 1)")
        below = is_number(self.rearm) and 0 < self.rearm <= self.level
        _setting("rearm", self.rearm, below, "a number in (0, level]")
        _setting("cooldown", self.cooldown, is_count(self.cooldown) and self.cooldown >= 0, "a whole number from 0")
        chance = is_number(self.allowed_threshold) and 0 <= self.allowed_threshold <= 1
        _setting("allowed_threshold", self.allowed_threshold, chance, "a number in [0, 1]")
        _setting("timeout", self.timeout, is_number(self.timeout) and self.timeout > 0, "seconds above 0")
        _setting("alpha", self.alpha, is_number(self.alpha) and 0 < self.alpha <= 1, "a number in (0, 1]")
        cosine = is_number(self.similarity) and -1 <= self.similarity <= 1
        _setting("similarity", self.similarity, cosine, "a number in [-1, 1]")
        _setting("streak", self.streak, is_count(self.streak) and self.streak >= 1, "a whole number from 1")


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known after a message.

    Attributes:
        level: [0, 1], how far the conversation has drifted. "change": the probability that it has left the allowed
            topics. "ema": 1 - similarity.
        drifted: whether it counts as drifted now. alarm: whether this message is where that began (or where it is told
            again: not before it came back and `cooldown` messages passed).
        drift_streak: messages in a row that it has drifted ("ema": that the running vector was too far off).
        off_topic_streak: messages in a row that were off-topic by themselves.
        mean: running mean of the messages' best allowed probability; None before the first.
        similarity: "ema": cosine of the running vector to the nearest allowed topic, floored at 0; else None.
        heading: the landmarks nearest to the running vector, best first, at most three.
        messages: how many the session has seen. counted: whether this one was read (small talk is not).
        restarted: whether the session had been silent for longer than the timeout, and starts afresh.
    """

    level: float
    drifted: bool
    alarm: bool
    drift_streak: int
    off_topic_streak: int
    mean: float | None
    similarity: float | None
    heading: tuple[Heading, ...]
    messages: int
    counted: bool
    restarted: bool


def step(
    state: DriftState | None,
    vector: ArrayLike | None,
    probability: Heard | float | None,
    *,
    now: float,
    settings: Settings | None = None,
    landmarks: Landmarks | None = None,
    space: Space | None = None,
) -> tuple[DriftState, Reading]:
    """Advance a session by one message. Call it for every message, before the verdict stops it.

    Args:
        state: of the session so far; None for a new one.
        vector: the message's embedding, shape (D,); None when there is none ("ema" then does not count the message).
        probability: the message's best allowed probability, by both readings of its verdict (`heard_from`), or by the better
            one (`fed_by`), which notices later; None when it says nothing: small talk, unchecked ("change" then does not
            count the message, and its vector is not looked at).
        now: seconds on a clock of the caller's; going backwards counts as standing still.
        landmarks: what the running vector is held against; "ema" needs an allowed one, otherwise all is drift.
        space: of the vector; the session keeps to its first one.
    Returns:
        The next state and the reading. The state given is not changed, also not by an error.
    Raises:
        InputError: vector not finite, empty or not one-dimensional; probability or time not a number in its range.
        SpaceMismatchError: the vector is not of the session's, the landmarks' or the named space.
    Cost: O(D · landmarks). Source: system A's tracker for "ema"; for "change" Shiryaev's rule (1963), with the share of
    low messages and their middle learnt from the conversation itself, then the last three messages read together.
    """
    settings = settings or _DEFAULTS
    if not is_number(now):
        raise InputError(f"the time must be a finite number of seconds, got {now!r}")
    heard = _heard(probability)
    probability = None if heard is None else heard.probability
    array = None if vector is None else _vector(vector)
    restarted = state is not None and is_stale(state, now, settings.timeout)
    before = DriftState() if state is None or restarted else state
    read = array is not None if settings.method == "ema" else probability is not None
    named = before.space if array is None else _same_space(before, array, landmarks, space)
    running, mean, off = before.running, before.mean, before.off_topic_streak
    if read and array is not None:
        running = array if running is None else settings.alpha * array + (1 - settings.alpha) * running
        running.flags.writeable = False
    if read and probability is not None:
        mean = probability if mean is None else mean + settings.alpha * (probability - mean)
        off = off + 1 if probability < settings.allowed_threshold else 0
    after = before.but(
        messages=before.messages + 1,
        seen_at=max(now, before.seen_at) if before.messages else now,
        space=named,
        running=running,
        mean=mean,
        off_topic_streak=off,
    )
    if not read:
        return after, _reading(after, settings, landmarks, counted=False, alarm=False, restarted=restarted)
    if settings.method == "change":
        after = changed(after, heard or Heard(0.0), array, settings.detector, landmarks)
        level = level_of(_felt(after))
        gone, back = level >= settings.level, level < settings.rearm
        streak = before.drift_streak + 1 if gone else 0
    else:
        score = _near(after, landmarks)
        met = score is not None and (score > settings.similarity if settings.strict else score >= settings.similarity)
        streak = 0 if met else before.drift_streak + 1
        gone, back = streak >= settings.streak, streak == 0
    since = None if before.since is None else before.since + 1
    armed = before.armed or back
    alarm = gone and armed and (since is None or since > settings.cooldown)
    after = after.but(
        counted=before.counted + 1,
        drift_streak=streak,
        armed=armed and not alarm,
        since=0 if alarm else since,
    )
    return after, _reading(after, settings, landmarks, counted=True, alarm=alarm, restarted=restarted)


def reading_of(
    state: DriftState | None, *, now: float, settings: Settings | None = None, landmarks: Landmarks | None = None
) -> Reading:
    """What is known of a session between messages; changes nothing. A stale session reads as a new one, `restarted`."""
    settings = settings or _DEFAULTS
    restarted = state is not None and is_stale(state, now, settings.timeout)
    known = DriftState() if state is None or restarted else state
    return _reading(known, settings, landmarks, counted=False, alarm=False, restarted=restarted)


def is_stale(state: DriftState, now: float, timeout: float) -> bool:
    """Whether the session was silent for longer than `timeout` seconds (exactly as long is not longer)."""
    return state.messages > 0 and now - state.seen_at > timeout


def _reading(
    state: DriftState,
    settings: Settings,
    landmarks: Landmarks | None,
    *,
    counted: bool,
    alarm: bool,
    restarted: bool,
) -> Reading:
    nearest = None
    if settings.method == "ema":
        nearest = _near(state, landmarks)
        level = 0.0 if state.counted == 0 and not counted else 1.0 - (nearest or 0.0)
        drifted = state.drift_streak >= settings.streak
    else:
        level = level_of(_felt(state)) if state.odds is not None else (settings.detector or SEEING).leave
        drifted = level >= settings.level
    heading = landmarks.nearest(state.running) if landmarks is not None and state.running is not None else ()
    return Reading(
        level,
        drifted,
        alarm,
        state.drift_streak,
        state.off_topic_streak,
        state.mean,
        nearest,
        heading,
        state.messages,
        counted,
        restarted,
    )


def _felt(state: DriftState) -> float | None:
    return state.odds if state.felt is None else state.felt


def _near(state: DriftState, landmarks: Landmarks | None) -> float | None:
    if landmarks is None or state.running is None:
        return None
    found = landmarks.nearest(state.running, 1, side="allowed")
    return max(0.0, found[0].score) if found else None


def _same_space(state: DriftState, array: NDArray[np.float64], landmarks: Landmarks | None, space: Space | None) -> str:
    got = f"dimension {len(array)}" if space is None else str(space)
    if space is not None and space.dimension != len(array):
        raise SpaceMismatchError(space, f"dimension {len(array)}")
    if landmarks is not None and len(landmarks):
        other = space is not None and landmarks.space is not None and landmarks.space != space
        if other or landmarks.dimension != len(array):
            raise SpaceMismatchError(landmarks.space or f"dimension {landmarks.dimension}", got)
    known = space or (landmarks.space if landmarks is not None else None)
    named = str(known) if known is not None else ""
    if state.space and named and state.space != named:
        raise SpaceMismatchError(state.space, named, hint="a session keeps to one encoder; start it afresh")
    if state.running is not None and len(state.running) != len(array):
        raise SpaceMismatchError(f"dimension {len(state.running)}", got)
    return named or state.space


def _heard(given: Heard | float | None) -> Heard | None:
    heard = given if given is None or isinstance(given, Heard) else Heard(given)
    for value in heard or ():
        if value is not None and not (is_number(value) and 0 <= value <= 1):
            raise InputError(f"a probability must be a number in [0, 1] or None, got {value!r}")
    if heard is not None and heard.probability is None:
        raise InputError("what was heard of a message needs a probability; give None for a message that says nothing")
    return heard


def _vector(given: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.array(given, dtype=np.float64)  # a copy: the state keeps it
    except (TypeError, ValueError) as error:
        raise InputError(f"a vector must be an array of numbers ({error})") from error
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"a vector must have shape (D,) with D >= 1, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError("a vector must be finite, got NaN or infinity inside; check the encoder that made it")
    return array


def _setting(key: str, value: object, accepted: bool, what: str) -> None:
    if not accepted:
        raise ConfigError("cannot be used", key=key, got=value, accepted=what)


_DEFAULTS = Settings()  # at the end: it is checked with the functions above
