"""What speaks for a passage: one row of numbers a candidate, none of which costs more in a larger store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.core.recall.pool import Ints, Mask, Pool
from topicality.core.recall.question import Question
from topicality.vectors import Array

K1, B, B_CONTEXT = 1.2, 0.75, 0.6
_AFTER = 14 * 86400.0  # seconds after a time in which it may still be talked about
_SMALL = 1e-9

Floats = NDArray[np.floating[Any]]


def candidates(pool: Pool, hits: Ints, best: Ints, allowed: Mask) -> Ints:
    """Rows worth a second look, ascending: the hits, and the neighbours (one before, two after) of the best of them.

    Args:
        hits: rows that a search found. best: those whose neighbours join, within their session.
        allowed: what filters let through, shape (N,).
    """
    near = [hits]
    for step in (-1, 1, 2):
        target = np.minimum(np.searchsorted(pool.number, pool.number[best] + step), max(0, len(pool) - 1))
        same = (pool.number[target] == pool.number[best] + step) & (pool.session[target] == pool.session[best])
        near.append(target[same])
    found = np.unique(np.concatenate(near)).astype(np.int64)
    return found[allowed[found]]


def bm25(counts: Floats, length: Floats, idf: Array, mean: float, b: float = B) -> Floats:
    """BM25 of rows with these counts and lengths (Robertson and Zaragoza 2009)."""
    norm = K1 * (1 - b + b * length / mean)
    scores: Floats = (counts * (K1 + 1) / (counts + norm[:, None])) @ idf
    return scores


class _Neighbours:
    """Values of the passages around each one, zero where a session ends or nothing was read."""

    def __init__(self, pool: Pool) -> None:
        self._moves: dict[int, tuple[Ints, Ints]] = {}
        self._pool = pool

    def __call__(self, values: Floats, step: int) -> Floats:
        if step not in self._moves:
            number, session = self._pool.number, self._pool.session
            target = np.searchsorted(number, number + step)
            target = np.where(target < len(number), target, 0)
            known = (number[target] == number + step) & (session[target] == session)
            self._moves[step] = target, np.flatnonzero(~known)
        target, unknown = self._moves[step]
        moved = values.take(target, axis=0)
        moved[unknown] = 0
        return moved


def features(pool: Pool, asked: Question, vector: Array, rows: Ints) -> dict[str, Array]:
    """The features of candidates, by name, each of shape (len(rows),).

    Args:
        vector: of the question, shape (D,), unit length. rows: the candidates, ascending, at least one.
    Cost: O(N * (S + D)) for a pool of N passages and S stems.
    """
    shift = _Neighbours(pool)

    def peak(values: Floats) -> Floats:
        """As a share of the best candidate's."""
        return values / (float(values[rows].max()) + _SMALL)

    def spread(values: Floats) -> Floats:
        """From 0 for the worst candidate to 1 for the best."""
        low, high = float(values[rows].min()), float(values[rows].max())
        return (values - low) / (high - low + _SMALL)

    # The question's words, in the passage and in it with its neighbours. Neighbours count by what they say about the
    # question at most: a long reply must not drown it.
    idf, mass = pool.idf, float(pool.idf.sum()) + _SMALL
    said = bm25(pool.counts, pool.length, idf, pool.mean_length)
    around = 2 * pool.counts + shift(pool.counts, -1) + shift(pool.counts, 1)
    around_length = 2 * pool.length + shift(pool.length, -1) + shift(pool.length, 1)
    said_around = bm25(around, around_length, idf, 4 * pool.mean_length, B_CONTEXT)
    has = (pool.counts > 0).astype(np.float32)
    cover = has @ idf / mass
    wide = np.maximum.reduce([has, *(shift(has, step) for step in (-2, -1, 1, 2))])
    entities = idf * np.array([stem in asked.entities for stem in pool.stems] or [False])
    entity_mass = float(entities.sum())

    # Meaning, alone and with the neighbours'.
    cosine = pool.vectors @ vector
    before = pool.vectors + 0.7 * shift(pool.vectors, -1)
    both = before + 0.5 * shift(pool.vectors, 1)
    cosine_before = (before @ vector) / (np.linalg.norm(before, axis=1) + _SMALL)
    cosine_both = (both @ vector) / (np.linalg.norm(both, axis=1) + _SMALL)

    b, d = peak(said), spread(cosine)
    bc, dc = peak(said_around), spread(cosine_both)
    base = (0.3 * (b + bc) + 0.2 * (d + dc)).astype(np.float32)
    of_base = base[rows]
    ranked = np.argsort(-of_base, kind="stable")
    rank = np.empty(len(rows), np.float32)
    rank[ranked] = np.arange(len(rows))

    # What the best few have in common.
    top = rows[ranked[:6]]
    centre = (np.maximum(base[top], 0)[:, None] ** 2 * pool.vectors[top]).sum(axis=0)
    centre /= np.linalg.norm(centre) + _SMALL

    long = np.clip(np.log2((pool.words + 1) / 40), 0, 4)
    user, reply = pool.user, 1 - pool.user
    dated, dated_after = _dated(pool, asked)
    past_words, past_meaning = peak(shift(said, -1)), spread(shift(cosine, -1))
    values: dict[str, Floats] = {
        "bm": b, "bmc": bc, "bmc_raw": said_around / mass, "bm_prev": past_words, "bm_next": peak(shift(said, 1)),
        "cover": cover, "cover2": cover**2, "cover5": wide @ idf / mass,
        "entity": has @ entities / entity_mass if entity_mass > 0 else np.zeros(len(pool)),
        "cos_raw": cosine, "cosp": spread(cosine_before), "cosc": dc, "cosc_raw": cosine_both, "cos_prev": past_meaning,
        "bm_cos": b * d, "feedback": spread(pool.vectors @ centre),
        "base_prev2": shift(base, -2), "base_next2": shift(base, 2),
        "answer": shift(pool.question, -1) * (0.5 * past_words + 0.5 * past_meaning),  # the reply to a question that matches
        "speaker": pool.named, "first_person": pool.mine, "first_named": pool.mine * (pool.named > 0),
        "long_user": user * long, "long_reply": reply * long, "long_reply_base": reply * long * base,
        "reply_long": reply * (pool.words > 120),
        "when_time": asked.when * pool.time, "count_number": asked.count * pool.number_said,
        "names_proper": asked.names * pool.proper, "edge": _edge(pool, asked, rows),
        "dated": dated, "dated_after": dated_after, "dated_base": dated * base,
        "standing_user": pool.standing * user * asked.from_user, "from_user": asked.from_user * user,
        "broad_long": asked.broad * user * long, "broad_reply": asked.broad * reply * long,
    }  # fmt: skip
    found = {name: np.asarray(value, np.float32)[rows] for name, value in values.items()}
    found["near"] = _nearby(pool, rows, of_base)
    found["session"] = _sessions(pool.session[rows], of_base)
    found["rank"] = 10.0 / (10.0 + rank)
    found["base"] = of_base
    return found


