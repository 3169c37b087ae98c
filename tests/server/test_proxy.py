"""The proxy: what goes to the model server and back, who may, and what is answered in its place."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

from tests.server.conftest import Serve
from tests.server.proxy_world import BACK, MALFORMED, NO, ask, judging, model, user
from tests.server.upstream import Upstream, answers, breaks, calls, completion, fails, hangs, says

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
KEYS = [
    {"name": "alice", "key": "alice-secret", "owner": "alice"},
    {"name": "bob", "key": "bob-secret-1", "owner": "bob"},
    {"name": "backend", "key": "backend-secret", "scopes": ["chat", "override"]},
    {"name": "reader", "key": "reader-secret", "scopes": ["read"]},
]


def test_a_request_goes_through_byte_for_byte_and_so_does_the_answer(serve: Serve, upstream: Upstream) -> None:
    body = b"""{ "model":"m",  "messages" : [ {"role":"user","content":"Hello \\u00e9 there"} ], "seed": 1e3,
        "metadata": {"a": [1, 2.50, null]}, "x_unknown": true }"""
    answer = json.dumps(completion("Hi."), indent=3).encode()
    upstream.script(answers(200, answer, {"x-ratelimit-remaining": "7", "openai-version": "v"}))
    got = serve().client().post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert got.content == answer
    assert upstream.last.body == body
    assert upstream.last.path == "/v1/chat/completions"
    assert (got.headers["x-ratelimit-remaining"], got.headers["openai-version"]) == ("7", "v")
    assert got.headers["content-type"] == "application/json"
    assert len(got.headers.get_list("content-length")) == len(got.headers.get_list("date")) == 1


def test_headers_about_one_connection_stay_there_and_ours_do_not_leave(serve: Serve, upstream: Upstream) -> None:
    upstream.script(
        answers(200, json.dumps(completion("Hi.")).encode(), {"keep-alive": "5", "x-topicality-action": "block"})
    )
    client = serve().client(openai_organization="org", connection="keep-alive, x-private", x_private="1", te="trailers")
    got = ask(client, "hello", headers={"conversation": "c"})
    seen = {name for name, _ in upstream.last.headers}
    assert "openai-organization" in seen
    assert not seen & {"te", "x-private", "x-topicality-conversation", "connection", "expect"}
    assert upstream.last.header("accept-encoding") == "identity"
    assert upstream.last.header("host") == upstream.url.removeprefix("http://").removesuffix("/v1")
    assert "keep-alive" not in got.headers
    assert got.headers.get_list("x-topicality-action") == ["none"]


def test_who_pays_upstream_is_the_server_with_a_key_and_the_client_without(serve: Serve, upstream: Upstream) -> None:
    ask(serve().client("client-token"), "hello")
    assert upstream.last.header("authorization") == "Bearer client-token"
    ask(serve(upstream={"url": upstream.url, "key": "theirs"}).client("client-token"), "hello")
    assert upstream.last.header("authorization") == "Bearer theirs"
    ask(serve(keys=KEYS).client("alice-secret"), "hello")
    assert upstream.last.header("authorization") is None
    served = serve(keys=KEYS, upstream={"url": upstream.url, "key": "theirs"})
    served.client("alice-secret").get("/v1/models")
    assert upstream.last.header("authorization") == "Bearer theirs"


def test_a_key_is_needed_and_its_scope(serve: Serve, upstream: Upstream) -> None:
    served = serve(keys=KEYS)
    for client, status in (
        (served.client(), 401),
        (served.client("wrong-secret"), 401),
        (served.client("reader-secret"), 403),
    ):
        for got in (ask(client, "hello"), client.get("/v1/models")):
            assert got.status_code == status
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}
    assert not upstream.requests


def test_everything_else_passes(serve: Serve, upstream: Upstream) -> None:
    client = serve().client()
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/models/a%2Fb?x=1&y=%20"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("DELETE", "/v1/files/f1"),
        ("GET", "/v1/chat/completions?limit=2"),
    ):
        body = b'{"input": "\xc3\xa9"}' if method == "POST" else None
        got = client.request(method, path, content=body)
        assert got.json() == {"method": method, "path": path, "body": (body or b"").decode()}
        assert [name for name, _ in upstream.last.headers].count("content-length") == (1 if body else 0)


def test_what_passes_may_be_compressed_and_large_and_fail(serve: Serve, upstream: Upstream) -> None:
    packed = gzip.compress(b"x" * 300_000)
    upstream.script(answers(206, packed, {"content-encoding": "gzip", "etag": '"1"'}), fails(404, "no such file"))
    client = serve().client(accept_encoding="gzip")
    with client.stream("POST", "/v1/audio/speech", content=b"y" * 3_000_000) as got:
        assert b"".join(got.iter_raw()) == packed
        assert (got.status_code, got.headers["content-encoding"], got.headers["etag"]) == (206, "gzip", '"1"')
    assert upstream.last.header("accept-encoding") == "gzip"
    assert upstream.last.body == b"y" * 3_000_000
    got = client.get("/v1/files/f1")
    assert (got.status_code, got.json()["error"]["message"]) == (404, "no such file")


def test_a_body_of_unknown_length_passes_too(serve: Serve, upstream: Upstream) -> None:
    got = serve().client().post("/v1/embeddings", content=iter([b"ab", b"cd"]))
    assert got.json()["body"] == "abcd"
    assert upstream.last.header("transfer-encoding") == "chunked"


def test_no_path_leads_out_of_the_upstreams(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    for path in ("/v1/../admin", "/v1/%2e%2e/admin", "/v1/models/.."):
        with socket.create_connection(("127.0.0.1", int(served.root.rpartition(":")[2]))) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            got = b"".join(iter(lambda: raw.recv(4096), b""))
        assert got.split(b" ")[1] in (b"400", b"404")
    assert not upstream.requests


def test_no_spelling_of_the_path_gets_around_the_guard(serve: Serve, upstream: Upstream) -> None:
    client = serve(layer=judging()).client()
    for path in ("/v1/chat/completions/", "/v1/chat//completions", "/v1//Chat/Completions", "/v1/x/chat/completions"):
        got = client.post(path, json={"messages": [user("something bad")]})
        assert got.json()["choices"][0]["finish_reason"] == "content_filter"
    assert not upstream.requests


def test_errors_of_the_model_server_come_back_as_they_are(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    for status in (400, 401, 404, 429, 500, 503):
        upstream.script(fails(status, "their words", retry_after="3", x_should_retry="false"))
        got = ask(served.client(), f"hello {status}", stream=True)
        assert (got.status_code, got.json()["error"]["message"]) == (status, "their words")
        assert (got.headers["retry-after"], got.headers["x-should-retry"]) == ("3", "false")
    served.until(lambda: [e.failure for e in served.exchanges()] == ["upstream_status"] * 6)


def test_a_model_server_that_cannot_be_reached_breaks_off_or_is_too_slow(serve: Serve, upstream: Upstream) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    served = serve(upstream={"url": nobody, "connect": 2})
    got = ask(served.client(), "hello")
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unreachable")
    served.until(lambda: [e.failure for e in served.exchanges()] == ["upstream_unreachable"])
    served = serve(upstream={"url": upstream.url, "idle": 0.3})
    upstream.script(breaks(), hangs(), answers(200, b"not JSON"), answers(200, b"x" * 10, {"content-length": "20"}))
    for status, code in ((502, "upstream_broken"), (504, "upstream_timeout")):
        got = ask(served.client(), "hello")
        assert (got.status_code, got.json()["error"]["code"]) == (status, code)
    assert ask(served.client(), "hello").content == b"not JSON"  # nothing that we have to understand
    assert ask(served.client(), "hello").status_code in (502, 504)
    served.until(lambda: len(served.exchanges()) == 4 and all(e.status == "failed" for e in served.exchanges()))
    reasons = [exchange.failure for exchange in served.exchanges()]
    assert reasons[:3] == ["upstream_broken", "upstream_timeout", "upstream_unreadable"]


def test_an_answer_that_came_compressed_all_the_same_is_understood(serve: Serve, upstream: Upstream) -> None:
    packed = gzip.compress(json.dumps(completion("Hi there.")).encode())
    upstream.script(answers(200, packed, {"content-encoding": "gzip"}))
    served = serve()
    got = ask(served.client(), "hello")
    assert got.json()["choices"][0]["message"]["content"] == "Hi there."
    assert "content-encoding" not in got.headers
    served.until(lambda: [e.reply.text for e in served.exchanges() if e.reply] == ["Hi there."])


def test_a_malformed_body_is_the_clients_fault(serve: Serve, upstream: Upstream) -> None:
    served = serve()
    for body in MALFORMED:
        got = served.client().post("/v1/chat/completions", content=body)
        assert got.status_code == 400, body[:80]
        assert got.json()["error"]["type"] == "invalid_request_error"
    assert not upstream.requests
    assert not served.exchanges()


def test_what_nobody_knows_is_left_to_the_model_server(serve: Serve, upstream: Upstream) -> None:
    upstream.script(answers(200, b'{"choices": []}'))
    served = serve()
    odd: list[Any] = [
        user(None), {"content": "no role"}, {"role": ["user"], "content": 5}, user({"text": "x"}), user([1, {"type": 2}]),
        user("a\0b \ud800 c"), {"role": "user", "content": "x", "name": "\0", "tool_calls": 3, "tool_call_id": {}},
        model(None, tool_calls=[1, {"id": None}], function_call="f"), {"role": "tool", "content": None},
    ]  # fmt: skip
    for message in odd:
        body = {"messages": [message, user("hello")], "n": "three", "stream": 0, "user": 7, "stream_options": []}
        got = served.client().post("/v1/chat/completions", content=json.dumps(body).encode())
        assert got.status_code == 200, message
        assert json.loads(upstream.last.body) == body
        assert ask(served.client(), message).status_code == 200, message
    served.until(lambda: all(e.status == "failed" for e in served.exchanges()))


def test_images_and_unknown_parts_are_untouched(serve: Serve, upstream: Upstream) -> None:
    parts = [
        {"type": "text", "text": "what is in this picture?"},
        {"type": "image_url", "image_url": {"url": PIXEL + "A" * 2_000_000, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "later", "x": [1]},
    ]
    served = serve()
    ask(served.client(), user(parts))
    assert upstream.last.json["messages"] == [user(parts)]
    served.until(lambda: [e.status for e in served.exchanges()] == ["completed"])
    assert served.exchanges()[0].user.text == "what is in this picture?"
    only = user([{"type": "image_url", "image_url": {"url": PIXEL}}])
    assert ask(served.client(), only).status_code == 200
    served.until(lambda: [e.status for e in served.exchanges()] == ["completed", "completed"])


def test_a_blocked_message_is_answered_in_the_models_place(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    got = ask(served.client(), "something bad", n=2, headers={"conversation": "c"})
    body = got.json()
    assert (got.status_code, body["object"], body["model"]) == (200, "chat.completion", "m")
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in body["choices"]] == [
        (0, NO, "content_filter"),
        (1, NO, "content_filter"),
    ]
    assert body["usage"]["total_tokens"] == 0
    assert got.headers["x-topicality-action"] == "block"
    assert got.headers["x-topicality-reason"] == "BLOCKED_TOPIC"
    assert got.headers["x-topicality-rule"] == "bad"
    assert got.headers["x-topicality-conversation"] == "c"
    assert not upstream.requests
    assert [(e.status, e.failure) for e in served.exchanges("c")] == [("failed", "blocked")]


def test_a_redirected_message_is_answered_and_the_answer_kept(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    got = ask(served.client(), "something odd")
    assert got.json()["choices"][0]["message"]["content"] == BACK
    assert got.headers["x-topicality-action"] == "redirect"
    assert not upstream.requests
    served.until(lambda: [e.status for e in served.exchanges()] == ["completed"])
    assert [e.reply.text for e in served.exchanges() if e.reply] == [BACK]


def test_a_policy_without_replies_still_says_something(serve: Serve) -> None:
    got = ask(serve(layer=judging(replies={})).client(), "something bad")
    assert got.json()["choices"][0]["message"]["content"].strip()


def test_a_flagged_message_goes_on_with_headers(serve: Serve, upstream: Upstream) -> None:
    got = ask(serve(layer=judging(off_topic_action="flag")).client(), "something odd")
    assert got.json()["choices"][0]["message"]["content"] == "You said: something odd"
    assert (got.headers["x-topicality-action"], got.headers["x-topicality-reason"]) == ("flag", "OFF_TOPIC")
    assert float(got.headers["x-topicality-drift"]) >= 0


def test_several_messages_in_a_row_are_judged_together(serve: Serve, upstream: Upstream) -> None:
    client = serve(layer=judging()).client()
    got = ask(
        client, "something bad", {"role": "system", "content": "s"}, "fine", model(""), headers={"conversation": "c"}
    )
    assert got.headers["x-topicality-action"] == "block"
    got = ask(client, "fine things", {"role": "User", "content": "something bad"}, "fine")
    assert got.headers["x-topicality-action"] == "block"
    assert not upstream.requests


def test_a_blocked_message_in_the_history_never_reaches_the_model(serve: Serve, upstream: Upstream) -> None:
    client = serve(layer=judging()).client()
    first = [user("fine things"), model("Good."), user("something bad")]
    ask(client, *first, headers={"conversation": "c"})
    got = ask(client, *first, model(NO), user("fine, answer what I asked before"), headers={"conversation": "c"})
    assert got.headers["x-topicality-action"] == "allow"
    assert [m["content"] for m in upstream.last.json["messages"]] == [
        "fine things",
        "Good.",
        "fine, answer what I asked before",
    ]


def test_the_guard_can_be_switched_off_with_the_right_key_only(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging(), keys=KEYS)
    off = {"guard": "off"}
    assert ask(served.client("alice-secret"), "something bad", headers=off).status_code == 403
    got = ask(served.client("backend-secret"), "something bad", headers=off)
    assert got.json()["choices"][0]["message"]["content"] == "You said: something bad"
    assert got.headers["x-topicality-action"] == "none"
    assert (
        ask(served.client("alice-secret"), "something bad", headers={"guard": "on"}).headers["x-topicality-action"]
        == "block"
    )
    quiet = serve(layer=judging(), guard={"enabled": False})
    assert ask(quiet.client(), "something bad").headers["x-topicality-action"] == "none"
    assert ask(quiet.client(), "something bad", headers={"guard": "on"}).headers["x-topicality-action"] == "block"


def test_without_memory_the_guard_judges_and_nothing_is_kept(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    got = ask(served.client(), "something bad", headers={"memory": "off"})
    assert got.headers["x-topicality-action"] == "block"
    assert "x-topicality-exchange" not in got.headers
    assert ask(served.client(), "fine", headers={"memory": "off"}).headers["x-topicality-action"] == "allow"
    assert not served.exchanges()


def test_headers_that_cannot_be_used_are_refused(serve: Serve, upstream: Upstream) -> None:
    client = serve().client()
    for name, value in (
        ("guard", "no"),
        ("memory", ""),
        ("budget", "10"),
        ("budget", "-5"),
        ("budget", "1e9"),
        ("budget", "9" * 5000),
        ("budget", "\u0663\u0664\u0665"),
        ("recall", "x"),
        ("conversation", ""),
        ("conversation", "%0a"),
        ("conversation", "a" * 201),
        ("conversation", "%ff"),
        ("conversation", "\xe9"),
        ("owner", ""),
    ):
        given = [(b"x-topicality-" + name.encode(), value.encode())]
        got = client.post("/v1/chat/completions", json={"messages": [user("x")]}, headers=given)
        assert got.status_code == 400, (name, value[:20])
        assert got.json()["error"]["code"] in ("bad_header", "bad_owner")
    assert not upstream.requests


def test_what_a_client_names_cannot_break_out_of_a_header(serve: Serve) -> None:
    served = serve()
    name = "c\r\nx-evil: 1\u2028\U0001f600%"
    client = served.client()
    got = client.post("/v1/chat/completions", json={"messages": [user("x")], "user": name})
    assert "x-evil" not in got.headers
    assert got.headers["x-topicality-conversation"].startswith("user-")
    got = ask(client, "x", headers={"conversation": "caf%C3%A9 %25"})
    assert got.headers["x-topicality-conversation"] == "caf%C3%A9 %25"
    assert len(served.exchanges("café %")) == 1


def test_a_compressed_request_is_refused_rather_than_not_judged(serve: Serve, upstream: Upstream) -> None:
    packed = gzip.compress(json.dumps({"messages": [user("something bad")]}).encode())
    client = serve(layer=judging()).client()
    got = client.post("/v1/chat/completions", content=packed, headers={"content-encoding": "gzip"})
    assert (got.status_code, got.json()["error"]["code"]) == (415, "bad_encoding")
    assert not upstream.requests


def test_a_whole_reply_is_guarded(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    upstream.script(says("this is bad advice"))
    got = ask(served.client(), "fine").json()
    assert (got["choices"][0]["message"]["content"], got["choices"][0]["finish_reason"]) == (NO, "content_filter")
    assert got["usage"]["total_tokens"] == 8
    assert got["x_unknown"] == {"kept": True}
    served.until(lambda: [e.failure for e in served.exchanges()] == ["reply_blocked"])


def test_each_choice_of_a_whole_reply_is_guarded_by_itself(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    body = completion("all fine", n=2)
    body["choices"][1]["message"]["content"] = "this is bad"
    upstream.script(answers(200, json.dumps(body).encode()))
    got = ask(served.client(), "fine", n=2).json()
    assert [one["message"]["content"] for one in got["choices"]] == ["all fine", NO]
    assert got["choices"][0] == body["choices"][0]
    served.until(lambda: [e.reply.text for e in served.exchanges() if e.reply] == ["all fine"])


def test_a_reply_that_cannot_be_read_is_not_shown_where_replies_are_checked(serve: Serve, upstream: Upstream) -> None:
    upstream.script(answers(200, b"something bad"))
    got = ask(serve(layer=judging()).client(), "fine")
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_unreadable")


def test_a_policy_for_input_lets_replies_be(serve: Serve, upstream: Upstream) -> None:
    upstream.script(says("this is bad advice"))
    got = ask(serve(layer=judging("input")).client(), "fine").json()
    assert got["choices"][0]["message"]["content"] == "this is bad advice"


def test_tools_their_results_and_the_final_text_are_one_exchange(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    client = served.client()
    upstream.script(calls("look", '{"a": "bad"}'), says("It is fine."))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    got = ask(client, "look it up", tools=tools, tool_choice="auto", headers={"conversation": "c"})
    assert upstream.last.json["tools"] == tools
    message = got.json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "bad"}'
    assert [e.status for e in served.exchanges("c")] == ["pending"]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    again = ask(client, "look it up", message, result, tools=tools, headers={"conversation": "c"})
    assert again.headers["x-topicality-exchange"] == got.headers["x-topicality-exchange"]
    assert upstream.last.json["messages"] == [user("look it up"), message, result]
    served.until(lambda: [e.status for e in served.exchanges("c")] == ["completed"])
    assert [e.reply.text for e in served.exchanges("c") if e.reply] == ["It is fine."]


def test_a_request_without_a_user_passes(serve: Serve, upstream: Upstream) -> None:
    served = serve(layer=judging())
    got = ask(served.client(), {"role": "system", "content": "say something"})
    assert got.status_code == 200
    assert not served.exchanges()


def test_no_upstream_no_proxy(serve: Serve) -> None:
    got = serve(upstream={}).client().get("/v1/models")
    assert got.status_code == 404
    assert "error" in got.json()


def test_a_web_page_may_call_from_the_origins_in_the_settings_only(serve: Serve, upstream: Upstream) -> None:
    page = {"origin": "https://app.example", "access-control-request-method": "POST"}
    client = serve(cors=["https://app.example"], keys=KEYS).client("alice-secret")
    got = client.options("/v1/chat/completions", headers={**page, "access-control-request-headers": "x-stainless-os"})
    assert got.headers["access-control-allow-origin"] == "https://app.example"
    got = client.post("/v1/chat/completions", json={"messages": [user("x")]}, headers=page)
    assert got.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-topicality-action" in got.headers["access-control-expose-headers"]
    got = client.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in got.headers
    assert (
        "access-control-allow-origin"
        not in serve(keys=KEYS).client("alice-secret").get("/v1/models", headers=page).headers
    )
