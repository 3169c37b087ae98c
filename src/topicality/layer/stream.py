"""`StreamGuard`: checks a reply while it is being streamed, and holds back what has not been checked yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topicality.errors import ConfigError, InputError
from topicality.layer.guard import Guard
from topicality.layer.reading import Turn
from topicality.types import SEVERITY, Verdict

_STEP = 12  # words that come in between two checks


class StreamGuard:
    """Guards one streamed reply.

    Text is released only once a check of the latest window has let it pass, so that nothing of a window that turns out to
    be blocked reaches the user. The price is a delay of `window` words at the start and of a few words after that.

    Args:
        guard: its policy must check output (`direction` "output" or "both").
        context: what was said before the reply.
        window: words a check looks at, 10 to 200.
    """

    def __init__(self, guard: Guard, context: Sequence[Turn] = (), *, window: int = 40) -> None:
        if not 10 <= window <= 200:
            raise ConfigError("stream window", key="window", got=window, accepted="10 to 200 words")
        self._guard = guard
        self._context = context
        self._window = window
        self._held = ""  # came in, not yet released
        self._passed: list[str] = []  # the latest released words, so that a window can reach back
        self._seen = 0  # words that the latest check has covered
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
        words = self._held.split()
        if len(words) < self._window or len(words) - self._seen < _STEP:
            return ""
        return self._release(keep=_STEP)

    def finish(self) -> str:
        """The reply is complete: checks and returns the rest, or "" when it is cut off."""
        if self._done or self.stopped:
            self._done = True
            return ""
        self._done = True
        return self._release(keep=0)

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

    def _release(self, keep: int) -> str:
        if not self._held.strip():
            shown, self._held = self._held, ""
            return shown
        recent = " ".join([*self._passed, self._held])
        verdict = self._guard.check(recent, self._context, role="assistant")
        if self.verdict is None or SEVERITY[verdict.action] >= SEVERITY[self.verdict.action]:
            self.verdict = verdict
        if self.stopped:
            self._held = ""
            return ""
        cut = len(self._held)
        if keep:
            for _ in range(keep):
                cut = self._held.rstrip().rfind(" ", 0, cut) if cut > 0 else 0
            cut = max(cut, 0)
        shown, self._held = self._held[:cut], self._held[cut:]
        self._passed = [*self._passed, *shown.split()][-(self._window - keep) :] if self._window > keep else []
        self._seen = len(self._held.split())
        return shown
