"""`open(url)` gives a `Layer`: guard, drift, topics and memory over one store, wired. It owns no algorithm."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from topicality.config import Policy
from topicality.core.book import Reading
from topicality.core.drift import Reading as DriftReading
from topicality.core.drift import Settings, fed_by, step
from topicality.core.drift_state import DriftState
from topicality.core.landmarks import Landmarks
from topicality.core.rules import flattened, texts_of
from topicality.core.score import RuleMembers
from topicality.embed import load, load_background
from topicality.errors import InputError
from topicality.layer import flow
from topicality.layer.asked import recalled
from topicality.layer.conversation import Conversation
from topicality.layer.guard import Guard
from topicality.layer.recall import Recall
from topicality.layer.segmentation import TopicSegmenter
from topicality.layer.shelf import Placed, Shelf
from topicality.layer.topic_map import Mark, TopicMaps
from topicality.ports import Embedder, Store, Turn
from topicality.records import Change, ConversationRecord, Exchange, Imported, Operation, PutState, Scope
from topicality.store import open_store
from topicality.types import Verdict
from topicality.vectors import Array

DRIFT = "drift"
_KEPT = 64  # conversations whose state a process remembers

_log = logging.getLogger("topicality")


class Kept:
    """What a process remembers of one conversation. Used inside one turn at a time."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._live: flow.Live | None = None
        self.shelf = Shelf()
        self._before: Mark | None = None

    def stream(self, turn: Turn) -> flow.Flow:
        """The conversation's segmenter as the store has it."""
        layer = self._layer
        found = flow.opened(turn, layer.store, layer.segmenter, self._live, layer.ids)
        if self._live is not None and self._live.epoch != found.live.epoch:
            self.shelf = Shelf()  # begun anew, maybe by another process after an erase
        self._live = found.live
        return found

    def begin(self, turn: Turn) -> None:
        """Read what `place`, `place_many` and `flush` need."""
        self.shelf.read(turn, self._layer.reading)
        self._before = self._layer.maps.before(turn)

    def place(self, turn: Turn, stream: flow.Flow, exchange: Exchange, now: float) -> tuple[list[Operation], str]:
        """A completed exchange goes into its topic: what to write, and the topic's id."""
        one = settled(stream, exchange)
        reading = self._layer.reading
        operations = self.shelf.take(turn, one, now=now, reading=reading, unread=stream.unread)
        return operations, self.shelf.book.state.resolve(one.topic)

    def place_many(self, turn: Turn, stream: flow.Flow, placed: Iterable[Placed], now: float) -> list[Operation]:
        """Many completed exchanges go into their topics: what to write."""
        return self.shelf.take_many(turn, placed, now=now, reading=self._layer.reading, unread=stream.unread)

    def written(self, turn: Turn, numbers: dict[str, int]) -> None:
        """What `place` or the like gave is in the store; topics have these numbers."""
        self.shelf.written(turn, numbers)
        topics = [self.shelf.known[name] for name in numbers if name in self.shelf.known]
        self._layer.maps.changed(turn, self._before, topics)

    def flush(self, turn: Turn) -> None:
        """Count the words that are not counted yet, before an exchange is edited or deleted."""
        self.begin(turn)
        operations = self.shelf.flush(turn, self._layer.reading, flow.unread_of(turn.state(flow.FLOW)))
        if operations:
            self.written(turn, self._layer.write(turn, operations))

    def changed(self, turn: Turn, old: Exchange, new: Exchange | None, now: float, fresh: flow.Places) -> None:
        """An exchange was edited, or deleted (`new` is None): topics and segmenter follow. After `flush`."""
        layer = self._layer
        if old.status == "completed":
            if new is None:
                operations = self.shelf.deleted(turn, old, now=now, reading=layer.reading)
            else:
                operations = self.shelf.edited(turn, old, new, now=now, reading=layer.reading)
            if operations:
                self._before = layer.maps.before(turn)
                self.written(turn, layer.write(turn, operations))
        stream = flow.remade(turn, layer.store, layer.segmenter, layer.ids, fresh)
        self._live = stream.live
        layer.write(turn, stream.operations())


def settled(stream: flow.Flow, exchange: Exchange) -> Placed:
    """Where a completed exchange belongs, as the segmenter has it."""
    topic, provisional = stream.settle(exchange.sequence)
    late = tuple((sequence, stream.topic(number)) for sequence, number in stream.late)
    stream.late = []
    return Placed(topic, exchange, provisional, late, topic in stream.aliases.values())


