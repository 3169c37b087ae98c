"""The selector: a language model picks from the bounded directory which topics to reopen. The local ranking stands."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from topicality.core.directory import Listed, directory
from topicality.core.meter import TokenCounter
from topicality.core.selection import MOST
from topicality.llm.asking import Asker, AskError
from topicality.llm.roles import selecting
from topicality.types import LlmUse

_log = logging.getLogger("topicality")


@dataclass(frozen=True, slots=True)
class Selected:
    """Which topics to reopen for a message.

    Attributes:
        topics: ids, most needed first, each once, at most three.
        needs_time: whether the message asks when something was; False when no model said.
        strategy: who chose: the "llm", or "local" when there was nothing to ask or no usable answer.
        notes: what went wrong or was left out. llm: what it cost; None when it was not asked.
    """

    topics: tuple[str, ...]
    needs_time: bool = False
    strategy: Literal["llm", "local"] = "local"
    notes: tuple[str, ...] = ()
    llm: LlmUse | None = None

    def told(self) -> tuple[str, ...]:
        """What a reader of a result should know, without text of the conversation."""
        if self.strategy == "local":
            return self.notes
        count = len(self.topics)
        return (f"topics that the language model reopened: {count}", *self.notes)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be chosen from.

    Attributes:
        topics: of the conversation.
        scores: the local ranking from recall, by topic id, higher is better; topics without a score are not in it.
        budget: most tokens of the directory shown. count: tokens of a text. now: seconds since the epoch.
    """

    topics: Sequence[Listed]
    scores: Mapping[str, float]
    budget: int
    count: TokenCounter
    now: float


def select(
    asker: Asker | None,
    message: str,
    recent: Sequence[str],
    candidates: Candidates,
    *,
    timeout: float,
    conversation: str = "",
) -> Selected:
    """Choose topics for a message. Never raises for anything the model does.

    Args:
        asker: None chooses by the local ranking. recent: what was said just before, oldest first.
        timeout: seconds the reply may be held up by this. There is no default: it is in the way of every reply.
    Cost: one call at most; none when the directory is empty.
    """
    topics, scores = candidates.topics, candidates.scores
    known = {topic.id for topic in topics if topic.spans and topic.status != "dropped"}
    ranked = sorted((name for name in scores if name in known), key=lambda name: -scores[name])
    local = Selected(tuple(ranked[:MOST]))
    if asker is None:
        return local
    listed = directory(topics, candidates.budget, candidates.count, now=candidates.now, scores=scores)
    shown = [topic for topic in topics if topic.id in set(listed.topics)]
    if not shown:
        return local
    role, question = selecting(message, recent, listed, shown)
    try:
        answer, use = asker.ask(role, question, timeout=timeout, conversation=conversation)
    except AskError as error:
        _log.warning("the selector failed, the local ranking stands: %s", error.use.outcome)
        note = f"the selector failed, the local ranking stands: {error}"
        return Selected(local.topics, notes=(note,), llm=error.use)
    return Selected(answer.topics, answer.needs_time, "llm", answer.notes, use)
