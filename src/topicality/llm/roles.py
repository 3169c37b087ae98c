"""The roles: what each is shown, which schema it is held to, and how its reply is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topicality.config import Policy, Side, TopicRule
from topicality.core.directory import Directory, Listed
from topicality.core.expansion import Expansion, expansion_schema, read_expansion
from topicality.core.replies import Judgement, judgement_schema, objects, read_judgement
from topicality.core.selection import Selection, read_selection, selection_schema
from topicality.errors import LlmError
from topicality.llm.asking import Asker, AskError, Role, Stop
from topicality.ports import LabelReply
from topicality.types import LlmUse

READS = 8000  # characters of a message that a judge is shown
_EXAMPLES = 5  # examples and counterexamples of a rule that a judge is shown


def judging(policy: Policy, text: str, context: Sequence[str]) -> tuple[Role[Judgement], dict[str, Any]]:
    """The judge's role and question for one message."""
    shown = [text[:READS], *context]
    quoted = [inner for part in shown for found in objects(part) for inner in _nested(found)]
    role = Role("judge", judgement_schema(policy), lambda reply: read_judgement(reply, policy, quoted=quoted))
    question = {
        "allowed": [_rule(rule) for rule in policy.allowed],
        "blocked": [_rule(rule) for rule in policy.blocked],
        "context": list(context),
        "message": text[:READS],
    }
    return role, question


def selecting(
    message: str, recent: Sequence[str], listed: Directory, topics: Sequence[Listed]
) -> tuple[Role[Selection], dict[str, Any]]:
    """The selector's role and question.

    Args:
        recent: what was said just before, oldest first. listed: the directory, within its budget.
        topics: those that are in the directory.
    """
    lines = [json.loads(line) for line in listed.text.splitlines() if line.startswith("{")]
    role = Role("selector", selection_schema(topics), lambda reply: read_selection(reply, topics))
    return role, {"message": message[:READS], "recent": list(recent), "directory": lines}


def expanding(rule: TopicRule, side: Side, others: Sequence[str]) -> tuple[Role[Expansion], dict[str, Any]]:
    """The expander's role and question for one rule of a policy.

    Args:
        others: names of the policy's other rules.
    """
    role = Role("expander", expansion_schema(), lambda reply: read_expansion(reply, rule))
    named = {"name": rule.name, "description": rule.description, "examples": list(rule.examples)}
    return role, {"topic": {**named, "side": side}, "other_topics": list(others)}


class AskedLabeller:
    """An `Asker` as a `ports.Labeller`: the worker of `core.worker` checks the replies and asks for the repair.

    Args:
        conversation: whose budget its calls count against. stop: ends the waiting for a reply.
    Attributes:
        uses: what its calls have cost, in order.
    """

    def __init__(self, asker: Asker, conversation: str = "", stop: Stop | None = None) -> None:
        self._asker = asker
        self._conversation = conversation
        self._stop = stop
        self.uses: list[LlmUse] = []

    @property
    def model(self) -> str:
        """The model's name."""
        return self._asker.model

    def label(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LabelReply:
        """See `ports.Labeller.label`. The prompt is that of the asker, which a host may have replaced."""
        try:
            reply, use = self._asker.once(
                "labeller", user, schema, timeout=timeout, conversation=self._conversation, stop=self._stop
            )
        except AskError as error:
            self.uses.append(error.use)
            raise LlmError(str(error)) from error
        self.uses.append(use)
        return LabelReply(reply.text, {"input": reply.input_tokens, "output": reply.output_tokens})


def _nested(value: object) -> Iterator[dict[str, Any]]:
    """An object, and those inside it, to the depth at which nobody could mean them as a reply."""
    left = [(value, 0)]
    while left:
        inner, depth = left.pop()
        if isinstance(inner, dict):
            yield inner
        inside = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
        left += [(entry, depth + 1) for entry in inside if depth < 20]


def _rule(rule: TopicRule) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": rule.name, "description": rule.description}
    if rule.examples:
        shown["examples"] = list(rule.examples[:_EXAMPLES])
    if rule.counterexamples:
        shown["not"] = list(rule.counterexamples[:_EXAMPLES])
    return shown
