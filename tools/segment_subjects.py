"""Learning where messages of one subject lie close together: the map that `heads.Subjects` holds.

It starts as the directions in which dialogues differ most against how much messages of one dialogue do (within-class
whitening), and goes on by contrast: a message has to lie nearer to some earlier messages of its own dialogue than to
those of the others drawn with it. Used by tools/train_segment.py.

Source: InfoNCE (van den Oord et al. 2018), both ways as in CLIP (Radford et al. 2021); whitening as Hatch et al. 2006.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from segment_data import Dialogue, Vectors
from segment_fit import Adam

from topicality.core.segment.heads import Subjects
from topicality.vectors import unit

RIDGE = 0.1  # added to the spread inside dialogues, in units of its mean
SUBJECTS = 96  # numbers kept
HIDDEN = 256
STRENGTH = 8.0  # vectors are scaled by this for the hidden layer
STEPS, DRAWN = 2500, 64  # of learning; dialogues of each style in one
RATE, DROP, HOLD = 1e-3, 0.5, 1e-3  # of learning; share of numbers left out; pull towards where it began
LONGEST, EARLIER, SKIPPED = 14, 6, 2  # messages of a dialogue, that one is held against, and between


def fit_subjects(styles: Sequence[list[Dialogue]], encode: Vectors, shares: Sequence[float]) -> Subjects:
    mean, weights = _whitened(styles, encode, shares)
    parts = [
        weights,
        -mean @ weights,
        np.random.default_rng(0).normal(0, len(weights) ** -0.5, (len(weights), HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        np.zeros((HIDDEN, SUBJECTS), np.float32),
        np.full(1, np.log(10.0), np.float32),
    ]
    begun = [part.copy() for part in parts]
    groups = [[unit(encode(each.texts[:LONGEST])) for each in style if len(each.texts) >= 2] for style in styles]
    rng = np.random.default_rng(1)
    adam = Adam(parts, RATE, STEPS)
    for _ in range(STEPS):
        slopes = [2 * HOLD * (part - old) for part, old in zip(parts, begun, strict=True)]
        slopes[-1][:] = 0.0  # how sharp the contrast is stays free
        for share, group in zip(shares, groups, strict=True):
            contrast = _contrast(parts, group, rng)
            slopes = [slope + np.float32(share) * more for slope, more in zip(slopes, contrast, strict=True)]
        adam.step(slopes)
    linear, bias, inner, inner_bias, outer, _ = parts
    return Subjects(linear, bias, STRENGTH * inner, inner_bias, outer)


def _contrast(parts: list[np.ndarray], group: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Slopes of the loss on dialogues drawn from one style."""
    linear, bias, inner, inner_bias, outer, sharp = parts
    rows, owner = _drawn(group, rng)
    count = int(owner.max()) + 1
    seen = rows * ((rng.random(rows.shape, dtype=np.float32) > DROP) / np.float32(1 - DROP))
    hidden = np.maximum(STRENGTH * seen @ inner + inner_bias, 0.0)
    found = seen @ linear + bias + hidden @ outer
    length = np.linalg.norm(found, axis=1, keepdims=True) + 1e-9
    found /= length
    said, sums = found[:count], np.zeros((count, SUBJECTS), np.float32)
    np.add.at(sums, owner[count:], found[count:])
    size = np.linalg.norm(sums, axis=1, keepdims=True) + 1e-9
    topics = sums / size
    scale = np.exp(sharp[0])
    cosines = said @ topics.T
    logits = scale * cosines
    wrong = (_softmax(logits) + _softmax(logits.T).T) / 2 - np.eye(count, dtype=np.float32)
    wrong /= count
    back = np.empty_like(found)
    back[:count] = scale * wrong @ topics
    to_topics = scale * wrong.T @ said
    to_sums = (to_topics - topics * (to_topics * topics).sum(axis=1, keepdims=True)) / size
    back[count:] = to_sums[owner[count:]]
    back = (back - found * (back * found).sum(axis=1, keepdims=True)) / length
    deeper = (back @ outer.T) * (hidden > 0)
    return [
        seen.T @ back,
        back.sum(axis=0),
        STRENGTH * seen.T @ deeper,
        deeper.sum(axis=0),
        hidden.T @ back,
        np.array([scale * float((wrong * cosines).sum())], np.float32),
    ]


def _drawn(group: list[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A message of each of some dialogues, then earlier ones of the same; and whose each row is."""
    chosen = rng.choice(len(group), min(DRAWN, len(group) // 2), replace=False)
    said, earlier, owner = [], [], list(range(len(chosen)))
    for number, place in enumerate(chosen):
        vectors = group[place]
        at = int(rng.integers(1, len(vectors)))
        many = int(rng.integers(1, min(EARLIER, len(vectors) - 1) + 1))
        start = max(0, at - many - int(rng.integers(0, SKIPPED + 1)))
        before = vectors[start : max(start + 1, min(at, start + many))]
        said.append(vectors[at])
        earlier.append(before)
        owner += [number] * len(before)
    return np.concatenate([np.stack(said), *earlier]), np.array(owner)


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _whitened(
    styles: Sequence[list[Dialogue]], encode: Vectors, shares: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Directions by how much dialogues differ against how much messages of one dialogue do; styles weigh as `shares` says."""
    inside = between = np.zeros((1, 1))
    mean = np.zeros(1)
    for share, style in zip(shares, styles, strict=True):
        read = [encode(each.texts).astype(np.float64) for each in style]
        means = np.array([vectors.mean(axis=0) for vectors in read])
        spread = np.concatenate([vectors - centre for vectors, centre in zip(read, means, strict=True)])
        inside = inside + share * spread.T @ spread / len(spread)
        between = between + share * np.cov(means.T, bias=True)
        mean = mean + share * means.mean(axis=0)
    inside += RIDGE * np.trace(inside) / len(inside) * np.eye(len(inside))
    values, directions = np.linalg.eigh(inside)
    whiten = directions / np.sqrt(values)
    _, order = np.linalg.eigh(whiten.T @ between @ whiten)
    weights = (whiten @ order)[:, ::-1][:, :SUBJECTS]
    return mean.astype(np.float32), (weights / np.abs(weights).max()).astype(np.float32)
