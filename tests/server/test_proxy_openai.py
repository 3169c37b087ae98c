"""The official client of OpenAI in front of the proxy: nothing but its base_url is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.conftest import Serve, Served
from tests.server.proxy_world import BACK, NO, judging
from tests.server.upstream import Upstream, breaks, calls, fails, hangs, says

SAID: Any = [{"role": "user", "content": "fine things"}]
BAD: Any = [{"role": "user", "content": "something bad"}]
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(layer=judging(), guard={"window": 10})


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.url, api_key="client-key", max_retries=0, timeout=30) as made:
        yield made


def test_a_whole_reply_and_its_headers(client: OpenAI, upstream: Upstream) -> None:
    upstream.script(says("All fine."))
    got = client.chat.completions.with_raw_response.create(model="m", messages=SAID, n=2, stop=["x"], temperature=0)
    assert got.headers["x-topicality-action"] == "allow"
    assert [choice.message.content for choice in got.parse().choices] == ["All fine.", "All fine."]
    assert upstream.last.json == {"messages": SAID, "model": "m", "n": 2, "stop": ["x"], "temperature": 0}
    assert upstream.last.header("authorization") == "Bearer client-key"
    assert (upstream.last.header("user-agent") or "").startswith("OpenAI")


def test_a_stream_with_its_usage(client: OpenAI, upstream: Upstream) -> None:
    text = " ".join(f"word{n}" for n in range(50))
    upstream.script(says(text))
    stream = client.chat.completions.create(
        model="m", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    found = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in found if c.choices) == text
    assert found[-1].usage is not None


def test_the_streaming_helper_puts_tool_calls_together_and_the_results_go_back(
    client: OpenAI, served: Served, upstream: Upstream
) -> None:
    upstream.script(calls("look", '{"where": "here"}'), says("All fine."))
    with client.chat.completions.stream(model="m", messages=SAID, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"where": "here"}'
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "found"}
    history: Any = [*SAID, message, result]
    got = client.chat.completions.create(model="m", messages=history, tools=TOOLS)
    assert got.choices[0].message.content == "All fine."
    assert upstream.last.json["messages"][-1] == result
    served.until(lambda: [e.status for e in served.exchanges(owner=_owner())] == ["completed"])


def test_refusals_whole_and_streamed(client: OpenAI, upstream: Upstream) -> None:
    got = client.chat.completions.create(model="m", messages=BAD)
    assert (got.choices[0].message.content, got.choices[0].finish_reason, got.model) == (NO, "content_filter", "m")
    odd: Any = [{"role": "user", "content": "something odd"}]
    with client.chat.completions.stream(model="m", messages=odd) as stream:
        events = [event for event in stream if event.type == "content.done"]
    assert [event.content for event in events] == [BACK]
    assert not upstream.requests


def test_a_stream_that_the_guard_stops_is_a_complete_one(client: OpenAI, upstream: Upstream) -> None:
    upstream.script(says("word " * 30 + "bad " + "word " * 300, delay=0.001))
    found = list(client.chat.completions.create(model="m", messages=SAID, stream=True))
    assert found[-1].choices[0].finish_reason == "content_filter"
    assert "".join(c.choices[0].delta.content or "" for c in found).endswith(NO)


def test_errors_are_raised_as_the_model_servers(client: OpenAI, served: Served, upstream: Upstream) -> None:
    upstream.script(fails(429, "slow down", retry_after="1"), fails(400, "no such model"), breaks("Hel"), breaks())
    with pytest.raises(openai.RateLimitError, match="slow down"):
        client.chat.completions.create(model="m", messages=SAID)
    with pytest.raises(openai.BadRequestError, match="no such model"):
        client.chat.completions.create(model="m", messages=SAID)
    with pytest.raises(openai.APIError, match="broke off"):
        list(client.chat.completions.create(model="m", messages=SAID, stream=True))
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=SAID)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="m", messages=[])
    with OpenAI(base_url=served.url, api_key="k", max_retries=2, timeout=30) as retrying:
        upstream.script(fails(503, retry_after_ms="1"), fails(503, retry_after_ms="1"), says("All fine."))
        assert retrying.chat.completions.create(model="m", messages=SAID).choices[0].message.content == "All fine."


def test_closing_a_stream_stops_the_model(client: OpenAI, served: Served, upstream: Upstream) -> None:
    upstream.script(hangs("fine " * 40))
    stream = client.chat.completions.create(model="m", messages=SAID, stream=True)
    next(iter(stream))
    stream.close()
    assert upstream.last.left.wait(30)
    served.until(lambda: [e.failure for e in served.exchanges(owner=_owner())] == ["hung_up"])


def test_other_endpoints(client: OpenAI, upstream: Upstream) -> None:
    upstream.script(fails(404))
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("x")
    assert upstream.last.path == "/v1/models/x"


def _owner() -> str:
    from hashlib import sha256

    return f"key-{sha256(b'client-key').hexdigest()[:16]}"
