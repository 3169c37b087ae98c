"""The labeller over a store: closed topics get better labels and corrected spans, in the background, never in the way."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from topicality.core import book as books
from topicality.core.book import Book, Reading
from topicality.core.label import words_of
from topicality.core.spans import Spans, apart, holds, joined, size
from topicality.core.topics import State, Topic, record_of, topic_of
from topicality.core.worker import Batch, Gates, NotRun, Run, Setup, View, WorkerState, after, plan, run
from topicality.errors import StoreError, TopicalityError
from topicality.llm.asking import Asker
from topicality.llm.roles import AskedLabeller
from topicality.ports import Store, Turn
from topicality.records import Applied, Change, Exchange, LogRun, Operation, PutState, PutTopic, RunRecord
from topicality.types import LlmUse

STATE = "labeller"  # the worker's state, by conversation
LEASE = "labeller_lease"  # who is at work, until when: single flight across processes

_NEWEST = 32  # of the exchanges not shown yet, beyond a batch, that are looked at

_log = logging.getLogger("topicality")


def tokens(text: str) -> int:
    """Tokens of a text, rather too many than too few: one for 3 bytes."""
    return len(text.encode("utf-8", "replace")) // 3 + 1


def setup(gates: Gates | None = None, *, timeout: float = 60.0) -> Setup:
    """The worker's set-up for `relabel`, with the estimated token count."""
    return Setup(tokens, gates or Gates(), timeout=timeout)


@dataclass(frozen=True, slots=True)
class Relabelled:
    """What came of relabelling a conversation once.

    Attributes:
        reason: "accepted", "rejected", "failed", "stale" (the exchanges were changed meanwhile), or the gate that was shut.
        topics: ids of those that are different now. notes: what was left out of the reply. faults: why it was refused.
        llm: what each call cost.
    """

    reason: str
    topics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    llm: tuple[LlmUse, ...] = ()

    @property
    def llm_calls(self) -> int:
        """Calls of the language model."""
        return sum(use.calls for use in self.llm)


def relabel(
    store: Store,
    owner: str,
    conversation: str,
    asker: Asker,
    *,
    how: Setup | None = None,
    reading: Reading | None = None,
    scope: Literal["closed", "all"] = "closed",
    clock: Callable[[], float] = time.time,
) -> Relabelled:
    """One batch of one conversation: the oldest exchanges of closed topics that the labeller has not seen.

    The store is held only to read and to write; the model is asked in between, so chatting goes on. A reply that was made
    for exchanges that were edited or deleted meanwhile is thrown away. Nothing the model does raises.

    Args:
        how: gates, limits, and the time limit of each call. reading: how texts are read, as for the topics themselves.
        scope: "closed" shows exchanges of finalized topics only, "all" those of all topics.
        clock: seconds since the epoch.
    Raises:
        StoreError: the store failed.
    """
    how, reading = how or setup(), reading or Reading()
    key = uuid4().hex
    with store.turn(owner, conversation) as turn:
        now = clock()
        state = WorkerState.load(turn.state(STATE))
        made = plan(state, _view(turn, state, how.gates, scope, running=_leased(turn, now)), how, now=now)
        if isinstance(made, NotRun):
            return Relabelled(made.reason)
        lease = json.dumps({"key": key, "until": now + 2.0 * how.timeout + 5.0}).encode()
        _apply(turn, f"{key}-lease", owner, conversation, [PutState(LEASE, lease)])
    labeller = AskedLabeller(asker, f"{owner}/{conversation}")
    done = run(labeller, made, how, key=key, at=now)
    try:
        reason, operations = _written(store, owner, conversation, done, how, reading, clock)
    except BaseException:
        with suppress(TopicalityError), store.turn(owner, conversation) as turn:
            _apply(turn, f"{key}-lost", owner, conversation, [PutState(LEASE, None)])
        raise
    changed = tuple(one.topic.id for one in operations if isinstance(one, PutTopic))
    faults = (*(fault.text for fault in done.faults), *([done.error] if done.error else []))
    return Relabelled(reason, changed, done.notes, faults, tuple(labeller.uses))


