"""Scoring in one pass: rule books laid out as one matrix, for few and simple operations after each run of an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topicality.core.background import Background
from topicality.vectors import Array

if TYPE_CHECKING:
    from topicality.core.score import RuleBook

Matrix = NDArray[np.floating[Any]]

LEAST_SPREAD = 1e-4  # no similarities vary by less: keeps what is divided by them finite
_STEEP = 60.0  # sharpness up to which exponentials of cosines times it fit single precision
_ROWS = 256  # messages scored at once: bounds memory for long messages against large policies


class Evidence(NamedTuple):
    """What speaks for each of R rules, for each of N messages.

    Attributes:
        best: shape (N, R), cosine similarity to the nearest member, [-1, 1].
        logits: shape (N, R), log-odds of belonging to the rule.
        slope: shape (N, R), how much the log-odds grow with each unit of cosine.
        nearest: shape (N, R), index of the rule's member that is nearest; ties go to the earlier member.
    """

    best: Matrix
    logits: Matrix
    slope: Matrix
    nearest: NDArray[np.intp]

    def rows(self, which: slice | Sequence[int]) -> Evidence:
        """The evidence of some of the messages."""
        return Evidence(self.best[which], self.logits[which], self.slope[which], self.nearest[which])


class Parts(NamedTuple):
    """What log-odds are made of, for N messages and R rules. Similarities are cosines."""

    best: Matrix  # (N, R), to the nearest member
    nearest: NDArray[np.intp]  # (N, R), which one that is
    soft: Matrix  # (N, R), soft maximum over the members
    mean: Matrix  # (N, R), to the names of unrelated subjects
    sd: Matrix  # (N, R), of the same
    subject: Matrix  # (N, R), logarithm of the share of akin subjects
    counter: Matrix  # (N, C), to the counterexamples


class Panel:
    """Rule books of one background, scored in one pass: as one by one, but what they share is measured once.

    Right after a run of an encoder the processor's caches hold the encoder, and every array and every piece of code that is
    touched has to be fetched again. So: one matrix, single precision, few operations, and those of few kinds; whatever is
    linear (means, the members' sharpness) is a row or a factor of that matrix.

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
        self._sharpness = 1.0
        matrices: list[Matrix] = [book.members for book in books]
        if self._background is not None:
            matrices = self._joined(books, self._background, counts)
        # Columns, not rows: then a product with one message reads memory in one go.
        self._matrix = np.ascontiguousarray(np.vstack(matrices).T, dtype=np.float32)  # (D, all of them)

    def _joined(self, books: Sequence[RuleBook], background: Background, counts: NDArray[np.intp]) -> list[Matrix]:
        weights, size, rules = books[0].weights, len(background.names), len(counts)
        share, kin = (np.vstack([getattr(book, name) for book in books]) for name in ("share", "kin"))
        mean, sd = (np.concatenate([getattr(book, name) for book in books]) for name in ("mean", "sd"))
        self._sharpness = books[0].sharpness
        self._log_counts = np.float32(np.log(counts))
        # Second moments of names and prototypes, and the subjects akin to a rule, each in one product.
        self._squares = np.zeros((2 * size, rules + 1), dtype=np.float32)
        self._squares[:size, :rules], self._squares[size:, rules] = share.T, 1.0 / size
        self._akin = np.ones((size, rules + 1), dtype=np.float32)
        self._akin[:, :rules] = kin.T + 0.01
        self._temperature, self._weights = weights.temperature, weights.weights
        self._topic_slope = np.float32(weights.weights[0] / sd)
        self._constant = np.float32(weights.bias - weights.weights[0] * mean / sd)
        found = [
            (columns.start + index, counter)
            for book, columns in zip(books, self._columns, strict=True)
            for index, counter in book.counter
        ]
        self._countered = [column for column, _ in found]
        self._counter_starts = np.cumsum([0, *(len(counter) for _, counter in found)])[:-1]
        self._counterweight, self._spread = weights.counter, background.spread
        self._worth: dict[str, list[tuple[int, float]]] = {}
        for column, rule in enumerate(rule for book in books for rule in book.rules):
            for stem, weight in rule.lexicon.items():
                self._worth.setdefault(stem, []).append((column, weight * background.rarity(stem)))
        return [
            background.names,
            background.prototypes,
            share @ background.names,
            background.prototypes.mean(axis=0, keepdims=True),
            *(self._sharpness * book.members for book in books),
            *(counter for _, counter in found),
        ]

    def score(self, vectors: Array, stems: Sequence[Sequence[str]] | None = None) -> list[Evidence]:
        """The evidence for each book. See `RuleBook.score`; vectors that are not finite are the caller's to refuse."""
        if len(vectors) <= _ROWS:
            return self._block(vectors, stems)
        blocks = [
            self._block(vectors[start : start + _ROWS], stems and stems[start : start + _ROWS])
            for start in range(0, len(vectors), _ROWS)
        ]
        return [
            Evidence(*(np.concatenate([evidence[field] for evidence in found]) for field in range(4)))
            for found in zip(*blocks, strict=True)
        ]

    def _block(self, vectors: Array, stems: Sequence[Sequence[str]] | None) -> list[Evidence]:
        if self._background is None:
            similar = vectors @ self._matrix
            best = np.maximum.reduceat(similar, self._starts, axis=1)
            none, nearest = np.zeros_like(best), self._nearest(similar, best)
            return [Evidence(best[:, c], none[:, c], none[:, c], nearest[:, c]) for c in self._columns]
        best, nearest, soft, mean, sd, subject, counter = self.parts(vectors)
        _, by_message, by_subject, by_word = self._weights
        message_slope = by_message / sd
        slope = message_slope + self._topic_slope
        logits = soft * slope
        logits -= mean * message_slope
        logits += subject * by_subject
        logits += self._constant
        for row, column, worth in self.words(stems):
            logits[row, column] += by_word * worth
        if self._countered:
            nearer = np.maximum.reduceat(counter, self._counter_starts, axis=1) - best[:, self._countered]
            logits[:, self._countered] -= self._counterweight * np.maximum(nearer / self._spread + 0.25, 0.0)
        return [Evidence(best[:, c], logits[:, c], slope[:, c], nearest[:, c]) for c in self._columns]

    def parts(self, vectors: Array) -> Parts:
        """What the log-odds of messages, shape (N, D), are made of; needs a background."""
        similar = vectors @ self._matrix
        size, rules, members = len(self._akin), len(self._starts), len(self._owner)
        subjects, first = similar[:, size : 2 * size], similar[:, 2 * size : 2 * size + rules + 1]
        start = 2 * size + rules + 1
        scaled, counter = similar[:, start : start + members], similar[:, start + members :]
        # Mean and s.d. of the names' similarities, for each rule, and of the prototypes', in the last column.
        both = similar[:, : 2 * size]
        deviation = np.sqrt(np.maximum((both * both) @ self._squares - first * first, LEAST_SPREAD * LEAST_SPREAD))
        posterior = subjects - first[:, rules:]  # from the mean, so no exponential is large: sqrt(S) s.d. at most
        posterior *= 1.0 / (self._temperature * deviation[:, rules:])
        akin = np.exp(posterior, out=posterior) @ self._akin
        subject = np.log(akin[:, :rules] / akin[:, rules:])
        top = np.maximum.reduceat(scaled, self._starts, axis=1)
        if self._sharpness > _STEEP:
            scaled = scaled.astype(np.float64)
        soft = np.log(np.add.reduceat(np.exp(scaled), self._starts, axis=1)) - self._log_counts
        soft *= 1.0 / self._sharpness
        return Parts(
            top * (1.0 / self._sharpness),
            self._nearest(scaled, top),
            soft,
            first[:, :rules],
            deviation[:, :rules],
            subject,
            counter,
        )

    def _nearest(self, similar: Matrix, best: Matrix) -> NDArray[np.intp]:
        """Shape (N, R): the first member of each rule that reaches the rule's best similarity."""
        # In order of row, then rule, then member.
        reached = (similar == best.take(self._owner, axis=1)).ravel().nonzero()[0]
        if reached.size == best.size:  # no ties: one of each rule
            members = reached if len(best) == 1 else reached % similar.shape[1]
        else:
            row, member = np.divmod(reached, similar.shape[1])
            _, first = np.unique(row * best.shape[1] + self._owner[member], return_index=True)
            members = member[first]
        found: NDArray[np.intp] = members.reshape(best.shape) - self._starts
        return found

    def words(self, stems: Sequence[Sequence[str]] | None) -> Iterator[tuple[int, int, float]]:
        """(message, rule, worth) of the most telling word that the two share."""
        for row, spoken in enumerate(stems or ()):
            found: dict[int, float] = {}
            for stem in spoken:
                for column, worth in self._worth.get(stem, ()):
                    found[column] = max(found.get(column, 0.0), worth)
            for column, worth in found.items():
                yield row, column, worth
