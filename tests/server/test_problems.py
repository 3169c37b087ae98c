"""Errors as answers: each of our own has a status and a code, everything else is a 500 without a word of it."""

from __future__ import annotations

import inspect

import pytest

from topicality import errors
from topicality.doors.server.problems import Problem, RefusedError, problem_of, told, where
from topicality.records import DuplicateExchangeError, ExchangeError

SAID = "the users own words"
OWN = [
    (errors.ConfigError(SAID), 422, "config"),
    (errors.InputError(SAID), 400, "input"),
    (errors.MissingExtraError("serve", "server"), 501, "missing_extra"),
    (errors.EmbedError(SAID), 503, "encoder"),
    (errors.SpaceMismatchError("a", "b"), 409, "space_mismatch"),
    (errors.CalibrationError(SAID), 422, "calibration"),
    (errors.StoreError(SAID), 503, "store"),
    (errors.LlmError(SAID), 503, "language_model"),
    (errors.UpstreamError(SAID), 502, "upstream"),
    (ExchangeError("e1", "failed", "completed", "x"), 409, "exchange_state"),
    (ExchangeError("e1", None, "completed", "x"), 404, "unknown_exchange"),
    (DuplicateExchangeError("e1", "pending"), 409, "duplicate_exchange"),
]


@pytest.mark.parametrize(("error", "status", "code"), OWN)
def test_our_own_errors_say_what_they_say(error: errors.TopicalityError, status: int, code: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, code)
    # what failed here may be told in words that name our files and addresses
    assert problem.detail == (f"the {code} failed; the server's log says more" if status == 503 else str(error))
    assert problem.headers.get("retry-after") == ("1" if status == 503 else None)


def test_no_error_of_ours_is_forgotten() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TopicalityError)
    }
    told = {type(error) for error, _, _ in OWN}
    assert kinds - told == {errors.TopicalityError, errors.OffTopicError}, (
        "OffTopicError comes of require(), which no door calls"
    )


@pytest.mark.parametrize(
    "error", [ValueError(SAID), RuntimeError(SAID), KeyError(SAID), MemoryError(SAID), OSError(5, SAID)]
)
def test_other_errors_are_a_500_without_a_word_of_them(error: Exception) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (500, "internal")
    assert SAID not in str(problem.to_dict()) + str(problem.to_openai())


def raised(kind: type[Exception], words: str, cause: Exception | None = None) -> Exception:
    with pytest.raises(kind) as caught:
        raise kind(words) from cause
    return caught.value


def test_a_failure_goes_to_the_log_by_kind_and_place_in_nobodys_words_but_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cause = raised(errors.StoreError, "the disk is full\x1b[2J")
    assert told(raised(ValueError, SAID, cause), "id-1").code == "internal"
    (record,) = caplog.records
    assert "internal (ValueError" in record.getMessage()
    assert "in raised" in record.__dict__["trace"]
    assert record.__dict__["request"] == "id-1"
    assert "topicality.errors.StoreError: the disk is full [2J" in record.__dict__["trace"]
    assert record.exc_info is None, "a formatter of the host would write the error's own words"
    assert SAID not in str(record.__dict__)


def test_where_ends_for_errors_that_cause_each_other() -> None:
    first, second = ValueError(SAID), KeyError(SAID)
    first.__cause__, second.__cause__ = second, first
    assert where(first) == "builtins.ValueError\nbuiltins.KeyError"


@pytest.mark.parametrize("error", [RefusedError(503, "busy", "no"), errors.InputError("bad")])
def test_a_refusal_or_a_callers_mistake_is_no_line_in_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    told(error)
    assert not caplog.records


def test_a_refusal_keeps_status_code_and_headers() -> None:
    problem = problem_of(RefusedError(429, "slow_down", "too many", {"retry-after": "9"}))
    assert (problem.status, problem.code, problem.detail, dict(problem.headers)) == (
        429,
        "slow_down",
        "too many",
        {"retry-after": "9"},
    )
    assert problem.to_dict() == {
        "type": "about:blank#slow_down",
        "title": "slow_down",
        "status": 429,
        "detail": "too many",
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_form_of_openai_has_its_kinds(status: int, kind: str) -> None:
    assert Problem(status, "code", "why").to_openai() == {
        "error": {"message": "why", "type": kind, "param": None, "code": "code"}
    }
