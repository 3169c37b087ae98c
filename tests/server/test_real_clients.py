"""The official clients, which know nothing of this server: only their base URL is another."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from tests.server.conftest import Serve, Served
from tests.server.proxy_world import NO, judging
from tests.server.upstream import PATIENCE, Answer, Seen, Upstream, answers, breaks, calls, echoes, fails, hangs, says

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
ARGUMENTS = '{"city": "Oslo"}'
MODELS = {"object": "list", "data": [{"id": "one", "object": "model", "created": 1, "owned_by": "x"}]}


async def model(seen: Seen, answer: Answer) -> None:
    """A model server that does what the last message says."""
    if seen.path.endswith("/models"):
        await answers(200, json.dumps(MODELS).encode())(seen, answer)
        return
    last = seen.json["messages"][-1]
    step = {
        "call weather": calls("weather", ARGUMENTS),
        "fail 429": fails(429, "slow down", retry_after="7"),
        "fail 500": fails(500, "down"),
        "break": breaks("half", " an"),
        "hang": hangs(*(f"word{n} " for n in range(200))),  # more than are held back to be checked
    }.get(last["content"], says("It is sunny.") if last["role"] == "tool" else echoes())
    await step(seen, answer)


@pytest.fixture
def served(serve: Serve, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Served:
    for name in list(os.environ):
        if name.startswith("OPENAI_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    upstream.script(model)
    return serve(layer=judging())


def client_of(served: Served, conversation: str) -> openai.OpenAI:
    headers = {"x-topicality-conversation": conversation, "x-topicality-owner": "default"}
    return openai.OpenAI(
        base_url=served.url, api_key="sk-python", max_retries=0, default_headers=headers, timeout=PATIENCE
    )


def said(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def ended(served: Served, conversation: str, status: str) -> None:
    """Wait until the conversation's one exchange has this status."""
    served.until(
        lambda: [one.status for one in served.exchanges(conversation)] == [status],
        f"{conversation}: {[one.status for one in served.exchanges(conversation)]}",
    )


def test_python_whole_answers_and_headers(served: Served) -> None:
    with client_of(served, "c") as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=said("a fine day"))
        assert raw.parse().choices[0].message.content == "You said: a fine day"
        assert raw.headers["x-topicality-action"] == "allow"
        assert len(raw.headers["x-topicality-request-id"]) == 32
        assert [one.id for one in client.models.list()] == ["one"]
    ended(served, "c", "completed")


def test_python_streams(served: Served) -> None:
    with client_of(served, "c") as client:
        options: Any = {"include_usage": True}
        with client.chat.completions.create(
            model="m", messages=said("a fine day"), stream=True, stream_options=options
        ) as stream:
            found = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in found if one.choices) == "You said: a fine day"
    assert [one.choices[0].finish_reason for one in found if one.choices][-1] == "stop"
    assert found[-1].usage is not None
    ended(served, "c", "completed")


def test_python_streams_to_an_asynchronous_client(served: Served) -> None:
    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=served.url, api_key="sk-python", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=said("a fine day"), stream=True)
            assert isinstance(stream, AsyncIterator)
            return "".join([one.choices[0].delta.content or "" async for one in stream if one.choices])

    assert asyncio.run(run()) == "You said: a fine day"


def test_python_calls_tools_whole_and_streamed(served: Served) -> None:
    with client_of(served, "whole") as client:
        first = client.chat.completions.create(model="m", messages=said("call weather"), tools=TOOLS).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.tool_calls is not None
        (call,) = first.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
        ended(served, "whole", "pending")
        told: list[Any] = [
            *said("call weather"),
            first.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        second = client.chat.completions.create(model="m", messages=told, tools=TOOLS)
        assert second.choices[0].message.content == "It is sunny."
    ended(served, "whole", "completed")
    with (
        client_of(served, "stream") as client,
        client.chat.completions.stream(model="m", messages=said("call weather"), tools=TOOLS) as stream,
    ):
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == ARGUMENTS


def test_python_reads_a_refusal_as_an_answer(served: Served, upstream: Upstream) -> None:
    with client_of(served, "c") as client:
        whole = client.chat.completions.create(model="m", messages=said("a bad word"))
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (NO, "content_filter")
        assert whole.usage is not None
        assert whole.usage.total_tokens == 0
        with client.chat.completions.create(model="m", messages=said("a bad word"), stream=True) as stream:
            found = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in found if one.choices) == NO
    assert [one.choices[0].finish_reason for one in found if one.choices][-1] == "content_filter"
    assert not upstream.chats()


