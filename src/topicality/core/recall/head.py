"""The learned part of recall: how good a passage is, and whether the store has the answer at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Literal

import numpy as np

from topicality.core.recall.pool import Pool, Statistics
from topicality.core.recall.question import Question
from topicality.errors import InputError
from topicality.vectors import Array

Method = Literal["learned", "plain"]

_CLIP = 4.0  # standard deviations beyond which a feature counts no more
_TOP = 8  # passages looked at to say whether the answer is there
_EDGE = 1.0  # log-odds from the first to the latest, where the question asks for one: few that are learned from do
_PLAIN = {
    "bm": 0.3, "bmc": 0.3, "cosp": 0.2, "cosc": 0.2, "session": 0.2, "speaker": 0.05, "bm_prev": 0.03, "bm_next": 0.03,
    "long_reply": -0.1, "dated": 0.1,
}  # fmt: skip
_PLAIN_SCALE = 7.5  # log-odds of one unit of the plain sum
SIGNALS = (
    "cover", "cover5", "cos", "cosc", "cos3", "cos_gap", "unknown", "unknown_entity", "broad", "size",
)  # fmt: skip
_COSINES = ("cos", "cosc", "cos3", "cos_gap")  # what another encoder measures on another scale


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Standardise, and add up with weights. All arrays have one value a column."""

    names: tuple[str, ...]
    mean: Array
    std: Array
    weights: Array
    bias: float = 0.0

    def __call__(self, rows: Array) -> Array:
        """Log-odds, one a row. `rows` has shape (N, len(names))."""
        scaled = np.clip((rows - self.mean) / self.std, -_CLIP, _CLIP)
        found: Array = scaled @ self.weights + np.float32(self.bias)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """What was learned for one encoder.

    Attributes:
        passage: log-odds, up to a constant, that a passage is wanted.
        absent: log-odds that the store has no answer. threshold: from which this is said (met at >=).
    """

    passage: Linear
    absent: Linear
    threshold: float


def unpacked(values: Mapping[str, Any]) -> Heads:
    """Heads from the values of a JSON file.

    Raises:
        InputError: something is missing or of another shape.
    """
    try:
        heads = Heads(_linear(values["passage"]), _linear(values["absent"]), float(values["absent"]["threshold"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the weights of recall are damaged ({type(error).__name__}); reinstall topicality") from error
    if heads.absent.names != SIGNALS:
        raise InputError("the weights of recall are of another release; reinstall topicality")
    return heads


def _linear(values: Mapping[str, Any]) -> Linear:
    names = tuple(str(name) for name in values["names"])
    mean, std, weights = (np.asarray(values[key], np.float32) for key in ("mean", "std", "weights"))
    if not (mean.shape == std.shape == weights.shape == (len(names),)) or not (std > 0).all():
        raise ValueError("shapes")
    return Linear(names, mean, std, weights, float(values.get("bias", 0.0)))


def scores(heads: Heads | None, found: Mapping[str, Array]) -> tuple[Array, Method]:
    """Log-odds, up to a constant, that each candidate is wanted, and how they were found.

    Args:
        heads: None for an encoder that nothing was learned for; then a fixed sum of the scaled features.
    """
    edge = _EDGE * found["edge"]
    if heads is None:
        total = sum(weight * found[name] for name, weight in _PLAIN.items())
        return np.asarray(_PLAIN_SCALE * total + edge, np.float32), "plain"
    return heads.passage(np.stack([found[name] for name in heads.passage.names], axis=1)) + edge, "learned"


def signals(pool: Pool, asked: Question, found: Mapping[str, Array], scored: Array, statistics: Statistics) -> Array:
    """What tells whether the store has an answer, in the order of `SIGNALS`.

    How much of the question the best passages say and how close they are, whether it has words that the store does not
    know, and how large the store is: the more there is, the closer something irrelevant comes.
    """
    known = np.array([statistics.frequencies.get(stem, 0) > 0 for stem in pool.stems] or [True])
    idf, mass = pool.idf, float(pool.idf.sum()) or 1.0
    entities = idf * np.array([stem in asked.entities for stem in pool.stems] or [False])
    entity = float(entities.sum())
    top = np.argsort(-scored, kind="stable")[:_TOP]
    cosines = np.sort(found["cos_raw"])[::-1]
    return np.array(
        [
            found["cover"][top].max(), found["cover5"][top].max(), cosines[0], found["cosc_raw"].max(), cosines[:3].mean(),
            cosines[0] - np.median(cosines), float((idf * ~known).sum()) / mass,
            float((entities * ~known).sum()) / entity if entity else 0.0, float(asked.broad),
            log10(max(1, statistics.passages)),
        ],
        np.float32,
    )  # fmt: skip


def absence(heads: Heads, values: Array, *, calibrated: bool) -> float:
    """Log-odds that the store has no answer, less the threshold: it is said at 0 and above.

    Args:
        values: see `signals`. calibrated: whether the cosines are of the encoder the head was learned with; otherwise they
            are left out of it.
    """
    if not calibrated:
        values = np.where(np.isin(heads.absent.names, _COSINES), heads.absent.mean, values).astype(np.float32)
    return float(heads.absent(values[None])[0]) - heads.threshold


def softmax(values: Sequence[float] | Array) -> Array:
    """Shares of the whole, from log-odds up to a constant."""
    odds = np.exp(np.asarray(values, np.float32) - np.max(values))
    shares: Array = odds / odds.sum()
    return shares
