"""Streams: passed on as they come, guarded, broken off, left by the client, slow, and stopped with the server."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx2
import pytest
from tests.server.conftest import Serve, Served
from tests.server.proxy_world import BACK, NO, ask, chunks, finish, judging, said, user
from tests.server.upstream import (
    DONE,
    PATIENCE,
    Answer,
    Upstream,
    breaks,
    calls,
    event,
    fails,
    hangs,
    pours,
    says,
    streams,
)

from topicality.layer.hosted import Hosted


def ended(served: Served, *expected: str | None) -> None:
    """Wait until the exchanges ended so: a failure's reason each, or None for a completed one."""
    wanted = [("completed" if reason is None else "failed", reason) for reason in expected]
    served.until(
        lambda: [(e.status, e.failure) for e in served.exchanges()] == wanted,
        str([(e.status, e.failure) for e in served.exchanges()]),
    )


def test_a_stream_passes_byte_for_byte_while_it_is_made(serve: Serve, upstream: Upstream) -> None:
    pieces = [event({"role": "assistant", "content": ""}), b": ping\n\n", event({"content": "Hel"}, x=[1.50])]
    rest = [event({"content": "lo"}), event({}, finish="stop"), event(None, usage={"total_tokens": 1}), DONE]
    go_on = threading.Event()

    async def step(_: object, answer: Answer) -> None:
        await answer.head(200, {"content-type": "text/event-stream", "x-request-id": "r1"})
        for piece in pieces:
            await answer.write(piece)
        while not go_on.is_set():
            await answer.pause(0.01)
        for piece in rest:
            await answer.write(piece)
        await answer.end()

    upstream.script(step)
    served = serve()
    body = {"messages": [user("hello")], "stream": True, "stream_options": {"include_usage": True}}
    with served.client().stream("POST", "/v1/chat/completions", json=body) as got:
        assert got.headers["x-request-id"] == "r1"
        assert got.headers["cache-control"] == "no-cache"
        assert got.headers["x-topicality-action"] == "none"
        raw = got.iter_raw()
        first = b""
        while len(first) < len(b"".join(pieces)):
            first += next(raw)
        assert first == b"".join(pieces)  # before the model has said the rest
        go_on.set()
        assert b"".join(raw) == b"".join(rest)
    ended(served, None)
    assert [e.reply.text for e in served.exchanges() if e.reply] == ["Hello"]


def test_refusals_come_as_streams_too(serve: Serve, upstream: Upstream) -> None:
    client = serve(layer=judging()).client()
    for text, reply in (("something bad", NO), ("something odd", BACK)):
        got = ask(client, text, stream=True, n=2, stream_options={"include_usage": True})
        assert got.headers["content-type"].startswith("text/event-stream")
        found = chunks(got.text)
        assert [said(found, n) for n in (0, 1)] == [reply, reply]
        assert [finish(found, n) for n in (0, 1)] == ["content_filter", "content_filter"]
        assert found[-1]["usage"]["total_tokens"] == 0
        assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert not upstream.requests


def test_a_guarded_stream_that_is_fine_says_the_same(serve: Serve, upstream: Upstream) -> None:
    text = " ".join(f"word{n}" for n in range(120))
    upstream.script(says(text))
    served = serve(layer=judging(), guard={"window": 10})
    found = chunks(ask(served.client(), "fine", stream=True).text)
    assert (said(found), finish(found)) == (text, "stop")
    ended(served, None)
    assert [e.reply.text for e in served.exchanges() if e.reply] == [text]


def test_a_guarded_stream_is_stopped_and_the_model_told_to(serve: Serve, upstream: Upstream) -> None:
    head = " ".join(f"word{n}" for n in range(40))
    upstream.script(says(f"{head} bad " + "more " * 5000, delay=0.002))
    served = serve(layer=judging(), guard={"window": 10})
    found = chunks(ask(served.client(), "fine", stream=True).text)
    assert finish(found) == "content_filter"
    shown = said(found)
    assert shown.endswith("\n\n" + NO)
    assert "bad" not in shown.split()
    assert head.startswith(shown.removesuffix("\n\n" + NO))
    assert len(shown.split()) > 20
    assert upstream.last.left.wait(PATIENCE)
    ended(served, "reply_blocked")


def test_tool_calls_pass_a_guarded_stream_and_keep_the_exchange_open(serve: Serve, upstream: Upstream) -> None:
    upstream.script(calls("f", '{"x": "bad"}'), says("All fine."))
    served = serve(layer=judging())
    found = chunks(ask(served.client(), "fine", stream=True).text)
    parts = [
        one["delta"]["tool_calls"][0]["function"]
        for c in found
        for one in c["choices"]
        if one["delta"].get("tool_calls")
    ]
    assert "".join(part["arguments"] for part in parts) == '{"x": "bad"}'
    assert finish(found) == "tool_calls"
    assert [e.status for e in served.exchanges()] == ["pending"]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {}}]}
    ask(served.client(), "fine", call, {"role": "tool", "tool_call_id": "call_1", "content": "1"}, stream=True)
    ended(served, None)


