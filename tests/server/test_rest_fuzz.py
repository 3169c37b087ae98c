"""Requests that schemathesis makes from the OpenAPI document: no failure of the server, no text of another owner.

The quick run takes the cases that each operation's boundaries give and a few random ones; the slow one 10,000 random ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.server.rest_world import MARKER, World, built, world
from tests.server.test_rest_owners import ROUTES
from tests.server.upstream import Upstream

from topicality.records import Scope

BOB = {"Authorization": "Bearer bob-secret"}
IDS = {"conversation": ["hello", "trip/1", "new", "a/b"], "exchange": ["b1", "e/1", "open", "m1"]}
TOTAL = 10_000
SCOPE = Scope("alice", "trip/1")

# Data that the document allows and the engine refuses all the same: nothing to answer or no room for it; too few rows.
PICKY = {"/conversations/{conversation}/context", "/calibrate", "/import"}


@schemathesis.serializer("application/x-ndjson")
def lines(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    with built() as made:
        yield made


@pytest.fixture(scope="module")
def schema(here: World) -> Any:
    load_all_checks()
    with world(planted=False) as other:
        document = other.ask("GET", "/openapi.json", None).json()
    unbounded(document)
    made = schemathesis.openapi.from_dict(document)
    made.app = here.app
    made.config.generation.with_security_parameters = False  # the key is ours
    return made


def unbounded(part: Any) -> None:
    """Schemathesis takes seconds for a pattern of 100,000 characters; lengths have tests of their own."""
    if isinstance(part, dict):
        if part.get("maxLength", 0) > 1000:
            del part["maxLength"]
        for value in part.values():
            unbounded(value)
    elif isinstance(part, list):
        for value in part:
            unbounded(value)


def operation_of(schema: Any, route: tuple[str, str]) -> Any:
    return schema[route[1]][route[0]]


def tried(here: World, case: Any) -> None:
    """One request of bob's, held against the document; and alice is as she was."""
    excluded = [positive_data_acceptance] if case.path in PICKY else []
    if case.path == "/import":
        excluded.append(negative_data_rejection)  # for the document, an import is just a text
    response = case.call_and_validate(headers=BOB, excluded_checks=excluded)
    assert MARKER not in response.text
    assert "Traceback" not in response.text
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
        assert response.json()["status"] == response.status_code
    assert here.layer.store.exchanges(SCOPE, newest=1)[0].id == "open"


def ran(here: World, operation: Any, examples: int) -> None:
    """So many random cases, half of them with ids that exist."""
    there = st.fixed_dictionaries(
        {one: st.sampled_from(values) for one, values in IDS.items() if f"{{{one}}}" in operation.path}
    )

    def known(mode: Any) -> Any:
        return there.flatmap(lambda ids: operation.as_strategy(generation_mode=mode, path_parameters=dict(ids)))

    modes = list(schemathesis.GenerationMode)
    cases = [operation.as_strategy(generation_mode=mode) for mode in modes] + [known(mode) for mode in modes]

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*cases))
    def one(case: Any) -> None:
        tried(here, case)

    one()


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_few_random_requests(here: World, schema: Any, route: tuple[str, str]) -> None:
    ran(here, operation_of(schema, route), 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_random_requests(here: World, schema: Any, route: tuple[str, str]) -> None:
    ran(here, operation_of(schema, route), -(-TOTAL // len(ROUTES)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_the_boundaries_of_every_parameter(here: World, schema: Any, route: tuple[str, str]) -> None:
    operation = operation_of(schema, route)
    config = schema.config.generation_for(operation=operation)
    modes = list(schemathesis.GenerationMode)
    number = 0
    for case in operation.schema.iter_coverage_cases(operation, generation_modes=modes, generation_config=config):
        tried(here, case)
        number += 1
    assert number > 1


NAMES = ("conversation", "owner", "guard", "memory", "budget", "recall", "exchange", "nothing")
VALUES = st.one_of(
    st.sampled_from(
        ["on", "off", "0", "1", "-1", "1e9", "9" * 400, "alice", "trip/1", "hello", "%00", "%ff", "%ed%a0%80"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=300),
)
PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("my flight to Lisbon"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]) | PARTS, "content": PARTS},
    optional={"name": PARTS, "tool_calls": PARTS, "tool_call_id": PARTS},
)
BODY = PARTS | st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=5) | PARTS},
    optional={
        "model": PARTS,
        "stream": st.booleans() | PARTS,
        "n": PARTS,
        "user": PARTS,
        "stop": PARTS,
        "tools": PARTS,
    },
)


def proxied(url: str, examples: int) -> None:
    """So many random headers and bodies to the proxy, with bob's key."""
    with built(upstream={"url": url}) as here, here.client:

        @settings(max_examples=examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
        @given(headers=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), body=BODY)
        def one(headers: dict[str, str], body: Any) -> None:
            sent = {f"x-topicality-{name}".encode(): value.encode("latin-1") for name, value in headers.items()}
            content = json.dumps(body)  # NaN and lone surrogates as they are
            given = {**sent, b"authorization": b"Bearer bob-secret", b"content-type": b"application/json"}
            answer = here.client.post("/v1/chat/completions", content=content, headers=list(given.items()))
            assert answer.status_code != 500, answer.text
            said = answer.text + str(answer.headers)
            assert "Traceback" not in said
            assert MARKER not in said

        before = here.everything("alice")
        one()
        assert here.everything("alice") == before


def test_a_few_random_requests_to_the_proxy(upstream: Upstream) -> None:
    proxied(upstream.url, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_requests_to_the_proxy(upstream: Upstream) -> None:
    proxied(upstream.url, 500)
