"""Every error of REST as problem details, also those of the framework. No text of a message, no traceback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from topicality.doors.server.operations.note import note
from topicality.doors.server.problems import CONTENT_TYPE, Problem, RefusedError, told
from topicality.doors.server.rest.models import ProblemModel
from topicality.errors import TopicalityError

_LONGEST = 300  # characters of a detail
_FAULTS = 10  # faults that are named

_MEANT = {
    400: "The request cannot be read, or says what no store can keep.",
    401: "No key, or a wrong one.",
    403: "The key may not do this, or belongs to another owner.",
    404: "There is no such thing.",
    409: "The exchange, or the server, is in a state that does not allow this.",
    413: "The body is longer than the server takes.",
    415: "The body is of another type.",
    422: "A value is missing or out of range; `errors` names it.",
    500: "The server failed; its log says more.",
    503: "The encoder, the store or the server is busy or down; come again.",
}
_ALWAYS = (400, 401, 403, 413, 422, 500, 503)


def answers(*more: int) -> dict[int | str, dict[str, Any]]:
    """What a route says about the errors it answers with, besides those that every route has."""
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in sorted({*_ALWAYS, *more})}


def documented() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas and the responses that `answers` refers to."""
    model = ProblemModel.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**model.pop("$defs", {}), "Problem": model}
    responses: dict[str, Any] = {}
    for status, meaning in _MEANT.items():
        example = {"type": "about:blank#code", "title": "code", "status": status, "detail": meaning}
        content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}
        responses[f"Problem{status}"] = {"description": meaning, "content": content}
    responses["Problem401"]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    responses["Problem503"]["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return schemas, responses


def answer(problem: Problem, faults: Sequence[Mapping[str, str]] = ()) -> Response:
    """A problem as a response."""
    body = problem.to_dict()
    body["detail"] = _shown(problem.detail)
    if faults:
        body["errors"] = list(faults)
    headers = dict(problem.headers)
    if problem.status == 401:
        headers.setdefault("www-authenticate", "Bearer")
    return JSONResponse(body, problem.status, headers, CONTENT_TYPE)


def install(app: FastAPI) -> None:
    """Have the application answer every error as problem details."""

    async def ours(request: Request, error: Exception) -> Response:
        return answer(told(error, note(request.scope).id))

    async def invalid(_: Request, error: Exception) -> Response:
        found = error.errors() if isinstance(error, RequestValidationError) else ()
        faults = [{"where": _place(one["loc"]), "what": _what(one)} for one in found[:_FAULTS]]
        if any(one["type"] == "json_invalid" for one in found):
            return answer(Problem(400, "malformed", "the body is not valid JSON"), faults)
        first = f"{faults[0]['where']}: {faults[0]['what']}" if faults else "the request is not valid"
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return answer(Problem(422, "invalid", first + more), faults)

    async def framework(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        phrase = HTTPStatus(status).phrase
        code = {400: "malformed"}.get(status, phrase.lower().replace(" ", "_"))
        return answer(Problem(status, code, _MEANT.get(status, phrase), headers))

    app.add_exception_handler(RefusedError, ours)
    app.add_exception_handler(TopicalityError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, framework)


def _what(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "string_pattern_mismatch":
        return "blank, or a character that is not taken here (NUL)"
    return _shown(str(fault["msg"]))


def _place(parts: Sequence[Any]) -> str:
    return ".".join(_shown(str(part), 60) for part in parts)


def _shown(text: str, longest: int = _LONGEST) -> str:
    """Text that may have come with the request, as harmless ASCII-safe text of a bounded length."""
    safe = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[:longest])
    return safe if len(text) <= longest else safe + "…"
