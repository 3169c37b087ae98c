"""Small learned heads, evaluated with numpy alone: bagged one-hidden-layer networks and linear probes of a vector.

Their weights are an encoder's own: they are made for one space by tools/train_segment.py and read by embed.segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal

import numpy as np

from topicality.errors import InputError
from topicality.types import Space
from topicality.vectors import Array

Granularity = Literal["coarse", "balanced", "fine"]
Moment = Literal["once", "confirmed", "offline"]

GRANULARITIES: tuple[Granularity, ...] = ("coarse", "balanced", "fine")
MOMENTS: tuple[Moment, ...] = ("once", "confirmed", "offline")
STYLES = 5  # of talk that linear readings are learned for: all together, chat, help, tasks, unlike dialogues joined
_CLIP = 4.0  # standard deviations beyond which a feature says no more


class Net:
    """The mean of several small networks (bags) over the same features.

    Args:
        mean, scale: shape (F,): features are standardised and clipped at four standard deviations.
        hidden: shape (F, B * H). hidden_bias: shape (B * H,). out: shape (B, H). out_bias: shape (B,).
    """

    PARTS = ("mean", "scale", "hidden", "hidden_bias", "out", "out_bias")

    def __init__(
        self, mean: Array, scale: Array, hidden: Array, hidden_bias: Array, out: Array, out_bias: Array
    ) -> None:
        self.mean, self.scale, self.hidden, self.hidden_bias, self.out, self.out_bias = (
            np.ascontiguousarray(part, dtype=np.float32) for part in (mean, scale, hidden, hidden_bias, out, out_bias)
        )
        if self.hidden.shape != (len(self.mean), self.out.size) or self.out_bias.shape != self.out.shape[:1]:
            raise InputError(f"a head's weights do not fit together: {self.hidden.shape} and {self.out.shape}")
        self._share = np.full(len(self.out), 1.0 / len(self.out), np.float32)
        # As one product: entry (b * H + h, b) is out[b, h], everything else is zero.
        self._last = np.zeros((self.out.size, len(self.out)), np.float32)
        for bag, weights in enumerate(self.out):
            self._last[bag * len(weights) : (bag + 1) * len(weights), bag] = weights

    @property
    def features(self) -> int:
        """How many features it reads."""
        return len(self.mean)

    def __call__(self, rows: Any) -> Array:
        """Probabilities, shape (N,), of rows of features, shape (N, F). Cost: O(N * F * B * H)."""
        standard = (np.asarray(rows, dtype=np.float32) - self.mean) * self.scale
        np.minimum(standard, _CLIP, out=standard)
        np.maximum(standard, -_CLIP, out=standard)
        hidden = standard @ self.hidden
        hidden += self.hidden_bias
        np.maximum(hidden, 0.0, out=hidden)
        logits = hidden @ self._last
        logits += self.out_bias
        np.negative(logits, out=logits)
        np.minimum(logits, 30.0, out=logits)
        np.exp(logits, out=logits)
        logits += 1.0
        np.reciprocal(logits, out=logits)
        return np.asarray(logits @ self._share, dtype=np.float32)

    def one(self, row: list[float]) -> float:
        """The probability of one row."""
        return float(self(np.array([row], dtype=np.float32))[0])


class Probes:
    """Linear readings of a vector: does it look like the first message of a topic, the one before it, the one after?

    Args:
        weights: shape (D, 15): five styles of talk for each of the three. bias: shape (15,).
    """

    def __init__(self, weights: Array, bias: Array) -> None:
        self.weights = np.ascontiguousarray(weights, dtype=np.float32)
        self.bias = np.asarray(bias, dtype=np.float32)

    def __call__(self, vectors: Array) -> list[Any]:
        """Fifteen log-odds of a vector, shape (D,); a list of such lists for vectors, shape (N, D)."""
        return list((vectors @ self.weights + self.bias).tolist())


class Phrases:
    """The same readings of how a message is put: its words and pairs of words (`phrases.places`).

    Args:
        weights: shape (PLACES, 15). bias: shape (15,).
    """

    def __init__(self, weights: Array, bias: Array) -> None:
        self.weights = np.ascontiguousarray(weights, dtype=np.float32)
        self.bias = np.asarray(bias, dtype=np.float32)

    def __call__(self, places: list[int]) -> list[float]:
        """Fifteen log-odds. Every place counts the same, and longer messages no more than short ones."""
        total = np.add.reduce(self.weights.take(places, axis=0), axis=0)
        return list((total * np.float32(1.0 / sqrt(len(places))) + self.bias).tolist())


class Subjects:
    """Where vectors of one subject lie close together, whatever is done with it: asking, answering, thanking.

    A linear map and a hidden layer beside it, learned by contrast: messages of one dialogue (or of one segment, for the
    aspects of a subject) come together, those of different ones do not.

    Args:
        linear: shape (D, K). bias: shape (K,). inner: shape (D, H). inner_bias: shape (H,). outer: shape (H, K).
    """

    PARTS = ("linear", "bias", "inner", "inner_bias", "outer")

    def __init__(self, linear: Array, bias: Array, inner: Array, inner_bias: Array, outer: Array) -> None:
        self.linear, self.bias, self.inner, self.inner_bias, self.outer = (
            np.ascontiguousarray(part, dtype=np.float32) for part in (linear, bias, inner, inner_bias, outer)
        )
        self._wide = np.ascontiguousarray(np.concatenate([self.inner, self.linear], axis=1))
        self._shift = np.concatenate([self.inner_bias, self.bias])

    @property
    def dimension(self) -> int:
        """K, the length of what it gives."""
        return len(self.bias)

    def __call__(self, vectors: Array) -> Array:
        """A vector, shape (D,), or vectors, shape (N, D), among subjects: shape (K,) or (N, K), float32, length 1.

        Cost: O(D * (H + K)) each.
        """
        both = vectors @ self._wide
        both += self._shift
        hidden = both[..., : len(self.inner_bias)]
        np.maximum(hidden, 0.0, out=hidden)
        seen = hidden @ self.outer
        seen += both[..., len(self.inner_bias) :]
        if seen.ndim == 1:
            seen *= np.float32(1.0 / (sqrt(float(seen @ seen)) + 1e-9))
        else:
            seen /= np.sqrt(np.einsum("ij,ij->i", seen, seen))[:, None] + np.float32(1e-9)
        return np.asarray(seen, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Settings:
    """Thresholds that go with the heads; every one is met at `>=`.

    Attributes:
        boundary: of a boundary's probability, by granularity. switch: of leaving the current topic, by granularity.
        returning: of an earlier topic's probability, by moment ("once", "confirmed").
        offline: share of a conversation's best expected F1 that is its threshold (`offline.own_threshold`).
        thread: added to the log-odds of starting a thread where several people talk.
    """

    boundary: Mapping[str, float]
    switch: Mapping[str, Mapping[str, float]]
    returning: Mapping[str, float]
    offline: float = 0.6
    thread: float = 0.0


@dataclass(frozen=True, slots=True)
class Heads:
    """Everything learned that the segmenter uses, for one encoder.

    Attributes:
        subjects: what a dialogue is about; topics are compared there. aspects: what a stretch of it is about.
        boundary: by granularity and moment. switch, returning: by moment ("once", "confirmed").
        link: who replies to whom where several people talk.
    """

    space: Space
    probes: Probes
    phrases: Phrases
    subjects: Subjects
    aspects: Subjects
    boundary: Mapping[str, Mapping[str, Net]]
    switch: Mapping[str, Net]
    returning: Mapping[str, Net]
    link: Net
    settings: Settings
    card: Mapping[str, Any] = field(default_factory=dict)


def packed(heads: Heads) -> dict[str, Any]:
    """Arrays by name, matrices as float16: what is written to the data file. `unpacked` reads it."""
    arrays: dict[str, Any] = {
        "probes.weights": heads.probes.weights.astype(np.float16),
        "probes.bias": heads.probes.bias,
        "phrases.weights": heads.phrases.weights.astype(np.float16),
        "phrases.bias": heads.phrases.bias,
    }
    for name, way in (("subjects", heads.subjects), ("aspects", heads.aspects)):
        for part in Subjects.PARTS:
            kind = np.float32 if part.endswith("bias") else np.float16
            arrays[f"{name}.{part}"] = getattr(way, part).astype(kind)
    for name, net in _nets(heads).items():
        for part in Net.PARTS:
            kind = np.float16 if part in ("hidden", "out") else np.float32
            arrays[f"{name}.{part}"] = getattr(net, part).astype(kind)
    return arrays


def unpacked(arrays: Mapping[str, Any], space: Space, settings: Settings, card: Mapping[str, Any]) -> Heads:
    """Heads from the arrays that `packed` gave.

    Raises:
        InputError: an array is missing, or has another shape than its neighbours.
    """

    def net(name: str) -> Net:
        return Net(*(np.asarray(arrays[f"{name}.{part}"], dtype=np.float32) for part in Net.PARTS))

    def subjects(name: str) -> Subjects:
        return Subjects(*(np.asarray(arrays[f"{name}.{part}"], np.float32) for part in Subjects.PARTS))

    try:
        return Heads(
            space,
            Probes(np.asarray(arrays["probes.weights"], np.float32), np.asarray(arrays["probes.bias"], np.float32)),
            Phrases(np.asarray(arrays["phrases.weights"], np.float32), np.asarray(arrays["phrases.bias"], np.float32)),
            subjects("subjects"),
            subjects("aspects"),
            {grain: {moment: net(f"{grain}.{moment}") for moment in MOMENTS} for grain in GRANULARITIES},
            {moment: net(f"switch.{moment}") for moment in MOMENTS[:2]},
            {moment: net(f"returning.{moment}") for moment in MOMENTS[:2]},
            net("link"),
            settings,
            card,
        )
    except KeyError as error:
        raise InputError(f"the segmenter's weights lack {error}; reinstall topicality") from error


def _nets(heads: Heads) -> dict[str, Net]:
    found = {f"{grain}.{moment}": net for grain, nets in heads.boundary.items() for moment, net in nets.items()}
    found.update({f"switch.{moment}": net for moment, net in heads.switch.items()})
    found.update({f"returning.{moment}": net for moment, net in heads.returning.items()})
    found["link"] = heads.link
    return found