def test_python_raises_its_own_errors(served: Served) -> None:
    with client_of(served, "c") as client:
        with pytest.raises(openai.RateLimitError, match="slow down") as limited:
            client.chat.completions.create(model="m", messages=said("fail 429"))
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=said("fail 500"))
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=[])
        with pytest.raises((openai.APIError, openai.APIConnectionError)):
            list(client.chat.completions.create(model="m", messages=said("break"), stream=True))


def test_python_closing_a_stream_ends_the_exchange(served: Served, upstream: Upstream) -> None:
    with client_of(served, "c") as client:
        stream = client.chat.completions.create(model="m", messages=said("hang"), stream=True)
        next(iter(stream))
        stream.close()
    ended(served, "c", "failed")
    assert served.exchanges("c")[0].failure == "hung_up"
    assert upstream.last.left.wait(PATIENCE), "the model server was left waiting"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with the official JavaScript client."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        told = f"not installed: {', '.join(missing)}"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(told)
        pytest.skip(told)
    (tmp_path / "package.json").write_text('{"name": "clients", "private": true, "type": "module"}')
    command = [
        shutil.which("npm") or "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--loglevel=error",
        "openai@7",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copy(Path(__file__).with_name("clients.mjs"), tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_javascript(served: Served, node: Path) -> None:
    command = [shutil.which("node") or "node", "clients.mjs", served.url]
    done = subprocess.run(command, cwd=node, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    usage = found["stream"].pop("usage")
    assert usage["total_tokens"] > 0
    refusal = {"text": NO, "finish": "content_filter"}
    assert found == {
        "whole": {"text": "You said: a fine day", "action": "allow"},
        "stream": {"text": "You said: a fine night", "finish": "stop"},
        "helper": {"text": "You said: a fine evening"},
        "tools": {"name": "weather", "arguments": ARGUMENTS, "text": "It is sunny."},
        "streamTools": {"finish": "tool_calls", "arguments": ARGUMENTS},
        "refused": {**refusal, "total": 0},
        "refusedStream": {**refusal, "usage": None},
        "limited": {"raised": "RateLimitError", "status": 429, "code": "scripted"},
        "down": {"raised": "InternalServerError", "status": 500, "code": "scripted"},
        "broken": {"raised": "APIError", "status": None, "code": found["broken"]["code"]},
        "malformed": {"raised": "BadRequestError", "status": 400, "code": found["malformed"]["code"]},
        "left": {"raised": None},
        "models": ["one"],
    }
    owner = served.exchanges(owner=found_owner(served))
    statuses = {one.conversation: one.status for one in owner}
    served.until(lambda: "pending" not in {one.status for one in served.exchanges("js-left", found_owner(served))})
    statuses |= {"js-left": served.exchanges("js-left", found_owner(served))[0].status}
    assert statuses == {
        "js-whole": "completed",
        "js-stream": "completed",
        "js-helper": "completed",
        "js-tools": "completed",
        "js-stream-tools": "pending",
        "js-refused": "failed",
        "js-refused-stream": "failed",
        "js-limited": "failed",
        "js-down": "failed",
        "js-broken": "failed",
        "js-left": "failed",
    }


def found_owner(served: Served) -> str:
    """The owner that the server made of the client's key."""
    return served.service.keys.caller({"authorization": "Bearer sk-js"}).owner