def relabel_all(
    store: Store,
    owner: str,
    conversation: str,
    asker: Asker,
    *,
    how: Setup | None = None,
    reading: Reading | None = None,
    scope: Literal["closed", "all"] = "all",
    most: int = 100,
) -> list[Relabelled]:
    """Batch after batch until there is nothing left to show, or one was not accepted: for `topics --relabel`.

    Args:
        how: by default also batches of fewer than six exchanges are shown. most: batches.
    """
    chosen = how or setup(Gates(completed=1, tail=1))
    results: list[Relabelled] = []
    for _ in range(most):
        result = relabel(store, owner, conversation, asker, how=chosen, reading=reading, scope=scope)
        if result.reason != "accepted":
            return [*results, result] if result.llm or not results else results
        results.append(result)
    return results


def _written(
    store: Store,
    owner: str,
    conversation: str,
    done: Run,
    how: Setup,
    reading: Reading,
    clock: Callable[[], float],
) -> tuple[str, list[Operation]]:
    """Write what came of a run: topics, the worker's state and the log together."""
    with store.turn(owner, conversation) as turn:
        now = clock()
        state = WorkerState.load(turn.state(STATE))
        reason: str = done.status
        operations: list[Operation] = []
        if not _current(turn, done.batch):
            reason = "stale"
        elif done.status == "accepted":
            found = _found(turn, done, reading, now)
            reason = "stale" if found is None else reason
            operations = found or []
        if reason != "stale":
            operations.append(PutState(STATE, after(state, done, how.gates, now=now).dump()))
        _apply(turn, done.id, owner, conversation, [*operations, LogRun(_logged(done)), PutState(LEASE, None)])
    return reason, operations


