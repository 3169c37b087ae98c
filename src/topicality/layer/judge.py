"""The judge tier: a language model asked about borderline messages, behind the `Llm` port or any callable."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from topicality.config import Policy
from topicality.core.replies import Judgement, judgement_schema, read_judgement
from topicality.core.verdicts import reply_for
from topicality.errors import ConfigError, LlmError
from topicality.ports import Llm
from topicality.types import Action, Verdict


READS = 8000  # characters of a message that a judge is shown


class Judge:
    """Asks once, shows the faults and asks once more, then gives up.

    Args:
        ask: `(system, user, schema, seconds) -> reply`, text or an object. timeout: seconds for the whole judgement.
    """

    def __init__(self, ask: Callable[[str, str, Mapping[str, Any], float], Any], timeout: float) -> None:
        if not timeout > 0:
            raise ConfigError("judge timeout", key="judge_timeout", got=timeout, accepted="seconds above 0")
        self._ask = ask
        self._timeout = timeout

    def ask(self, policy: Policy, text: str, context: Sequence[str]) -> Judgement:
        """The judgement on one message.

        Raises:
            LlmError: no reply in time, the callable failed, or the reply was unusable twice.
        """
        system = files("topicality").joinpath("presets", "judge.txt").read_text("utf-8")
        question = {
            "allowed": [{"name": rule.name, "description": rule.description} for rule in policy.allowed],
            "blocked": [{"name": rule.name, "description": rule.description} for rule in policy.blocked],
            "context": list(context),
            "message": text[:READS],
        }
        return _in_time(lambda left: self._twice(policy, system, question, left), self._timeout)

    def _twice(self, policy: Policy, system: str, question: dict[str, Any], seconds: float) -> Judgement:
        schema = judgement_schema(policy)
        answer = read_judgement(self._ask(system, json.dumps(question, ensure_ascii=False), schema, seconds), policy)
        if isinstance(answer, list):
            again = {**question, "your_last_reply_was_refused_because": answer}
            answer = read_judgement(self._ask(system, json.dumps(again, ensure_ascii=False), schema, seconds), policy)
        if isinstance(answer, list):
            raise LlmError("unusable reply: " + "; ".join(answer))
        return answer


def as_judge(judge: Llm | Callable[[str, str], Any] | None, timeout: float) -> Judge | None:
    """A `Judge` around an `Llm` or a callable `(system, user) -> reply`; None stays None."""
    if judge is None:
        return None
    if isinstance(judge, Llm):
        port = judge
        return Judge(lambda system, user, schema, seconds: port.ask(system, user, schema, timeout=seconds), timeout)
    if callable(judge):
        function = judge
        return Judge(lambda system, user, schema, seconds: function(system, user), timeout)
    raise ConfigError("judge", key="judge", got=judge, accepted="an Llm or a callable (system, user) -> reply")


def wants_judge(policy: Policy, verdict: Verdict) -> bool:
    """Whether the policy has the judge look at this verdict of the embedding tier."""
    if policy.judge == "never" or verdict.method != "embedding":
        return False
    if policy.judge == "always":
        return True
    if policy.scoring == "cosine":  # the band is of probabilities, and a bare cosine is none
        return False
    low, high = policy.borderline
    near = any(score.side == "blocked" and low <= score.probability <= high for score in verdict.scores) or any(
        "outweigh" in note for note in verdict.notes
    )
    return near or (verdict.probability is not None and low <= verdict.probability <= high)


def judged(policy: Policy, answer: Judgement, local: Verdict) -> Verdict:
    """The local verdict with the judge's decision in place of its own; scores and threshold stay for comparison."""
    if local.status == "unavailable":  # the judge did answer
        local = replace(local, status="degraded")
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
    code = "BLOCKED_TOPIC" if kind == "blocked" else "OFF_TOPIC"
    action = policy.blocked_action if kind == "blocked" else policy.off_topic_action
    return replace(
        local,
        action=action,
        reason_code=code,  # type: ignore[arg-type]
        reason=f"the judge: {reason}",
        rule=answer.rule,
        probability=sure if kind == "blocked" else 1 - sure,
        risk=sure,
        method="judge",
        reply=reply_for(policy, kind, answer.rule if kind == "blocked" else None, action),
    )


def _in_time(work: Callable[[float], Judgement], seconds: float) -> Judgement:
    """Run in a daemon thread and stop waiting in time: a hanging model must not hold up a reply."""
    box: list[Judgement | Exception] = []

    def run() -> None:
        try:
            box.append(work(seconds))
        except Exception as error:  # noqa: BLE001 - a callable of the host's may raise anything; it is told on below
            box.append(error)

    thread = threading.Thread(target=run, name="topicality-judge", daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        raise LlmError(f"no reply within {seconds:g} s")
    answer = box[0]
    if isinstance(answer, Judgement):
        return answer
    if isinstance(answer, LlmError):
        raise answer
    raise LlmError(f"the judge raised {type(answer).__name__}") from answer