def test_a_stream_that_breaks_off_says_so(serve: Serve, upstream: Upstream) -> None:
    for layer in (None, judging()):
        upstream.script(breaks("Hel", "lo"))
        served = serve(layer=layer)
        got = ask(served.client(), "fine", stream=True)
        last = [line for line in got.text.split("\n\n") if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_broken"
        assert "[DONE]" not in got.text
        ended(served, "upstream_broken")


def test_a_stream_that_stops_without_a_word_times_out(serve: Serve, upstream: Upstream) -> None:
    upstream.script(hangs("Hel"))
    served = serve(upstream={"url": upstream.url, "idle": 0.4})
    got = ask(served.client(), "hello", stream=True)
    assert '"code":"upstream_timeout"' in got.text
    assert upstream.last.left.wait(PATIENCE)
    ended(served, "upstream_timeout")


def test_a_stream_that_ends_too_early_or_tells_of_an_error_is_no_reply(serve: Serve, upstream: Upstream) -> None:
    error = b'data: {"error": {"message": "overloaded"}}\n\n'
    upstream.script(streams([event({"content": "Hel"})]), streams([event({"content": "Hel"}), error]), fails(500))
    served = serve()
    for n in range(3):
        got = ask(served.client(), f"hello {n}", stream=True)
        assert "chatcmpl" in got.text or got.status_code == 500
    assert error.decode() not in got.text
    ended(served, "upstream_incomplete", "upstream_error", "upstream_status")


def test_a_stream_without_its_last_line_is_whole_once_it_said_why_it_ended(serve: Serve, upstream: Upstream) -> None:
    upstream.script(streams([event({"content": "Hello"}), event({}, finish="stop").removesuffix(b"\n")]))
    served = serve()
    assert ask(served.client(), "hello", stream=True).status_code == 200
    ended(served, None)


def test_what_cannot_be_followed_passes_unless_it_has_to_be_guarded(
    serve: Serve, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicality.doors.server.proxy.sse.LARGEST", 1000)
    odd = [b"data: \xff\xfe\n\n", event({"content": "x"}), b"data: " + b"y" * 2000 + b"\n\n", DONE]
    upstream.script(streams(odd))
    served = serve()
    assert ask(served.client(), "hello", stream=True).content == b"".join(odd)
    ended(served, "upstream_incomplete")
    served = serve(layer=judging())
    got = ask(served.client(), "fine", stream=True)
    assert b"\xff" not in got.content
    assert '"code":"upstream_unreadable"' in got.text
    ended(served, "upstream_unreadable")


def test_an_event_that_is_cut_off_is_not_begun(serve: Serve, upstream: Upstream) -> None:
    whole = event({"content": "Hel"})

    async def step(_: object, answer: Answer) -> None:
        await answer.head(200, {"content-type": "text/event-stream"})
        await answer.write(whole[:-20])
        await answer.pause(0.05)
        await answer.write(whole[-20:] + whole[:40])
        await answer.pause(0.05)
        answer.reset()

    upstream.script(step)
    got = ask(serve().client(), "hello", stream=True)
    assert got.content.startswith(whole + b'data: {"error"')


@pytest.mark.parametrize("guarded", [False, True])
def test_a_client_that_hangs_up_ends_the_exchange_and_the_models_work(
    serve: Serve, upstream: Upstream, guarded: bool
) -> None:
    served = serve(layer=judging() if guarded else None, guard={"window": 10})
    upstream.script(says("fine words " * 5000, delay=0.002))
    body = {"messages": [user("fine")], "stream": True}
    with served.client().stream("POST", "/v1/chat/completions", json=body) as got:
        next(got.iter_raw())
    assert upstream.last.left.wait(PATIENCE)
    ended(served, "hung_up")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_before_any_answer_too(serve: Serve, upstream: Upstream, stream: bool) -> None:
    served = serve()
    upstream.script(hangs())
    with pytest.raises(httpx2.TimeoutException):
        served.client().post(
            "/v1/chat/completions",
            json={"messages": [user("hello")], "stream": stream},
            timeout=httpx2.Timeout(PATIENCE, read=0.5),
        )
    assert upstream.last.left.wait(PATIENCE)
    ended(served, "hung_up")


def test_a_client_that_hangs_up_while_its_message_is_taken_in_leaves_nothing_open(
    serve: Serve, upstream: Upstream
) -> None:
    served = serve(limits={"threads": 1})
    held = threading.Event()
    served.service.bridge._pool.submit(held.wait, PATIENCE)  # the engine is busy
    raw = socket.create_connection(("127.0.0.1", int(served.root.rpartition(":")[2])))
    body = json.dumps({"messages": [user("hello")]}).encode()
    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    served.until(lambda: served.service.bridge.open > 0)
    raw.close()
    time.sleep(0.1)
    held.set()
    ended(served, "hung_up")
    assert not upstream.requests


def test_a_client_that_leaves_right_after_the_end_has_had_it_all(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    for n in range(5):
        body = {"messages": [user(f"hello {n}")], "stream": True}
        with served.client().stream("POST", "/v1/chat/completions", json=body) as got:
            for line in got.iter_lines():
                if line == "data: [DONE]":
                    break
    ended(served, *[None] * 5)


@pytest.mark.slow
def test_a_slow_client_holds_the_model_back_instead_of_filling_memory(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    size, count = 50_000, 4000  # 200 MB; what systems buffer on two connections is a tenth of it
    upstream.script(pours(size, count))
    body = {"messages": [user("hello")], "stream": True}
    with served.client().stream("POST", "/v1/chat/completions", json=body) as got:
        raw = got.iter_raw()
        next(raw)
        served.until(lambda: "poured" in upstream.last.__dict__)
        before = -1
        while upstream.last.__dict__["poured"] != before:  # until nobody takes any more
            before = upstream.last.__dict__["poured"]
            time.sleep(0.5)
        assert before < count / 4
        assert not upstream.last.left.is_set()
        assert len(next(raw)) > 0  # it goes on when it is taken
    assert upstream.last.left.wait(PATIENCE)
    ended(served, "hung_up")


def test_a_client_that_takes_nothing_is_left(serve: Serve, upstream: Upstream) -> None:
    served = serve(upstream={"url": upstream.url, "idle": 0.5})
    upstream.script(pours(50_000, 600))
    raw = socket.create_connection(("127.0.0.1", int(served.root.rpartition(":")[2])))
    body = json.dumps({"messages": [user("hello")], "stream": True}).encode()
    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    ended(served, "slow_client")
    assert upstream.last.left.wait(PATIENCE)
    raw.close()


def test_a_server_that_stops_lets_streams_end(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    upstream.script(says("word " * 50, delay=0.02))
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(ask(served.client(), "hello", stream=True).text))
    thread.start()
    served.until(lambda: bool(upstream.requests))
    served.stop()
    thread.join(PATIENCE)
    assert finish(chunks(got[0])) == "stop"
    ended(served, None)


def test_a_server_that_stops_does_not_wait_for_ever(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    served.server.config.timeout_graceful_shutdown = 1
    upstream.script(hangs("Hel"))
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(ask(served.client(), "hello", stream=True).text))
    thread.start()
    served.until(lambda: bool(upstream.requests))
    served.stop()
    thread.join(PATIENCE)
    assert json.loads(got[0].split("data: ")[-1])["error"]["code"] == "shutdown"
    ended(served, "shutdown")


def test_a_message_that_is_taken_in_while_the_server_stops_is_ended_too(
    serve: Serve, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, entered, go_on = Hosted.look, threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(PATIENCE)
        return whole(*arguments)

    monkeypatch.setattr(Hosted, "look", held)
    served = serve()
    served.server.config.timeout_graceful_shutdown = 1
    got: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: got.append(ask(served.client(), "hello")))
    thread.start()
    assert entered.wait(PATIENCE)
    served.server.should_exit = True
    thread.join(PATIENCE)  # it is told when the grace is over
    assert [(one.status_code, one.json()["error"]["code"]) for one in got] == [(503, "shutdown")]
    assert served.thread.is_alive()
    go_on.set()
    served.stop()
    ended(served, "shutdown")
    assert not upstream.requests


@pytest.mark.slow
def test_a_storm_ends_every_exchange_once(serve: Serve, upstream: Upstream) -> None:
    """A small one; the large one is with the operations."""
    served = serve()
    flaky = [says("all is well", delay=0.01), breaks("Hel"), says("all is well " * 50, delay=0.01), fails(500)]
    upstream.script(*flaky * 6, says("all is well"))

    def one(n: int) -> None:
        body = {"messages": [user(f"hello {n}")], "stream": True, "user": f"u{n % 4}"}
        try:
            with served.client().stream("POST", "/v1/chat/completions", json=body) as got:
                for place, _ in enumerate(got.iter_raw()):
                    if n % 3 == 0 and place > 1:
                        break
        except httpx2.HTTPError:
            pass

    threads = [threading.Thread(target=one, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    served.until(lambda: all(e.status != "pending" for e in served.exchanges()))
    found = served.exchanges()
    assert len(found) == len({e.user.text for e in found}) == 24
    assert {e.failure for e in found} <= {None, "upstream_broken", "upstream_status", "hung_up"}
    assert sum(e.status == "completed" for e in found) >= 4
