"""Searching the SQL store: vectors over an index in memory, words over the postings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, literal_column, select

from topicality.records import SIDES, Hit, Scope, WordHits
from topicality.store import rules, words
from topicality.store import schema as t
from topicality.store.index import unposted
from topicality.store.near import Near, NearCache
from topicality.store.prepared import Found, Prepared, among, each, listed
from topicality.store.rows import Talk, talks
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
        here = talks(connection, scope)
        near = self._filled(connection, scope, here, len(query))
        names = {talk.key: talk.name for talk in here}
        heads = {talk.key: talk.numbers for talk in here}

        def fetch(ids: Ids) -> tuple[NDArray[np.int8], Array]:
            return _vectors(connection, ids, len(query))

        with near.lock:
            while True:
                ids, scores = near.search(query, limit, scope, fetch)
                found = _places(connection, ids)
                missing = [key for key in ids.tolist() if key not in found]
                # What is beyond this transaction's moment is not gone: another thread has read on from a later one.
                gone = [key for key in missing if (key & _LOW) <= heads.get(key >> 32, 0)]
                if not gone:
                    pairs = zip(ids.tolist(), scores.tolist(), strict=True)
                    return [_hit(names[key >> 32], found[key], score) for key, score in pairs if key in found]
                near.forget(np.array(gone, np.int64))

    def words(self, connection: Connection, scope: Scope, terms: Sequence[str], limit: int, dimension: int) -> WordHits:
        """See `ports.Store.search_words`. The connection reads everything as of one moment."""
        wanted = dict.fromkeys((rules.term(value) for value in terms), 0)
        here = talks(connection, scope)
        total = sum(talk.passages for talk in here)
        mean = sum(talk.words for talk in here) / total if total else 0.0
        if not wanted or not total or limit < 1:
            return WordHits((), wanted, total, mean)
        keys = np.array(sorted(talk.key for talk in here), np.int64)
        sizes = {talk.key: talk.numbers + 1 for talk in here}
        firsts = np.concatenate([[0], np.cumsum([sizes[key] for key in keys.tolist()])]).astype(np.int64)
        scores = np.zeros(int(firsts[-1]))
        first_of = dict(zip(keys.tolist(), firsts.tolist(), strict=False))
        blocks = _postings(connection, here, list(wanted))
        for talk in here:
            if talk.numbers > talk.posted:
                waiting = unposted(connection, talk.key, talk.posted)
                for (word, block), (data, _) in words.postings(waiting, wanted).items():
                    blocks.setdefault(word, []).append((talk.key, block, data))
        for word, found in blocks.items():
            rows = [(first_of[key] + block * words.BLOCK, data) for key, block, data in found]
            places, counts, lengths = words.unpack(rows)
            wanted[word] = len(places)
            share = words.weights(counts, lengths, frequency=len(places), passages=total, mean_length=mean)
            scores[places] += share  # a passage stands at most once among a word's postings
        if scope.filtered:
            near = self._filled(connection, scope, here, dimension)
            with near.lock:
                ids = near.ids[near.matching(scope)]
            allowed = np.zeros(len(scores), np.bool_)
            places = firsts[np.searchsorted(keys, ids >> 32)] + (ids & _LOW)
            allowed[places[places < len(scores)]] = True
            scores[~allowed] = 0.0
        top = words.best(scores, limit)
        at = np.searchsorted(firsts, top, side="right") - 1
        ids = (keys[at] << 32) | (top - firsts[at])
        names = {talk.key: talk.name for talk in here}
        known = _places(connection, ids)
        hits = []
        for key, score in zip(ids.tolist(), scores[top].tolist(), strict=True):
            if key in known:
                spoken = known[key][-1].split(" ")
                tally = words.tally(spoken, wanted)
                hits.append(_hit(names[key >> 32], known[key], score, tally, len(spoken)))
        return WordHits(tuple(hits), wanted, total, mean)

    def _filled(self, connection: Connection, scope: Scope, here: Sequence[Talk], dimension: int) -> Near:
        name = (scope.owner, scope.conversation, dimension)
        near = self._cache.get(name, dimension)
        current = {talk.key for talk in here}
        if not near.heads.keys() <= current or near.dead > 1024 + near.size // 4:
            self._cache.drop(name)
            near = self._cache.get(name, dimension)
        with near.lock:
            for talk in here:
                head = near.heads.get(talk.key, 0)
                if talk.numbers > head:
                    near.heads[talk.key] = _load(connection, near, talk.key, head)
        return near


def _load(connection: Connection, near: Near, key: int, head: int) -> int:
    while True:
        found = _BEYOND.rows(connection, key=key, head=head, most=PAGE)
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


def _named(*columns: Any) -> Prepared:
    """A statement for passages by id, of any conversations: one statement, however many those are."""

    def made(dialect: Any) -> Any:
        value = each(dialect, "ids").c.value
        here = (
            t.passage.c.conversation == value.op(">>")(literal_column("32")),
            t.passage.c.number == value.op("&")(literal_column(str(_LOW))),
        )
        return select(value, *columns).where(*here)

    return Prepared(made)


_PASSAGE = t.passage.c
_PLACES = _named(
    _PASSAGE.sequence, _PASSAGE.side, _PASSAGE.position, _PASSAGE.first, _PASSAGE.last, _PASSAGE.at,
    _PASSAGE.terms,
)  # fmt: skip
_VECTORS = _named(_PASSAGE.vector)
_BEYOND = Prepared(
    select(_PASSAGE.number, _PASSAGE.sequence, _PASSAGE.side, _PASSAGE.at, _PASSAGE.vector)
    .where(_PASSAGE.conversation == bindparam("key"), _PASSAGE.number > bindparam("head"))
    .order_by(_PASSAGE.number)
    .limit(bindparam("most"))
)


def _posted(dialect: Any) -> Any:
    table = t.posting
    return select(table.c.conversation, table.c.word, table.c.block, table.c.data).where(
        among(table.c.word, "words", dialect)
    )


_POSTED_HERE = Prepared(lambda dialect: _posted(dialect).where(t.posting.c.conversation == bindparam("key")))
_POSTED = Prepared(lambda dialect: _posted(dialect).where(among(t.posting.c.conversation, "keys", dialect)))


def _places(connection: Connection, ids: Ids) -> dict[int, Found]:
    return {row[0]: row for row in _PLACES.rows(connection, ids=listed(connection, np.sort(ids).tolist()))}


def _vectors(connection: Connection, ids: Ids, dimension: int) -> tuple[NDArray[np.int8], Array]:
    vectors = np.zeros((len(ids), dimension), np.int8)
    scales = np.zeros(len(ids), np.float32)
    order = np.argsort(ids)
    found = _VECTORS.rows(connection, ids=listed(connection, ids[order].tolist()))
    if found:
        said, blobs = zip(*found, strict=True)
        packed = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), 4 + dimension)
        places = order[np.searchsorted(ids, np.array(said, np.int64), sorter=order)]
        scales[places] = np.ascontiguousarray(packed[:, :4]).view(np.float32).ravel()
        vectors[places] = packed[:, 4:].view(np.int8)
    return vectors, scales


def _postings(
    connection: Connection, here: Sequence[Talk], terms: list[str]
) -> dict[str, list[tuple[int, int, bytes]]]:
    spoken = listed(connection, terms)
    if len(here) == 1:
        rows = _POSTED_HERE.rows(connection, key=here[0].key, words=spoken)
    else:
        rows = _POSTED.rows(connection, keys=listed(connection, [talk.key for talk in here]), words=spoken)
    found: dict[str, list[tuple[int, int, bytes]]] = {}
    for key, word, block, data in rows:
        found.setdefault(word, []).append((key, block, data))
    return found


def _hit(conversation: str, row: Found, score: float, counts: Mapping[str, int] | None = None, length: int = 0) -> Hit:
    _, sequence, side, position, first, last, at, _ = row
    return Hit(conversation, sequence, SIDES[side], position, first, last, at, score, counts or {}, length)
