"""Which topic each message is on, decided as it comes and kept so that any process can go on from there.

In the store: where the conversation stands ("flow"), now and then a whole snapshot of the segmenter ("segment"), and for each
message since then its vector ("flow:0" … "flow:63", a ring). What a process remembers itself only saves it the reading; it
goes on from there by the entries it has not seen. So a message costs a small write, whatever the conversation is like.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from topicality.core.segment import Decision
from topicality.core.segment.entry import is_silent
from topicality.core.spans import holds
from topicality.errors import InputError, SpaceMismatchError
from topicality.layer.segmentation import LiveSegmenter, TopicSegmenter
from topicality.ports import Store, Turn
from topicality.records import SIDES, Exchange, PutState, Scope, Side
from topicality.types import Message
from topicality.vectors import Array, unit

VERSION = 1
FLOW = "flow"
SEGMENT = "segment"
RING = 64  # messages between two snapshots
REREAD = 200  # exchanges the segmenter is made again from, where it has to be
_OPEN = 64  # exchanges without a reply whose topic is remembered
_ENTRY = struct.Struct("<qqBB")  # message, sequence, side, whether a vector follows

Places = Mapping[tuple[int, Side], Array]

_log = logging.getLogger("topicality")


@dataclass(slots=True)
class Waiting:
    """An exchange whose topic is not settled: no reply yet, or a decision that may still be revised.

    Attributes:
        index: of its user message, as the segmenter counts. number: its topic, as the segmenter counts.
        final: whether the decision is. placed: whether it was put into the topic already.
    """

    sequence: int
    index: int
    number: int
    final: bool = False
    placed: bool = False


@dataclass(slots=True)
class Live:
    """What a process remembers of a conversation's segmenter: good as long as epoch and count are those of the store."""

    epoch: str
    count: int
    segmenter: LiveSegmenter


@dataclass(slots=True)
class Flow:
    """A conversation's segmenter, inside a store's turn. `take` messages, then write `operations` in the same turn.

    Attributes:
        epoch: changes whenever the segmenter is made anew. count: messages it has had. saved: those in the snapshot.
        aliases: topic ids of numbers, where they are not simply made of epoch and number.
        late: exchanges that moved after they had been put into a topic, with the topic's number.
        unread: exchanges and their topics that the word counts in the store lack (see `shelf`).
        notes: what had to be begun anew, for the host.
    """

    live: Live
    saved: int = 0
    aliases: dict[int, str] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    _fresh: list[bytes] = field(default_factory=list)
    _whole: bool = False  # write a snapshot, and nothing of the ring is good any more

    def take(self, sequence: int, side: Side, message: Message, vector: Array | None) -> Decision:
        """Decide on the next message.

        Args:
            vector: its embedding, shape (D,), exactly what another process should go on with; None for a silent one.
        """
        decision = self.live.segmenter.receive(message, vector)
        self._fresh.append(_entry(self.live.count, sequence, side, vector))
        self.live.count += 1
        self._confirm(decision.previous)
        if side == "user":
            self.waiting.append(Waiting(sequence, decision.index, decision.topic, decision.confirmed))
            del self.waiting[:-_OPEN]
        return decision

    def settle(self, sequence: int) -> tuple[str, bool]:
        """An exchange is complete: id of its topic, and whether that may still be revised."""
        known = next((one for one in self.waiting if one.sequence == sequence), None)
        if known is None:  # begun too long ago
            return self.topic(self.waiting[-1].number if self.waiting else 0), False
        known.placed = True
        if known.final:
            self.waiting.remove(known)
        return self.topic(known.number), not known.final

    def drop(self, sequence: int) -> None:
        """An exchange comes to nothing."""
        self.waiting = [one for one in self.waiting if one.sequence != sequence]

    def topic(self, number: int) -> str:
        """The stable id of a topic."""
        return self.aliases.get(number) or f"{self.live.epoch}-{number}"

    def operations(self) -> list[PutState]:
        """What to write."""
        out: list[PutState] = []
        if self._whole or self.live.count - self.saved > RING:
            out.append(PutState(SEGMENT, self.live.segmenter.snapshot()))
            self.saved = self.live.count
            if self._whole:  # vectors of what was edited or deleted must not stay
                out += [PutState(f"{FLOW}:{n}", None) for n in range(RING)]
        else:
            first = self.live.count - len(self._fresh)
            out += [PutState(f"{FLOW}:{(first + n) % RING}", entry) for n, entry in enumerate(self._fresh)]
        self._fresh, self._whole = [], False
        head = {
            "version": VERSION,
            "epoch": self.live.epoch,
            "count": self.live.count,
            "saved": self.saved,
            "aliases": list(self.aliases.items()),
            "waiting": [[w.sequence, w.index, w.number, w.final, w.placed] for w in self.waiting],
            "late": self.late,
            "unread": self.unread,
        }
        out.append(PutState(FLOW, json.dumps(head, separators=(",", ":")).encode()))
        return out

    def _confirm(self, decisions: Iterable[Decision]) -> None:
        found = {decision.index: decision for decision in decisions}
        for one in [one for one in self.waiting if one.index in found and not one.final]:
            number = found[one.index].topic
            if one.placed:
                self.waiting.remove(one)
                if number != one.number:
                    self.late.append((one.sequence, number))
            one.number, one.final = number, True


