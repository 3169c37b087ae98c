"""Log lines: one a request, for people or machines, without text and without anything a terminal would obey."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.operations import note, wrapped
from topicality.doors.server.operations.logs import JsonLines, TextLines, configuration, printable
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.errors import StoreError
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import Verdict

SAID = "the users own words"
EVIL = "a\nb\x1b[2J\x07\u2028c\x9b31m\u202e"


@pytest.fixture
def lines() -> Iterator[Any]:
    """Configure as `serve` does, but to a buffer: `lines("json")`."""
    kept = {name: logging.getLogger(name) for name in ("topicality", "uvicorn")}
    state = {name: (one.handlers[:], one.level, one.propagate) for name, one in kept.items()}
    buffer = io.StringIO()

    def start(kind: str) -> io.StringIO:
        logging.config.dictConfig(configuration(kind))
        for one in kept.values():
            for handler in one.handlers:
                assert isinstance(handler, logging.StreamHandler)
                handler.setStream(buffer)
        return buffer

    yield start
    for name, one in kept.items():
        one.handlers, one.level, one.propagate = state[name]
        one.manager._clear_cache()  # type: ignore[attr-defined]  # what the levels were is remembered


async def judged(request: Request) -> Response:
    seen = note(request.scope)
    seen.key = "app"
    seen.judged(Verdict("block", "BLOCKED_TOPIC", SAID, rule=SAID))
    await request.body()
    return JSONResponse({})


async def crash(request: Request) -> Response:
    try:
        return Response(request.path_params[SAID])
    except KeyError as error:
        raise ValueError(SAID) from error


async def away(_: Request) -> Response:
    raise StoreError("the database is away; start it")


def ask(path: str, **headers: str) -> None:
    settings = Settings()
    service = Service(settings, Layer(open_store("memory://"), None, WordEmbedder()), Bridge(1, 1), Keys(settings))
    routes = [Route("/things/{id}", judged, methods=["POST"]), Route("/crash", crash), Route("/away", away)]
    app = wrapped(Starlette(routes=routes), settings, lambda: service)

    async def run() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            method = "POST" if "things" in path else "GET"
            await client.request(method, path, content=SAID if method == "POST" else b"", headers=headers)

    asyncio.run(run())
    service.close()


def test_one_json_line_a_request_says_what_is_needed_and_nothing_that_was_said(lines: Any) -> None:
    buffer = lines("json")
    ask(f"/things/{SAID}?q={SAID}", x_topicality_request_id="no")
    ask("/things/7?q=secret", **{"x-topicality-request-id": "abc"})
    first, second = [json.loads(line) for line in buffer.getvalue().splitlines()]
    assert set(second) == {
        "time",
        "level",
        "logger",
        "process",
        "message",
        "request",
        "method",
        "route",
        "status",
        "ms",
        "key",
        "action",
        "reason",
    }
    assert second["time"].endswith("Z")
    assert (second["request"], second["method"], second["route"], second["status"]) == (
        "abc",
        "POST",
        "/things/{id}",
        200,
    )
    assert (second["key"], second["action"], second["reason"]) == ("app", "block", "BLOCKED_TOPIC")
    assert second["ms"] >= 0
    assert first["request"] != second["request"]
    assert SAID not in buffer.getvalue()
    assert "secret" not in buffer.getvalue()


def test_one_line_to_read_a_request(lines: Any) -> None:
    buffer = lines("text")
    ask("/things/7", **{"x-topicality-request-id": "abc"})
    (line,) = buffer.getvalue().splitlines()
    for part in (
        "INFO",
        "request=abc",
        "method=POST",
        "route=/things/{id}",
        "status=200",
        "key=app",
        "action=block",
        "reason=BLOCKED_TOPIC",
    ):
        assert part in line


def test_off_is_silent(lines: Any) -> None:
    buffer = lines("off")
    ask("/things/7")
    ask("/crash")
    assert buffer.getvalue() == ""


@pytest.mark.parametrize("kind", ["json", "text"])
def test_a_failure_is_told_with_where_it_happened_but_not_in_its_own_words(lines: Any, kind: str) -> None:
    buffer = lines(kind)
    ask("/crash")
    told = buffer.getvalue()
    for part in ("builtins.ValueError", "builtins.KeyError", "test_operations_logs.py", "in crash", "internal"):
        assert part in told
    assert SAID not in told


def test_our_own_errors_are_told_in_full(lines: Any) -> None:
    buffer = lines("text")
    ask("/away")
    assert "topicality.errors.StoreError: the database is away; start it" in buffer.getvalue()


def record(message: str, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("topicality.x", logging.INFO, "file.py", 1, "%s", (message,), None)
    made.__dict__.update(more)
    return made


def test_control_characters_are_escaped() -> None:
    for form in (TextLines(), JsonLines()):
        line = form.format(record(EVIL, request=EVIL, key="\ud800"))
        assert line.isprintable()
        assert len(line.splitlines()) == 1
    assert json.loads(JsonLines().format(record(EVIL)))["message"] == EVIL
    assert printable("naïve ✓ 你好") == "naïve ✓ 你好"
    assert printable(EVIL) == "a\\nb\\x1b[2J\\x07\\u2028c\\x9b31m\\u202e"


def test_an_unknown_attribute_of_a_record_is_not_written() -> None:
    assert SAID not in JsonLines().format(record("m", text=SAID, args_of_mine=SAID))
