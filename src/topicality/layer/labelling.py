"""The labeller over a store: closed topics get better labels and corrected spans, in the background, never in the way."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol
from uuid import uuid4

from topicality.core import book as books
from topicality.core.book import Reading
from topicality.core.spans import Spans, apart, holds, joined, size
from topicality.core.topics import topic_of
from topicality.core.worker import Batch, Gates, NotRun, Run, Setup, View, WorkerState, after, plan, run
from topicality.errors import TopicalityError
from topicality.layer.shelf import Shelf
from topicality.llm.asking import Asker, Stop
from topicality.llm.roles import AskedLabeller
from topicality.ports import Store, Turn
from topicality.records import Applied, Change, Exchange, LogRun, Operation, PutState, PutTopic, RunRecord
from topicality.types import LlmUse

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = "labeller"  # the worker's state, by conversation
LEASE = "labeller_lease"  # who is at work, until when: single flight across processes

_NEWEST = 32  # of the exchanges not shown yet, beyond a batch, that are looked at

_log = logging.getLogger("topicality")


def tokens(text: str) -> int:
    """Tokens of a text, rather too many than too few: one for 3 bytes."""
    return len(text.encode("utf-8", "replace")) // 3 + 1


def account(owner: str, conversation: str) -> str:
    """Under which name the budget of a conversation is kept: no two conversations of any owners share one."""
    return json.dumps([owner, conversation])


def setup(gates: Gates | None = None, *, timeout: float = 60.0) -> Setup:
    """The worker's set-up for `relabel`, with the estimated token count."""
    return Setup(tokens, gates or Gates(), timeout=timeout)


@dataclass(frozen=True, slots=True)
class Relabelled:
    """What came of relabelling a conversation once.

    Attributes:
        reason: "accepted", "rejected", "failed", "stale" (the exchanges were changed meanwhile), "stopped" (nobody waited
            for the answer), or the gate that was shut.
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


class Remembered(Protocol):
    """What a process remembers of a conversation while it holds it (`memory.Kept`): what is written here goes in there."""

    @property
    def shelf(self) -> Shelf:
        """Its topics, after `begin`."""
        ...

    def begin(self, turn: Turn) -> None:
        """Be what the store has."""
        ...

    def written(self, turn: Turn, numbers: Mapping[str, int]) -> None:
        """Topics were written, and have these numbers."""
        ...


Hold = Callable[[str, str], AbstractContextManager[tuple[Turn, Remembered]]]


def relabel(
    store: Store,
    owner: str,
    conversation: str,
    asker: Asker,
    *,
    how: Setup | None = None,
    reading: Reading | None = None,
    scope: Literal["closed", "all"] = "closed",
    background: Background | None = None,
) -> Relabelled:
    """One batch of one conversation: the oldest exchanges of closed topics that the labeller has not seen.

    The store is held only to read and to write; the model is asked in between, so chatting goes on. A reply that was made
    for exchanges that were edited or deleted meanwhile is thrown away. Nothing the model does raises.

    Args:
        how: gates, limits, and the time limit of each call. reading: how texts are read, as for the topics themselves.
        scope: "closed" shows exchanges of finalized topics only, "all" those of all topics.
        background: for who does this beside a chat.
    Raises:
        StoreError: the store failed.
    """
    how, reading, beside = how or setup(), reading or Reading(), background or Background()
    key = uuid4().hex
    with store.turn(owner, conversation) as turn:
        now = beside.clock()
        state = WorkerState.load(turn.state(STATE))
        made = plan(state, _view(turn, state, how.gates, scope, running=_leased(turn, now)), how, now=now)
        if isinstance(made, NotRun):
            return Relabelled(made.reason)
        lease = json.dumps({"key": key, "until": now + 2.0 * how.timeout + 5.0}).encode()
        _apply(turn, f"{key}-lease", [PutState(LEASE, lease)])
    labeller = AskedLabeller(asker, account(owner, conversation), beside.stop)
    done = run(labeller, made, how, key=key, at=now)
    hold = beside.hold or (lambda *_: _unshared(store, owner, conversation, reading))
    try:
        with hold(owner, conversation) as (turn, kept):
            reason, changed = _written(turn, kept, done, how, reading, beside)
    except BaseException:
        with suppress(TopicalityError), store.turn(owner, conversation) as turn:
            _freed(turn, key)
        raise
    faults = (*(fault.text for fault in done.faults), *([done.error] if done.error else []))
    return Relabelled(reason, changed, done.notes, faults, tuple(labeller.uses))


@dataclass(frozen=True, slots=True)
class Background:
    """What relabelling beside a chat needs to know.

    Attributes:
        hold: holds a conversation, with what the process remembers of it; None where nobody remembers anything.
        stop: ends the waiting for the model. clock: seconds since the epoch.
    """

    hold: Hold | None = None
    stop: Stop | None = None
    clock: Callable[[], float] = time.time


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


@contextmanager
def _unshared(store: Store, owner: str, conversation: str, reading: Reading) -> Iterator[tuple[Turn, Remembered]]:
    with store.turn(owner, conversation) as turn:
        yield turn, _Unshared(reading)


class _Unshared:
    """For who remembers nothing between two runs."""

    def __init__(self, reading: Reading) -> None:
        self.shelf = Shelf()
        self._reading = reading

    def begin(self, turn: Turn) -> None:
        """See `Remembered`."""
        self.shelf.read(turn, self._reading)

    def written(self, turn: Turn, numbers: Mapping[str, int]) -> None:
        """See `Remembered`."""


def _written(
    turn: Turn, kept: Remembered, done: Run, how: Setup, reading: Reading, beside: Background
) -> tuple[str, tuple[str, ...]]:
    """Write what came of a run, the worker's state and the log together; the reason, and the topics that changed."""
    if done.status == "failed" and beside.stop is not None and beside.stop.stopped:
        _freed(turn, done.id)
        return "stopped", ()
    now = beside.clock()
    operations = _found(turn, kept, done, reading, now) if _current(turn, done.batch) else None
    if operations is None:  # nothing of the reply is kept either: it may be about what was deleted
        _freed(turn, done.id)
        return "stale", ()
    state = after(WorkerState.load(turn.state(STATE)), done, how.gates, now=now)
    log = LogRun(_logged(done))
    applied = _apply(turn, done.id, [*operations, PutState(STATE, state.dump()), log, PutState(LEASE, None)])
    kept.written(turn, applied.topics)
    return done.status, tuple(one.topic.id for one in operations if isinstance(one, PutTopic))