def opened(
    turn: Turn, store: Store, segmenter: TopicSegmenter, remembered: Live | None, ids: Callable[[], str]
) -> Flow:
    """The segmenter of the conversation that a turn holds, as it stands.

    A state that cannot be read (damaged, or of a later release) is made again from the last exchanges, with a note.
    """
    kept = turn.state(FLOW)
    if kept is None:
        if turn.info().exchanges:
            return remade(turn, store, segmenter, ids)
        return Flow(Live(ids(), 0, segmenter.live()))
    try:
        head = json.loads(kept)
        live = _resumed(turn, segmenter, remembered, head)
        aliases = {int(number): str(name) for number, name in head["aliases"]}
        waiting = [Waiting(int(a), int(b), int(c), bool(d), bool(e)) for a, b, c, d, e in head["waiting"]]
        late = [(int(a), int(b)) for a, b in head["late"]]
        return Flow(live, int(head["saved"]), aliases, waiting, late, unread_of(kept))
    except (ValueError, TypeError, KeyError, struct.error, InputError, SpaceMismatchError) as error:
        _log.warning("the topic state of a conversation cannot be read and is made again (%s)", type(error).__name__)
        flow = remade(turn, store, segmenter, ids)
        flow.unread = unread_of(kept)
        flow.notes = ("the state of the topics could not be read and was made again from the last exchanges",)
        return flow


def remade(
    turn: Turn,
    store: Store,
    segmenter: TopicSegmenter,
    ids: Callable[[], str],
    fresh: Places | None = None,
) -> Flow:
    """A segmenter made from the last exchanges as they are now: nothing of a deleted or edited text stays in it.

    Args:
        fresh: vectors of messages that this turn has changed.
    Cost: 0.3 ms a message, for at most 400 messages, and all topics read once.
    """
    flow = Flow(Live(ids(), 0, segmenter.live()), _whole=True)
    said = turn.exchanges(statuses=("completed", "pending"), newest=REREAD)
    vectors = _vectors(store, turn, said, fresh or {})
    homes: dict[int, int] = {}  # message -> sequence
    numbers: dict[int, int] = {}
    for exchange in said:
        for side, message in (("user", exchange.user), ("assistant", exchange.reply)):
            place: tuple[int, Side] = (exchange.sequence, "user" if side == "user" else "assistant")
            if message is None or (place not in vectors and not is_silent(message)):
                continue
            decision = flow.live.segmenter.receive(message, vectors.get(place))
            flow.live.count += 1
            if side == "user":
                homes[decision.index] = exchange.sequence
                numbers[decision.index] = decision.topic
                if exchange.status == "pending":
                    flow.waiting.append(Waiting(exchange.sequence, decision.index, decision.topic, decision.confirmed))
            for one in decision.previous:
                numbers[one.index] = one.topic
            flow._confirm(decision.previous)  # noqa: SLF001 - its own
    del flow.waiting[:-_OPEN]
    known = turn.topics()
    votes: dict[int, Counter[str]] = {}
    for index, sequence in homes.items():
        home = next((topic.id for topic in known if holds(topic.spans, sequence)), None)
        if home is not None:
            votes.setdefault(numbers[index], Counter())[home] += 1
    flow.aliases = {number: counts.most_common(1)[0][0] for number, counts in votes.items()}
    return flow


