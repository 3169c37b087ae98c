"""How much language models may be asked, and how much they were: budgets, a pause after failures, counters."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from topicality.errors import ConfigError

_CONVERSATIONS = 10_000  # whose calls are remembered; beyond, the longest silent one starts afresh


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be asked; None is no limit.

    Attributes:
        calls_per_minute: of all conversations. calls_per_conversation: of one conversation, in the life of the `Asker`.
        tokens_per_minute: prompt and reply together; estimated (3 bytes each) when the server does not tell.
        pause_after: questions in a row that failed, after which the model is left alone for `pause` seconds, so that a
            dead one does not hold up every message.
        hanging: questions whose time is up and that have not come back; with so many no further one is asked.
    """

    calls_per_minute: int | None = 120
    calls_per_conversation: int | None = None
    tokens_per_minute: int | None = None
    pause_after: int | None = 5
    pause: float = 30.0
    hanging: int = 16

    def __post_init__(self) -> None:
        limits = (self.calls_per_minute, self.calls_per_conversation, self.tokens_per_minute)
        if any(limit is not None and limit < 0 for limit in limits) or self.pause < 0 or self.hanging < 1:
            raise ConfigError("budget", key="budget", got=self, accepted="numbers from 0, hanging from 1, or None")
        if self.pause_after is not None and self.pause_after < 1:
            raise ConfigError("budget", key="pause_after", got=self.pause_after, accepted="1 or more, or None")


@dataclass
class RoleCount:
    """What one role was asked so far; seconds that callers waited, and how the questions ended."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


class Counters:
    """What was asked so far, by role. Replies that came too late are counted too: they were paid for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: dict[str, RoleCount] = {}

    def add(self, role: str, *, calls: int = 0, tokens: tuple[int, int] = (0, 0)) -> None:
        """Count calls made, and tokens (prompt, reply)."""
        with self._lock:
            count = self._roles.setdefault(role, RoleCount())
            count.calls += calls
            count.input_tokens += tokens[0]
            count.output_tokens += tokens[1]

    def ended(self, role: str, outcome: str, seconds: float) -> None:
        """Count a question that was answered or given up."""
        with self._lock:
            count = self._roles.setdefault(role, RoleCount())
            count.outcomes[outcome] += 1
            count.seconds += seconds

    @property
    def llm_calls(self) -> int:
        """Calls of all roles."""
        with self._lock:
            return sum(count.calls for count in self._roles.values())

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values by role; empty when nothing was asked."""
        with self._lock:
            return {
                role: {
                    "calls": count.calls,
                    "input_tokens": count.input_tokens,
                    "output_tokens": count.output_tokens,
                    "seconds": round(count.seconds, 3),
                    "outcomes": dict(sorted(count.outcomes.items())),
                }
                for role, count in sorted(self._roles.items())
            }


class Purse:
    """Says whether one more call is within the budget. Thread-safe; times come in as arguments."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int, int]] = deque()  # when, calls, tokens
        self._calls = 0
        self._tokens = 0
        self._conversations: OrderedDict[str, int] = OrderedDict()
        self._failures = 0
        self._until = 0.0
        self._hanging = 0

    def paused(self, now: float) -> bool:
        """Whether the model is being left alone: after failures, or because too many questions hang."""
        with self._lock:
            return now < self._until or self._hanging >= self._budget.hanging

    def take(self, conversation: str, now: float) -> bool:
        """Take one call out, if there is one."""
        budget = self._budget
        with self._lock:
            self._forget(now)
            used = self._conversations.get(conversation, 0)
            if (
                _over(self._calls, budget.calls_per_minute)
                or _over(self._tokens, budget.tokens_per_minute)
                or (bool(conversation) and _over(used, budget.calls_per_conversation))
            ):
                return False
            self._note(now, 1, 0)
            if conversation and budget.calls_per_conversation is not None:
                self._conversations[conversation] = used + 1
                self._conversations.move_to_end(conversation)
                while len(self._conversations) > _CONVERSATIONS:
                    self._conversations.popitem(last=False)
            return True

    def spend(self, tokens: int, now: float) -> None:
        """Tokens that a call took."""
        with self._lock:
            self._note(now, 0, tokens)

    def ended(self, now: float, *, failed: bool) -> None:
        """A question was answered, or the model failed."""
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if self._budget.pause_after is not None and self._failures >= self._budget.pause_after:
                self._until = now + self._budget.pause

    def hang(self, change: int) -> None:
        """One more question hangs (1), or one came back (-1)."""
        with self._lock:
            self._hanging += change

    def _note(self, now: float, calls: int, tokens: int) -> None:
        self._recent.append((now, calls, tokens))
        self._calls += calls
        self._tokens += tokens

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] >= 60.0:
            _, calls, tokens = self._recent.popleft()
            self._calls -= calls
            self._tokens -= tokens


def _over(value: int, limit: int | None) -> bool:
    return limit is not None and value >= limit
