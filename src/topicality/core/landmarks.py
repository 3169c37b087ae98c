"""Landmarks: named directions that a conversation's running vector is held against, to say where it is heading."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.core.background import Background
from topicality.core.score import RuleMembers
from topicality.errors import InputError, SpaceMismatchError
from topicality.types import Space

_YARDSTICK = 20  # so many background landmarks, at least, tell what is usual between unrelated things
_CLOSER = 0.7  # where subjects lie, messages of a conversation spread so much less, measured by that
_FEW = 8  # of so many, looking for the best one by one is quicker than sorting all

Side = Literal["allowed", "blocked", "background"]
Subjects = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # shape (D,) to (K,)


@dataclass(frozen=True, slots=True)
class Heading:
    """One landmark ahead.

    Attributes:
        name: of a rule or of a background subject. side: which of them.
        score: cosine similarity of the running vector to it, [-1, 1].
    """

    name: str
    side: Side
    score: float


class Landmarks:
    """Named directions in one space. Immutable; safe in threads.

    Args:
        entries: (name, side, vector), vectors of shape (D,), any length but zero. A name may come several times on a side;
            the nearest of its vectors counts.
        space: of the vectors; None when they are of no named encoder.
        subjects: a map of vectors to where those of one subject lie close together, whatever is done with it; what is said
            of messages and of the background is then measured there. None: where they are.
    Attributes:
        yardstick: standard deviation of the cosine between two background landmarks: how far apart unrelated things lie
            where it is measured; among subjects, a little less than that. None with fewer than 20 of them.
    Raises:
        InputError: a blank name, an unknown side, a vector that is not finite or all zeros.
        SpaceMismatchError: dimensions differ.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, Side, ArrayLike]],
        space: Space | None = None,
        subjects: Subjects | None = None,
    ) -> None:
        self.space = space
        self._subjects = subjects
        rows: list[NDArray[np.float64]] = []
        keys: dict[tuple[str, Side], int] = {}
        owner: list[int] = []
        for name, side, vector in entries:
            if not name.strip() or side not in {"allowed", "blocked", "background"}:
                raise InputError(
                    f"a landmark needs a name and a side (allowed, blocked, background), got {name!r}, {side!r}"
                )
            rows.append(_direction(vector, name))
            wanted = space.dimension if space is not None else len(rows[0])
            if len(rows[-1]) != wanted:
                raise SpaceMismatchError(space or f"dimension {wanted}", f"dimension {len(rows[-1])} in {name!r}")
            owner.append(keys.setdefault((name, side), len(keys)))
        self._keys = tuple(keys)
        self._sides = np.array([side for _, side in keys])
        self._owner = np.array(owner, dtype=np.intp)
        self._matrix = np.array(rows) if rows else np.zeros((0, space.dimension if space is not None else 0))
        self._rough = self._matrix.astype(np.float32)
        self._background = self._rough[[self._keys[index][1] == "background" for index in owner]]
        if subjects is not None and len(self._background):
            self._background = np.array([subjects(row) for row in self._background])
        self.yardstick = _spread(self._background) if len(self._background) >= _YARDSTICK else None
        if self.yardstick is not None and subjects is not None:
            self.yardstick *= _CLOSER

    @classmethod
    def of_rules(
        cls,
        allowed: Sequence[RuleMembers],
        blocked: Sequence[RuleMembers] = (),
        background: Background | None = None,
        space: Space | None = None,
        subjects: Subjects | None = None,
    ) -> Landmarks:
        """One landmark for each rule and each background subject: the mean direction of what belongs to it."""
        sides: tuple[tuple[Side, Sequence[RuleMembers]], ...] = (("allowed", allowed), ("blocked", blocked))
        entries: list[tuple[str, Side, ArrayLike]] = [
            (rule.name, side, _middle(rule)) for side, rules in sides for rule in rules
        ]
        if background is not None:
            entries += [
                (name, "background", vector)
                for name, vector in zip(background.subjects, background.prototypes, strict=True)
            ]
            space = space or background.space
        return cls(entries, space, subjects)

    @property
    def dimension(self) -> int:
        """Length of the vectors; 0 when there is no landmark and no space."""
        return int(self._matrix.shape[1])

    def __len__(self) -> int:
        return len(self._keys)

    def measurable(self, vector: NDArray[np.float64]) -> NDArray[np.float32] | None:
        """The vector's direction, shape (D,), or (K,) among subjects; None without one, or without a yardstick."""
        peak = np.abs(vector).max()
        if self.yardstick is None or peak == 0:
            return None
        scaled = vector / peak
        direction = (scaled / np.sqrt(scaled @ scaled)).astype(np.float32)
        if self._subjects is not None:
            direction = self._subjects(direction)
        return direction if direction.any() else None

    def among_background(self, direction: NDArray[np.float32]) -> tuple[float, float]:
        """Cosine, [-1, 1], of what is `measurable` to the nearest background landmark, and how clearly it is that one.

        Returns:
            The cosine, and how far it is above the mean of all of them, in their standard deviations.
        Cost: O(D · landmarks).
        """
        cosines = self._background @ direction
        nearest, mean = float(cosines.max()), float(np.add.reduce(cosines)) / len(cosines)
        spread = math.sqrt(max(float(cosines @ cosines) / len(cosines) - mean * mean, 0.0))
        return nearest, (nearest - mean) / max(spread, 1e-6)

    def nearest(self, vector: NDArray[np.float64], count: int = 3, *, side: Side | None = None) -> tuple[Heading, ...]:
        """The landmarks nearest to a vector, shape (D,), best first; ties keep the order given.

        Returns:
            At most `count`; none when the vector is all zeros, which has no direction.
        Raises:
            SpaceMismatchError: another dimension.
        Cost: O(D · landmarks).
        """
        if not self._keys:
            return ()
        if vector.shape != (self.dimension,):
            raise SpaceMismatchError(f"dimension {self.dimension}", f"shape {vector.shape}")
        peak = np.abs(vector).max()
        if peak == 0:
            return ()
        scaled = vector / peak
        direction = scaled / np.sqrt(scaled @ scaled)
        # what is only told, and not decided by, may be rough
        matrix = self._rough if side is None else self._matrix
        scores = (matrix @ direction.astype(matrix.dtype)).astype(np.float64)
        if len(scores) > len(self._keys):
            best = np.full(len(self._keys), -2.0)
            np.maximum.at(best, self._owner, scores)
            scores = best
        if side is not None:
            scores = np.where(self._sides == side, scores, -2.0)
        found: list[Heading] = []
        for index in _best(scores, count):
            name, kind = self._keys[index]
            if side is None or kind == side:
                found.append(Heading(name, kind, float(min(1.0, max(-1.0, scores[index])))))
        return tuple(found)


def _direction(vector: ArrayLike, name: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the vector of landmark {name!r} must be an array of numbers ({error})") from error
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all() or not array.any():
        raise InputError(f"the vector of landmark {name!r} must be one-dimensional, finite and not all zeros")
    scaled = array / np.abs(array).max()
    return np.asarray(scaled / np.sqrt(scaled @ scaled))


def _best(scores: NDArray[np.float64], count: int) -> list[int]:
    """Where the highest are, best first; of equal ones the first."""
    if count > _FEW:
        return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
    left, found = scores.copy(), []
    for _ in range(min(count, len(left))):
        found.append(int(left.argmax()))
        left[found[-1]] = -np.inf
    return found


def _spread(rows: NDArray[np.float32]) -> float | None:
    found = float(np.std((rows @ rows.T)[np.triu_indices(len(rows), 1)]))
    return found if found > 1e-6 else None  # all the same: nothing can be measured with it


def _middle(rule: RuleMembers) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = rule.vectors.astype(np.float64).mean(axis=0)
    # members that cancel out have no middle; the name, which comes first, stands for the rule
    return mean if float(np.linalg.norm(mean)) > 1e-3 else rule.vectors[0].astype(np.float64)
