"""Every error Topicality raises on purpose. A message says what was wrong, what was got, and what to do.

TopicalityError
├── ConfigError (ValueError)         a policy or setting: key, got, accepted
├── InputError (ValueError)          malformed text, vector or file
├── MissingExtraError (ImportError)  a feature whose optional dependency is not installed
├── EmbedError                       the encoder failed; cause chained
├── SpaceMismatchError (ValueError)  vectors of two encoders were about to meet
├── CalibrationError                 too few or one-sided examples
├── StoreError                       the store failed; cause chained
├── LlmError                         a language model failed; the local answer stands
├── UpstreamError                    the proxied model server failed
└── OffTopicError                    carries the verdict; only from `require()`

No transcript text is put into a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicality.types import Verdict


class TopicalityError(Exception):
    """Root of all errors of this package."""


class ConfigError(TopicalityError, ValueError):
    """A policy or a setting cannot be used as given."""

    def __init__(
        self, message: str, *, key: str | None = None, got: object = None, accepted: str | None = None
    ) -> None:
        self.key = key
        self.got = got
        self.accepted = accepted
        parts = [message]
        if accepted is not None:
            parts.append(f"got {_short(got)}; accepted: {accepted}")
        super().__init__(": ".join([key, "; ".join(parts)]) if key else "; ".join(parts))


class InputError(TopicalityError, ValueError):
    """A text, a vector or a file is malformed."""


class MissingExtraError(TopicalityError, ImportError):
    """A feature needs a package that is not installed; names the extra that brings it."""

    def __init__(self, feature: str, extra: str) -> None:
        self.feature = feature
        self.extra = extra
        super().__init__(f"{feature} needs an optional dependency. Install it with: pip install 'topicality[{extra}]'")


class EmbedError(TopicalityError):
    """The encoder could not turn text into vectors. The cause is chained."""


class SpaceMismatchError(TopicalityError, ValueError):
    """Two vectors that were made by different encoders, or have different dimensions, were about to meet."""

    def __init__(self, have: object, got: object, *, hint: str = "embed both with the same encoder") -> None:
        self.have = have
        self.got = got
        super().__init__(f"vectors of two spaces cannot be compared: have {have}, got {got}; {hint}")


class CalibrationError(TopicalityError):
    """The labelled rows cannot support a fit: too few, or all of one label."""


class StoreError(TopicalityError):
    """The store failed. The cause is chained."""


class LlmError(TopicalityError):
    """A language model failed or replied with something unusable. Never fatal: the local answer stands."""


class UpstreamError(TopicalityError):
    """The model server behind the proxy failed."""


class OffTopicError(TopicalityError):
    """Raised by `require()` when a message is not allowed; carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(
            f"{verdict.reason_code}: {verdict.action} by {verdict.rule or 'no rule'} "
            f"(score {_number(verdict.score)}, threshold {_number(verdict.threshold)}, method {verdict.method})"
        )


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
