"""The background: what people say to assistants about everything, as vectors. Scores are read against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray

from topicality.errors import InputError, SpaceMismatchError
from topicality.types import Space
from topicality.vectors import Array, unit


@dataclass(frozen=True)
class Background:
    """Everyday utterances by subject, in one encoder's space.

    Attributes:
        space: the encoder.
        subjects: S subject names.
        names: shape (S, D), vectors of the names. descriptions: shape (S, D), of one enumerating line each.
        utterances: shape (N, D). owner: shape (N,), index of each one's subject, or -1 for a host's own additions.
        stems: in how many utterances a stem occurs. total: how many utterances were counted.
    """

    space: Space
    subjects: tuple[str, ...]
    names: Array
    descriptions: Array
    utterances: Array
    owner: NDArray[np.intp]
    stems: Mapping[str, int] = field(default_factory=dict)
    total: int = 1

    def __post_init__(self) -> None:
        for matrix in (self.names, self.descriptions, self.utterances):
            if matrix.ndim != 2 or matrix.shape[1] != self.space.dimension:
                raise SpaceMismatchError(self.space, f"shape {matrix.shape}")
        if not len(self.subjects) == len(self.names) == len(self.descriptions) or len(self.owner) != len(
            self.utterances
        ):
            raise InputError("a background needs a name, a description and vectors for each of its subjects")
        if len(self.subjects) < 20 or len(self.utterances) < 100:
            raise InputError("a background needs at least 20 subjects and 100 utterances to measure against")
        centroids = np.zeros_like(self.names)
        known = self.owner >= 0
        np.add.at(centroids, self.owner[known], self.utterances[known])
        # A subject is mostly what people say about it, and a little what it is called.
        prototypes = (0.3 * self.names + 0.3 * self.descriptions + unit(centroids)) / 1.6
        object.__setattr__(self, "prototypes", prototypes.astype(np.float32))
        object.__setattr__(self, "spread", float(np.std(self.utterances[::4] @ self.names.T)))

    prototypes: Array = field(init=False)
    spread: float = field(init=False)  # s.d. of the cosine between unrelated things: the encoder's own yardstick

    def rarity(self, stem: str) -> float:
        """How telling a word is, (0, 1]: 1 for one that the background never uses."""
        return log((self.total + 1) / (self.stems.get(stem, 0) + 0.5)) / log((self.total + 1) / 0.5)

    def extended(self, vectors: Array) -> Background:
        """This background plus utterances of a host's own, shape (M, D)."""
        if len(vectors) == 0:
            return self
        return Background(
            self.space,
            self.subjects,
            self.names,
            self.descriptions,
            np.vstack([self.utterances, vectors]),
            np.concatenate([self.owner, np.full(len(vectors), -1)]),
            self.stems,
            self.total,
        )
