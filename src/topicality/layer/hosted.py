"""A conversation whose history the host keeps: a message is taken in, and what to send is chosen from the host's messages.

`Hosted.look` is all that a host has to wait for before it asks its model. `keep` takes the message in, while the model works;
`complete` and `fail` end the exchange.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from topicality.core.drift import Reading as DriftReading
from topicality.errors import EmbedError, StoreError
from topicality.layer.conversation import BLOCKED, Conversation, Judged
from topicality.layer.conversation import Turn as Received
from topicality.layer.labelling import account
from topicality.layer.sending import Asked, History, Pair, Sender, Sent, Terms, pairs_of
from topicality.records import DuplicateExchangeError, ExchangeError, Scope
from topicality.types import Message, Verdict

if TYPE_CHECKING:
    from topicality.layer.memory import Layer

__all__ = ["Asked", "Hosted", "Looked", "Sent", "Taken", "Terms", "said_before"]

_REFUSED = 20  # of the latest failed exchanges, whose messages are kept from the model
_ATTEMPTS = 10  # at one message, that are told apart by number

_log = logging.getLogger("topicality")


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of it.

    Attributes:
        verdict, drift, topic: as `Conversation.receive` gives them.
        exchange: id it is kept under, for `complete` and `fail`; None when it is not kept. open: whether one of these is due.
        sent: what of the host's messages is sent, and what beside them.
        forgetful: whether the memory failed, so that only the guard has answered.
    """

    verdict: Verdict | None = None
    drift: DriftReading | None = None
    topic: str | None = None
    exchange: str | None = None
    open: bool = False
    sent: Sent = field(default_factory=Sent)
    forgetful: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that was judged.

    Attributes:
        judged: None when it is not to be remembered, or cannot be. left: the history without what was blocked.
    """

    verdict: Verdict | None
    judged: Judged | None = None
    left: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Looked:
    """What a host needs to ask its model.

    Attributes:
        taken: the verdict, and what is sent. kept: whether it is all there is; else `Hosted.keep` completes it.
        judged: for `keep`.
    """

    taken: Taken
    kept: bool = True
    judged: Judged | None = None


class Hosted:
    """Conversations of a layer whose history their host keeps. Thread-safe; one for all requests: it remembers counts."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._sender = Sender(layer)

    def take(self, asked_for: Asked, terms: Terms) -> Taken:
        """`look` and `keep` in one."""
        return self.keep(asked_for, self.look(asked_for, terms))

    def hear(self, asked_for: Asked, terms: Terms) -> Heard:
        """The first part of `look`: encode and judge a message.

        It needs nothing of what earlier requests of the conversation leave to be stored, once they were looked at.

        Raises:
            InputError: what no store can keep.
        Cost: as `Conversation.judge`.
        """
        pairs = pairs_of(asked_for.turns[: asked_for.start])
        if not terms.remember:
            return Heard(self._guarded(asked_for, frozenset()) if terms.judge else None)
        talk = self.layer.conversation(asked_for.conversation, asked_for.owner)
        refused: frozenset[int] = frozenset()
        try:
            if terms.judge and self.layer.guard is not None and pairs:
                refused = self._refused(talk, pairs)
            judged = talk.judge(asked_for.text, said=said_before(asked_for, refused), ask=terms.judge)
        except (EmbedError, StoreError) as error:
            _log.warning("the memory failed (%s): the guard alone answers", type(error).__name__)
            return Heard(self._guarded(asked_for, refused) if terms.judge else None)
        return Heard(judged.verdict, judged, tuple(pair for pair in pairs if pair.places[0] not in refused))

    def look(self, asked_for: Asked, terms: Terms, heard: Heard | None = None) -> Looked:
        """Judge a message and choose what to send. It is not in the store afterwards, but where what is sent depends on it.

        That is: it is blocked or redirected, the same request has come before, or the history is over the budget, so that
        what is kept of it depends on the message's topic.

        A message that the policy blocked earlier is neither context for the guard nor sent: whoever refers to it later
        would have it answered after all. If the memory fails, the guard alone answers.

        Args:
            heard: what `hear` gave, if that was asked before.
        Raises:
            InputError: what no store can keep.
        Cost: as `Conversation.judge`; with evidence, as `recall` too.
        """
        heard = heard or self.hear(asked_for, terms)
        judged = heard.judged
        if judged is None:
            return Looked(Taken(heard.verdict, forgetful=terms.remember))
        talk = self.layer.conversation(asked_for.conversation, asked_for.owner)
        allowed = judged.verdict is None or judged.verdict.allowed
        try:
            history = self._sender.history(asked_for, terms, heard.left) if allowed else None
            if history is not None and history.tokens <= terms.budget:
                with self.layer.store.moment():
                    known = self.layer.store.exchange(talk.owner, talk.id, asked_for.exchange)
                    before = self.layer.store.conversation(talk.owner, talk.id).exchanges
                if known is None:
                    taken = self._chosen(Taken(judged.verdict), talk, asked_for, terms, before + 1, history)
                    return Looked(taken, kept=False, judged=judged)
            turn = self._received(talk, asked_for, judged)
        except (EmbedError, StoreError) as error:
            _log.warning("the memory failed (%s): the guard alone answers", type(error).__name__)
            return Looked(Taken(judged.verdict, forgetful=True))
        taken = _taken(turn)
        if history is None:
            return Looked(replace(taken, open=turn.status == "pending"))
        return Looked(self._chosen(taken, talk, asked_for, terms, turn.sequence, history))

    def keep(self, asked_for: Asked, looked: Looked) -> Taken:
        """Take in a message that was looked at: drift, topic, and a pending exchange.

        The same request again is the same exchange. One that failed is tried again under another id; of one that is
        completed, and the last of its conversation, the next reply replaces the old one; a completed one that others have
        followed was another occasion to say the same.

        Raises:
            InputError: what no store can keep.
        Cost: as `Conversation.keep`.
        """
        if looked.kept or looked.judged is None:
            return looked.taken
        talk = self.layer.conversation(asked_for.conversation, asked_for.owner)
        try:
            turn = self._received(talk, asked_for, looked.judged)
        except (EmbedError, StoreError) as error:
            _log.warning("the memory failed (%s): the message is not kept", type(error).__name__)
            return replace(looked.taken, forgetful=True)
        return replace(_taken(turn), sent=looked.taken.sent, forgetful=looked.taken.forgetful)

    def complete(self, owner: str, conversation: str, exchange: str, text: str) -> str:
        """Give an exchange its reply: "completed", "edited" where it replaced an earlier one, "known" where it is the same.

        An exchange that was failed in the meantime (it took too long) is begun and completed again under another id.
        """
        talk = self.layer.conversation(conversation, owner)
        try:
            talk.reply(text, exchange=exchange)
        except ExchangeError as error:
            known = self.layer.store.exchange(owner, conversation, exchange)
            if known is None or error.status not in ("completed", "failed"):
                raise
            if error.status == "completed":
                if known.reply is not None and known.reply.text == text:
                    return "known"
                talk.edit(exchange, text, side="assistant")
                return "edited"
            again = talk.receive(known.user.text, id=self.layer.ids(), judge=False)
            talk.reply(text, exchange=again.exchange)
        return "completed"

    def fail(self, owner: str, conversation: str, exchange: str, reason: str) -> bool:
        """End an exchange without a reply; False where it has ended already, which is left as it is."""
        try:
            self.layer.conversation(conversation, owner).fail(reason, exchange=exchange)
        except ExchangeError:
            return False
        return True

    def _guarded(self, asked_for: Asked, refused: frozenset[int]) -> Verdict | None:
        guard = self.layer.guard
        if guard is None:
            return None
        said = said_before(asked_for, refused)
        return guard.check(asked_for.text, said, conversation=account(asked_for.owner, asked_for.conversation))

    def _chosen(
        self, taken: Taken, talk: Conversation, asked_for: Asked, terms: Terms, sequence: int, history: History
    ) -> Taken:
        try:
            return replace(taken, sent=self._sender.choose(talk, asked_for, terms, sequence, taken.topic, history))
        except (EmbedError, StoreError) as error:
            _log.warning("recall failed (%s): the history is sent as it is", type(error).__name__)
            return replace(taken, forgetful=True)

    def _received(self, talk: Conversation, asked_for: Asked, judged: Judged) -> Received:
        for attempt in range(1, _ATTEMPTS + 1):
            key = asked_for.exchange if attempt == 1 else f"{asked_for.exchange}-{attempt}"
            try:
                turn = talk.keep(judged, id=key)
            except DuplicateExchangeError:  # edited or deleted since
                continue
            refuses = turn.verdict is not None and not turn.verdict.allowed
            if turn.status == "pending" or turn.decision is not None or (turn.status == "failed" and refuses):
                return turn
            if turn.status == "completed":
                newest = self.layer.store.exchanges(Scope(talk.owner, talk.id), newest=1)
                if newest and newest[0].sequence == turn.sequence:
                    return turn
        return talk.keep(judged, id=self.layer.ids())

    def _refused(self, talk: Conversation, pairs: Sequence[Pair]) -> frozenset[int]:
        """Positions of messages that were blocked, and of what was answered to them."""
        failed = self.layer.store.exchanges(Scope(talk.owner, talk.id), statuses=("failed",), newest=_REFUSED)
        texts = {exchange.user.text for exchange in failed if exchange.failure == BLOCKED}
        return frozenset(place for pair in pairs if pair.user in texts for place in pair.places)


def _taken(turn: Received) -> Taken:
    return Taken(turn.verdict, turn.drift, turn.topic, turn.exchange, turn.status in ("pending", "completed"))


def said_before(asked_for: Asked, refused: frozenset[int] = frozenset()) -> tuple[Message, ...]:
    """What user and model said before the message to answer, for the guard."""
    return tuple(
        one.message
        for n, one in enumerate(asked_for.turns[: asked_for.start])
        if n not in refused and one.message.role in ("user", "assistant") and one.message.text.strip()
    )
