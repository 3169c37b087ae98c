"""MCP with the official client: in process, over a real pipe, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.server.conftest import Serve
from tests.server.rest_world import ENCODER, KEYS, MARKER, POLICY, World, built, plant, world

from topicality.config import Policy
from topicality.doors import mcp as door
from topicality.layer.memory import Layer, open_layer
from topicality.store import open_store

TOOLS = {"check_topic", "recall", "topics", "remember"}
MODES = ("auto", "legacy")
Test = Callable[[Client], Coroutine[Any, Any, None]]


def seat(here: World, owner: str = "alice") -> door.Seat:
    return door.Seat(here.layer, here.service.bridge, owner, lambda _: None)


def run(test: Test, server: Any, mode: str = "auto") -> None:
    async def all_of_it() -> None:
        async with Client(server, mode=mode) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(all_of_it(), 60))


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers; it must be the same as structure and as text."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]  # text
    found: dict[str, Any] = result.structured_content
    return found


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]  # text


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_describe_themselves(mode: str) -> None:
    async def test(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        for tool in tools.values():
            assert len(tool.description or "") > 50
            assert tool.output_schema is not None
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (tool.name != "remember")
            assert tool.annotations.open_world_hint is False
            for name, part in tool.input_schema["properties"].items():
                assert part.get("description"), (tool.name, name)
        assert tools["remember"].annotations.destructive_hint is False  # type: ignore[union-attr]  # seen above

    with built() as here:
        run(test, door.server(lambda _: seat(here)), mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_do_what_they_say(mode: str) -> None:
    with built() as here:
        guard = here.layer.guard
        assert guard is not None

        async def test(client: Client) -> None:
            verdict = await call(client, "check_topic", text="bombs and explosives")
            known = guard.check("bombs and explosives")
            assert {name: getattr(known, name) for name in verdict} == verdict
            kept = await call(client, "remember", text="The gate code is 4711.", reply="Noted.", conversation="keys")
            assert kept["kept"] is True
            assert here.layer.store.exchange("alice", "keys", kept["exchange"]).status == "completed"  # type: ignore[union-attr]
            found = await call(client, "recall", question="gate code", budget=100)
            assert "4711" in found["text"]
            assert found["tokens"] <= 100
            inside = await call(client, "recall", question="gate code", conversation="trip/1")
            assert "4711" not in inside["text"]
            topics = await call(client, "topics", limit=1)
            assert (topics["conversations"][0]["conversation"], topics["omitted"]) == ("keys", 1)
            one = await call(client, "topics", conversation="trip/1")
            assert one["conversations"][0]["topics"][0]["labels"]
            blocked = await call(client, "remember", text="bombs and explosives")
            assert blocked["kept"] is False
            assert "explosives" not in (await call(client, "recall", question="explosives"))["text"]

        run(test, door.server(lambda _: seat(here)), mode)
        assert all(one.status != "pending" for one in here.layer.conversation("keys", "alice").exchanges())


def test_a_note_without_a_reply_is_found() -> None:
    async def test(client: Client) -> None:
        kept = await call(client, "remember", text="The dentist is on Elm Street.")
        assert (kept["conversation"], kept["sequence"]) == ("notes", 1)
        assert "Elm Street" in (await call(client, "recall", question="Where is the dentist?"))["text"]

    with built(planted=False) as here:
        run(test, door.server(lambda _: seat(here)))


def test_errors_are_in_words_and_break_nothing() -> None:
    with built() as here:

        async def test(client: Client) -> None:
            assert "no such conversation" in await refused(client, "recall", question="x", conversation="nope")
            assert "NUL" in await refused(client, "remember", text="a\0b")
            assert "question" in await refused(client, "recall")
            await refused(client, "recall", question="x", budget=0)
            await refused(client, "check_topic", text="x" * 100_001)

            def broken(*_: Any, **__: Any) -> Any:
                raise RuntimeError("quagga")

            here.layer.store.conversations = broken  # type: ignore[method-assign]  # a store that fails
            assert "quagga" not in await refused(client, "topics")
            assert (await call(client, "check_topic", text="my flight"))["status"] == "checked"

        run(test, door.server(lambda _: seat(here)))
        assert all(one.status != "pending" for one in here.layer.conversation("notes", "alice").exchanges())


def test_without_a_policy_nothing_is_judged() -> None:
    async def test(client: Client) -> None:
        assert "policy" in await refused(client, "check_topic", text="x")

    with built(policy=None) as here:
        run(test, door.server(lambda _: seat(here)))


def test_a_conversations_topics_are_a_resource() -> None:
    async def test(client: Client) -> None:
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["topicality://conversations/{conversation}/topics"]
        read = await client.read_resource("topicality://conversations/hello/topics")
        assert json.loads(read.contents[0].text)["conversations"][0]["exchanges"] == 1  # type: ignore[union-attr]  # text
        with pytest.raises(Exception, match="no such conversation"):
            await client.read_resource("topicality://conversations/nope/topics")

    with built() as here:
        run(test, door.server(lambda _: seat(here, "bob")))


def test_over_a_pipe_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    command = [sys.executable, "-m", "topicality", "mcp", "--store", str(store), "--policy", "customer_support"]
    environment = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "OMP_NUM_THREADS") if name in os.environ
    }

    async def test(client: Client) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        assert (await call(client, "check_topic", text="I want a refund"))["action"] == "allow"
        await call(client, "remember", text="The gate code is 4711.")
        assert "4711" in (await call(client, "recall", question="gate code"))["text"]

    parameters = StdioServerParameters(command=command[0], args=[*command[1:], "--owner", "zoe"], env=environment)
    run(test, stdio_client(parameters))
    with open_layer(f"sqlite:///{store}") as layer:
        assert [record.id for record in layer.conversations("zoe")] == ["notes"]
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    sent = f"nonsense\n{json.dumps(request)}\n"
    done = subprocess.run(command, input=sent, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["result"]["serverInfo"]["name"] for one in answers if "result" in one] == ["topicality"]
    assert "Traceback" not in done.stderr


@asynccontextmanager
async def over_http(root: str, key: str | None, **headers: str) -> AsyncIterator[Client]:
    given = headers if key is None else {"authorization": f"Bearer {key}-secret", **headers}
    async with (
        httpx2.AsyncClient(headers=given, timeout=30) as http,
        Client(streamable_http_client(f"{root}/mcp", http_client=http)) as client,
    ):
        yield client


def test_over_http_the_key_says_whose(serve: Serve) -> None:
    layer = Layer(open_store("memory://"), POLICY, ENCODER)
    plant(layer)
    served = serve(layer=layer, keys=KEYS)

    async def test() -> None:
        async with over_http(served.root, "alice") as client:
            assert MARKER in (await call(client, "recall", question=MARKER))["text"]
            await call(client, "remember", text="The gate code is 4711.")
        async with over_http(served.root, "bob") as client:
            for name, arguments in (
                ("recall", {"question": MARKER}),
                ("topics", {}),
                ("check_topic", {"text": MARKER}),
            ):
                assert MARKER not in str(await call(client, name, **arguments))
            await refused(client, "recall", question=MARKER, conversation="trip/1")
        async with over_http(served.root, "reader") as client:
            assert "4711" in (await call(client, "recall", question="gate code"))["text"]
            assert "scope 'write'" in await refused(client, "remember", text="x")
        async with over_http(served.root, "chatter") as client:
            assert "scope 'read'" in await refused(client, "recall", question="x")
        async with over_http(served.root, "back", **{"x-topicality-owner": "alice"}) as client:
            assert "4711" in (await call(client, "recall", question="gate code"))["text"]

    asyncio.run(asyncio.wait_for(test(), 60))
    assert [record.id for record in layer.conversations("bob")] == ["hello"]


def test_over_http_without_a_key_nothing_is_told() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"accept": "application/json, text/event-stream"}
    with world() as here:
        wrong = {"authorization": "Bearer bob-secret", "x-topicality-owner": "alice"}
        for headers in ({}, {"authorization": "Bearer nobody"}, wrong):
            answer = here.client.post("/mcp", json=body, headers={**accept, **headers})
            assert answer.status_code in (401, 403)
            assert answer.headers["content-type"] == "application/problem+json"
        told = here.client.post("/mcp", json=body, headers={**accept, "authorization": "Bearer bob-secret"})
        assert {tool["name"] for tool in told.json()["result"]["tools"]} == TOOLS


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"jsonrpc":"2.0","id":1,"method":"x"}']
)
def test_over_http_nonsense_is_refused(content: bytes) -> None:
    with world() as here:
        headers = {"authorization": "Bearer bob-secret", "accept": "application/json, text/event-stream"}
        answer = here.client.post("/mcp", content=content, headers={**headers, "content-type": "application/json"})
        assert answer.status_code < 500
        assert "Traceback" not in answer.text
        assert here.client.post("/mcp", content=content, headers=headers).status_code < 500


def test_the_library_is_loaded_on_use() -> None:
    code = "import sys, topicality.doors.cli, topicality.doors.server.rest; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_root_logger_stays_the_hosts() -> None:
    import logging

    before = list(logging.getLogger().handlers)
    with built(policy=Policy(allowed=["flights"])) as here:
        door.server(lambda _: seat(here))
    assert logging.getLogger().handlers == before
