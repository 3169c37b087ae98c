"""`Watcher`: verdict, drift reading and topic of each message of one conversation, from one embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from topicality.config import Policy
from topicality.core.drift import Reading, heard_from
from topicality.core.segment import Decision
from topicality.core.segment.decisions import Talk
from topicality.core.segment.entry import is_silent
from topicality.layer.drift import DriftTracker, landmarks_of
from topicality.layer.guard import Guard
from topicality.layer.segmentation import LiveSegmenter, TopicSegmenter
from topicality.ports import Embedder
from topicality.types import Message, Verdict

_SESSION = "watched"


@dataclass(frozen=True, slots=True)
class Watched:
    """A message and what is known about it: a verdict and a drift reading where there is a policy, and its topic."""

    message: Message
    verdict: Verdict | None
    drift: Reading | None
    decision: Decision

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "role": self.message.role,
            "text": self.message.text,
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "drift": None if self.drift is None else asdict(self.drift),
            "decision": self.decision.to_dict(),
        }


class Watcher:
    """Watches one conversation.

    Args:
        policy: a `Policy`, a path or a preset's name; None to watch topics only.
        embedder, granularity, expected_rate, talk: see `TopicSegmenter`.
    Raises:
        ConfigError: the policy, the encoder's name or a setting cannot be used.
    """

    def __init__(
        self,
        policy: Policy | str | Path | None,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        granularity: str = "balanced",
        expected_rate: float | None = None,
        talk: Talk = "auto",
    ) -> None:
        self._topics = TopicSegmenter(embedder, granularity=granularity, expected_rate=expected_rate, talk=talk)
        self._live: LiveSegmenter = self._topics.live()
        self._guard = None if policy is None else Guard(policy, self._topics.embedder)
        self._drift = DriftTracker(space=self._topics.embedder.space, clock=lambda: 0.0)
        self._said: list[Message] = []

    def receive(self, message: Message) -> Watched:
        """Take one message in. A message that is blocked does not become context of the next ones.

        Raises:
            EmbedError: the encoder failed. InputError: see `core.segment.Segmenter.receive`.
        """
        silent = is_silent(message)
        vector = None if silent else self._topics.embedder.embed([message.text])[0]
        decision = self._live.receive(message, vector)
        verdict, drift = None, None
        if self._guard is not None and not silent:
            verdict = self._guard.check(message.text, self._said, role=message.role, vector=vector)
            if message.role != "assistant":
                if self._drift.landmarks is None:
                    self._drift.landmarks = landmarks_of(self._guard.policy, self._topics.embedder)
                drift = self._drift.observe(_SESSION, message.role, vector, heard_from(verdict))
            if verdict.action != "block":
                self._said.append(message)
                del self._said[: -max(self._guard.policy.context_turns, 1)]
        return Watched(message, verdict, drift, decision)

    def finish(self) -> tuple[Decision, ...]:
        """The final decisions on the last messages."""
        return self._live.finish()
