"""`StreamGuard`: checks a reply while it is being streamed, and holds back what has not been checked yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from topicality.errors import ConfigError, InputError
from topicality.layer.guard import Guard
from topicality.layer.reading import Turn
from topicality.types import SEVERITY, Verdict

# A word; two ideographs or syllables count as one, and so does a stretch of 32 characters without a space.
_WIDE = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_WORD = re.compile(rf"[{_WIDE}]{{1,2}}|[^\s{_WIDE}]{{1,32}}")


class StreamGuard:
    """Guards one streamed reply.

    The reply is checked in windows of `window` words, each starting a third of a window after the one before. A word is
    released only when every window that it is part of has passed, so that nothing of a window that turns out to be blocked
    reaches the user. What is released does not depend on how the reply was cut into pieces. The price is that the text shown
    lags behind: by `window` words at the start, by two thirds of that later.

    Args:
        guard: its policy must check output (`direction` "output" or "both").
        context: what was said before the reply.
        window: words a check looks at, 10 to 200.
    Raises:
        ConfigError: the policy checks input only, or the window is out of range.
    """

    def __init__(self, guard: Guard, context: Sequence[Turn] = (), *, window: int = 40) -> None:
        if not 10 <= window <= 200:
            raise ConfigError("stream window", key="window", got=window, accepted="10 to 200 words")
        if guard.policy.direction == "input":
            raise ConfigError(
                "a reply cannot be guarded by a policy that checks input only",
                key="direction",
                got=guard.policy.direction,
                accepted="output, both",
            )
        self._guard = guard
        self._context = context
        self._window = window
        self._step = window // 3
        self._held = ""  # came in, not yet released
        self._released = 0  # characters
        self._done = False
        self.verdict: Verdict | None = None

    @property
    def stopped(self) -> bool:
        """Whether the reply was cut off: nothing more is released, and `verdict` says why."""
        return self.verdict is not None and SEVERITY[self.verdict.action] > 1

    def feed(self, chunk: str) -> str:
        """Take in the next piece of the reply; returns what may be shown now, possibly "".

        Raises:
            InputError: not text, or the stream was finished.
        """
        if not isinstance(chunk, str):
            raise InputError(f"a piece of a stream must be text (str), got {type(chunk).__name__}")
        if self._done:
            raise InputError("this stream is finished; make a new StreamGuard for the next reply")
        if self.stopped:
            return ""
        self._held += chunk
        shown: list[str] = []
        spans = [match.span() for match in _WORD.finditer(self._held)]
        start = first = 0  # of what is still held, as a character and as a word
        # A word is known to be complete when something follows it.
        while first + self._window <= len(spans) and spans[first + self._window - 1][1] < len(self._held):
            if not self._passes(start, spans[first + self._window - 1][1]):
                self._drop(len(self._held), released=start)
                return "".join(shown)
            first += self._step
            shown.append(self._held[start : spans[first][0]])
            start = spans[first][0]
        self._drop(start, released=start)
        return "".join(shown)

    def finish(self) -> str:
        """The reply is complete: checks and returns the rest, or "" when it is cut off."""
        if self._done or self.stopped:
            self._done = True
            return ""
        self._done = True
        rest = self._held
        if rest.strip() and not self._passes(0, len(rest)):
            rest = ""
        self._drop(len(self._held), released=len(rest))
        return rest

    def filter(self, chunks: Iterable[str]) -> Iterator[str]:
        """The pieces of a reply that may be shown, then the policy's reply text if it was cut off and there is one."""
        for chunk in chunks:
            shown = self.feed(chunk)
            if shown:
                yield shown
            if self.stopped:
                break
        rest = self.finish()
        if rest:
            yield rest
        if self.stopped and self.verdict is not None and self.verdict.reply:
            yield self.verdict.reply

    def _passes(self, start: int, end: int) -> bool:
        """Check a part of what is held; the gravest verdict stays, with its window in the whole reply."""
        verdict = self._guard.check(self._held[start:end], self._context, role="assistant")
        if self.verdict is None or SEVERITY[verdict.action] >= SEVERITY[self.verdict.action]:
            window, offset = verdict.window, self._released + start
            if window is not None:
                window = replace(window, start=window.start + offset, end=window.end + offset)
            self.verdict = replace(verdict, window=window)
        return SEVERITY[verdict.action] <= 1

    def _drop(self, count: int, *, released: int) -> None:
        self._held = self._held[count:]
        self._released += released
