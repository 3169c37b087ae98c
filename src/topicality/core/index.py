"""`TopicIndex`: topics as sets of vectors, matched by text or by vector. Usable without a guard, with any encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.errors import EmbedError, InputError, SpaceMismatchError
from topicality.ports import Embedder
from topicality.vectors import Array, unit

Scorer = Literal["best", "centroid", "soft"]


@dataclass(frozen=True, slots=True)
class TopicMatch:
    """How close a query is to a topic.

    Attributes:
        topic: the topic's name. score: cosine similarity, [-1, 1] (not clamped at zero).
        nearest: index of the topic's nearest member, in the order given.
    """

    topic: str
    score: float
    nearest: int


@dataclass(frozen=True)
class _Built:
    names: tuple[str, ...]
    members: Array  # (M, D)
    starts: NDArray[np.intp]
    counts: NDArray[np.intp]
    centroids: Array  # (T, D)


class TopicIndex:
    """Topics, each a set of member vectors, ranked by how close a query is.

    `build` makes a whole new index and swaps it in at once: a reader in another thread sees the old one or the new one,
    never a half. Scoring by "best" (nearest member, the default) keeps every mode of a topic; "centroid" is the mean
    direction of unit members; "soft" is a smooth maximum in between.

    Args:
        embedder: an encoder, for building from texts and matching texts; not needed for vectors.
        scorer: "best", "centroid" or "soft".
    """

    def __init__(self, embedder: Embedder | None = None, *, scorer: Scorer = "best") -> None:
        if scorer not in ("best", "centroid", "soft"):
            raise InputError(f"unknown scorer {scorer!r}; accepted: best, centroid, soft")
        self._embedder = embedder
        self._scorer = scorer
        self._built: _Built | None = None

    @property
    def is_built(self) -> bool:
        """Whether an index is in place; an index of no topics is one too."""
        return self._built is not None

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics, in the order given."""
        return self._built.names if self._built else ()

    def build(self, topics: Mapping[str, Sequence[str]]) -> None:
        """Embed all texts of all topics in one call and swap the new index in.

        Args:
            topics: texts (descriptions, examples) by topic name. No topics at all is fine and asks the encoder nothing.
        Raises:
            InputError: no encoder, a topic without texts or with a blank one. EmbedError: the encoder failed. In
            either case the old index stays in place.
        """
        for name, texts in topics.items():
            if isinstance(texts, str) or not texts or any(map(_blank, texts)):
                raise InputError(f"topic {name!r} needs a list of texts, none of them blank")
        flat = [text for texts in topics.values() for text in texts]
        if not flat:
            self.build_vectors({})
            return
        vectors = self._encoder().embed(flat)
        if len(vectors) != len(flat):
            raise EmbedError(f"the encoder gave {len(vectors)} vectors for {len(flat)} texts; one each")
        built: dict[str, Array] = {}
        start = 0
        for name, texts in topics.items():
            built[name] = vectors[start : start + len(texts)]
            start += len(texts)
        self.build_vectors(built)

    def build_vectors(self, topics: Mapping[str, ArrayLike]) -> None:
        """Swap in an index made of vectors from any source.

        Args:
            topics: member vectors by topic name, each shape (M, D), M >= 1; scaled to unit length here.
        Raises:
            InputError: a blank name, no members, NaN, a member of zeros, or (centroid) members that cancel out.
            SpaceMismatchError: dimensions differ.
        Cost: O(M·D).
        """
        members: list[Array] = []
        centroids: list[Array] = []
        for name, given in topics.items():
            if not name.strip():
                raise InputError("a topic needs a name that is not blank")
            vectors = unit(given)
            if vectors.ndim == 1:
                vectors = vectors[None, :]
            if len(vectors) == 0 or not vectors.any(axis=1).all():
                raise InputError(f"topic {name!r} needs at least one member, and none of them all zeros")
            if members and vectors.shape[1] != members[0].shape[1]:
                raise SpaceMismatchError(
                    f"dimension {members[0].shape[1]}", f"dimension {vectors.shape[1]} in {name!r}"
                )
            mean = vectors.mean(axis=0)
            if self._scorer == "centroid" and float(np.linalg.norm(mean)) < 1e-3:
                raise InputError(
                    f"the members of topic {name!r} cancel out, so it has no centroid; use the scorer 'best'"
                )
            members.append(vectors)
            centroids.append(unit(mean))
        counts = np.array([len(vectors) for vectors in members], dtype=np.intp)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp) if members else counts
        empty = np.zeros((0, 0), dtype=np.float32)
        self._built = _Built(
            tuple(topics),
            np.vstack(members) if members else empty,
            starts,
            counts,
            np.vstack(centroids) if members else empty,
        )

    def match(self, text: str) -> list[TopicMatch]:
        """Every topic's match with a text, best first. Raises InputError, EmbedError; see `match_vector`."""
        if not text.strip():
            raise InputError("a text to match must be a string that is not blank")
        return self.match_vector(self._encoder().embed([text])[0]) if self._built and self._built.names else []

    def match_vector(self, vector: ArrayLike) -> list[TopicMatch]:
        """Every topic's match with a vector, best first; ties keep the order given; [] when there are no topics.

        Args:
            vector: shape (D,), any length.
        Raises:
            InputError: not finite, or all zeros (it has no direction). SpaceMismatchError: another dimension.
        Cost: O(M·D).
        """
        built = self._built
        query = unit(vector)
        if query.ndim != 1 or not query.any():
            raise InputError(f"a query must be one vector that is not all zeros, got shape {query.shape}")
        if built is None or not built.names:
            return []
        if query.shape[0] != built.members.shape[1]:
            raise SpaceMismatchError(f"dimension {built.members.shape[1]}", f"dimension {query.shape[0]}")
        similar = built.members.astype(np.float64) @ query
        found = []
        for index, name in enumerate(built.names):
            part = similar[built.starts[index] : built.starts[index] + built.counts[index]]
            score = self._score(part, float(built.centroids[index].astype(np.float64) @ query))
            found.append(TopicMatch(name, min(1.0, max(-1.0, score)), int(np.argmax(part))))
        return sorted(found, key=lambda match: -match.score)

    def is_on_topic(self, text: str, threshold: float) -> bool:
        """Whether the best match of a text meets the threshold (>=). False when there are no topics."""
        matches = self.match(text)
        return bool(matches) and matches[0].score >= threshold

    def is_on_topic_vector(self, vector: ArrayLike, threshold: float) -> bool:
        """As `is_on_topic`, for a vector."""
        matches = self.match_vector(vector)
        return bool(matches) and matches[0].score >= threshold

    def _score(self, part: NDArray[np.float64], centroid: float) -> float:
        if self._scorer == "centroid":
            return centroid
        if self._scorer == "soft":
            return float(np.log(np.exp(10.0 * (part - 1.0)).mean()) / 10.0 + 1.0)
        return float(part.max())

    def _encoder(self) -> Embedder:
        if self._embedder is None:
            raise InputError("this index has no encoder: give it one, or use build_vectors and match_vector")
        return self._embedder


def _blank(text: object) -> bool:
    return not isinstance(text, str) or not text.strip()
