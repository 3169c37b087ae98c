"""Asking a language model in a role: strict replies, one repair, a time limit that holds, budgets, counters."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

from topicality.errors import ConfigError, LlmError
from topicality.ports import Llm
from topicality.types import LlmUse

T = TypeVar("T")
_log = logging.getLogger("topicality.llm")


@dataclass(frozen=True)
class Role(Generic[T]):
    """What a model is asked to be.

    Attributes:
        name: "judge", "labeller" or "selector"; names the prompt file, counters and logs.
        schema: JSON schema of the reply. read: the value in a reply's text, or the list of its faults.
    """

    name: str
    schema: Mapping[str, Any]
    read: Callable[[str], T | list[str]]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be asked; None is no limit.

    Attributes:
        calls_per_minute: of all conversations. calls_per_conversation: of one conversation, ever.
        tokens_per_minute: prompt and reply together, counted when the server tells them.
    """

    calls_per_minute: int | None = 120
    calls_per_conversation: int | None = None
    tokens_per_minute: int | None = None


@dataclass
class Counters:
    """What was asked so far, by role: calls, tokens, seconds, and how it ended ("ok", "repaired", "refused", …)."""

    calls: Counter[str] = field(default_factory=Counter)
    input_tokens: Counter[str] = field(default_factory=Counter)
    output_tokens: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by role."""
        return {
            role: {
                "calls": self.calls[role],
                "input_tokens": self.input_tokens[role],
                "output_tokens": self.output_tokens[role],
                "seconds": round(float(self.seconds[role]), 3),
                "outcomes": {outcome: count for (who, outcome), count in sorted(self.outcomes.items()) if who == role},
            }
            for role in sorted(set(self.calls) | {who for who, _ in self.outcomes})
        }


class Asker:
    """Asks a model in any role, within budgets and time limits. One serves many threads.

    Args:
        llm: the model. budget: how much may be asked. prompts: a folder whose `ROLE.txt` replaces the shipped prompt.
        clock: seconds that only grow; for tests.
    """

    def __init__(
        self,
        llm: Llm,
        budget: Budget | None = None,
        *,
        prompts: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.llm = llm
        self.counters = Counters()
        self._budget = budget or Budget()
        self._prompts = prompts
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int]] = deque()
        self._conversations: OrderedDict[str, int] = OrderedDict()

    def ask(
        self, role: Role[T], question: Mapping[str, Any], *, timeout: float, conversation: str = ""
    ) -> tuple[T, LlmUse]:
        """Ask, show the faults of an unusable reply and ask once more, then give up.

        The caller waits `timeout` seconds at the most, whatever the model does.

        Args:
            question: data for the model, sent as JSON. conversation: whose budget it counts against.
        Returns:
            The valid value, and what it cost.
        Raises:
            LlmError: over budget, no usable reply in time, or the model failed.
        """
        prompt = self._prompt(role.name)
        use = _Use()
        started = self._clock()
        box: list[T | LlmError] = []

        def work() -> None:
            try:
                box.append(self._twice(role, prompt, question, timeout, conversation, use))
            except LlmError as error:
                box.append(error)
            except Exception as error:  # noqa: BLE001 - an adapter of the host's may raise anything; told on below
                box.append(LlmError(f"the model raised {type(error).__name__}"))

        thread = threading.Thread(target=work, name=f"topicality-{role.name}", daemon=True)
        thread.start()
        thread.join(timeout)
        answer = box[0] if box else LlmError(f"no reply within {timeout:g} s")
        spent = self._clock() - started
        outcome = use.outcome if not isinstance(answer, LlmError) else ("timeout" if not box else use.outcome or "failed")
        self._count(role.name, use, spent, outcome)
        if isinstance(answer, LlmError):
            raise answer
        return answer, LlmUse(role.name, use.calls, use.input_tokens, use.output_tokens, spent, outcome)

    def _twice(
        self, role: Role[T], prompt: str, question: Mapping[str, Any], timeout: float, conversation: str, use: _Use
    ) -> T:
        faults: list[str] = []
        for attempt in range(2):
            self._afford(conversation, use)
            data = {**question, "your_last_reply_was_refused_because": faults} if faults else dict(question)
            use.calls += 1
            reply = self.llm.ask(prompt, json.dumps(data, ensure_ascii=False), role.schema, timeout=timeout)
            use.input_tokens += reply.input_tokens
            use.output_tokens += reply.output_tokens
            self._spend(reply.input_tokens + reply.output_tokens)
            answer = role.read(reply.text)
            if not isinstance(answer, list):
                use.outcome = "repaired" if attempt else "ok"
                return answer
            faults = [str(fault) for fault in answer][:20]
        use.outcome = "refused"
        raise LlmError("unusable reply twice: " + "; ".join(faults)[:400])

    def _afford(self, conversation: str, use: _Use) -> None:
        budget, now = self._budget, self._clock()
        with self._lock:
            while self._recent and now - self._recent[0][0] > 60.0:
                self._recent.popleft()
            calls = sum(1 for _, tokens in self._recent if tokens == 0)
            tokens = sum(tokens for _, tokens in self._recent)
            used = self._conversations.get(conversation, 0)
            over = (
                _over(calls, budget.calls_per_minute)
                or _over(tokens, budget.tokens_per_minute)
                or (bool(conversation) and _over(used, budget.calls_per_conversation))
            )
            if over:
                use.outcome = "over budget"
                raise LlmError("the budget for language model calls is used up; the local answer stands")
            self._recent.append((now, 0))
            if conversation:
                self._conversations[conversation] = used + 1
                self._conversations.move_to_end(conversation)
                while len(self._conversations) > 10_000:
                    self._conversations.popitem(last=False)

    def _spend(self, tokens: int) -> None:
        if tokens:
            with self._lock:
                self._recent.append((self._clock(), tokens))

    def _count(self, role: str, use: _Use, seconds: float, outcome: str) -> None:
        with self._lock:
            self.counters.calls[role] += use.calls
            self.counters.input_tokens[role] += use.input_tokens
            self.counters.output_tokens[role] += use.output_tokens
            self.counters.seconds[role] += seconds  # type: ignore[assignment]  # a counter of seconds, not of events
            self.counters.outcomes[role, outcome] += 1
        _log.info("%s: %s, %d calls, %d + %d tokens", role, outcome, use.calls, use.input_tokens, use.output_tokens)

    def _prompt(self, role: str) -> str:
        if self._prompts is not None:
            path = self._prompts / f"{role}.txt"
            if path.is_file():
                try:
                    return path.read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise ConfigError(f"{path}: the prompt cannot be read ({error})") from error
        return files("topicality").joinpath("llm", "prompts", f"{role}.txt").read_text("utf-8")


@dataclass
class _Use:
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    outcome: str = ""


def _over(value: int, limit: int | None) -> bool:
    return limit is not None and value >= limit
