"""Scores: how much speaks for each rule, for messages given as vectors. No text is read here but stems.

A rule is a set of members (its name, its description, the parts of a description that enumerates, its examples), each
its own vector. Four things are measured and joined into log-odds with weights that were fitted once
(`tools/fit_guard.py`) and hold for any encoder, since every quantity is relative to the background:

    topic side    soft maximum over the members, in standard deviations above the background's utterances
    message side  the same, in standard deviations above the message's similarity to unrelated subjects' names
    subject       the message's share of subjects akin to the rule, by the nearest subjects of the background
    words         the rarest word that the message shares with the rule

Subjects akin to the rule are left out of the first two, so that a broad rule is not measured against itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.background import Background
from topicality.core.panel import LEAST_SPREAD, Evidence, Matrix, Panel
from topicality.errors import InputError, SpaceMismatchError
from topicality.types import Space
from topicality.vectors import Array

FEATURES = ("topic", "message", "subject", "words")


@dataclass(frozen=True, slots=True)
class Weights:
    """Fitted constants of the score. Lengths are in units of the background's spread.

    Attributes:
        softness: sharpness of the soft maximum over members. kin: how far above the other subjects (in robust s.d.) a
            subject must be to count as akin, and how sharply. temperature: of the subject posterior.
        weights: one for each of `FEATURES`. bias: added to their sum. counter: weight of counterexamples.
    """

    softness: float
    kin: tuple[float, float]
    temperature: float
    weights: tuple[float, float, float, float]
    bias: float
    counter: float = 4.0


@dataclass(frozen=True)
class RuleMembers:
    """One rule, ready to be scored.

    Attributes:
        name: the rule's name. texts: the members as text, M of them. vectors: shape (M, D), unit length.
        counter: counterexamples, shape (K, D). lexicon: stems of the rule with weights in (0, 1].
    """

    name: str
    texts: tuple[str, ...]
    vectors: Array
    counter: Array | None = None
    lexicon: Mapping[str, float] = field(default_factory=dict)


class Standing(NamedTuple):
    """How N messages stand to what no rule of a book is about.

    Attributes:
        elsewhere: shape (N,), similarity to the nearest subject akin to no rule, in spreads of the background.
        distinct: shape (N,), the strongest subject of all, in s.d. above the message's mean one: how clearly it is about
            anything.
    """

    elsewhere: Matrix
    distinct: Matrix


class RuleBook:
    """Rules compiled against a background, scored together in a few matrix products. Immutable; safe in threads.

    Args:
        rules: at least one. background: of the same space; without one only `Evidence.best` is measured, the rest is zero.
        weights: see `Weights`. space: the vectors' space, where there is no background to name it.
    Attributes:
        members: shape (M, D), all rules' members in order. counts: shape (R,), members of each rule.
        counter: (rule, its counterexamples). With a background also: sharpness of the soft maximum; share: shape (R, S),
            weights of the subjects not akin to a rule; mean, sd: shape (R,), of a rule's score over the background.
    Raises:
        InputError: no rule, a rule without members, or vectors that are not finite.
        SpaceMismatchError: the vectors' dimension is not the background's.
    Cost: O(M·N) once, for M members and N background utterances.
    """

    def __init__(
        self,
        rules: Sequence[RuleMembers],
        background: Background | None,
        weights: Weights,
        space: Space | None = None,
    ) -> None:
        if not rules:
            raise InputError("a rule book needs at least one rule")
        self.space = background.space if background else space or Space("vectors", rules[0].vectors.shape[-1])
        for rule in rules:
            _check(rule.vectors, self.space, f"rule {rule.name!r}")
        self.rules = tuple(rules)
        self.background = background
        self.weights = weights
        self.members = np.ascontiguousarray(np.vstack([rule.vectors for rule in rules]), dtype=np.float32)
        self.counts = np.array([len(rule.vectors) for rule in rules])
        self._starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        self.counter: list[tuple[int, Array]] = []
        if background is not None:
            self._read_against(background)

    def _read_against(self, background: Background) -> None:
        self.sharpness = self.weights.softness / background.spread
        self._kin = self._akin(background)
        apart = 1.0 - self._kin  # (R, S)
        self.share = apart / apart.sum(axis=1, keepdims=True)
        self.mean, self.sd = self._background_scores(background)
        for index, rule in enumerate(self.rules):
            if rule.counter is not None and len(rule.counter):
                _check(rule.counter, self.space, f"counterexamples of rule {rule.name!r}")
                self.counter.append((index, np.asarray(rule.counter, dtype=np.float32)))

    @property
    def kin(self) -> Matrix:
        """Shape (R, S): how much each background subject belongs to each rule, [0, 1]."""
        return self._kin

    def score(self, vectors: Array, stems: Sequence[Sequence[str]] | None = None) -> Evidence:
        """Score messages.

        Args:
            vectors: shape (N, D), unit length, of the background's space.
            stems: content stems of each message; None leaves the word evidence at zero.
        Raises:
            InputError, SpaceMismatchError: see the class.
        Cost: O(N · (M + S) · D).
        """
        _check(vectors, self.space, "a message")
        return self._alone.score(vectors, stems)[0]

    def features(self, vectors: Array, stems: Sequence[Sequence[str]] | None = None) -> Matrix:
        """What `score` weighs, shape (N, R, 4), in the order of `FEATURES`: for fitting the weights. See `score`."""
        _check(vectors, self.space, "a message")
        found = np.zeros((len(vectors), len(self.rules), len(FEATURES)))
        if self.background is None:
            return found
        parts = self._alone.parts(vectors)
        found[:, :, 0] = (parts.soft - self.mean) / self.sd
        found[:, :, 1] = (parts.soft - parts.mean) / parts.sd
        found[:, :, 2] = parts.subject
        for row, column, worth in self._alone.words(stems):
            found[row, column, 3] = worth
        return found

    def standing(self, vectors: Array) -> Standing:
        """How messages, shape (N, D), stand to subjects that no rule is about: for reading them with their context.

        Raises:
            InputError, SpaceMismatchError: see the class.
        Cost: O(N · S · D).
        """
        _check(vectors, self.space, "a message")
        if self.background is None:
            return Standing(np.zeros(len(vectors)), np.zeros(len(vectors)))
        subjects = vectors @ self.background.prototypes.T
        deviation = np.maximum(subjects.std(axis=1), LEAST_SPREAD)
        unrelated = (1.0 - self._kin.max(axis=0)) / self.background.spread
        return Standing((subjects * unrelated).max(axis=1), (subjects.max(axis=1) - subjects.mean(axis=1)) / deviation)

    @cached_property
    def _alone(self) -> Panel:
        return Panel([self])

    def nearest(self, vector: Array, rule: int) -> int:
        """Index of the rule's member that is nearest to one message, shape (D,). Ties go to the earlier member."""
        start = self._starts[rule]
        return int(np.argmax(self.members[start : start + self.counts[rule]] @ vector))

    def _soft(self, similar: NDArray[np.float32]) -> Matrix:
        return _soft(similar.astype(np.float64), self._starts, np.log(self.counts), self.sharpness)

    def _akin(self, background: Background) -> Matrix:
        names = self._soft(background.names @ self.members.T)
        described = self._soft(background.descriptions @ self.members.T)
        closeness = (names + described).T / 2  # (R, S)
        middle = np.median(closeness, axis=1, keepdims=True)
        deviation = 1.4826 * np.median(np.abs(closeness - middle), axis=1, keepdims=True)
        level, sharpness = self.weights.kin
        standing = (closeness - middle) / np.maximum(deviation, 1e-6)
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(-sharpness * (standing - level), -60, 60))))

    def _background_scores(self, background: Background) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        owner = background.owner
        share = np.where(owner >= 0, 1.0 - self._kin[:, np.maximum(owner, 0)], 1.0)  # (R, N)
        share /= share.sum(axis=1, keepdims=True)
        soft = np.vstack(
            [self._soft(block @ self.members.T) for block in _blocks(background.utterances, len(self.members))]
        )  # (N, R)
        mean = (share.T * soft).sum(axis=0)
        variance = (share.T * (soft - mean) ** 2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-8))


