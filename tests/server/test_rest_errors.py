"""Errors of REST: problem details for all of them, whatever was sent; no traceback, no text of a message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.rest_world import MARKER, World, world
from tests.server.test_rest_owners import NDJSON, ROUTES, TALK

from topicality.doors.server.rest.models import MESSAGE, TOGETHER
from topicality.errors import StoreError

JSON = {"content-type": "application/json"}
HEADER = '{"kind":"topicality.export","version":1,"space":null}\n'


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    with world() as made:
        yield made


def problem(answer: Any, status: int, code: str | None = None) -> dict[str, Any]:
    """The answer, if it is a problem of this kind."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail"} <= set(body) <= {"type", "title", "status", "detail", "errors"}
    assert body["status"] == status
    assert body["title"] == (code or body["title"])
    assert "Traceback" not in answer.text
    assert len(answer.content) < 5000
    return body


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b'{"text": ', 400),
        (b'{"text": "\xff\xfe"}', 400),
        (b"[" * 100_000, 400),
        (b'{"text": ' + b"1" * 5000 + b"}", 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"text"', 422),
        (b"{}", 422),
        (b'{"text": null}', 422),
        (b'{"text": 1}', 422),
        (b'{"text": "\\ud800"}', 422),
        (b'{"text": "a\\u0000b"}', 422),
        (b'{"\\ud800": 1, "text": "x"}', 422),
        (b'{"text": "x", "more": 1}', 422),
        (b'{"text": "x", "role": "system"}', 422),
        (b'{"text": "x", "context": [{"text": "x", "role": "nobody"}]}', 422),
        (b'{"text": "x", "context": {"text": "x"}}', 422),
    ],
)
def test_a_body_that_is_not_what_was_asked_for(here: World, content: bytes, status: int) -> None:
    problem(here.ask("POST", "/check", content=content, headers=JSON), status)


def test_what_was_sent_is_not_said_again(here: World) -> None:
    for body in (
        {"text": ["quagga"]},
        {"text": "x", "role": "quagga"},
        {"text": "x", "context": ["quagga"]},
        {"text": "quagga\0"},
    ):
        assert "quagga" not in here.ask("POST", "/check", json=body).text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e18", "253402300800", '"5"', "true"])
def test_times_are_times(here: World, number: str) -> None:
    body = f'{{"text": "x", "at": {number}}}'
    found = problem(here.ask("POST", f"{TALK}/exchanges", content=body, headers=JSON), 422)
    assert found["errors"][0]["where"] == "body.at"


def test_the_earliest_and_the_latest_time_can_be_kept() -> None:
    with world() as here:
        for number, at in enumerate((-62_135_596_800, 253_402_300_799)):
            name = f"/conversations/t{number}"
            body = {"text": "the flight", "id": "m", "at": at}
            assert here.ask("POST", f"{name}/exchanges", json=body).status_code == 201
            reply = here.ask("POST", f"{name}/exchanges/m/reply", json={"text": "late", "at": at})
            assert reply.status_code == 200
            for path, more in ((f"{name}/directory", {}), (f"{name}/context", {"question": "x"})):
                assert here.ask("POST", path, json=more).status_code == 200
            assert here.ask("POST", "/recall", json={"question": "the flight"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/check", {"text": "x" * (MESSAGE + 1)}, "body.text"),
        ("/check", {"text": "x", "context": [{"text": "x"}] * 51}, "body.context"),
        ("/check/many", {"items": []}, "body.items"),
        ("/check/many", {"items": [{"text": "x"}] * 101}, "body.items"),
        ("/check/many", {"items": [{"text": "x" * MESSAGE}] * (TOGETHER // MESSAGE + 1)}, "body"),
        ("/segment", {"messages": []}, "body.messages"),
        ("/segment", {"messages": [{"text": "x"}] * 2001}, "body.messages"),
        ("/segment", {"messages": [{"text": "x"}], "granularity": "huge"}, "body.granularity"),
        ("/calibrate", {"rows": []}, "body.rows"),
        ("/calibrate", {"rows": [{"text": "x", "label": "good"}]}, "body.rows.0.label"),
        ("/calibrate", {"rows": [{"text": "x", "label": "allowed"}], "rate": 1.0}, "body.rate"),
        ("/recall", {"question": "x", "budget": 0}, "body.budget"),
        ("/recall", {"question": "x", "budget": 10**30}, "body.budget"),
        ("/recall", {"question": " \n"}, "body.question"),
        ("/recall", {"question": "x", "conversation": ""}, "body.conversation"),
        ("/recall", {"question": "x", "conversation": "x" * 201}, "body.conversation"),
        (f"{TALK}/context", {"memory": -1}, "body.memory"),
        (f"{TALK}/exchanges", {"text": "x", "id": "\u2003"}, "body.id"),
        (f"{TALK}/exchanges", {"text": "x", "on_block": "drop"}, "body.on_block"),
        (f"{TALK}/exchanges/open/fail", {"reason": ""}, "body.reason"),
    ],
)
def test_sizes_and_ranges(here: World, path: str, body: Any, where: str) -> None:
    found = problem(here.ask("POST", path, json=body), 422)
    assert found["errors"][0]["where"] == where


def test_a_whole_number_may_have_a_point(here: World) -> None:
    wish = {"question": "x", "budget": 50.0}
    assert here.ask("POST", "/recall", json=wish).status_code == 200
    problem(here.ask("POST", "/recall", json={**wish, "budget": 50.5}), 422)
    problem(here.ask("POST", "/recall", json={**wish, "budget": "50"}), 422)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "after=-1", "after=1e3", "status=gone", "limit=9", "owner=%20"]
)
def test_queries(here: World, query: str) -> None:
    answer = here.ask("GET", f"{TALK}/exchanges?{query}")
    if query == "limit=9":
        assert answer.status_code == 200
    else:
        problem(answer, 422)


def test_a_slip_in_a_parameters_name_is_not_taken_for_no_parameter(here: World) -> None:
    for method, path in (("GET", "/export?conversaton=a"), ("GET", "/export?al=true"), ("DELETE", f"{TALK}?ownr=bob")):
        assert "parameter" in problem(here.ask(method, path), 422)["detail"]
    assert here.everything("alice")[1:]


@pytest.mark.parametrize(
    "path", ["/nope", "/conversations/", "/check/", "", "/", "/docs", "/redoc", "/conversations//exchanges"]
)
def test_paths_that_there_are_not(here: World, path: str) -> None:
    problem(here.ask("GET", path), 404)


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "OPTIONS", "TRACE"])
def test_methods_that_there_are_not(here: World, method: str) -> None:
    answer = here.ask(method, "/conversations")
    problem(answer, 405)
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("part", ["%00", "a%00b", "%ff", "%ed%a0%80", "%20", "x" * 201])
def test_ids_that_no_store_keeps(here: World, part: str) -> None:
    answer = here.ask("GET", f"/conversations/{part}/exchanges")
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nothing",
        b"\xff",
        b"{}",
        b'{"kind":"topicality.export","version":1}',
        b'{"kind":"topicality.export","version":1,"space":5}',
        b'{"kind":"topicality.export","version":1,"space":{"name":[]}}',
        b"[" * 100_000,
        b"1" * 5000,
        HEADER.encode() + b'{"kind":"exchange"}',
        HEADER.encode() + b'{"kind":"conversation","owner":"alice","id":"x"}',
        HEADER.encode() + b'{"kind":"conversation","owner":"alice","id":"\\ud800","topics_version":0}',
        HEADER.encode() + b'{"kind":"conversation","owner":"alice","id":"x","topics_version":0}\n{"kind":"zebra"}',
        HEADER.encode() + b'{"kind":"conversation","owner":"alice","id":"x","topics_version":0}\n{"kind":"topic"}',
    ],
)
def test_imports_that_are_none(here: World, content: bytes) -> None:
    before = here.everything("alice")
    problem(here.ask("POST", "/import", content=content, headers=NDJSON), 400)
    assert here.everything("alice") == before