def waiting_topics(kept: bytes | None) -> dict[int, str]:
    """Topic ids of the exchanges that have no reply yet, by sequence, from the "flow" state; none if it cannot be read."""
    try:
        head = json.loads(kept or b"{}")
        aliases = {int(number): str(name) for number, name in head.get("aliases", ())}
        found = {int(one[0]): int(one[2]) for one in head.get("waiting", ())}
        return {sequence: aliases.get(number) or f"{head['epoch']}-{number}" for sequence, number in found.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}


def unread_of(kept: bytes | None) -> list[tuple[int, str]]:
    """`Flow.unread` from the "flow" state; empty if it cannot be read."""
    try:
        return [(int(sequence), str(name)) for sequence, name in json.loads(kept or b"{}").get("unread", ())]
    except (ValueError, TypeError, AttributeError):
        return []


def mean_vector(vectors: Iterable[Array | None]) -> Array | None:
    """One vector for a message from those of its passages; None when it has none."""
    known = [vector for vector in vectors if vector is not None]
    if not known:
        return None
    return known[0] if len(known) == 1 else unit(np.mean(known, axis=0))


def _vectors(store: Store, turn: Turn, said: list[Exchange], fresh: Places) -> dict[tuple[int, Side], Array]:
    if not said:
        return {}
    info = turn.info()
    scope = Scope(info.owner, info.id, ((said[0].sequence, said[-1].sequence),))
    parts: dict[tuple[int, Side], list[Array | None]] = {}
    for passage in store.passages(scope):
        parts.setdefault((passage.sequence, passage.side), []).append(passage.vector)
    means = {place: mean_vector(vectors) for place, vectors in parts.items()}
    return {**{place: vector for place, vector in means.items() if vector is not None}, **fresh}


def _resumed(turn: Turn, segmenter: TopicSegmenter, remembered: Live | None, head: Mapping[str, object]) -> Live:
    """The segmenter at the store's count: from what the process remembers, or else from the snapshot, by the entries."""
    if head["version"] != VERSION:
        raise InputError(f"version {head['version']} of the state is not known")
    epoch, count, saved = str(head["epoch"]), int(str(head["count"])), int(str(head["saved"]))
    live = remembered
    if live is None or live.epoch != epoch or not saved <= live.count <= count:
        snapshot = turn.state(SEGMENT)
        if saved and snapshot is None:
            raise InputError("the snapshot is missing")
        live = Live(epoch, saved, segmenter.live() if snapshot is None else segmenter.resume(snapshot))
    if live.count < count:
        _follow(turn, live, count)
    return live


def _follow(turn: Turn, live: Live, count: int) -> None:
    entries = []
    for index in range(live.count, count):
        entry = turn.state(f"{FLOW}:{index % RING}")
        if entry is None:
            raise InputError("an entry is missing")
        at, sequence, side, has = _ENTRY.unpack_from(entry)
        if at != index:
            raise InputError("an entry is out of place")
        vector = np.frombuffer(entry, "<f4", offset=_ENTRY.size) if has else None
        entries.append((sequence, SIDES[side], vector))
    wanted = tuple((sequence, sequence) for sequence, _, _ in entries)
    known = {exchange.sequence: exchange for exchange in turn.exchanges(sequences=wanted)}
    for sequence, side, vector in entries:
        exchange = known[sequence]
        message = exchange.user if side == "user" else exchange.reply
        if message is None:
            raise InputError("an entry has no message")
        live.segmenter.receive(message, vector)
        live.count += 1


def _entry(index: int, sequence: int, side: Side, vector: Array | None) -> bytes:
    raw = b"" if vector is None else np.ascontiguousarray(vector, "<f4").tobytes()
    return _ENTRY.pack(index, sequence, SIDES.index(side), bool(raw)) + raw
