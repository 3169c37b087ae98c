"""What the engine needs from outside, as protocols. The docstring is the contract; `topicality.testing` proves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from topicality.records import (
    Applied,
    Change,
    ConversationRecord,
    Exchange,
    ExchangeStatus,
    Hit,
    Imported,
    RunRecord,
    Scope,
    StoredPassage,
    TopicRecord,
    WordHits,
)
from topicality.types import LlmReply, Space
from topicality.vectors import Array


@runtime_checkable
class Embedder(Protocol):
    """Text to unit vectors. One instance may be called from many threads at once."""

    @property
    def space(self) -> Space:
        """Which encoder this is. Constant for the life of the instance."""
        ...

    @property
    def languages(self) -> frozenset[str] | None:
        """ISO 639-1 codes of the languages the encoder covers, or None for "any"."""
        ...

    def embed(self, texts: Sequence[str]) -> Array:
        """One vector a text, in order.

        The same text always gives the same vector, whatever else is in the call. A text longer than the encoder can
        read gives the mean of its windows' vectors, scaled to length one; nothing is silently cut (see `windows`).

        Args:
            texts: any number, possibly none; never blank.
        Returns:
            shape (len(texts), space.dimension), float32, rows of length 1.
        Raises:
            EmbedError: the encoder failed; the cause is chained.
        """
        ...

    def windows(self, text: str) -> list[tuple[int, int]]:
        """Character ranges [start, end) that cover the text, each short enough for the encoder, overlapping."""
        ...


@runtime_checkable
class Llm(Protocol):
    """One question to a language model, one reply. One instance may be called from many threads at once."""

    def ask(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LlmReply:
        """Ask once.

        Args:
            system: instructions; contains no user text.
            user: the data to judge, as JSON.
            schema: JSON schema the reply should satisfy; a server that can hold the model to it should.
            timeout: seconds after which the call gives up, whatever it has tried until then.
        Returns:
            What the model said, untouched. It is not trusted: the caller holds it against the schema.
        Raises:
            LlmError: no reply in time, a truncated one, or none at all. Its message has nothing of the conversation, of
                the server's reply, or of a key.
        """
        ...


class Turn(Protocol):
    """One conversation, held: what is read stays true until the turn ends, and nobody else writes it meanwhile."""

    def info(self) -> ConversationRecord:
        """Its counts; zeros when there is nothing yet."""
        ...

    def exchange(self, exchange: str) -> Exchange | None:
        """See `Store.exchange`."""
        ...

    def exchanges(
        self,
        *,
        sequences: tuple[tuple[int, int], ...] = (),
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
    ) -> list[Exchange]:
        """See `Store.exchanges`."""
        ...

    def topics(self, ids: Sequence[str] | None = None) -> list[TopicRecord]:
        """See `Store.topics`; only those of these ids, where some are given."""
        ...

    def state(self, name: str) -> bytes | None:
        """See `Store.state`."""
        ...

    def apply(self, change: Change) -> Applied:
        """See `Store.apply`. Takes effect when the turn ends without an error."""
        ...


@runtime_checkable
class Store(Protocol):
    """Exchanges, topics and state, by owner and conversation. One instance may be called from many threads at once.

    Every method raises `StoreError`, with the cause chained and saying what to do, when the backend fails; the store is
    then as it was before the call. `topicality.testing.StoreContract` proves an implementation.
    """

    @property
    def space(self) -> Space | None:
        """Whose vectors the store has; None before the first `bind`."""
        ...

    def bind(self, space: Space) -> None:
        """Say whose vectors are stored and searched. The first call decides, for good.

        Raises:
            SpaceMismatchError: the store has another encoder's vectors.
        """
        ...

    def turn(self, owner: str, conversation: str) -> AbstractContextManager[Turn]:
        """Read, decide and write, with the conversation to oneself.

        Other turns and changes of it wait, in this process and in others. An error inside undoes all of it. Do slow work
        (encoding, a language model) before, not inside. Do not open one inside another.

        Raises:
            StoreError: somebody else held the conversation longer than the store's patience.
        """
        ...

    def apply(self, change: Change) -> Applied:
        """Write a change: all of it or nothing. A change id already applied is not applied again.

        Returns:
            The sequences and topic numbers it was given; the first answer again when repeated.
        Raises:
            ExchangeError: an exchange is unknown or in the wrong state. DuplicateExchangeError: its id has another text.
            StaleTopicsError: `expect` is not the topics' version. SpaceMismatchError: a vector of another dimension.
            InputError: blank id, text with NUL or half a surrogate pair, a vector of zeros or not finite …
        Cost: one transaction; does not grow with what is stored.
        """
        ...

    def conversations(self, owner: str, *, after: str = "", limit: int | None = None) -> list[ConversationRecord]:
        """An owner's conversations by id (code point order), those greater than `after`: pages without gaps."""
        ...

    def conversation(self, owner: str, conversation: str) -> ConversationRecord:
        """One conversation; zeros when there is nothing. Cost: one row."""
        ...

    def exchange(self, owner: str, conversation: str, exchange: str) -> Exchange | None:
        """One exchange by id, tombstones included; None when unknown."""
        ...

    def exchanges(
        self,
        *scopes: Scope,
        statuses: Sequence[ExchangeStatus] = (),
        newest: int | None = None,
        limit: int | None = None,
    ) -> list[Exchange]:
        """Exchanges by conversation and sequence, ascending; of several scopes those of the first one first.

        Args:
            scopes: times are those of the user's message; sides are ignored.
            statuses: only these; empty for all but deleted ones.
            newest: only the last so many by sequence (one conversation). limit: only the first so many.
        Cost: O(what is returned), by index.
        """
        ...

    def passages(self, *scopes: Scope) -> list[StoredPassage]:
        """Live passages by conversation, sequence, side (user first) and position; of several scopes as `exchanges`."""
        ...

    def topics(
        self, owner: str, conversation: str | None = None, *, dropped: bool = False
    ) -> list[tuple[str, TopicRecord]]:
        """Topics with their conversation, by conversation and number."""
        ...

    def state(self, owner: str, conversation: str, name: str) -> bytes | None:
        """A value kept by `PutState`; None when there is none."""
        ...

    def runs(self, owner: str, conversation: str, *, limit: int = 100) -> list[RunRecord]:
        """The log, newest first."""
        ...

    def search_vectors(self, scope: Scope, vector: ArrayLike, limit: int) -> list[Hit]:
        """The passages nearest to a vector, best first. Only completed exchanges; whatever was written before is found.

        Returns:
            At most `limit`. Up to 16,384 passages in the scope the ranking is exact on the rounded vectors; above, a sign
            scan chooses at least 4,000 of them to be ranked exactly (docs/store.md has the measured recall).
        Raises:
            InputError: not finite, all zeros. SpaceMismatchError: another dimension, or nothing bound yet.
        Cost: O(passages in the owner-and-conversation scope), a few nanoseconds each; the first search of a scope in a
            process reads its vectors.
        """
        ...

    def search_words(self, scope: Scope, terms: Sequence[str], limit: int) -> WordHits:
        """The passages with the best BM25 for the terms (each counted once), with the statistics to rank them again.

        Cost: O(postings of the terms in the scope).
        """
        ...

    def sweep(self, now: float, timeout: float, *, owner: str | None = None) -> int:
        """Fail the pending exchanges that were begun at or before `now - timeout` (seconds); how many."""
        ...

    def export(self, owner: str | None = None, conversation: str | None = None) -> Iterator[str]:
        """Everything, or one owner's, as JSON lines (without line ends) in a fixed order, of one moment.

        Importing them into an empty store and exporting that gives the same lines.
        """
        ...

    def load(self, lines: Iterable[str]) -> Imported:
        """Read an export, all of it or nothing. What is there already, equal, is left alone: twice is once.

        Raises:
            InputError: a line is malformed (its number is named), or a conversation exists with other content.
            SpaceMismatchError: the export has another encoder's vectors.
        """
        ...

    def erase(self, owner: str, conversation: str | None = None) -> int:
        """Remove an owner, or one conversation, with everything derived from it; how many exchanges went."""
        ...

    def moment(self) -> AbstractContextManager[None]:
        """What this thread reads inside may be read in one transaction, as of one moment; a store without that reads on.

        Saves the cost of a transaction for each reading. Nothing is written inside.
        """
        ...

    def close(self) -> None:
        """Free connections and caches. Closing twice is fine; anything else afterwards is a StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class LabelReply:
    """What a labeller said, as it said it, and what that cost (tokens by kind, such as "input" and "output")."""

    text: str
    usage: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Labeller(Protocol):
    """A language model that sorts a batch of exchanges into topics and names them. Never trusted: see `core.drafts`."""

    @property
    def model(self) -> str:
        """Its name, for the run log. Constant."""
        ...

    def label(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LabelReply:
        """Ask once.

        Args:
            system: instructions; contains no user text. user: the batch, as JSON lines.
            schema: JSON schema the reply should satisfy.
            timeout: seconds after which the call gives up.
        Raises:
            LlmError: no reply in time, a truncated one, or a provider that failed.
        """
        ...
