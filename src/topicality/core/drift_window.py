"""The last messages together: do they make a turn away from what the conversation was about? Pure.

A message alone often does not tell. Three that are like each other and unlike all that was said on-topic before do, and so
do three about three different things in a conversation that had one subject. Three steps, with weights that
`tools/fit_drift_window.py` fits after the rule of `core.drift_change`:

    evidence  a small network: does this message alone speak for off-topic, given what is remembered of the conversation?
    left      its evidence summed up over the conversation, by Shiryaev's rule (1963)
    joint     a network over the last three messages, their likeness to each other, and what the first two steps and the
              rule made of the messages so far
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.drift_memory import MESSAGE, bounded, memory_of, standing
from topicality.core.drift_network import Floats
from topicality.core.drift_weights import EVIDENCE, JOINT

LAST = 3  # messages that are read together
KEPT = 5  # messages of which something is remembered
_COMMON = ("count", "nearest", "nearest_spread", "mean", "mean_spread")
_READINGS = ("alone", "context", "alone_spread", "context_spread")
FEATURES = (
    *(f"{name}{age}" for age in range(LAST) for name in MESSAGE),
    "count",
    *(f"usual_{name}" for name in (*_COMMON[1:], *_READINGS)),
    "like01",
    "like02",
    "like12",
    *(f"odds{age}" for age in range(LAST + 1)),
    *(f"left{age}" for age in range(LAST + 1)),
    *(f"evidence{age}" for age in range(KEPT)),
)
OF_ONE = (*range(len(MESSAGE)), LAST * len(MESSAGE))  # where those of `evidence` are among them
ALONE, BEGUN = 0.85, 6.0  # log-odds that the window may add to the rule's: so little that one message never alarms, but
# more where the last two are nearer to each other than to anything said before: another subject has begun
SUSPECT = 0.0  # evidence from which a message speaks for off-topic by itself; two of the last three may add BEGUN too
FIRST = 4  # remembered messages without which the rule counts too: conversations may begin off-topic, or turn at once
SURE = 6.0  # log-odds: more counts as this
_LEAVE, _BACK = 0.03, 0.02  # probability that a conversation leaves its topics, a message, and comes back
START = math.log(_LEAVE / (1.0 - _LEAVE))  # log-odds that it has left, before any message
_LOOKS_ON, _LOOKS_OFF = 0.2, 0.06  # share of off-topic messages that look on-topic, and the other way round
_STEEPNESS, _TURN = 0.6, -0.3  # of the evidence, for each unit; what speaks for neither side
_LEAST, _MOST = -4.0, 2.75  # log of the likelihood ratio of one message


class Seen(NamedTuple):
    """What a window remembers of one message.

    Attributes:
        own: log-odds that it is allowed, by the better reading; alone, context: by each of the two, None when unknown.
        background: cosine to the nearest background subject, in spreads (`Landmarks.yardstick`). distinct: how far that is
            above its mean cosine to them, in s.d. kept: 1 if its direction was remembered as on-topic, else 0.
        odds: log-odds that the conversation has left, by the rule, after it. evidence: log-odds that the message is
            off-topic, by its own features. left: as `odds`, by the sum of the evidence.
    """

    own: float
    alone: float | None
    context: float | None
    background: float
    distinct: float
    kept: int
    odds: float
    evidence: float = 0.0
    left: float = 0.0


def joint(
    window: tuple[Seen, ...],
    cosines: NDArray[np.float32],
    readings: NDArray[np.float32],
    yardstick: float,
) -> tuple[float, Seen]:
    """Log-odds that the conversation has left its topics, by its last messages together; and the newest, with its evidence.

    Args:
        window: the message and up to four before it, newest first; evidence and left of the newest are not yet known.
        cosines: shape (A + K, A + K), in spreads: of the first A = min(3, len(window)) of them, and of the K directions
            remembered before them, to each other. readings: shape (K, 3), see `core.drift_memory.memory_of`.
    Cost: O(K²).
    """
    found = features(window, cosines, readings, yardstick)
    evidence = float(EVIDENCE.log_odds(found[_OF_ONE]))
    before = window[1].left if len(window) > 1 else START
    newest = window[0]._replace(evidence=evidence, left=summed(before, evidence))
    window = (newest, *window[1:])
    sequence(found, window)
    felt = min(float(JOINT.log_odds(found)), newest.odds + room(window, cosines))
    known = len(cosines) - min(len(window), LAST)
    return (felt if known >= FIRST else max(felt, newest.odds)), newest


def features(
    window: tuple[Seen, ...], cosines: NDArray[np.float32], readings: NDArray[np.float32], yardstick: float
) -> Floats:
    """What the networks read, in the order of `FEATURES`; NaN where nothing is known, and for what `sequence` fills in."""
    last = window[:LAST]
    count, nan = len(last), float("nan")
    memory = memory_of(cosines[count:, count:], readings, yardstick)
    read = [(bounded(one.alone), bounded(one.context)) for one in last]
    stands = standing(cosines[:count, count:], [one.background for one in last], read, memory, yardstick)
    found: list[float] = []
    for one, own, stand in zip(last, read, stands, strict=True):
        found += (_sure(one.own), *own, one.background, one.distinct, *stand)
    found += [nan] * (_MEMORY - len(found))
    found += (math.log1p(memory.size), memory.nearest, memory.nearest_spread, memory.mean, memory.mean_spread)
    found += (*memory.readings, *memory.readings_spread)
    likes = cosines[:count, :count].tolist()
    found += [likes[first][second] if second < count else nan for first, second in ((0, 1), (0, 2), (1, 2))]
    odds = [one.odds for one in window[: LAST + 1]]
    found += odds + [nan] * (len(FEATURES) - len(found) - len(odds))
    return np.array(found)


def sequence(found: Floats, window: Sequence[Seen]) -> None:
    """Fill in what was made of the messages so far."""
    found[_LEFT : _LEFT + min(len(window), LAST + 1)] = [one.left for one in window[: LAST + 1]]
    found[_EVIDENCE : _EVIDENCE + min(len(window), KEPT)] = [_sure(one.evidence) for one in window[:KEPT]]


def summed(before: float, evidence: float) -> float:
    """Log-odds that the conversation has left, after one more message's evidence."""
    left = 1.0 / (1.0 + math.exp(-before))
    prior = left * (1.0 - _BACK) + (1.0 - left) * _LEAVE
    ratio = math.exp(min(max(_STEEPNESS * (_sure(evidence) - _TURN), _LEAST), _MOST))
    told = math.log(((1.0 - _LOOKS_ON) * ratio + _LOOKS_ON) / (_LOOKS_OFF * ratio + 1.0 - _LOOKS_OFF))
    return math.log(prior / (1.0 - prior)) + told


def room(window: Sequence[Seen], cosines: NDArray[np.float32]) -> float:
    """Log-odds that the window may add to the rule's."""
    last = window[:LAST]
    if sum(one.evidence >= SUSPECT for one in last) > 1:
        return BEGUN
    before = cosines[:2, len(last) :]
    begun = len(last) > 1 and before.size > 0 and cosines[0, 1] > before.max()
    return BEGUN if begun else ALONE


def _sure(odds: float) -> float:
    return min(max(odds, -SURE), SURE)


_OF_ONE = np.array(OF_ONE)
_MEMORY = LAST * len(MESSAGE)
_LEFT, _EVIDENCE = FEATURES.index("left0"), FEATURES.index("evidence0")
