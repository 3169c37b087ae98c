"""What a store keeps and what it is told: pure values, with no database, clock or encoder behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from topicality.errors import InputError, StoreError
from topicality.types import Message
from topicality.vectors import Array

ExchangeStatus = Literal["pending", "completed", "failed", "deleted"]
TopicStatus = Literal["open", "provisional", "finalized", "dropped"]
Side = Literal["user", "assistant"]
SIDES: tuple[Side, ...] = ("user", "assistant")


class ExchangeError(InputError):
    """An exchange is unknown, or in a state that does not allow what was asked.

    Attributes:
        exchange: its id. status: the state it is in; None when it is unknown.
    """

    def __init__(self, exchange: str, status: ExchangeStatus | None, wanted: str, hint: str) -> None:
        self.exchange = exchange
        self.status = status
        state = "is not known in this conversation" if status is None else f"is {status}"
        super().__init__(f"exchange {exchange!r} {state} and cannot be {wanted}; {hint}")


class DuplicateExchangeError(ExchangeError):
    """An exchange id was used a second time, for another text."""

    def __init__(self, exchange: str, status: ExchangeStatus) -> None:
        super().__init__(exchange, status, "begun again with another text", "give every exchange an id of its own")


class StaleTopicsError(StoreError):
    """The topics changed between reading them and writing: read again, decide again, write again."""

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            f"the topics are at version {found}, this change was made for {expected}; read them and try again"
        )


class NewerSchemaError(StoreError):
    """The store was written by a later release of this package."""

    def __init__(self, found: str, known: str) -> None:
        self.found = found
        self.known = known
        super().__init__(
            f"the store has schema {found}, this release knows up to {known}; it was left unchanged. Install the release "
            "that wrote it, or export with that one and import into a new store"
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose records, and which. An owner is always named; nothing reaches across owners.

    Attributes:
        owner: who the conversations belong to.
        conversation: one conversation, or None for all of the owner's.
        sequences: exchange sequences as ranges, both ends inclusive; empty for all. Needs a conversation.
        since, until: message times in seconds since the epoch, since <= at < until; messages without a time are then
            left out.
        sides: "user", "assistant", or both (empty).
    """

    owner: str
    conversation: str | None = None
    sequences: tuple[tuple[int, int], ...] = ()
    since: float | None = None
    until: float | None = None
    sides: tuple[Side, ...] = ()

    def __post_init__(self) -> None:
        if not self.owner or self.conversation == "":
            raise InputError("a scope needs an owner, and a conversation that is not blank or None")
        if self.sequences and self.conversation is None:
            raise InputError("sequences are counted in one conversation; name it, or leave them out")

    @property
    def filtered(self) -> bool:
        """Whether anything but owner and conversation narrows it."""
        return bool(self.sequences or self.sides or self.since is not None or self.until is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """A message, or a window of a long one, as recall looks for it.

    Attributes:
        start, end: the characters [start, end) of the message.
        terms: its words as the caller analysed them, with repetitions, in order; none blank or with white space. The
            store compares them and never makes them, so one analysis serves all backends. Cut at 100 characters.
        vector: shape (D,), of any length but zero, in the space the store is bound to; None if there is none.
    """

    start: int
    end: int
    terms: tuple[str, ...] = ()
    vector: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredPassage:
    """A passage as the store has it: `vector` is unit length, rounded to 8 bits a component (cosine within 0.01)."""

    conversation: str
    sequence: int
    side: Side
    position: int
    start: int
    end: int
    at: float | None
    terms: tuple[str, ...]
    vector: Array | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and the reply to it.

    Attributes:
        sequence: 1, 2, 3 … in its conversation, without gaps. A deleted exchange keeps its sequence and id with its
            texts emptied (a tombstone), so that numbers already handed out never change or come back.
        user, reply: the messages; reply is None until completed.
        failure: why it failed; None otherwise.
        begun_at: when it was begun by the writer's clock, seconds since the epoch; timeouts count from here.
        meta: the host's own data, as JSON values.
    """

    owner: str
    conversation: str
    sequence: int
    id: str
    status: ExchangeStatus
    user: Message
    reply: Message | None = None
    failure: str | None = None
    begun_at: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic of one conversation.

    Attributes:
        id: stable, chosen by the caller.
        number: 1, 2, 3 … in its conversation, without gaps, given by the store (0 before). A dropped topic keeps its
            number and is left out of lists.
        labels, terms: for people; for retrieval.
        spans: exchange sequences, both ends inclusive.
        started_at, ended_at: message times, None when unknown. updated_at: the writer's clock.
        meta: whatever else the topics room keeps, as JSON values.
    """

    id: str
    number: int = 0
    status: TopicStatus = "open"
    labels: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    updated_at: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a labeller or another background worker, for the log."""

    id: str
    created_at: float
    status: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """Counts of one conversation, kept up to date with each change: reading them costs one row.

    Attributes:
        exchanges: the last sequence (tombstones, pending and failed ones included).
        topics: the last topic number. topics_version: grows with each change of a topic (see `Change.expect`).
        passages, words: live passages of completed exchanges and their terms in all.
        last_at: the latest message time, None when no message had one.
        born: a number that no other conversation of the store has had, so that one which was erased and begun again can be
            told from the old one; 0 when there is nothing. Another store may give another one.
    """

    owner: str
    id: str
    exchanges: int = 0
    topics: int = 0
    topics_version: int = 0
    passages: int = 0
    words: int = 0
    last_at: float | None = None
    born: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start an exchange. The same id with the same text again changes nothing and gives the same sequence."""

    exchange: str
    text: str
    passages: tuple[Passage, ...] = ()
    at: float | None = None
    name: str | None = None
    begun_at: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Complete:
    """Give a pending exchange its reply. From here on both sides' passages are evidence."""

    exchange: str
    text: str
    passages: tuple[Passage, ...] = ()
    at: float | None = None
    name: str | None = None
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """End a pending exchange without a reply. It is kept, and is never evidence."""

    exchange: str
    reason: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace or redact one side's text, of any exchange that has it and is not deleted; words and vectors follow."""

    exchange: str
    side: Side
    text: str
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Empty an exchange to a tombstone; words and vectors go. Deleting a deleted one changes nothing."""

    exchange: str


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Write a topic: a new id gets the next number, a known one is replaced and keeps its number."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class PutState:
    """Keep a small value under a name (drift, segmentation …); None removes it."""

    name: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LogRun:
    """Add a run to the log; the oldest beyond the store's retention go."""

    run: RunRecord


Operation = Begin | Complete | Fail | Edit | Delete | PutTopic | PutState | LogRun


@dataclass(frozen=True, slots=True)
class Change:
    """What is written together: all of it or nothing, in order.

    Attributes:
        id: makes a repeated `apply` a no-op with the first one's answer, unique in the conversation. The last 1,000
            changes of a conversation are remembered.
        expect: the `topics_version` the change was made for; None when it does not matter.
    """

    id: str
    owner: str
    conversation: str
    operations: tuple[Operation, ...]
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a change was given: sequences by exchange id, topic numbers by topic id, and whether it was a repetition."""

    sequences: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found.

    Attributes:
        sequence, side, position: which passage of `conversation`. start, end: its characters in the message.
        score: cosine in [-1, 1] from a vector search (within 0.01), BM25 (k1 1.2, b 0.75, higher is better) from a
            word search.
        counts: how often each query term stands in it. length: its terms in all. Both empty from a vector search.
    """

    conversation: str
    sequence: int
    side: Side
    position: int
    start: int
    end: int
    at: float | None
    score: float
    counts: Mapping[str, int] = field(default_factory=dict)
    length: int = 0


@dataclass(frozen=True, slots=True)
class WordHits:
    """What a word search found, and what another ranking of it needs.

    Attributes:
        hits: best first; equal ones newest first.
        frequencies: passages each query term stands in, within owner and conversation (filters do not count).
        passages: all live passages there. mean_length: their terms, on average; 0.0 when there is none.
    """

    hits: tuple[Hit, ...]
    frequencies: Mapping[str, int]
    passages: int
    mean_length: float


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts of an import: what was new, and what was there already."""

    conversations: int = 0
    exchanges: int = 0
    known: int = 0
