"""`Conversation`: one conversation as it is held. Each message is embedded once; everything it changes is written at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from topicality.core.context import Context, Layout
from topicality.core.directory import Directory
from topicality.core.drift import Reading as DriftReading
from topicality.core.meter import TokenCounter
from topicality.core.segment import Decision
from topicality.core.topics import Topic
from topicality.errors import ConfigError, InputError
from topicality.layer import asked, flow
from topicality.layer.labelling import account
from topicality.layer.reading import encoder_faults
from topicality.layer.recall import Recall, analyse
from topicality.ports import Turn as StoreTurn
from topicality.records import (
    Begin,
    Complete,
    Delete,
    Edit,
    Exchange,
    ExchangeError,
    ExchangeStatus,
    Fail,
    Operation,
    Passage,
    Scope,
    Side,
)
from topicality.types import Message, Verdict
from topicality.vectors import Array

if TYPE_CHECKING:
    from topicality.layer.memory import Layer

OnBlock = Literal["fail", "keep"]
BLOCKED = "blocked"  # why an exchange failed whose message the policy blocks


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one message.

    Attributes:
        exchange: id of its exchange, for `reply` and `fail`. sequence: its number, 1, 2, 3 …
        verdict, drift: the guard's answer and the reading of the conversation; None without a policy, and for replies.
        decision: continue, new or return, provisional until the next message; None when the exchange was there already.
        topic: id of the topic it is on. A topic is in the store from its first completed exchange on.
        status: "pending"; "failed" when the message was blocked; "completed" after a reply.
        notes: what else a host should know, such as a state that could not be read.
    """

    exchange: str
    sequence: int
    verdict: Verdict | None
    drift: DriftReading | None
    decision: Decision | None
    topic: str | None
    status: ExchangeStatus = "pending"
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of the attributes."""
        plain = {name: getattr(self, name) for name in ("exchange", "sequence", "topic", "status")}
        return {
            **plain,
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "drift": None if self.drift is None else asdict(self.drift),
            "decision": None if self.decision is None else self.decision.to_dict(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A user's message that was encoded and judged, and is kept nowhere yet: for `Conversation.keep`."""

    message: Message
    passages: tuple[Passage, ...]
    vector: Array | None
    verdict: Verdict | None