def test_an_import_says_what_it_is(here: World) -> None:
    problem(here.ask("POST", "/import", content=HEADER, headers=JSON), 415)


def test_another_encoders_export_is_refused(here: World) -> None:
    other = '{"kind":"topicality.export","version":1,"space":{"name":"other","dimension":3,"revision":""}}'
    problem(here.ask("POST", "/import", content=other, headers=NDJSON), 409, "space_mismatch")


def test_a_failure_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    with world() as here, caplog.at_level(logging.DEBUG):

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("quagga")

        here.layer.store.conversations = broken  # type: ignore[method-assign]  # a store that fails
        answer = here.ask("GET", "/conversations")
        problem(answer, 500, "internal")
        assert "quagga" not in answer.text
        assert "quagga" not in caplog.text
        assert "RuntimeError" in caplog.text

        def down(*_: Any, **__: Any) -> Any:
            raise StoreError("the disk is full")

        here.layer.store.conversations = down  # type: ignore[method-assign]  # the same, in our words
        answer = here.ask("GET", "/conversations")
        problem(answer, 503, "store")
        assert answer.headers["retry-after"]


def test_an_answer_that_breaks_off_does_not_look_whole(caplog: pytest.LogCaptureFixture) -> None:
    with world() as here:

        def lines(*_: Any) -> Iterator[str]:
            yield "x" * 100_000
            raise RuntimeError("quagga")

        here.layer.store.export = lines  # type: ignore[method-assign, assignment]  # a store that fails while it is read
        sent = here.raw("/api/export")
        assert sent[0]["status"] == 200
        assert len(sent[1]["body"]) == 100_001
        assert all(message.get("more_body") for message in sent[1:])  # never the last one
        assert "quagga" not in caplog.text


def test_a_busy_engine_is_told_as_such() -> None:
    with world() as here:
        here.service.bridge._most = 0
        answer = here.ask("GET", "/conversations")
        problem(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"


def test_every_status_and_the_form_of_errors_are_documented(here: World) -> None:
    document = here.ask("GET", "/openapi.json", None).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    problems = document["components"]["responses"]
    for method, path in ROUTES:
        operation = document["paths"][path][method.lower()]
        assert operation["summary"]
        assert len(operation["description"]) > 30
        assert {"400", "401", "403", "413", "422", "500", "503"} <= set(operation["responses"])
        assert any(status.startswith("2") for status in operation["responses"])
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                found = problems[response["$ref"].rsplit("/", 1)[1]]["content"]
                assert found["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body:
            model = document["components"]["schemas"][body["schema"]["$ref"].rsplit("/", 1)[1]]
            assert model["examples"], path
            assert model["additionalProperties"] is False
    assert MARKER not in str(document)


def test_browsers_may_call_only_where_the_settings_let_them() -> None:
    origin = {"origin": "https://app.example", "access-control-request-method": "POST"}
    with world() as here:
        assert here.client.options("/api/check", headers=origin).status_code in (401, 405)
        assert "access-control-allow-origin" not in here.ask("GET", "/conversations", headers=origin).headers
    with world(cors=["https://app.example"]) as here:
        asked = here.client.options("/api/check", headers=origin)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        told = here.ask("GET", "/conversations", headers={"origin": "https://app.example"})
        assert told.headers["access-control-allow-origin"] == "https://app.example"
        other = here.ask("GET", "/conversations", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        assert isinstance(here.client, TestClient)
