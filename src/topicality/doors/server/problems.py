"""Errors as answers: which status, which code, and the two forms they travel in. No text of a message, no traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from traceback import extract_tb
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

_log = logging.getLogger("topicality.server")


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
    (LlmError, 503, "language_model"),
    (UpstreamError, 502, "upstream"),
)


def problem_of(error: Exception) -> Problem:
    """What to answer. An error that is not ours becomes 500 without a word of it: it is in the log."""
    if isinstance(error, RefusedError):
        return Problem(error.status, error.code, error.detail, error.headers)
    if isinstance(error, ExchangeError) and error.status is None:
        return Problem(404, "unknown_exchange", str(error))
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            if status != 503:
                return Problem(status, code, str(error))
            # its words name addresses and files of the server, which are nobody's business outside
            return Problem(503, code, f"the {code} failed; the server's log says more", {"retry-after": "1"})
    return Problem(500, "internal", "the server failed; its log says more")


def told(error: Exception, request: str = "") -> Problem:
    """As `problem_of`; a failure of the server's own goes to the log, with its kind and place and without its words."""
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, RefusedError):
        trace = where(error)
        last = trace.splitlines()[-1].strip() if error.__traceback__ is not None else ""
        kind = type(error).__name__
        _log.error("request failed: %s (%s %s)", problem.code, kind, last, extra={"trace": trace, "request": request})
    return problem


def where(error: BaseException) -> str:
    """The frames that an exception and its causes came through. Their words are left out unless they are ours.

    Other libraries' errors quote what they were given, which may be text of a message.
    """
    lines: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        kind = f"{type(found).__module__}.{type(found).__qualname__}"
        ours = isinstance(found, TopicalityError | RefusedError)
        lines.append(f"{kind}: {_one_line(str(found))}" if ours else kind)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in extract_tb(found.__traceback__)]
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)