class Conversation:
    """One conversation of an owner. Made by `Layer.conversation`; costs nothing until used.

    Thread-safe, and other processes may write the same conversation: everything that depends on what was said before is
    read, decided and written while the store holds the conversation; encoding and judging come before.
    """

    def __init__(self, layer: Layer, id: str, owner: str) -> None:  # noqa: A002 - the house's word for it
        Scope(owner, id)
        self.layer = layer
        self.id = id
        self.owner = owner
        self._last: str | None = None  # the exchange received last, here

    def receive(
        self,
        text: str,
        *,
        at: float | None = None,
        id: str | None = None,  # noqa: A002 - the house's word for it
        name: str | None = None,
        on_block: OnBlock = "fail",
        said: Sequence[Message] | None = None,
        judge: bool = True,
    ) -> Turn:
        """Take in a user's message: verdict, drift, topic, and a pending exchange in the store.

        A message that the policy blocks is kept as a failed exchange (reason "blocked"): it is no evidence, no context of
        later messages, and needs no reply. A message to be redirected stays pending: reply with the verdict's text.

        Args:
            at: seconds since the epoch; now if None. id: of the exchange, for hosts that retry: the same id with the same
                text again changes nothing. name: who speaks, where several do.
            on_block: "keep" leaves a blocked message pending too, for a host that goes on all the same.
            said: what was said before, for the guard, where the host keeps the history; by default what the store has.
            judge: False asks no guard: no verdict, no drift.
        Raises:
            EmbedError: the encoder failed. StoreError: the store did. DuplicateExchangeError: the id has another text.
                InputError: what no store can keep. Nothing has changed in any of these cases.
        Cost: one encoder call; without it a few milliseconds, however long the conversation is.
        """
        return self.keep(self.judge(text, at=at, name=name, said=said, ask=judge), id=id, on_block=on_block)

    def judge(
        self,
        text: str,
        *,
        at: float | None = None,
        name: str | None = None,
        said: Sequence[Message] | None = None,
        ask: bool = True,
    ) -> Judged:
        """The first half of `receive`: encode and judge a user's message. Nothing is kept.

        A host that asks its model as soon as the verdict is there can `keep` the message meanwhile.

        Args:
            ask: False asks no guard. Others and errors: see `receive`.
        """
        now = self.layer.clock() if at is None else at
        message = Message("user", text, now, name=name)
        passages = self._analysed(message)
        vector = flow.mean_vector(passage.vector for passage in passages)
        return Judged(message, passages, vector, self._verdict(text, vector, said) if ask else None)

    def keep(
        self,
        judged: Judged,
        *,
        id: str | None = None,  # noqa: A002 - the house's word for it
        on_block: OnBlock = "fail",
    ) -> Turn:
        """The second half of `receive`: drift, topic, and a pending exchange in the store. Encodes nothing."""
        if on_block not in ("fail", "keep"):
            raise ConfigError("unknown choice", key="on_block", got=on_block, accepted="fail, keep")
        layer, message, verdict = self.layer, judged.message, judged.verdict
        key, now = layer.ids() if id is None else id, layer.clock()
        at = now if message.at is None else message.at
        blocked = verdict is not None and verdict.action == "block" and on_block == "fail"
        begin = Begin(key, message.text, judged.passages, message.at, message.name, now)
        with layer.held(self.owner, self.id) as (turn, kept):
            known = turn.exchange(key)
            if known is not None:
                layer.write(turn, [begin])  # refuses another text
                topic = flow.waiting_topics(turn.state(flow.FLOW)).get(known.sequence)
                done = Turn(key, known.sequence, verdict, None, None, topic, known.status)
            else:
                stream = kept.stream(turn)
                sequence = turn.info().exchanges + 1
                drift, state, notes = layer.drift(turn, judged.vector, verdict, at)
                decision = stream.take(sequence, "user", message, judged.vector)
                operations: list[Operation] = [begin, *state]
                if blocked:
                    operations.append(Fail(key, BLOCKED))
                    stream.drop(sequence)
                self.layer.write(turn, [*operations, *stream.operations()])
                status: ExchangeStatus = "failed" if blocked else "pending"
                topic = stream.topic(decision.topic)
                done = Turn(key, sequence, verdict, drift, decision, topic, status, (*stream.notes, *notes))
        self._last = key
        return done

    def reply(
        self, text: str, *, exchange: str | None = None, at: float | None = None, name: str | None = None
    ) -> Turn:
        """Complete an exchange: from here on it is evidence, and its topic, labels and terms are up to date.

        Args:
            exchange: `Turn.exchange`; by default the one received last here, or else the latest pending one.
            at: seconds since the epoch; now if None. name: who speaks.
        Raises:
            ExchangeError: it is unknown, failed or completed already. Others: see `receive`. Nothing has changed then.
        Cost: see `receive`.
        """
        layer = self.layer
        message = Message("assistant", text, layer.clock() if at is None else at, name=name)
        passages = self._analysed(message)
        vector = flow.mean_vector(passage.vector for passage in passages)
        with layer.held(self.owner, self.id) as (turn, kept):
            key = self._pending(turn, exchange)
            complete = Complete(key, text, passages, message.at, name)
            known = turn.exchange(key)
            if known is None or known.status != "pending":
                self.layer.write(turn, [complete])  # refuses
            assert known is not None  # noqa: S101  # refused above
            done = replace(known, status="completed", reply=message)
            stream = kept.stream(turn)
            decision = stream.take(known.sequence, "assistant", message, vector)
            kept.begin(turn)
            operations, topic = kept.place(turn, stream, done, layer.clock())
            kept.written(turn, layer.write(turn, [complete, *operations, *stream.operations()]))
            closed = layer.completed(kept, operations)
        if closed and layer.labeller is not None:
            layer.labeller.wake(self.owner, self.id)
        return Turn(key, known.sequence, None, None, decision, topic, "completed", stream.notes)

    def fail(self, reason: str, *, exchange: str | None = None) -> None:
        """End an exchange without a reply. It is kept, and is never evidence.

        Args:
            exchange: see `reply`.
        Raises:
            ExchangeError: it is unknown, failed or completed already.
        """
        with self.layer.held(self.owner, self.id) as (turn, _):
            self.layer.write(turn, [Fail(self._pending(turn, exchange), reason)])

    def edit(self, exchange: str, text: str, *, side: Side = "user") -> None:
        """Replace or redact one side of an exchange: words, vectors, its topic's labels and the segmenter follow.

        Raises:
            ExchangeError: it is unknown or deleted, or has no reply to edit. Others: see `receive`.
        Cost: the exchanges of its topic are read again, and the last 200 exchanges of the conversation.
        """
        passages = self._analysed(Message("user" if side == "user" else "assistant", text))
        edit = Edit(exchange, side, text, passages)
        vector = flow.mean_vector(passage.vector for passage in passages)
        with self.layer.held(self.owner, self.id) as (turn, kept):
            old = turn.exchange(exchange)
            kept.flush(turn)
            self.layer.write(turn, [edit])
            new = turn.exchange(exchange)
            if old is not None and new is not None and old != new:
                fresh: dict[tuple[int, Side], Array] = {} if vector is None else {(old.sequence, side): vector}
                kept.changed(turn, old, new, self.layer.clock(), fresh)

    def delete(self, exchange: str) -> None:
        """Empty an exchange for good: texts, words and vectors go, its topic is made again from what is left.

        Raises:
            ExchangeError: it is unknown.
        Cost: see `edit`.
        """
        with self.layer.held(self.owner, self.id) as (turn, kept):
            old = turn.exchange(exchange)
            kept.flush(turn)
            self.layer.write(turn, [Delete(exchange)])
            if old is not None and old.status != "deleted":
                kept.changed(turn, old, None, self.layer.clock(), {})

    def exchanges(self, newest: int | None = None) -> list[Exchange]:
        """The exchanges in order, of any status but deleted; only the newest so many if said."""
        return self.layer.store.exchanges(Scope(self.owner, self.id), newest=newest)

    def topics(self) -> list[Topic]:
        """What the conversation has been about, by number."""
        return self.layer.maps.of(self.owner, self.id).listed()

    def drift(self) -> DriftReading | None:
        """How far the conversation has drifted, as of its last message; None without a policy. Changes nothing."""
        return self.layer.drifting(self.owner, self.id)

    def directory(self, budget: int = 800, *, question: str = "", count: TokenCounter | None = None) -> Directory:
        """The list of topics as text, as much of it as fits; those that matter for a question first.

        Args:
            budget: most tokens, for any number of topics. count: tokens of a text; the encoder's own by default.
        """
        return asked.directory_of(self, budget, question, count)

    def recall(
        self,
        question: str,
        budget: int = 1000,
        *,
        everywhere: bool = False,
        count: TokenCounter | None = None,
        select: float | None = None,
    ) -> Recall:
        """The passages that matter for a question.

        Args:
            budget: most tokens of the answer's text. everywhere: of all the owner's conversations.
            select: seconds to wait for the language model to say which topics to reopen: their passages come first. None is
                what the layer is set to, by default 0: it is not asked. When it fails or is late, the local ranking stands
                and `Recall.selected` says so.
        """
        scope = Scope(self.owner, None if everywhere else self.id)
        return asked.reopened(self, scope, question, budget, count, select)

    def context(  # noqa: PLR0913  # each is a choice of the host's, by keyword
        self,
        budget: int,
        system: str = "",
        *,
        question: str | None = None,
        policy_note: str = "",
        memory: int = 1500,
        everywhere: bool = False,
        layout: Layout | None = None,
        count: TokenCounter | None = None,
        select: float | None = None,
    ) -> Context:
        """The messages to send to the model, within a token budget. See `core.context.build_context`.

        Args:
            question: a message that is not in the store; by default the latest pending exchange is to be answered.
            memory: most tokens of recalled evidence, whatever the budget. everywhere: also from the owner's others.
            select: see `recall`; `Context.notes` and `Context.llm` say what came of it.
        Raises:
            InputError: there is no message to answer, or it does not fit into the budget.
        """
        return asked.context_of(
            self,
            asked.Wish(budget, system, question, policy_note, memory, everywhere, layout, count, select),
        )

    def _analysed(self, message: Message) -> tuple[Passage, ...]:
        if not isinstance(message.text, str):
            raise InputError(f"a message must be text (str), got {type(message.text).__name__}")
        with encoder_faults():
            return analyse(message, self.layer.embedder)

    def _verdict(self, text: str, vector: Array | None, said: Sequence[Message] | None) -> Verdict | None:
        guard = self.layer.guard
        if guard is None:
            return None
        if said is None and guard.policy.context_turns:
            recent = self.layer.store.exchanges(
                Scope(self.owner, self.id),
                statuses=("completed", "pending"),
                newest=guard.policy.context_turns // 2 + 1,
            )
            said = [m for e in recent for m in (e.user, e.reply) if m is not None]
        return guard.check(text, said or (), vector=vector, conversation=account(self.owner, self.id))

    def _pending(self, turn: StoreTurn, exchange: str | None) -> str:
        if exchange is not None or self._last is not None:
            return exchange or self._last or ""
        newest = turn.exchanges(statuses=("pending",), newest=1)
        if not newest:
            raise ExchangeError("", None, "completed", "there is no pending exchange; receive a message first")
        return newest[0].id
