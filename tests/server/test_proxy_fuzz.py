"""Any body with any headers: an answer, never a failure of the server's own, and nothing left open."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.conftest import Serve
from tests.server.proxy_world import judging
from tests.server.upstream import Upstream, answers, breaks, calls, fails, says, streams

CONTROL = bytes([*range(32), 127])  # the HTTP server itself refuses these
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
WORDS = st.lists(st.sampled_from(["fine", "bad", "odd", "\ud800", "\0", "\u202e", "é"]), max_size=6).map(" ".join)
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]) | ANY, "text": WORDS | ANY})
CONTENT = WORDS | st.lists(PART | ANY, max_size=3) | ANY
ROLE = st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"]) | ANY
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE, "content": CONTENT}, optional={"tool_calls": ANY, "tool_call_id": ANY, "name": ANY}
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE | ANY, max_size=5) | ANY},
    optional={
        "stream": st.booleans() | ANY,
        "n": st.integers(-3, 300) | ANY,
        "user": WORDS | ANY,
        "model": ANY,
        "stream_options": ANY,
    },
)
RAW = (
    BODY.map(lambda body: json.dumps(body).encode())
    | ANY.map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=60)
)
VALUE = st.binary(max_size=12).map(lambda value: value.translate(None, CONTROL)) | st.sampled_from(
    [b"on", b"off", b"100", b"c", b"%41"]
)
NAMES = ["x-topicality-" + name for name in ("conversation", "owner", "guard", "memory", "budget", "recall", "other")]
HEADERS = st.dictionaries(
    st.sampled_from([*NAMES, "x-a", "accept-encoding", "content-type", "origin", "te"]), VALUE, max_size=4
)
STEPS = [
    says("All is fine."),
    says("This is bad."),
    fails(500),
    breaks("fine"),
    calls("f", "{}"),
    answers(200, b"nope"),
    answers(200, b'{"choices": [{"message": {"content": [1, {"text": 3}]}, "index": "x"}]}'),
    streams([b"data: [1]\n\n", b'data: {"choices": [{"delta": {"content": {"a": 1}}}]}\n\n', b"data: [DONE]\n\n"]),
]


@pytest.mark.slow
def test_nothing_that_is_sent_makes_the_server_fail(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging(), guard={"window": 10})
    client = served.client()

    @settings(max_examples=400, suppress_health_check=list(HealthCheck))
    @given(RAW, HEADERS, st.sampled_from(STEPS))
    def fuzz(body: bytes, headers: dict[str, bytes], step: Any) -> None:
        upstream.script(step)
        given_ones = [(name.encode(), value) for name, value in headers.items()]
        try:
            got = client.post("/v1/chat/completions", content=body, headers=given_ones)
        except httpx2.LocalProtocolError:  # the client itself does not send this
            return
        if got.status_code >= 500:
            assert got.json()["error"]["code"] in ("scripted", "upstream_unreadable", "upstream_broken"), got.text
        elif got.status_code >= 400:
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}
        assert "Traceback" not in got.text

    fuzz()
    assert client.get("/healthz").status_code == 200
