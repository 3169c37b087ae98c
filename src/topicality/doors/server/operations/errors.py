"""Errors that nobody below answered, as answers: the OpenAI form under /v1, problem details elsewhere."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from topicality.doors.server.operations.note import note
from topicality.doors.server.problems import CONTENT_TYPE, Problem, RefusedError, problem_of, told
from topicality.errors import TopicalityError


def answer_errors(app: Starlette) -> None:
    """Have an application (the outer one, or one that is mounted in it) answer errors this way."""
    for kind in (HTTPException, RefusedError, TopicalityError, Exception):
        app.add_exception_handler(kind, _handler)


def answered(scope: Scope, error: Exception) -> Response:
    """The answer to an error. One of the server's own making (5xx) goes to the log, with where it happened."""
    seen = note(scope)
    if isinstance(error, HTTPException):
        problem = _of_framework(error)
    else:  # one that a mounted application has answered comes by again, to be raised
        problem = problem_of(error) if seen.error else told(error, seen.id)
    seen.error = problem.code
    return as_response(scope, problem)


def as_response(scope: Scope, problem: Problem) -> Response:
    """A problem in the form that the client of this path reads."""
    if str(scope["path"]).startswith("/v1/"):
        body, kind = problem.to_openai(), "application/json"
    else:
        body, kind = problem.to_dict(), CONTENT_TYPE
    return Response(json.dumps(body), problem.status, dict(problem.headers), kind)


async def _handler(request: Request, error: Exception) -> Response:
    return answered(request.scope, error)


def _of_framework(error: HTTPException) -> Problem:
    try:
        phrase = HTTPStatus(error.status_code).phrase.lower()
    except ValueError:
        phrase = "error"
    # not its own words, which may hold a piece of the request
    return Problem(error.status_code, phrase.replace(" ", "_"), phrase, dict(error.headers or {}))
