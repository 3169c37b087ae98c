"""Who may do what through REST: every route, by a table that must name each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.server.rest_world import MARKER, POLICY, World, world

from topicality.doors.server.rest.api import operations, scope_of

TALK = "/conversations/trip%2F1"
ONE = f"{TALK}/exchanges/e%2F1"
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True)
class Row:
    """A request about alice's data that works with alice's key.

    Attributes:
        at: the path. scope: that the key needs. status: of the answer. request: the rest of it.
    """

    at: str
    scope: str
    status: int = 200
    request: dict[str, Any] = field(default_factory=dict)


LABELLED = [
    {"text": f"{word} {number}", "label": label}
    for label, word in (("allowed", "flight to Lisbon refund"), ("off_topic", "poem about winter"))
    for number in range(12)
]
TABLE: dict[tuple[str, str], Row] = {
    ("POST", "/check"): Row("/check", "read", request={"json": {"text": "my flight"}}),
    ("POST", "/check/many"): Row("/check/many", "read", request={"json": {"items": [{"text": "my flight"}]}}),
    ("POST", "/segment"): Row("/segment", "read", request={"json": {"messages": [{"text": "my flight"}]}}),
    ("POST", "/calibrate"): Row("/calibrate", "read", request={"json": {"rows": LABELLED}}),
    ("GET", "/conversations"): Row("/conversations", "read"),
    ("GET", "/conversations/{conversation}"): Row(TALK, "read"),
    ("DELETE", "/conversations/{conversation}"): Row(TALK, "erase"),
    ("GET", "/conversations/{conversation}/exchanges"): Row(f"{TALK}/exchanges", "read"),
    ("POST", "/conversations/{conversation}/exchanges"): Row(
        f"{TALK}/exchanges", "write", 201, {"json": {"text": "And the pasta?", "id": "new"}}
    ),
    ("GET", "/conversations/{conversation}/exchanges/{exchange}"): Row(ONE, "read"),
    ("PATCH", "/conversations/{conversation}/exchanges/{exchange}"): Row(
        ONE, "write", request={"json": {"text": "redacted"}}
    ),
    ("DELETE", "/conversations/{conversation}/exchanges/{exchange}"): Row(ONE, "erase", 204),
    ("POST", "/conversations/{conversation}/exchanges/{exchange}/reply"): Row(
        f"{TALK}/exchanges/open/reply", "write", request={"json": {"text": "Yes."}}
    ),
    ("POST", "/conversations/{conversation}/exchanges/{exchange}/fail"): Row(
        f"{TALK}/exchanges/open/fail", "write", request={"json": {"reason": "gone"}}
    ),
    ("POST", "/conversations/{conversation}/context"): Row(f"{TALK}/context", "read", request={"json": {}}),
    ("GET", "/conversations/{conversation}/topics"): Row(f"{TALK}/topics", "read"),
    ("POST", "/conversations/{conversation}/directory"): Row(f"{TALK}/directory", "read", request={"json": {}}),
    ("GET", "/conversations/{conversation}/drift"): Row(f"{TALK}/drift", "read"),
    ("POST", "/recall"): Row("/recall", "read", request={"json": {"question": f"the refund {MARKER}"}}),
    ("GET", "/export"): Row("/export", "read"),
    ("POST", "/import"): Row("/import", "write", request={"content": "", "headers": NDJSON}),
    ("POST", "/erase"): Row("/erase", "erase", request={"json": {"owner": "alice"}}),
}
ROUTES = sorted(TABLE)
NARROW = {"read": "reader", "write": "writer", "erase": "eraser", "chat": "chatter"}  # keys with this scope alone


def asked(here: World, route: tuple[str, str], key: str | None, **more: Any) -> Any:
    row = TABLE[route]
    request = dict(row.request)
    if row.at == "/import":
        request["content"] = "\n".join(here.everything("alice"))
    headers = {**request.pop("headers", {}), **more.pop("headers", {})}
    return here.ask(route[0], row.at, key, headers=headers, **request, **more)


def test_the_table_has_every_route_with_the_scope_it_says() -> None:
    found = {(method, route.path_format): scope_of(route) for route in operations() for method in route.methods or ()}
    assert {route: row.scope for route, row in TABLE.items()} == found


def test_the_document_names_the_same_routes(here: World) -> None:
    document = here.ask("GET", "/openapi.json", None).json()
    assert sorted((m.upper(), path) for path, ops in document["paths"].items() for m in ops) == ROUTES
    for (method, path), row in TABLE.items():
        assert document["paths"][path][method.lower()]["security"] == [{"key": [row.scope]}]


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_with_its_scope_alone_it_works(here: World, route: tuple[str, str]) -> None:
    answer = asked(here, route, NARROW[TABLE[route].scope])
    assert answer.status_code == TABLE[route].status, answer.text


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_trusted_back_end_works_for_any_owner(here: World, route: tuple[str, str]) -> None:
    way = {"params": {"owner": "alice"}} if ROUTES.index(route) % 2 else {"headers": {"x-topicality-owner": "alice"}}
    assert asked(here, route, "back", **way).status_code == TABLE[route].status


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_without_a_key_or_with_a_wrong_one_nothing_is_told(shared: World, route: tuple[str, str]) -> None:
    before = shared.everything("alice")
    for key in (None, "nobody"):
        answer = asked(shared, route, key)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["title"] == "unauthorized"
        assert MARKER not in answer.text
    assert shared.everything("alice") == before


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_key_without_the_scope_is_refused(shared: World, route: tuple[str, str]) -> None:
    before = shared.everything("alice")
    for scope, key in NARROW.items():
        if scope == TABLE[route].scope:
            continue
        answer = asked(shared, route, key)
        assert answer.status_code == 403
        assert TABLE[route].scope in answer.json()["detail"]
        assert MARKER not in answer.text
    assert shared.everything("alice") == before


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_another_owners_key_neither_reads_nor_changes_anything(shared: World, route: tuple[str, str]) -> None:
    before = shared.everything("alice")
    answers = [asked(shared, route, "bob")]
    for way in ({"params": {"owner": "alice"}}, {"headers": {"x-topicality-owner": "alice"}}):
        named = asked(shared, route, "bob", **way)
        assert named.status_code == 403, way
        answers.append(named)
    assert not any(MARKER in answer.text for answer in answers)
    assert shared.everything("alice") == before
    assert not any(MARKER in line for line in shared.everything("bob"))


def test_an_import_of_another_owner_is_refused_whole(here: World) -> None:
    lines = here.everything("bob") + here.everything("alice")[1:]
    here.layer.erase("bob")
    for content in ("\n".join(lines), "\n".join(here.everything("alice"))):
        answer = here.ask("POST", "/import", "bob", content=content, headers=NDJSON)
        assert answer.status_code == 403
    hidden = [
        line.replace('"kind":"conversation"', '"k\\u0069nd" : "conversation"') for line in here.everything("alice")
    ]
    assert here.ask("POST", "/import", "bob", content="\n".join(hidden), headers=NDJSON).status_code == 403
    assert here.layer.conversations("bob") == []


def test_all_owners_are_for_keys_without_one(here: World) -> None:
    for key in ("alice", "bob"):
        assert here.ask("GET", "/export", key, params={"all": "true"}).status_code == 403
        answer = here.ask("POST", "/import", key, content="x", headers=NDJSON, params={"all": "true"})
        assert answer.status_code == 403
    everything = here.ask("GET", "/export", "back", params={"all": "true"})
    assert everything.text.splitlines() == list(here.layer.export())
    here.layer.erase("alice")
    back = here.ask("POST", "/import", "back", content=everything.content, headers=NDJSON, params={"all": "true"})
    assert back.json() == {"conversations": 1, "exchanges": 7, "known": 1}
    assert list(here.layer.export()) == everything.text.splitlines()


def test_erasing_says_whose(here: World) -> None:
    assert here.ask("POST", "/erase", "bob", json={"owner": "alice"}).status_code == 403
    assert here.ask("POST", "/erase", "bob", json={}).status_code == 422
    assert here.ask("POST", "/erase", "bob", json={"owner": "bob"}).json() == {"erased": 1}
    assert [record.id for record in here.layer.conversations("alice")] == ["trip/1"]


def test_keeping_a_blocked_message_needs_the_scope_override(here: World) -> None:
    wish = {"text": "bombs and explosives", "on_block": "keep"}
    assert here.ask("POST", f"{TALK}/exchanges", "writer", json=wish).status_code == 403
    assert here.ask("POST", f"{TALK}/exchanges", "alice", json=wish).json()["status"] == "pending"
    assert here.ask("POST", f"{TALK}/exchanges", "writer", json={"text": wish["text"]}).json()["status"] == "failed"


def test_an_open_server_gives_every_authorization_an_owner_of_its_own() -> None:
    with world(keys=False, planted=False) as here:
        for key in ("alice", "bob", None):
            sent = here.ask("POST", "/conversations/c/exchanges", key, json={"text": f"from {key}"})
            assert sent.status_code == 201
        assert "from alice" not in here.ask("GET", "/export", "bob").text
        assert "from bob" in here.ask("GET", "/export", "bob").text
        assert "from None" in here.ask("GET", "/export", None).text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_an_open_server_answers_to_its_own_names_only(host: str) -> None:
    with world(keys=False, policy=POLICY) as here:
        for path in ("/api/conversations", "/mcp"):
            answer = here.client.get(path, headers={"host": host})
            assert answer.status_code in (400, 403), path
            assert "alice" not in answer.text
        for good in ("localhost", "127.0.0.1:8000", "[::1]:80"):
            assert here.client.get("/api/conversations", headers={"host": good}).status_code == 200
