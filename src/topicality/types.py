"""The values that travel between the rooms. Pure data: nothing here knows a store, an encoder or a clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Action = Literal["allow", "flag", "redirect", "block"]
Method = Literal["embedding", "judge", "keywords", "small_talk", "none"]
Status = Literal["checked", "degraded", "unavailable", "uncovered", "skipped"]
Direction = Literal["input", "output"]

ReasonCode = Literal[
    "ON_TOPIC",  # an allowed rule is met, or there is nothing but blocked rules and none is
    "SMALL_TALK",  # greeting, thanks, assent: allowed unless the policy says otherwise
    "FOLLOW_UP",  # allowed because of what was said before
    "OFF_TOPIC",  # no allowed rule is met
    "BLOCKED_TOPIC",  # a blocked rule is met and beats the allowed ones
    "DRIFT",  # the conversation as a whole has wandered off
    "LANGUAGE_NOT_COVERED",  # the encoder does not know this script or language
    "NOT_CHECKED",  # empty text, no rules, or a direction the policy does not check
    "ERROR",  # no tier could answer; the policy's on_error decided
]

SEVERITY: dict[str, int] = {"allow": 0, "flag": 1, "redirect": 2, "block": 3}


@dataclass(frozen=True, slots=True)
class Space:
    """Which encoder made a vector. Vectors of two spaces never meet.

    Attributes:
        name: encoder name, such as "minilm".
        dimension: length of its vectors.
        revision: what tells two builds of the same encoder apart (a hash, a version); "" if unknown.
    """

    name: str
    dimension: int
    revision: str = ""

    def __str__(self) -> str:
        suffix = f"@{self.revision}" if self.revision else ""
        return f"{self.name}[{self.dimension}]{suffix}"


@dataclass(frozen=True, slots=True)
class LlmReply:
    """What a language model said, and what it cost in tokens; 0 when the server does not tell."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LlmUse:
    """What one question to a language model cost.

    Attributes:
        role: "judge", "labeller", "selector" or "expander". calls: 1, 2 when the first reply was refused, 0 when there was
            no budget for any.
        input_tokens, output_tokens: of all calls; 0 when the server does not tell. seconds: until the answer stood.
        outcome: "ok", "repaired", "refused" (unusable twice), "timeout", "failed", "over budget", "paused" (it failed
            several times in a row and is left alone for a while), or "stopped" (who asked does not wait any longer).
    """

    role: str
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that was said.

    Attributes:
        role: "user", "assistant", "system" or "tool".
        text: what was said.
        at: seconds since the epoch, or None when unknown (0 is a time, not "unknown").
        id: the host's own id, if it has one.
        name: who spoke, where several people share a role.
        calls: ids of the tool calls this message makes; a tool message stays with the message that called it.
        call: id of the tool call this message answers, for role "tool".
    """

    role: str
    text: str
    at: float | None = None
    id: str | None = None
    name: str | None = None
    calls: tuple[str, ...] = ()
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a long message that decided: characters [start, end) of the text as given."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RuleScore:
    """How close a message is to one rule.

    Attributes:
        rule: name of the rule.
        side: "allowed" or "blocked".
        score: cosine similarity to the nearest member, [-1, 1].
        probability: that the message belongs to the rule, [0, 1].
        nearest: text of the nearest member.
    """

    rule: str
    side: Literal["allowed", "blocked"]
    score: float
    probability: float
    nearest: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The guard's answer to one message.

    Attributes:
        action: what to do with the message.
        reason_code: why, for machines (see `ReasonCode`).
        reason: why, for people. Never contains the message.
        rule: name of the rule that decided or came nearest; None when no rule was looked at.
        score: cosine similarity to that rule's nearest member, [-1, 1]; None if no vector was compared.
        threshold: the cosine similarity that would just have met the rule, for this message; the rule is met when
            score >= threshold. It differs from message to message because scores are normalised against the
            background (see docs/guard.md). None if no vector was compared.
        probability: calibrated probability, [0, 1], that the message belongs to `rule`: the quantity the policy's
            thresholds are about. None if nothing was compared.
        risk: probability, [0, 1], that the message should not pass; for ranking. None if nothing was compared.
        method: the tier that decided.
        status: "checked"; "degraded" when a better tier failed or was out of reach; "unavailable" when no tier could
            answer; "uncovered" when the encoder does not know the language; "skipped" when nothing had to be checked.
        nearest: the rule member (name, description part, example) that came nearest.
        runner_up: the next best rule, if there is one.
        window: the part of a long message that decided, if it was not read as one piece.
        reply: the policy's text for the user, when the action is redirect or block and the policy has one.
        scores: every rule, best first.
        notes: what else a reader should know (a tier that failed, characters that were folded, language).
        llm: what asking a language model cost, whatever came of it; None when none was asked.
    """

    action: Action
    reason_code: ReasonCode
    reason: str
    rule: str | None = None
    score: float | None = None
    threshold: float | None = None
    probability: float | None = None
    risk: float | None = None
    method: Method = "none"
    status: Status = "checked"
    nearest: str | None = None
    runner_up: RuleScore | None = None
    window: Window | None = None
    reply: str | None = None
    scores: tuple[RuleScore, ...] = ()
    notes: tuple[str, ...] = field(default=())
    llm: LlmUse | None = None

    @property
    def llm_calls(self) -> int:
        """Calls of a language model that this verdict took."""
        return 0 if self.llm is None else self.llm.calls

    @property
    def allowed(self) -> bool:
        """True when the message may pass as it is (allow or flag)."""
        return self.action in ("allow", "flag")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of the attributes."""
        return asdict(self)
