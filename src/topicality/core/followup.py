"""Reading a message with what was said before it: a learned fusion of the message's own evidence and its context's.

Joining the texts makes things worse (a follow-up drowns in them); scores are joined instead. The features are causal and
relative to the background, the head is a small quadratic logistic one, fitted once by `tools/fit_guard.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.core.score import Standing
from topicality.core.text import words
from topicality.vectors import Array

_POINTING = frozenset(
    "it that this they them there those these one ones he she his her its then also too instead else same another".split()
)
FEATURES = (
    "own",  # log-odds of the message itself
    "length",  # log of its words
    "pointing",  # has a word that points back
    "content",  # log of its content words
    "elsewhere",  # how strongly it is about a subject akin to no rule
    "distinct",  # how clearly it is about anything
    "question",  # has a question mark
    "last",  # log-odds of the latest turn
    "before",  # log-odds of the turn before that
    "mean",  # mean log-odds of the turns
    "highest",  # highest log-odds of the turns
    "last_elsewhere",  # as elsewhere, of the latest turn
    "before_elsewhere",  # as elsewhere, of the turn before that
    "resembles",  # similarity to the latest turn, in spreads
    "resembles_on",  # highest similarity to a turn that is on topic, in spreads
    "drawn",  # highest similarity to any turn, in spreads
    "echoes",  # share of its content words that a turn has said
)


@dataclass(frozen=True, slots=True)
class Fusion:
    """The fitted head: standardisation, then a weight for each feature and each product of two.

    Attributes:
        mean, scale: shape (F,), one number a feature. weights: shape (F + F·(F+1)/2,), for 1st-order terms, then products
            i <= j in order. bias: constant.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: float


def features(
    text: str,
    stems: Sequence[Sequence[str]],
    own: float,
    elsewhere: float,
    distinct: float,
    similarities: NDArray[np.float64],
    turns: NDArray[np.floating[Any]],
    turns_elsewhere: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """The features of one message, in the order of `FEATURES`.

    Args:
        text: the folded message. stems: content stems of each turn, oldest first, then of the message.
        own, elsewhere, distinct: the message's evidence.
        similarities: shape (T,), cosine to each earlier turn in spreads above chance, oldest first, T >= 1.
        turns: shape (T,), the turns' log-odds. turns_elsewhere: shape (T,), likewise.
    Returns:
        shape (len(FEATURES),).
    """
    spoken = words(text)
    content = set(stems[-1])
    told = content.intersection(stem for turn in stems[:-1] for stem in turn)
    on = turns > -1.0
    return np.array(
        [
            own,
            np.log1p(len(spoken)),
            float(any(word in _POINTING for word in spoken)),
            np.log1p(len(stems[-1])),
            elsewhere,
            distinct,
            float("?" in text),
            turns[-1],
            turns[-2] if len(turns) > 1 else -3.0,
            turns.mean(),
            turns.max(),
            turns_elsewhere[-1],
            turns_elsewhere[-2] if len(turns) > 1 else 3.0,
            similarities[-1],
            similarities[on].max() if on.any() else 0.0,
            similarities.max(),
            len(told) / max(len(content), 1),
        ]
    )


def fused(rows: NDArray[np.float64], head: Fusion) -> NDArray[np.float64]:
    """Log-odds that messages are on topic, read with their context.

    Args:
        rows: shape (N, len(FEATURES)).
    Returns:
        shape (N,). Cost: O(N · F²).
    """
    standard = np.clip((rows - head.mean) / head.scale, -4.0, 4.0)
    return np.asarray(quadratic(standard) @ head.weights + head.bias)


def quadratic(standard: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features and all their products i <= j: shape (N, F) to (N, F + F·(F+1)/2)."""
    first, second = _pairs(standard.shape[1])
    products = standard[:, first] * standard[:, second]
    return np.hstack([standard, products])


@lru_cache(maxsize=4)
def _pairs(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(width)


def context_features(
    texts: Sequence[str],
    stems: Sequence[Sequence[str]],
    standing: Standing,
    vectors: Array,
    rule_logits: NDArray[np.floating[Any]],
    spread: float,
) -> NDArray[np.float64]:
    """Features of the last of several texts, read with the others as its context, oldest first.

    Args:
        texts: T + 1 folded texts, T >= 1. stems: their content stems. standing: theirs. vectors: shape (T + 1, D), theirs.
        rule_logits: shape (T + 1,), log-odds of the allowed side for each text. spread: the background's.
    """
    similar = (vectors[:-1] @ vectors[-1]).astype(np.float64) / spread
    return features(
        texts[-1],
        stems,
        float(rule_logits[-1]),
        float(standing.elsewhere[-1]),
        float(standing.distinct[-1]),
        similar,
        rule_logits[:-1],
        standing.elsewhere[:-1],
    )
