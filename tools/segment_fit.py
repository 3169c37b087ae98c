"""Learning the parts of the segmenter's heads: networks, linear readings of vectors and words, subjects, replies.

Used by tools/train_segment.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from segment_data import Dialogue, Vectors
from sklearn.linear_model import LogisticRegression

from topicality.core.segment.crowd import Crowd
from topicality.core.segment.cues import spoken_words
from topicality.core.segment.heads import Net, Phrases, Probes
from topicality.core.segment.phrases import PLACES, places

STRENGTH = 4.0  # vectors are scaled by this in the probes' regularisation


@dataclass(frozen=True)
class Shape:
    """Of a head, and how it is learned."""

    hidden: int = 24
    bags: int = 5
    epochs: int = 25
    decay: float = 3e-2
    drop: float = 0.2
    batch: int = 256
    rate: float = 2e-3


class Adam:
    """Descent by Adam (Kingma and Ba 2015), its pace falling along half a cosine.

    Args:
        parts: what is learned, changed in place. rate: pace at the start. steps: how many there will be.
    """

    def __init__(self, parts: list[np.ndarray], rate: float, steps: int) -> None:
        self.parts, self.rate, self.steps, self.done = parts, rate, steps, 0
        self.first, self.second = ([np.zeros_like(part) for part in parts] for _ in range(2))

    def step(self, slopes: list[np.ndarray]) -> float:
        """Move all parts; returns the pace."""
        self.done += 1
        pace = self.rate * 0.5 * (1 + np.cos(np.pi * self.done / (self.steps + 1)))
        for k, slope in enumerate(slopes):
            self.first[k] += 0.1 * (slope - self.first[k])
            self.second[k] += 0.001 * (slope**2 - self.second[k])
            mean, square = self.first[k] / (1 - 0.9**self.done), self.second[k] / (1 - 0.999**self.done)
            self.parts[k] -= pace * mean / (np.sqrt(square) + 1e-8)
        return float(pace)


def train_net(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, shape: Shape = Shape()) -> Net:
    """Bagged networks by Adam: weighted log loss, feature dropout, decoupled decay, a cosine step; a bootstrap each."""
    rows = np.asarray(rows, np.float32)
    share = weights / weights.sum()
    mean = (share[:, None] * rows).sum(axis=0).astype(np.float32)
    deviation = np.sqrt((share[:, None] * (rows - mean) ** 2).sum(axis=0))
    scale = (1.0 / np.maximum(deviation, 1e-3)).astype(np.float32)
    standard = np.clip((rows - mean) * scale, -4.0, 4.0)
    count, size = standard.shape
    learned = []
    for bag in range(shape.bags):
        rng = np.random.default_rng(bag)
        drawn = rng.choice(count, count, p=share)
        base = labels[drawn].mean()
        net = [
            rng.normal(0, np.sqrt(1.0 / size), (size, shape.hidden)).astype(np.float32),
            np.zeros(shape.hidden, np.float32),
            rng.normal(0, 0.2, shape.hidden).astype(np.float32),
            np.full(1, np.log(base / (1 - base)), np.float32),
        ]
        adam = Adam(net, shape.rate, shape.epochs * (count // shape.batch + 1))
        for _ in range(shape.epochs):
            order = rng.permutation(drawn)
            for at in range(0, count, shape.batch):
                chosen = order[at : at + shape.batch]
                seen = standard[chosen]
                seen = seen * ((rng.random(seen.shape, dtype=np.float32) > shape.drop) / np.float32(1 - shape.drop))
                inner = seen @ net[0] + net[1]
                active = np.maximum(inner, 0)
                logits = np.clip(active @ net[2] + net[3], -30, 30)
                error = ((1 / (1 + np.exp(-logits)) - labels[chosen]) / len(chosen)).astype(np.float32)
                back = error[:, None] * net[2] * (inner > 0)
                slopes = [seen.T @ back, back.sum(axis=0), active.T @ error, error.sum(keepdims=True)]
                pace = adam.step(slopes)
                for k in (0, 2):
                    net[k] *= 1 - pace * shape.decay * 10
        learned.append(net)
    return Net(
        mean,
        scale,
        np.concatenate([net[0] for net in learned], axis=1),
        np.concatenate([net[1] for net in learned]),
        np.stack([net[2] for net in learned]),
        np.array([net[3][0] for net in learned], np.float32),
    )


def fit_probes(styles: Sequence[list[Dialogue]], encode: Vectors) -> Probes:
    """Logistic readings of a vector, pooled over the styles and for each alone."""
    read = [[(STRENGTH * encode(each.texts), each.marks) for each in style] for style in styles]
    fitted = _readings(read, lambda: LogisticRegression(C=0.02, max_iter=150))
    return Probes(
        np.stack([STRENGTH * model.coef_[0] for model in fitted], axis=1),
        np.array([model.intercept_[0] for model in fitted]),
    )


def fit_phrases(styles: Sequence[list[Dialogue]]) -> Phrases:
    """The same of words and pairs of words."""
    read = [[(phrase_rows(each.texts), each.marks) for each in style] for style in styles]
    fitted = _readings(read, lambda: LogisticRegression(C=0.5, max_iter=100, solver="liblinear", random_state=0))
    return Phrases(
        np.stack([model.coef_[0] for model in fitted], axis=1), np.array([model.intercept_[0] for model in fitted])
    )


def phrase_rows(texts: Sequence[str]) -> sparse.csr_array:
    """Shape (N, PLACES): the places of each text, so weighted that a row has length 1."""
    found = [places(words, asks="?" in low) for low, words in map(spoken_words, texts)]
    sizes = np.array([len(each) for each in found])
    weights = np.repeat(1.0 / np.sqrt(sizes), sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return sparse.csr_array((weights, np.concatenate(found).astype(np.int32), starts), shape=(len(texts), PLACES))


def _readings(styles: Sequence[list[tuple[Any, list[int]]]], model: Callable[[], Any]) -> list[Any]:
    """For the first message of a topic, the one before it and the one after it: all styles alike, and each style alone."""
    stack = sparse.vstack if sparse.issparse(styles[0][0][0]) else np.concatenate
    fitted = []
    for step in (0, -1, 1):  # from where a topic may start
        parts = []
        for style in styles:
            rows = [rows[max(1 + step, 0) : len(marks) + min(step, 0)] for rows, marks in style]
            right = [marks[1 : len(marks) - max(step, 0)] for _, marks in style]
            parts.append((stack(rows), np.concatenate(right)))
        for chosen in (range(len(styles)), *([place] for place in range(len(styles)))):
            share = np.concatenate([np.full(len(parts[k][1]), 1 / len(parts[k][1])) for k in chosen])
            fitted.append(
                model().fit(
                    stack([parts[k][0] for k in chosen]),
                    np.concatenate([parts[k][1] for k in chosen]),
                    sample_weight=share / share.mean(),
                )
            )
    return fitted


def fit_link(talks: list[dict[str, Any]], encode: Vectors) -> Net:
    """The ranker of replies, along the true threads."""
    rows, right = [], []
    for talk in talks:
        crowd = Crowd()
        vectors = encode([turn["text"] for turn in talk["turns"]])
        replies: dict[int, set[int]] = {}
        for earlier, later in talk["links"]:
            replies.setdefault(later, set()).add(earlier)
        for index, turn in enumerate(talk["turns"]):
            at = None if turn.get("t") is None else turn["t"] * 60.0
            said = crowd.read(index, turn["text"], turn["role"].lower(), vectors[index], at)
            gold = replies.get(index, {index})
            known = [item.index for item in reversed(crowd.items)]
            if index >= talk["scored"][0] and said.speaker:
                rows.append(crowd.features(said))
                right.append(np.array([float(other in gold) for other in [*known, index]]))
            crowd.record(said, max(gold) if max(gold) in known else index)
    labels = np.concatenate(right)
    weights = np.where(labels > 0, 1.0, 0.15)
    return train_net(np.concatenate(rows), labels, weights, Shape(bags=3, drop=0.05, epochs=10, decay=1e-2, batch=512))