class BackgroundLabeller:
    """Relabels conversations in one thread of its own, while chatting goes on.

    `wake` returns at once. A conversation that waits already is not queued twice; when the queue is full, the wake is
    dropped, since the next exchange wakes it again. Failures are logged, without text, and never reach the caller.
    """

    def __init__(
        self,
        store: Store,
        asker: Asker,
        *,
        how: Setup | None = None,
        reading: Reading | None = None,
        on_done: Callable[[str, str, Relabelled], None] | None = None,
        waiting: int = 1000,
    ) -> None:
        self._store, self._asker, self._how, self._reading = store, asker, how, reading
        self._on_done = on_done
        self._queue: queue.Queue[tuple[str, str] | None] = queue.Queue(waiting)
        self._queued: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def wake(self, owner: str, conversation: str) -> bool:
        """Have a look at a conversation when there is time; whether it waits now."""
        with self._lock:
            if self._closed or (owner, conversation) in self._queued:
                return not self._closed
            try:
                self._queue.put_nowait((owner, conversation))
            except queue.Full:
                return False
            self._queued.add((owner, conversation))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="topicality-labelling", daemon=True)
                self._thread.start()
            return True

    def wait(self) -> None:
        """Until everything that was woken is done."""
        self._queue.join()

    def close(self, timeout: float = 5.0) -> None:
        """Take nothing more, and give what is running up to `timeout` seconds to end."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                _log.debug("labelling: closed with a full queue")
            thread.join(timeout)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                self._queued.discard(job)
                closed = self._closed
            try:
                if closed:
                    continue
                result = relabel(self._store, *job, self._asker, how=self._how, reading=self._reading)
                if self._on_done is not None:
                    self._on_done(*job, result)
            except TopicalityError as error:
                _log.warning("labelling a conversation failed: %s", type(error).__name__)
            except Exception as error:  # noqa: BLE001 - one conversation must not end the labelling of all others
                _log.error("labelling a conversation failed: %s", type(error).__name__)
            finally:
                self._queue.task_done()
        self._queue.task_done()


def _leased(turn: Turn, now: float) -> bool:
    kept = turn.state(LEASE)
    if kept is None:
        return False
    try:
        until = float(json.loads(kept)["until"])
    except (ValueError, TypeError, KeyError):
        return False
    return now < until


def _view(turn: Turn, state: WorkerState, gates: Gates, scope: str, *, running: bool) -> View:
    topics = [topic_of(record) for record in turn.topics() if record.status != "dropped" and record.spans]
    left = apart(joined(*(t.spans for t in topics if scope == "all" or t.status == "finalized")), state.done)
    if size(left) > gates.batch + _NEWEST:  # a batch is made of the first ones, gates count the newest
        left = joined(_first(left, gates.batch), _first(left, _NEWEST, newest=True))
    shown = turn.exchanges(sequences=left, statuses=("completed",)) if left else []
    near = [t for t in topics if any(holds(t.spans, e.sequence) for e in shown[: gates.batch])]
    return View(shown, sum(t.count for t in topics), near, turn.info().topics_version, running)


def _first(spans: Spans, most: int, *, newest: bool = False) -> Spans:
    """The first so many sequences of some spans, or the last."""
    kept: list[tuple[int, int]] = []
    for first, last in reversed(spans) if newest else spans:
        taken = min(last - first + 1, most)
        if taken:
            kept.append((last - taken + 1, last) if newest else (first, first + taken - 1))
        most -= taken
    return tuple(sorted(kept))


def _logged(done: Run) -> RunRecord:
    """The run for the log; a reply may spell out the escape of NUL, which stores take for one."""
    record = done.record()
    return replace(record, data=json.loads(json.dumps(record.data).replace("\\u0000", "\\u2400")))


def _current(turn: Turn, batch: Batch) -> bool:
    """Whether the exchanges are still what the labeller was shown."""
    spans = tuple((e.sequence, e.sequence) for e in batch.exchanges)
    now = {e.sequence: e for e in turn.exchanges(sequences=spans)}
    return all(_same(e, now.get(e.sequence)) for e in batch.exchanges)


def _same(old: Exchange, new: Exchange | None) -> bool:
    if new is None or new.status != old.status:
        return False
    return (old.user, old.reply) == (new.user, new.reply)


def _found(turn: Turn, done: Run, reading: Reading, now: float) -> list[Operation] | None:
    """What an accepted run changes, on the topics as they are now; None when it speaks of one that is gone."""
    topics = [topic_of(record) for record in turn.topics() if record.status != "dropped" and record.spans]
    wanted = {one.continues for one in done.topics if one.continues is not None}
    batch = joined(*(one.spans for one in done.topics))
    touched = [t for t in topics if t.id in wanted or apart(t.spans, batch) != t.spans]
    if not wanted <= {t.id for t in touched}:
        return None
    spans = joined(batch, *(t.spans for t in touched))
    exchanges = turn.exchanges(sequences=spans, statuses=("completed",))
    kept = turn.state("topics") is not None
    book = _book(turn, topics, reading)
    ids = [f"{done.id}-{n}" for n in range(1, len(done.topics) + 1)]
    recorded = books.relabelled(
        book, touched, done.topics, exchanges, ids=ids, source=done.model, now=now, reading=reading
    )
    operations: list[Operation] = [PutTopic(record_of(topic)) for topic in recorded.topics]
    if kept:
        operations += [PutState(name, value) for name, value in books.dump(recorded.book).items()]
    return operations


def _book(turn: Turn, topics: Sequence[Topic], reading: Reading) -> Book:
    """What is remembered of the conversation; made from its topics where nothing was kept."""
    kept = turn.state("topics")
    if kept is not None:
        try:
            names = [str(name) for _, name in json.loads(kept)["recent"]]
            values = {"topics": kept}
            for name in ("lexicon", "latest", *(f"words:{one}" for one in dict.fromkeys(names))):
                value = turn.state(name)
                if value is not None:
                    values[name] = value
            newest = turn.exchanges(statuses=("completed",), newest=1)
            return books.load(values, turn.topics(), newest[0] if newest else None, reading)
        except (StoreError, ValueError, TypeError, KeyError):
            _log.warning("what was kept of the topics is damaged; labels are made from the exchanges")
    window = reading.rules.window
    pairs = sorted(
        (n, t.id) for t in topics for first, last in t.spans for n in range(max(first, last - window), last + 1)
    )
    recent = tuple(pairs[-window:])
    names = [name for _, name in recent]
    live = {t.id: t for t in topics if t.id in names}
    book = Book(State(recent, sum(t.count for t in topics), live))
    words = {}
    lexicon = book.lexicon
    for topic in live.values():
        inside = turn.exchanges(sequences=topic.spans, statuses=("completed",))
        grams = [(e.sequence, reading.grams(e)) for e in inside]
        words[topic.id] = words_of(grams)
        for _, one in grams:
            lexicon = lexicon.added(one)
    return Book(book.state, lexicon, words)


def _apply(turn: Turn, key: str, owner: str, conversation: str, operations: Sequence[Operation]) -> Applied:
    return turn.apply(Change(key, owner, conversation, tuple(operations)))