def _soft(similar: Matrix, starts: NDArray[np.intp], log_counts: NDArray[np.float64], sharpness: float) -> Matrix:
    """Soft maximum over each rule's members: shape (N, M) to (N, R)."""
    grown = similar - 1.0
    grown *= sharpness
    total = np.log(np.add.reduceat(np.exp(grown, out=grown), starts, axis=1))
    return np.asarray((total - log_counts) / sharpness + 1.0)


def lexicon(name: Sequence[str], description: Sequence[str], examples: Sequence[Sequence[str]]) -> dict[str, float]:
    """Weights of a rule's words: name 1, description 0.8, words of two or more examples 0.4 and up, never above 0.8."""
    weights: dict[str, float] = {}
    counts: dict[str, int] = {}
    for example in examples:
        for stem in set(example):
            counts[stem] = counts.get(stem, 0) + 1
    for stem, count in counts.items():
        if count >= 2:
            weights[stem] = min(0.3 + 0.1 * count, 0.8) * min(1.0, 10 / len(examples) + 0.3)
    for stem in description:
        weights[stem] = 0.8
    for stem in name:
        weights[stem] = 1.0
    return weights


def _blocks(matrix: Array, members: int) -> list[Array]:
    rows = max(1, 2_000_000 // max(members, 1))  # keeps the similarity block near 16 MB whatever the policy's size
    return [matrix[start : start + rows] for start in range(0, len(matrix), rows)]


def _check(vectors: Array, space: Space, what: str) -> None:
    if vectors.ndim != 2 or len(vectors) == 0:
        raise InputError(f"{what}: vectors must have shape (N, D) with N >= 1, got shape {vectors.shape}")
    if vectors.shape[1] != space.dimension:
        raise SpaceMismatchError(space, f"dimension {vectors.shape[1]}")
    if not np.isfinite(vectors).all():
        raise InputError(
            f"{what}: vectors must be finite, got NaN or infinity inside; check the encoder that made them"
        )