def matrix(found: dict[str, Array]) -> tuple[Array, tuple[str, ...]]:
    """Features as a matrix, shape (candidates, features), and the names of its columns."""
    return np.stack(list(found.values()), axis=1), tuple(found)


def _edge(pool: Pool, asked: Question, rows: Ints) -> Floats:
    """How early or late a passage is among the candidates, where the question asks for the first or the latest."""
    times = pool.at[rows]
    if not (asked.first or asked.last) or np.isnan(times).all():
        return np.zeros(len(pool))
    low, high = float(np.nanmin(times)), float(np.nanmax(times))
    position = np.nan_to_num((pool.at - low) / max(1.0, high - low), nan=0.5).clip(0.0, 1.0)
    found: Floats = asked.first * (1 - position) + asked.last * position
    return found


def _dated(pool: Pool, asked: Question) -> tuple[Floats, Floats]:
    """Whether a passage was said in a time that the question names, or within two weeks after it."""
    inside, after = np.zeros(len(pool)), np.zeros(len(pool))
    for start, end in asked.ranges:
        inside = np.maximum(inside, (pool.at >= start) & (pool.at < end))
        after = np.maximum(after, (pool.at >= end) & (pool.at < end + _AFTER))
    return inside, after


def _nearby(pool: Pool, rows: Ints, base: Array) -> Array:
    """The best other candidate within four passages, in the same session."""
    number, session = pool.number[rows], pool.session[rows]
    near = np.zeros(len(rows), np.float32)
    for step in (-4, -3, -2, -1, 1, 2, 3, 4):
        other = np.minimum(np.searchsorted(number, number + step), len(rows) - 1)
        known = (number[other] == number + step) & (session[other] == session)
        near = np.maximum(near, np.where(known, base[other], 0))
    return near


def _sessions(session: Ints, base: Array) -> Array:
    """The mean of the three best of a passage's session, as a share of the best session's."""
    order = np.lexsort((-base, session))
    first = np.r_[True, np.diff(session[order]) != 0]
    group = np.cumsum(first) - 1
    place = np.arange(len(order)) - np.flatnonzero(first)[group]
    means = np.bincount(group, weights=np.where(place < 3, base[order], 0)) / 3
    found = np.empty(len(order), np.float32)
    found[order] = means[group]
    found /= found.max() + _SMALL
    return found