class Layer:
    """Guard, drift, topics and memory over one store. Thread-safe; close it when done, or use it in a `with`.

    Args:
        store: it is closed with the layer. policy: None watches topics and drift of nothing, and refuses nothing.
        embedder: see `load_embedder`. clock: seconds since the epoch. ids: makes ids that are never repeated.
    Attributes:
        guard: the policy's guard, for replies and streams; None without a policy.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy | str | Path | None = None,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.store = store
        self.embedder = load(embedder)
        store.bind(self.embedder.space)
        self.clock = clock
        self.ids = ids
        self.guard = None if policy is None else Guard(policy, self.embedder)
        self.segmenter = TopicSegmenter(self.embedder)
        self.maps = TopicMaps(store)
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._lock = threading.Lock()

    def conversation(self, id: str, owner: str = "default") -> Conversation:  # noqa: A002 - the house's word for it
        """A conversation by the host's id, new or not. Cheap: nothing is read or written."""
        return Conversation(self, id, owner)

    def conversations(self, owner: str = "default") -> list[ConversationRecord]:
        """An owner's conversations with their counts, by id."""
        return self.store.conversations(owner)

    def recall(self, question: str, budget: int = 1000, *, owner: str = "default") -> Recall:
        """The passages that matter for a question, from all conversations of an owner."""
        return recalled(self, Scope(owner), question, budget)

    def export(self, owner: str | None = None) -> Iterator[str]:
        """Everything, or one owner's, as JSON lines; `load` gives the same back, byte for byte."""
        return self.store.export(owner)

    def load(self, lines: Iterable[str]) -> Imported:
        """Read an export: all of it or nothing, twice is once. See `ports.Store.load` for what is refused."""
        return self.store.load(lines)

    def erase(self, owner: str, conversation: str | None = None) -> int:
        """Remove an owner (or one of the conversations) with everything derived; how many exchanges went."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == owner]:
                del self._kept[key]
        self.maps.clear()
        return self.store.erase(owner, conversation)

    def sweep(self, timeout: float) -> int:
        """Fail the exchanges that have been pending for `timeout` seconds or longer (a host that crashed); how many."""
        return self.store.sweep(self.clock(), timeout)

    def close(self) -> None:
        """Close the store. Closing twice is fine."""
        with self._lock:
            self._kept.clear()
        self.maps.clear()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def reading(self) -> Reading:
        """How texts are read for labels."""
        return Reading(everyday=load_background(load("minilm")).rarity)

    @cached_property
    def landmarks(self) -> Landmarks:
        """Where a conversation may be heading: the policy's rules and the background's subjects."""
        if self.guard is None:
            return Landmarks([], self.embedder.space)
        entries = texts_of(self.guard.policy.sided())
        vectors = iter(self.embedder.embed(flattened(entries)))
        members: dict[str, list[RuleMembers]] = {"allowed": [], "blocked": []}
        for entry in entries:
            rows = [next(vectors) for _ in (*entry.members, *entry.counter)]
            own = RuleMembers(entry.rule.name, entry.members, np.array(rows[: len(entry.members)]))
            members[entry.side].append(own)
        return Landmarks.of_rules(members["allowed"], members["blocked"], load_background(self.embedder))

    @contextmanager
    def held(self, owner: str, conversation: str) -> Iterator[tuple[Turn, Kept]]:
        """A turn of the store, with what this process remembers of the conversation. An error forgets that."""
        with self.store.turn(owner, conversation) as turn:
            with self._lock:
                kept = self._kept.pop((owner, conversation), None) or Kept(self)
            yield turn, kept
        with self._lock:
            self._kept[owner, conversation] = kept
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def drift(
        self, turn: Turn, vector: Array | None, verdict: Verdict | None, at: float
    ) -> tuple[DriftReading | None, list[PutState], tuple[str, ...]]:
        """The reading after a message, what to write of it, and notes; nothing without a policy."""
        if self.guard is None or verdict is None:
            return None, [], ()
        state: DriftState | None = None
        notes: tuple[str, ...] = ()
        kept = turn.state(DRIFT)
        if kept is not None:
            try:
                state = DriftState.from_dict(json.loads(kept))
            except (InputError, ValueError):
                _log.warning("the drift state of a conversation cannot be read and starts afresh")
                notes = ("the drift state could not be read and starts afresh",)
        settings = Settings(allowed_threshold=self._threshold)
        space = self.embedder.space
        if state is not None and state.space not in ("", str(space)):
            state, notes = None, ("the drift state was of another encoder and starts afresh",)
        state, reading = step(
            state, vector, fed_by(verdict), now=at, settings=settings, landmarks=self.landmarks, space=space
        )
        value = json.dumps(state.to_dict(), separators=(",", ":")).encode()
        return reading, [PutState(DRIFT, value)], notes

    def write(self, turn: Turn, operations: Sequence[Operation]) -> dict[str, int]:
        """Write inside a turn; the numbers topics were given.

        Raises:
            InputError: `ids` gave an id a second time, so the store takes this change for one it has had.
        """
        info = turn.info()
        applied = turn.apply(Change(self.ids(), info.owner, info.id, tuple(operations)))
        if applied.repeated:
            raise InputError("the ids given to this layer repeat themselves; give it some that never do, such as uuid4")
        return dict(applied.topics)

    @property
    def _threshold(self) -> float:
        policy = None if self.guard is None else self.guard.policy
        return policy.allowed_threshold if policy is not None and policy.scoring == "calibrated" else 0.3


def open_layer(
    url: str,
    policy: Policy | str | Path | None = None,
    embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
    *,
    clock: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid4().hex,
) -> Layer:
    """Open a store, making it where needed, with everything on top of it. Public as `topicality.open`.

    Args:
        url: "memory://"; "sqlite:///chat.db" or a path; "postgresql://user:password@host/database".
        policy: a `Policy`, a file or a preset; without one nothing is judged, only remembered.
        embedder: an encoder, or a name for `load_embedder`. A store keeps to the encoder it was begun with.
        clock: seconds since the epoch. ids: makes ids that are never repeated.
    Raises:
        ConfigError: the address, the policy or the encoder's name. MissingExtraError: a library is not installed.
        SpaceMismatchError: the store has another encoder's vectors. StoreError: it cannot be opened.
    """
    store = open_store(url)
    try:
        return Layer(store, policy, embedder, clock=clock, ids=ids)
    except BaseException:
        store.close()
        raise
