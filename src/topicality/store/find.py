"""Searching the SQL store: vectors over an index in memory, words over the postings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, select

from topicality.records import SIDES, Hit, Scope, WordHits
from topicality.store import rules, words
from topicality.store import schema as t
from topicality.store.near import Near, NearCache
from topicality.store.rows import chosen
from topicality.vectors import Array

PAGE = 8192  # rows read at a time
_LOW = (1 << 32) - 1

Ids = NDArray[np.int64]


class Finder:
    """Searches of one store; its index is filled from the tables before each search.

    Numbers are given to passages while their conversation is held, so that whoever sees number n sees all below it: reading
    on from the last number is enough. What was deleted is noticed when a hit is looked up, and then left out for good.

    Args:
        room: bytes of vectors kept in memory.
    """

    def __init__(self, room: int) -> None:
        self._cache = NearCache(room)

    def clear(self) -> None:
        """Free the memory."""
        self._cache.clear()

    def vectors(self, connection: Connection, scope: Scope, query: Array, limit: int) -> list[Hit]:
        """See `ports.Store.search_vectors`."""
        talks = connection.execute(chosen(scope)).all()
        near = self._filled(connection, scope, talks, len(query))
        names = {talk.key: talk.name for talk in talks}

        def fetch(ids: Ids) -> tuple[NDArray[np.int8], Array]:
            return _vectors(connection, ids, len(query))

        with near.lock:
            while True:
                ids, scores = near.search(query, limit, scope, fetch)
                found = _places(connection, ids)
                missing = ids[[int(key) not in found for key in ids]]
                if not len(missing):
                    pairs = zip(ids.tolist(), scores.tolist(), strict=True)
                    return [_hit(names[key >> 32], found[key], score) for key, score in pairs]
                near.forget(missing)

    def words(self, connection: Connection, scope: Scope, terms: Sequence[str], limit: int, dimension: int) -> WordHits:
        """See `ports.Store.search_words`."""
        wanted = dict.fromkeys((rules.term(value) for value in terms), 0)
        talks = connection.execute(chosen(scope)).all()
        total = sum(talk.passages for talk in talks)
        mean = sum(talk.words for talk in talks) / total if total else 0.0
        if not wanted or not total or limit < 1:
            return WordHits((), wanted, total, mean)
        keys = np.array(sorted(talk.key for talk in talks), np.int64)
        sizes = {talk.key: talk.numbers + 1 for talk in talks}
        firsts = np.concatenate([[0], np.cumsum([sizes[key] for key in keys.tolist()])]).astype(np.int64)
        scores = np.zeros(int(firsts[-1]))
        first_of = dict(zip(keys.tolist(), firsts.tolist(), strict=False))
        for word, blocks in _postings(connection, scope, talks, list(wanted)).items():
            rows = [(first_of[key] + block * words.BLOCK, data) for key, block, data in blocks if key in first_of]
            places, counts, lengths = words.unpack(rows)
            inside = places < len(scores)  # a posting written since the conversations were read
            places, counts, lengths = places[inside], counts[inside], lengths[inside]
            wanted[word] = len(places)
            share = words.weights(counts, lengths, frequency=len(places), passages=total, mean_length=mean)
            scores[places] += share  # a passage stands at most once among a word's postings
        if scope.filtered:
            near = self._filled(connection, scope, talks, dimension)
            with near.lock:
                ids = near.ids[near.matching(scope)]
            allowed = np.zeros(len(scores), np.bool_)
            places = firsts[np.searchsorted(keys, ids >> 32)] + (ids & _LOW)
            allowed[places[places < len(scores)]] = True
            scores[~allowed] = 0.0
        top = words.best(scores, limit)
        at = np.searchsorted(firsts, top, side="right") - 1
        ids = (keys[at] << 32) | (top - firsts[at])
        names = {talk.key: talk.name for talk in talks}
        found = _places(connection, ids)
        hits = []
        for key, score in zip(ids.tolist(), scores[top].tolist(), strict=True):
            if key in found:
                spoken = found[key].terms.split(" ")
                hit = _hit(names[key >> 32], found[key], score)
                hits.append(replace(hit, counts=words.tally(spoken, wanted), length=len(spoken)))
        return WordHits(tuple(hits), wanted, total, mean)

    def _filled(self, connection: Connection, scope: Scope, talks: Sequence[Row[Any]], dimension: int) -> Near:
        name = (scope.owner, scope.conversation, dimension)
        near = self._cache.get(name, dimension)
        current = {talk.key for talk in talks}
        if not near.heads.keys() <= current or near.dead > 1024 + near.size // 4:
            self._cache.drop(name)
            near = self._cache.get(name, dimension)
        with near.lock:
            for talk in talks:
                head = near.heads.get(talk.key, 0)
                if talk.numbers > head:
                    near.heads[talk.key] = _load(connection, near, talk.key, head)
        return near


def _load(connection: Connection, near: Near, key: int, head: int) -> int:
    table = t.passage
    columns = (table.c.number, table.c.sequence, table.c.side, table.c.at, table.c.vector)
    while True:
        query = select(*columns).where(table.c.conversation == key, table.c.number > head)
        found = connection.execute(query.order_by(table.c.number).limit(PAGE)).all()
        if not found:
            return head
        numbers, sequences, sides, times, blobs = zip(*found, strict=True)
        near.extend(
            (key << 32) | np.array(numbers, np.int64),
            np.array(sequences, np.int64),
            np.array(sides, np.int8),
            np.array([np.nan if at is None else at for at in times], np.float64),
            list(blobs),
        )
        head = numbers[-1]
        if len(found) < PAGE:
            return head


def _grouped(ids: Ids) -> list[tuple[int, list[int]]]:
    keys = ids >> 32
    return [(int(key), (ids[keys == key] & _LOW).tolist()) for key in np.unique(keys)]


_PLACES = select(t.passage).where(
    t.passage.c.conversation == bindparam("key"),
    t.passage.c.number.in_(bindparam("numbers", expanding=True, literal_execute=True)),
)
_VECTORS = _PLACES.with_only_columns(t.passage.c.number, t.passage.c.vector)
_POSTINGS = select(t.posting.c.conversation, t.posting.c.word, t.posting.c.block, t.posting.c.data)


def _places(connection: Connection, ids: Ids) -> dict[int, Row[Any]]:
    found = {}
    for key, numbers in _grouped(ids):
        for row in connection.execute(_PLACES, {"key": key, "numbers": numbers}).all():
            found[(key << 32) | row.number] = row
    return found


def _vectors(connection: Connection, ids: Ids, dimension: int) -> tuple[NDArray[np.int8], Array]:
    vectors = np.zeros((len(ids), dimension), np.int8)
    scales = np.zeros(len(ids), np.float32)
    places = {key: place for place, key in enumerate(ids.tolist())}
    for key, numbers in _grouped(ids):
        for number, blob in connection.execute(_VECTORS, {"key": key, "numbers": numbers}).all():
            place = places[(key << 32) | number]
            scales[place] = np.frombuffer(blob, np.float32, 1)[0]
            vectors[place] = np.frombuffer(blob, np.int8, offset=4)
    return vectors, scales


def _postings(
    connection: Connection, scope: Scope, talks: Sequence[Row[Any]], terms: list[str]
) -> dict[str, list[tuple[int, int, bytes]]]:
    table = t.posting
    if len(talks) == 1:
        query = _POSTINGS.where(table.c.conversation == talks[0].key)
    else:
        query = _POSTINGS.where(
            table.c.conversation.in_(chosen(scope).with_only_columns(t.conversation.c.key).order_by(None))
        )
    found: dict[str, list[tuple[int, int, bytes]]] = {}
    for start in range(0, len(terms), 500):
        rows = connection.execute(query.where(table.c.word.in_(terms[start : start + 500]))).all()
        for key, word, block, data in rows:
            found.setdefault(word, []).append((key, block, data))
    return found


def _hit(conversation: str, row: Row[Any], score: float) -> Hit:
    return Hit(conversation, row.sequence, SIDES[row.side], row.position, row.first, row.last, row.at, score)
