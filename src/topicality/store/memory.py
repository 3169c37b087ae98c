"""The store in memory: the reference the others are compared with, for tests, demos and short scripts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from topicality.errors import SpaceMismatchError, StoreError
from topicality.records import (
    Applied,
    Change,
    ConversationRecord,
    Exchange,
    ExchangeStatus,
    Fail,
    Hit,
    Imported,
    RunRecord,
    Scope,
    StoredPassage,
    TopicRecord,
    WordHits,
)
from topicality.store import rules, transfer, words
from topicality.store.talk import MemoryTurn, Place, Talk, inside, last, order
from topicality.store.transfer import Bundle
from topicality.types import Space


class MemoryStore:
    """See `ports.Store`. Nothing survives the process; searches compare everything; a turn costs O(conversation).

    Args:
        runs: how many runs a conversation's log keeps. patience: seconds a turn waits for its conversation.
    """

    def __init__(self, *, runs: int = 100, patience: float = 30.0) -> None:
        self._talks: dict[tuple[str, str], Talk] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._lock = threading.RLock()
        self._space: Space | None = None
        self._runs = runs
        self._patience = patience
        self._born = 0
        self._closed = False

    @property
    def space(self) -> Space | None:
        """See `ports.Store.space`."""
        return self._space

    def bind(self, space: Space) -> None:
        """See `ports.Store.bind`."""
        with self._open():
            if self._space is not None and self._space != space:
                raise SpaceMismatchError(
                    self._space, space, hint="open another store for this encoder, or embed the transcripts again"
                )
            self._space = space

    @contextmanager
    def turn(self, owner: str, conversation: str) -> Iterator[MemoryTurn]:
        """See `ports.Store.turn`."""
        Scope(owner, conversation or "")
        with self._open():
            lock = self._locks.setdefault((owner, conversation), threading.Lock())
        if not lock.acquire(timeout=self._patience):
            raise StoreError(f"the conversation was held by another turn for {self._patience:g} s; try again")
        try:
            with self._open():
                self._born += 1
                fresh = Talk(self._born, ConversationRecord(owner, conversation, born=self._born))
                turn = MemoryTurn(self._talks.get((owner, conversation), fresh), self._space, self._runs)
            yield turn
            if turn.changed:
                with self._open():
                    self._talks[owner, conversation] = turn.result()
        finally:
            lock.release()

    def apply(self, change: Change) -> Applied:
        """See `ports.Store.apply`."""
        rules.check(change, self._space)
        with self.turn(change.owner, change.conversation) as turn:
            return turn.apply(change)

    def conversations(self, owner: str, *, after: str = "", limit: int | None = None) -> list[ConversationRecord]:
        """See `ports.Store.conversations`."""
        return [talk.info for talk in self._of(Scope(owner)) if talk.info.id > after][:limit]

    def conversation(self, owner: str, conversation: str) -> ConversationRecord:
        """See `ports.Store.conversation`."""
        found = self._of(Scope(owner, conversation))
        return found[0].info if found else ConversationRecord(owner, conversation)

    def exchange(self, owner: str, conversation: str, exchange: str) -> Exchange | None:
        """See `ports.Store.exchange`."""
        found = [talk.known(exchange) for talk in self._of(Scope(owner, conversation))]
        return found[0] if found else None

    def exchanges(
        self,
        *scopes: Scope,
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
        limit: int | None = None,
    ) -> list[Exchange]:
        """See `ports.Store.exchanges`."""
        found = [e for scope in scopes for talk in self._of(scope) for e in talk.selected(scope, statuses)]
        return last(found, newest)[:limit]

    def passages(self, *scopes: Scope) -> list[StoredPassage]:
        """See `ports.Store.passages`."""
        return [passage for scope in scopes for passage in self._passages(scope)]

    def _passages(self, scope: Scope) -> list[StoredPassage]:
        found = ((talk.info.id, talk.passages[place], talk.time(place)) for talk, place in self._live(scope))
        ordered = sorted(
            found, key=lambda entry: (entry[0], order((entry[1].sequence, entry[1].side, entry[1].position)))
        )
        return [
            StoredPassage(
                name, kept.sequence, kept.side, kept.position, kept.start, kept.end, at, tuple(kept.terms.split()),
                None if kept.vector is None else rules.decode(kept.vector),
            )
            for name, kept, at in ordered
        ]  # fmt: skip

    def topics(
        self, owner: str, conversation: str | None = None, *, dropped: bool = False
    ) -> list[tuple[str, TopicRecord]]:
        """See `ports.Store.topics`."""
        return [
            (talk.info.id, topic)
            for talk in self._of(Scope(owner, conversation))
            for topic in talk.topics.values()
            if dropped or topic.status != "dropped"
        ]

    def state(self, owner: str, conversation: str, name: str) -> bytes | None:
        """See `ports.Store.state`."""
        found = [talk.states.get(name) for talk in self._of(Scope(owner, conversation))]
        return found[0] if found else None

    def runs(self, owner: str, conversation: str, *, limit: int = 100) -> list[RunRecord]:
        """See `ports.Store.runs`."""
        return [run for talk in self._of(Scope(owner, conversation)) for run in reversed(talk.runs)][:limit]

    def search_vectors(self, scope: Scope, vector: ArrayLike, limit: int) -> list[Hit]:
        """See `ports.Store.search_vectors`."""
        query = rules.checked(vector, self._space)
        found = []
        for talk, place in self._live(scope):
            blob = talk.passages[place].vector
            if blob is not None:
                score = float(np.clip(rules.decode(blob) @ query, -1.0, 1.0))
                found.append((-score, -talk.born, -talk.numbers[place], _hit(talk, place, score)))
        return [entry[3] for entry in sorted(found, key=lambda entry: entry[:3])[:limit]]

    def search_words(self, scope: Scope, terms: Sequence[str], limit: int) -> WordHits:
        """See `ports.Store.search_words`."""
        wanted = dict.fromkeys((rules.term(value) for value in terms), 0)
        everything = [
            (talk, place, talk.passages[place].terms.split())
            for talk, place in self._live(Scope(scope.owner, scope.conversation))
        ]
        for _, _, spoken in everything:
            for value in set(spoken) & wanted.keys():
                wanted[value] += 1
        total = len(everything)
        mean = sum(len(spoken) for _, _, spoken in everything) / total if total else 0.0
        allowed = {(id(talk), place) for talk, place in self._live(scope)}
        found = []
        for talk, place, spoken in everything:
            counts = {value: count for value, count in Counter(spoken).items() if value in wanted}
            if not counts or (id(talk), place) not in allowed:
                continue
            length = np.array([float(len(spoken))])
            score = sum(
                float(
                    words.weights(
                        np.array([float(count)]), length, frequency=wanted[value], passages=total, mean_length=mean
                    )[0]
                )
                for value, count in counts.items()
            )
            hit = replace(_hit(talk, place, score), counts=counts, length=len(spoken))
            found.append((-score, -talk.born, -talk.numbers[place], hit))
        hits = tuple(entry[3] for entry in sorted(found, key=lambda entry: entry[:3])[:limit])
        return WordHits(hits, wanted, total, mean)

    def sweep(self, now: float, timeout: float, *, owner: str | None = None) -> int:
        """See `ports.Store.sweep`."""
        with self._open():
            late = [
                (talk.info, exchange.id)
                for talk in self._talks.values()
                for exchange in talk.exchanges.values()
                if exchange.status == "pending"
                and exchange.begun_at <= now - timeout
                and owner in (None, talk.info.owner)
            ]
        swept = 0
        for info, exchange in late:
            with self.turn(info.owner, info.id) as turn:
                known = turn.exchange(exchange)
                if known is not None and known.status == "pending":
                    turn.apply(Change(f"sweep:{known.sequence}", info.owner, info.id, (Fail(exchange, "timed out"),)))
                    swept += 1
        return swept

    def export(self, owner: str | None = None, conversation: str | None = None) -> Iterator[str]:
        """See `ports.Store.export`."""
        with self._open():
            talks = [
                self._talks[key]
                for key in sorted(self._talks)
                if owner in (None, key[0]) and conversation in (None, key[1])
            ]
            space = self._space
        yield transfer.header(space)
        for talk in talks:
            yield from talk.bundle().lines()

    def load(self, lines: Iterable[str]) -> Imported:
        """See `ports.Store.load`."""
        with self._open():
            space, bundles = transfer.read(lines, self._space)
            fresh: dict[tuple[str, str], Talk] = {}

            def existing(owner: str, conversation: str) -> Bundle | None:
                talk = fresh.get((owner, conversation)) or self._talks.get((owner, conversation))
                return None if talk is None else talk.bundle()

            def put(bundle: Bundle) -> None:
                self._born += 1
                fresh[bundle.owner, bundle.conversation] = Talk.of(self._born, bundle)

            counts = transfer.merge(bundles, existing, put)
            self._talks.update(fresh)
            self._space = self._space or space
            return counts

    def erase(self, owner: str, conversation: str | None = None) -> int:
        """See `ports.Store.erase`."""
        with self._open():
            gone = [key for key in self._talks if key[0] == owner and conversation in (None, key[1])]
            return sum(len(self._talks.pop(key).exchanges) for key in gone)

    def moment(self) -> AbstractContextManager[None]:
        """See `ports.Store.moment`."""
        return nullcontext()

    def close(self) -> None:
        """See `ports.Store.close`."""
        self._closed = True
        self._talks.clear()

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed; open it again")
            yield

    def _of(self, scope: Scope) -> list[Talk]:
        with self._open():
            if scope.conversation is not None:
                talk = self._talks.get((scope.owner, scope.conversation))
                return [talk] if talk else []
            return [self._talks[key] for key in sorted(self._talks) if key[0] == scope.owner]

    def _live(self, scope: Scope) -> Iterator[tuple[Talk, Place]]:
        for talk in self._of(scope):
            for place in talk.numbers:
                at = talk.time(place)
                if (not scope.sides or place[1] in scope.sides) and inside(scope, place[0], at):
                    yield talk, place


def _hit(talk: Talk, place: Place, score: float) -> Hit:
    found = talk.passages[place]
    return Hit(talk.info.id, *place, found.start, found.end, talk.time(place), score)
