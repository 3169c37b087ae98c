"""The judge tier: a language model asked about borderline messages, behind the `Llm` port or any callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from topicality.config import Policy
from topicality.core.replies import Judgement
from topicality.core.verdicts import reply_for
from topicality.errors import ConfigError
from topicality.llm.adapters import load_llm
from topicality.llm.asking import Asker
from topicality.llm.roles import READS, judging
from topicality.ports import Llm
from topicality.types import Action, LlmUse, ReasonCode, Verdict

__all__ = ["READS", "Judge", "as_judge", "judged", "wants_judge"]


class Judge:
    """An `Asker` in the role of the judge.

    Args:
        timeout: seconds for the whole judgement, a repair included.
    """

    def __init__(self, asker: Asker, timeout: float) -> None:
        if not timeout > 0:
            raise ConfigError("judge timeout", key="judge_timeout", got=timeout, accepted="seconds above 0")
        self.asker = asker
        self.timeout = timeout

    def ask(
        self, policy: Policy, text: str, context: Sequence[str], conversation: str = ""
    ) -> tuple[Judgement, LlmUse]:
        """The judgement on one message, and what it cost.

        Raises:
            AskError: no reply in time, the model failed, its reply was unusable twice, or the budget is used up.
        """
        role, question = judging(policy, text, context)
        return self.asker.ask(role, question, timeout=self.timeout, conversation=conversation)


def as_judge(judge: Llm | Callable[[str, str], Any] | Asker | None, timeout: float) -> Judge | None:
    """A `Judge` around an `Asker`, an `Llm` or a callable `(system, user) -> reply`; None stays None."""
    if judge is None or isinstance(judge, Asker):
        return None if judge is None else Judge(judge, timeout)
    if isinstance(judge, Llm) or callable(judge):
        llm = load_llm(judge)
        return None if llm is None else Judge(Asker(llm), timeout)
    raise ConfigError(
        "judge", key="judge", got=judge, accepted="an Asker, an Llm or a callable (system, user) -> reply"
    )


def wants_judge(policy: Policy, verdict: Verdict, text: str) -> bool:
    """Whether the policy has the judge look at this verdict of the local tiers.

    "always" is every message that has a letter or a digit, small talk and keyword hits too. "borderline" is those that the
    embeddings decided within the band.
    """
    if policy.judge == "always":
        return any(character.isalnum() for character in text)
    if policy.judge == "never" or verdict.method != "embedding":
        return False
    if policy.scoring == "cosine":  # the band is of probabilities, and a bare cosine is none
        return False
    low, high = policy.borderline
    near = any(score.side == "blocked" and low <= score.probability <= high for score in verdict.scores) or any(
        "outweigh" in note for note in verdict.notes
    )
    return near or (verdict.probability is not None and low <= verdict.probability <= high)


def judged(policy: Policy, answer: Judgement, local: Verdict, use: LlmUse | None = None) -> Verdict:
    """The local verdict with the judge's decision in place of its own; scores and threshold stay for comparison."""
    if local.status == "unavailable":  # the judge did answer
        local = replace(local, status="degraded")
    local = replace(local, llm=use)
    reason = answer.reason or "no reason given"
    kind, sure = answer.kind, answer.confidence
    if kind == "allowed":
        action: Action = "allow"
        return replace(
            local,
            action=action,
            reason_code="ON_TOPIC",
            reason=f"the judge: {reason}",
            rule=answer.rule or local.rule,
            probability=sure,
            risk=1 - sure,
            method="judge",
            window=None,
            reply=None,
        )
    code: ReasonCode = "BLOCKED_TOPIC" if kind == "blocked" else "OFF_TOPIC"
    action = policy.blocked_action if kind == "blocked" else policy.off_topic_action
    return replace(
        local,
        action=action,
        reason_code=code,
        reason=f"the judge: {reason}",
        rule=answer.rule,
        probability=sure if kind == "blocked" else 1 - sure,
        risk=sure,
        method="judge",
        reply=reply_for(policy, kind, answer.rule if kind == "blocked" else None, action),
    )