def _freed(turn: Turn, key: str) -> None:
    """The lease of a run that came to nothing is given back; a conversation that was erased meanwhile stays erased."""
    if turn.state(LEASE) is not None:
        _apply(turn, f"{key}-lost", [PutState(LEASE, None)])


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
    """The run for the log, without texts: nothing may outlive the exchanges that it was taken from."""
    record = done.record()
    left = {name: value for name, value in record.data.items() if name not in ("topics", "replies")}
    spans = [[list(span) for span in topic.spans] for topic in done.topics]
    return replace(record, data={**left, "topics": spans, "replies": len(done.replies)})


def _current(turn: Turn, batch: Batch) -> bool:
    """Whether the exchanges are still what the labeller was shown."""
    spans = tuple((e.sequence, e.sequence) for e in batch.exchanges)
    now = {e.sequence: e for e in turn.exchanges(sequences=spans)}
    return all(_same(e, now.get(e.sequence)) for e in batch.exchanges)


def _same(old: Exchange, new: Exchange | None) -> bool:
    if new is None or new.status != old.status:
        return False
    return (old.user, old.reply) == (new.user, new.reply)


def _found(turn: Turn, kept: Remembered, done: Run, reading: Reading, now: float) -> list[Operation] | None:
    """What a run changes, on the topics as they are now; None when it speaks of one that is gone."""
    kept.begin(turn)
    if done.status != "accepted":
        return []
    topics = [topic_of(record) for record in turn.topics() if record.status != "dropped" and record.spans]
    wanted = {one.continues for one in done.topics if one.continues is not None}
    batch = joined(*(one.spans for one in done.topics))
    touched = [t for t in topics if t.id in wanted or apart(t.spans, batch) != t.spans]
    if not wanted <= {t.id for t in touched}:
        return None
    exchanges = turn.exchanges(sequences=joined(batch, *(t.spans for t in touched)), statuses=("completed",))
    ids = [f"{done.id}-{n}" for n in range(1, len(done.topics) + 1)]
    recorded = books.relabelled(
        kept.shelf.book, touched, done.topics, exchanges, ids=ids, source=done.model, now=now, reading=reading
    )
    operations = kept.shelf.keep(recorded)
    if turn.state("topics") is not None:
        return operations
    return [one for one in operations if isinstance(one, PutTopic)]  # nobody has kept a book here, nor will this be one


def _apply(turn: Turn, key: str, operations: Sequence[Operation]) -> Applied:
    info = turn.info()
    return turn.apply(Change(key, info.owner, info.id, tuple(operations)))
