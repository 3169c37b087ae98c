"""The last three messages together: do they make a turn away from what the conversation was about? Pure.

A message alone often does not tell. Three that are like each other and unlike all that was said on-topic before do, and so
do three about three different things in a conversation that had one subject. A small network reads them; it was fitted
after the rule of `core.drift_change`, whose log-odds are among what it reads (`tools/fit_drift_window.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topicality.core.drift_weights import BIAS, INNER, INNER_BIAS, MEAN, OUTER, SCALE

LAST = 3  # messages that are read together
FEATURES = (
    *(f"{name}{age}" for name in ("own", "odds", "background", "distinct", "before") for age in range(LAST)),
    "odds3",
    "like01",
    "like02",
    "like12",
    "usual",
    "low",
    "count",
)
ALONE, BEGUN = 0.85, 3.0  # log-odds that the window may add to the rule's: so little that one message never alarms, but
# more where the last two are nearer to each other than to anything said before: another subject has begun
_FURTHEST = 6.0  # log-odds of a message
_MEANS: list[float] = MEAN.tolist()
_OLDEST = 30  # messages: a conversation of more counts as one of these


class Seen(NamedTuple):
    """What a window remembers of one message.

    Attributes:
        own: log-odds that it is allowed. odds: that the conversation has left, by the rule, after it.
        background: cosine to the nearest background subject, in spreads (`Landmarks.yardstick`). distinct: how far that is
            above its mean cosine to them, in s.d. kept: 1 if its direction was remembered as on-topic, else 0.
    """

    own: float
    odds: float
    background: float
    distinct: float
    kept: int


def joint(
    window: tuple[Seen, ...],
    before: Sequence[float],
    alike: Sequence[Sequence[float]],
    usual: float,
    low: float,
    count: int,
) -> float:
    """Log-odds that the conversation has left its topics, by its last messages together.

    Args:
        window: the message and up to three before it, newest first. before: cosine, in spreads, of the first three of them to
            the nearest direction remembered before them; empty when there is none. alike: shape (K, K), of the same ones
            to each other.
        usual, low: the conversation's usual log-odds and share of low messages before this one. count: messages read
            before this one.
    Cost: O(1).
    """
    found = _MEANS.copy()  # what is not known is as usual
    for age, seen in enumerate(window[:LAST]):
        found[age], found[LAST + age] = min(max(seen.own, -_FURTHEST), _FURTHEST), seen.odds
        found[2 * LAST + age], found[3 * LAST + age] = seen.background, seen.distinct
    for age, nearest in enumerate(before):
        found[4 * LAST + age] = nearest - window[age].background
    if len(window) > LAST:
        found[5 * LAST] = window[LAST].odds
    for place, (first, second) in enumerate(((0, 1), (0, 2), (1, 2)), 5 * LAST + 1):
        if second < len(alike):
            found[place] = alike[first][second]
    found[-3:] = usual, low, math.log1p(min(count, _OLDEST))
    begun = len(before) > 1 and alike[0][1] > max(before[:2])
    return min(_weighed(found), window[0].odds + (BEGUN if begun else ALONE))


def _weighed(found: list[float]) -> float:
    standard = np.minimum(np.maximum((np.array(found) - MEAN) / SCALE, -4.0), 4.0)
    return float(np.tanh(standard @ INNER + INNER_BIAS) @ OUTER) + BIAS
