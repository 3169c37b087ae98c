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

import numpy as np
from numpy.typing import NDArray

from topicality.core.background import Background
from topicality.errors import InputError, SpaceMismatchError
from topicality.types import Space
from topicality.vectors import Array

Matrix = NDArray[np.float64]

FEATURES = ("topic", "message", "subject", "words")
_ROWS = 256  # messages scored at once: bounds memory for long messages against large policies


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for each of R rules, for each of N messages.

    Attributes:
        best: shape (N, R), cosine similarity to the nearest member, [-1, 1].
        features: shape (N, R, 4), in the order of `FEATURES`.
        logits: shape (N, R), log-odds of belonging to the rule.
        slope: shape (N, R), how much the log-odds grow with each unit of cosine.
        elsewhere: shape (N,), similarity to the nearest subject akin to no rule, in spreads of the background.
        distinct: shape (N,), the strongest subject of all, in s.d. above the message's mean one: how clearly it is about
            anything.
        nearest: shape (N, R), index of the rule's member that is nearest; ties go to the earlier member.
    """

    best: Matrix
    features: Matrix
    logits: Matrix
    slope: Matrix
    elsewhere: NDArray[np.float64]
    distinct: NDArray[np.float64]
    nearest: NDArray[np.intp]

    def rows(self, which: slice | Sequence[int]) -> Evidence:
        """The evidence of some of the messages."""
        return Evidence(*(getattr(self, name)[which] for name in self.__slots__))


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
        return self._alone.score(vectors, stems)[0]

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


class Panel:
    """Rule books of one background, scored in one pass: as one by one, but what they share is measured once.

    Right after a run of an encoder the processor's caches hold the encoder, and every array that is touched has to be
    fetched again: few operations on few arrays count for more than arithmetic.

    Args:
        books: at least one; all of one background (or none) and with the same weights.
    """

    def __init__(self, books: Sequence[RuleBook]) -> None:
        first = books[0]
        self.space, self._background = first.space, first.background
        counts = np.concatenate([book.counts for book in books])
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._owner = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum([len(book.rules) for book in books]).tolist()
        self._columns = [slice(end - len(book.rules), end) for book, end in zip(books, ends, strict=True)]
        matrices = [book.members for book in books]
        if self._background is not None:
            matrices = [self._background.names, self._background.prototypes, *matrices]
            self._join(books, self._background, counts)
        self._matrix = np.ascontiguousarray(np.vstack(matrices), dtype=np.float32)

    def _join(self, books: Sequence[RuleBook], background: Background, counts: NDArray[np.intp]) -> None:
        weights = books[0].weights
        self._sharpness, self._temperature, self._counterweight = (
            books[0].sharpness,
            weights.temperature,
            weights.counter,
        )
        self._weights, self._bias = np.asarray(weights.weights), weights.bias
        self._log_counts = np.log(counts)
        self._mean, self._sd = (np.concatenate([getattr(book, name) for book in books]) for name in ("mean", "sd"))
        self._topic_slope = weights.weights[0] / self._sd
        self._share, self._kin = (np.vstack([getattr(book, name) for book in books]) for name in ("share", "kin"))
        self._unrelated = np.stack([1.0 - book.kin.max(axis=0) for book in books]) / background.spread  # (B, S)
        self._counter = [
            (columns.start + index, counter)
            for book, columns in zip(books, self._columns, strict=True)
            for index, counter in book.counter
        ]
        self._worth: dict[str, list[tuple[int, float]]] = {}
        for column, rule in enumerate(rule for book in books for rule in book.rules):
            for stem, weight in rule.lexicon.items():
                self._worth.setdefault(stem, []).append((column, weight * background.rarity(stem)))

    def score(self, vectors: Array, stems: Sequence[Sequence[str]] | None = None) -> list[Evidence]:
        """The evidence for each book. See `RuleBook.score`."""
        _check(vectors, self.space, "a message")
        if len(vectors) <= _ROWS:
            return self._block(vectors, stems)
        blocks = [
            self._block(vectors[start : start + _ROWS], stems and stems[start : start + _ROWS])
            for start in range(0, len(vectors), _ROWS)
        ]
        return [
            Evidence(*(np.concatenate([getattr(block, name) for block in found]) for name in Evidence.__slots__))
            for found in zip(*blocks, strict=True)
        ]

    def _block(self, vectors: Array, stems: Sequence[Sequence[str]] | None) -> list[Evidence]:
        background = self._background
        similar = (vectors @ self._matrix.T).astype(np.float64)
        if background is None:
            best = np.maximum.reduceat(similar, self._starts, axis=1)
            none, flat, nearest = np.zeros_like(best), np.zeros(len(best)), self._nearest(similar, best)
            features = np.zeros((*best.shape, len(FEATURES)))
            return [
                Evidence(best[:, c], features[:, c], none[:, c], none[:, c], flat, flat, nearest[:, c])
                for c in self._columns
            ]
        size = len(background.names)
        names, subjects, similar = similar[:, :size], similar[:, size : 2 * size], similar[:, 2 * size :]
        best = np.maximum.reduceat(similar, self._starts, axis=1)
        nearest = self._nearest(similar, best)
        soft = _soft(similar, self._starts, self._log_counts, self._sharpness)
        mean = names @ self._share.T
        sd = np.sqrt(np.maximum((names * names) @ self._share.T - mean * mean, 1e-8))
        relative = subjects - np.add.reduce(subjects, axis=1, keepdims=True) / size
        relative /= np.maximum(np.sqrt(np.add.reduce(relative * relative, axis=1, keepdims=True) / size), 1e-6)
        distinct = np.maximum.reduce(relative, axis=1)
        posterior = np.exp((relative - distinct[:, None]) / self._temperature)
        posterior /= np.add.reduce(posterior, axis=1, keepdims=True)
        features = np.empty((*best.shape, len(FEATURES)))
        features[:, :, 0] = (soft - self._mean) / self._sd
        features[:, :, 1] = (soft - mean) / sd
        features[:, :, 2] = np.log(posterior @ self._kin.T + 0.01)
        features[:, :, 3] = self._words(best.shape, stems)
        logits = features @ self._weights + self._bias
        for index, counter in self._counter:
            nearer = (vectors @ counter.T).max(axis=1) - best[:, index]
            logits[:, index] -= self._counterweight * np.maximum(nearer / background.spread + 0.25, 0.0)
        slope = self._topic_slope + self._weights[1] / sd
        return [
            Evidence(
                best[:, columns],
                features[:, columns],
                logits[:, columns],
                slope[:, columns],
                np.maximum.reduce(subjects * unrelated, axis=1),
                distinct,
                nearest[:, columns],
            )
            for columns, unrelated in zip(self._columns, self._unrelated, strict=True)
        ]

    def _nearest(self, similar: Matrix, best: Matrix) -> NDArray[np.intp]:
        """Shape (N, R): the first member of each rule that reaches the rule's best similarity."""
        reached = np.flatnonzero(similar == best[:, self._owner])  # in order of row, then rule, then member
        rows, members = np.divmod(reached, similar.shape[1]) if len(similar) > 1 else (0, reached)
        first = np.empty(best.size, dtype=np.intp)
        first[(rows * best.shape[1] + self._owner[members])[::-1]] = members[::-1]  # the last one written is the first
        found: NDArray[np.intp] = first.reshape(best.shape) - self._starts
        return found

    def _words(self, shape: tuple[int, int], stems: Sequence[Sequence[str]] | None) -> Matrix:
        found = np.zeros(shape)
        for row, spoken in enumerate(stems or ()):
            for stem in spoken:
                for column, worth in self._worth.get(stem, ()):
                    found[row, column] = max(found[row, column], worth)
        return found


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
