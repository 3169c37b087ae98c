"""`open(url)` gives a `Layer`: guard, drift, topics and memory over one store, wired. It owns no algorithm."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from numpy.typing import ArrayLike

from topicality.config import Policy
from topicality.core.book import Reading
from topicality.core.drift import Reading as DriftReading
from topicality.core.drift import Settings, heard_from, reading_of, step
from topicality.core.drift_state import DriftState
from topicality.core.landmarks import Landmarks
from topicality.embed import load, load_background
from topicality.embed.recall import load_recall
from topicality.errors import InputError
from topicality.layer import flow
from topicality.layer.asked import recalled
from topicality.layer.conversation import Conversation
from topicality.layer.drift import landmarks_of
from topicality.layer.guard import Guard
from topicality.layer.labeller import BackgroundLabeller
from topicality.layer.labelling import setup
from topicality.layer.recall import Recall
from topicality.layer.segmentation import TopicSegmenter
from topicality.layer.shelf import Placed, Shelf
from topicality.layer.topic_map import Mark, TopicMaps
from topicality.llm.asking import Asker, as_asker
from topicality.llm.settings import Roles
from topicality.ports import Embedder, Llm, Store, Turn
from topicality.records import Change, ConversationRecord, Exchange, Imported, Operation, PutState, PutTopic, Scope
from topicality.store import open_store
from topicality.types import Message, Verdict
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
        self.looked = False  # whether the labeller was woken by this process

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

    def written(self, turn: Turn, numbers: Mapping[str, int]) -> None:
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


LlmLike = str | Llm | Callable[[str, str], Any] | Asker


class Layer:
    """Guard, drift, topics and memory over one store. Thread-safe; close it when done, or use it in a `with`.

    Args:
        store: it is closed with the layer. policy: None watches topics and drift of nothing, and refuses nothing.
        embedder: see `load_embedder`. clock: seconds since the epoch. ids: makes ids that are never repeated.
        llm: a language model that judges borderline messages, names closed topics in the background, and picks topics to
            reopen where it is asked to. None, and nothing is different from a layer that knows of none.
        roles: which of these it does, and how long a message may wait for it.
    Attributes:
        guard: the policy's guard, for replies and streams; None without a policy.
        asker: asks the model, within its budget; None without one. labeller: names closed topics; None if nobody does.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy | str | Path | None = None,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = lambda: uuid4().hex,
        llm: LlmLike | None = None,
        roles: Roles | None = None,
    ) -> None:
        self.store = store
        self.embedder = load(embedder)
        store.bind(self.embedder.space)
        self.clock = clock
        self.ids = ids
        self.roles = roles or Roles()
        self.asker = as_asker(llm)
        judge = self.asker if self.roles.judge else None
        wait = self.roles.judge or Roles().judge
        self.guard = None if policy is None else Guard(policy, self.embedder, judge=judge, judge_timeout=wait)
        self.segmenter = TopicSegmenter(self.embedder)
        self.maps = TopicMaps(store)
        self.labeller = self._labeller()
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

    def warm(self) -> None:
        """Load now what is otherwise loaded with the first message: the encoder, what was learned, the word lists.

        Raises:
            EmbedError: the encoder cannot be loaded.
        """
        hello = "hello"
        self.segmenter.live().receive(Message("user", hello), self.embedder.embed([hello])[0])
        load_recall(self.embedder)
        if self.guard is not None:
            self.guard.check(hello)
        _ = self.reading, self.landmarks

    def llm_use(self) -> dict[str, dict[str, Any]]:
        """What the language model was asked so far, by role: calls, tokens, seconds, outcomes; empty when it was not."""
        return {} if self.asker is None else self.asker.counters.to_dict()

    def close(self) -> None:
        """Close the store; twice is fine. Waits for no language model, and 5 seconds at most for labels being written."""
        if self.labeller is not None:
            self.labeller.close()
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
        return landmarks_of(self.guard.policy, self.embedder)

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

    def completed(self, kept: Kept, operations: Sequence[Operation]) -> bool:
        """Whether the labeller has something to look at after these operations: a topic closed, or nobody looked yet."""
        if self.labeller is None:
            return False
        closed = any(isinstance(one, PutTopic) and one.topic.status == "finalized" for one in operations)
        first, kept.looked = not kept.looked, True
        return first or closed

    def _labeller(self) -> BackgroundLabeller | None:
        if self.asker is None or self.roles.labels is None:
            return None
        how = setup(self.roles.labels, timeout=self.roles.label_timeout)
        return BackgroundLabeller(
            self.store, self.asker, how=how, reading=lambda: self.reading, hold=self._topics, clock=self.clock
        )

    @contextmanager
    def _topics(self, owner: str, conversation: str) -> Iterator[tuple[Turn, Kept]]:
        """As `held`, for a writer of topics that has had nothing to do with the messages."""
        with self.held(owner, conversation) as (turn, kept):
            kept.stream(turn)  # notices a conversation that was begun anew
            yield turn, kept

    def drift(
        self, turn: Turn, vector: Array | None, verdict: Verdict | None, at: float
    ) -> tuple[DriftReading | None, list[PutState], tuple[str, ...]]:
        """The reading after a message, what to write of it, and notes; nothing without a policy."""
        if self.guard is None or verdict is None:
            return None, [], ()
        state, notes = self._drifting(turn.state(DRIFT))
        settings, space = Settings(allowed_threshold=self._threshold), self.embedder.space
        state, reading = step(
            state, vector, heard_from(verdict), now=at, settings=settings, landmarks=self.landmarks, space=space
        )
        value = json.dumps(state.to_dict(), separators=(",", ":")).encode()
        return reading, [PutState(DRIFT, value)], notes

    def drifting(self, owner: str, conversation: str) -> DriftReading | None:
        """The drift of a conversation as it stands between messages; None without a policy."""
        if self.guard is None:
            return None
        state, _ = self._drifting(self.store.state(owner, conversation, DRIFT))
        settings = Settings(allowed_threshold=self._threshold)
        return reading_of(state, now=self.clock(), settings=settings, landmarks=self.landmarks)

    def _drifting(self, kept: bytes | None) -> tuple[DriftState | None, tuple[str, ...]]:
        """The drift state as it was written, and notes where it cannot be gone on with."""
        if kept is None:
            return None, ()
        try:
            state = DriftState.from_dict(json.loads(kept))
        except (InputError, ValueError):
            _log.warning("the drift state of a conversation cannot be read and starts afresh")
            return None, ("the drift state could not be read and starts afresh",)
        if state.space not in ("", str(self.embedder.space)):
            return None, ("the drift state was of another encoder and starts afresh",)
        return state, ()

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
    llm: LlmLike | None = None,
    roles: Roles | None = None,
    clock: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid4().hex,
) -> Layer:
    """Open a store, making it where needed, with everything on top of it. Public as `topicality.open`.

    Args:
        url: "memory://"; "sqlite:///chat.db" or a path; "postgresql://user:password@host/database".
        policy: a `Policy`, a file or a preset; without one nothing is judged, only remembered.
        embedder: an encoder, or a name for `load_embedder`. A store keeps to the encoder it was begun with.
        llm: "openai:gpt-4o-mini", "openai:MODEL@BASE_URL", "http://localhost:8080/v1", any callable
            `(system, user) -> reply`, an `Llm`, or an `Asker` with budgets and prompts of your own. See `Layer`.
        roles: which roles it has, and how long a message may wait for each.
        clock: seconds since the epoch. ids: makes ids that are never repeated.
    Raises:
        ConfigError: the address, the policy, or the name of the encoder or the language model.
        MissingExtraError: a library is not installed.
        SpaceMismatchError: the store has another encoder's vectors. StoreError: it cannot be opened.
    """
    store = open_store(url)
    try:
        return Layer(store, policy, embedder, clock=clock, ids=ids, llm=llm, roles=roles)
    except BaseException:
        store.close()
        raise
