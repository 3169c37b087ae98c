"""Errors as answers: which status, which code, and the two forms they travel in. No text of a message, no traceback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topicality.errors import (
    CalibrationError,
    ConfigError,
    EmbedError,
    InputError,
    LlmError,
    MissingExtraError,
    SpaceMismatchError,
    StoreError,
    TopicalityError,
    UpstreamError,
)
from topicality.records import DuplicateExchangeError, ExchangeError

CONTENT_TYPE = "application/problem+json"


class RefusedError(Exception):
    """A request that is answered with an error. `code` is for machines, `detail` for people."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Problem:
    """What an error is answered with."""

    status: int
    code: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """RFC 9457 problem details. `type` is relative to the documentation."""
        return {"type": f"about:blank#{self.code}", "title": self.code, "status": self.status, "detail": self.detail}

    def to_openai(self) -> dict[str, Any]:
        """The error object that OpenAI clients read."""
        kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.detail, "type": kind, "param": None, "code": self.code}}


# The first that fits, so subclasses stand before their parents.
_KINDS: tuple[tuple[type[TopicalityError], int, str], ...] = (
    (DuplicateExchangeError, 409, "duplicate_exchange"),
    (ExchangeError, 409, "exchange_state"),
    (SpaceMismatchError, 409, "space_mismatch"),
    (CalibrationError, 422, "calibration"),
    (ConfigError, 422, "config"),
    (InputError, 400, "input"),
    (MissingExtraError, 501, "missing_extra"),
    (EmbedError, 503, "encoder"),
    (StoreError, 503, "store"),
    (LlmError, 503, "llm"),
    (UpstreamError, 502, "upstream"),
)


def problem_of(error: Exception) -> Problem:
    """What to answer. An error that is not ours becomes 500 without a word of it: it is in the log."""
    if isinstance(error, RefusedError):
        return Problem(error.status, error.code, error.detail, error.headers)
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            headers = {"retry-after": "1"} if status == 503 else {}
            return Problem(status, code, str(error), headers)
    return Problem(500, "internal", "the server failed; its log says more")
