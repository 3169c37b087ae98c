"""`OpenAILlm` against servers that misbehave in every way we know."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Any

import pytest

from topicality.errors import ConfigError, LlmError, MissingExtraError
from topicality.llm import OpenAILlm, load_llm
from topicality.types import LlmReply

pytest.importorskip("openai")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
KEY = "sk-very-secret-key"
SPOKEN = '{"message": "SECRET"}'


def ask(server: Any, *, timeout: float = 5.0, user: str = "{}", **settings: Any) -> LlmReply:
    settings = {"model": "m", "retries": 2, "api_key": KEY, **settings}
    return OpenAILlm(settings.pop("model"), server.url, **settings).ask("system", user, SCHEMA, timeout=timeout)


def chain(error: BaseException | None) -> str:
    """Everything that a log of an error could show."""
    told = "".join(traceback.format_exception(error)) if error is not None else ""
    while error is not None:
        told += repr(error) + str(vars(error))
        error = error.__cause__ or error.__context__
    return told


def test_one_question_is_one_request_with_the_schema_and_gives_text_and_tokens(serve: Any, script: Any) -> None:
    server = serve(script.say(' {"a": 1} ', usage={"prompt_tokens": 12, "completion_tokens": 5}))
    assert ask(server, max_tokens=77) == LlmReply(' {"a": 1} ', 12, 5)
    (body,) = server.bodies
    assert body["model"] == "m"
    assert body["messages"] == [{"role": "system", "content": "system"}, {"role": "user", "content": "{}"}]
    assert (body["temperature"], body["max_tokens"]) == (0, 77)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.paths == ["/v1/chat/completions"]


def test_without_a_model_the_first_listed_one_is_taken_and_remembered(serve: Any, script: Any) -> None:
    server = serve(script.say("{}"))
    llm = OpenAILlm(None, server.url)
    for _ in range(2):
        llm.ask("s", "u", {}, timeout=5)
    assert [body["model"] for body in server.bodies] == ["first", "first"]
    assert server.paths.count("/v1/models") == 1
    assert llm.model == "first"


def test_a_function_gives_a_fresh_key_each_time(serve: Any, script: Any) -> None:
    server, keys = serve(script.say("{}")), iter(["one", "two"])
    llm = OpenAILlm("m", server.url, api_key=lambda: next(keys))
    for _ in range(2):
        llm.ask("s", "u", {}, timeout=5)
    assert [headers["authorization"] for headers in server.headers] == ["Bearer one", "Bearer two"]


def test_the_key_comes_from_the_environment(serve: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(script.say("{}"))
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    ask(server, api_key=None)
    assert server.headers[0]["authorization"] == "Bearer from-env"


def test_a_key_function_that_raises_is_told_without_its_words(serve: Any, script: Any) -> None:
    server = serve(script.say("{}"))

    def key() -> str:
        raise OSError(KEY)

    with pytest.raises(LlmError, match="function for the key raised OSError") as caught:
        ask(server, api_key=key)
    assert KEY not in chain(caught.value)
    assert server.bodies == []


# Failures that pass.


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_passing_failure_is_tried_again(serve: Any, script: Any, status: int) -> None:
    server = serve(script.fail(status, retry_after="0"), script.say("{}"))
    assert ask(server).text == "{}"
    assert len(server.bodies) == 2


def test_a_connection_reset_is_tried_again_with_a_pause(serve: Any, script: Any, clock: Any) -> None:
    server = serve(script.reset, script.say("{}"))
    assert ask(server).text == "{}"
    (pause,) = clock.slept
    assert 0.25 <= pause <= 0.5


def test_a_reply_that_breaks_off_is_tried_again(serve: Any, script: Any) -> None:
    server = serve(script.raw(b'{"choices": [', length=500), script.say("{}"))
    assert ask(server).text == "{}"


def test_retry_after_is_kept_to(serve: Any, script: Any, clock: Any) -> None:
    ask(serve(script.fail(429, retry_after="0.7"), script.say("{}")))
    assert clock.slept == [0.7]


@pytest.mark.parametrize("wait", ["60", "3", "3.0"])
def test_a_retry_after_beyond_the_timeout_is_not_waited_for(serve: Any, script: Any, clock: Any, wait: str) -> None:
    server = serve(script.fail(429, retry_after=wait))
    with pytest.raises(LlmError, match="HTTP 429"):
        ask(server, timeout=3.0)
    assert (clock.slept, len(server.bodies)) == ([], 1)


@pytest.mark.parametrize("nonsense", ["soon", "-5", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_retry_after_that_is_no_number_of_seconds_counts_as_none(
    serve: Any, script: Any, clock: Any, nonsense: str
) -> None:
    server = serve(script.fail(503, retry_after=nonsense), script.say("{}"))
    assert ask(server).text == "{}"
    (pause,) = clock.slept
    assert 0.25 <= pause <= 0.5


@pytest.mark.parametrize("retries", [0, 2])
def test_tries_are_bounded(serve: Any, script: Any, retries: int) -> None:
    server = serve(script.fail(500, retry_after="0"))
    with pytest.raises(LlmError, match="HTTP 500"):
        ask(server, retries=retries)
    assert len(server.bodies) == retries + 1


def test_pauses_grow_and_differ(serve: Any, script: Any, clock: Any) -> None:
    for _ in range(3):
        ask(serve(script.fail(500), script.fail(500), script.say("{}")))
    firsts, seconds = clock.slept[::2], clock.slept[1::2]
    assert all(0.25 <= pause <= 0.5 for pause in firsts)
    assert all(0.5 <= pause <= 1.0 for pause in seconds)
    assert len(set(firsts)) == len(set(seconds)) == 3


# Failures that stay.


@pytest.mark.parametrize("status", [401, 403, 404, 413])
def test_a_lasting_failure_is_not_tried_again(serve: Any, script: Any, status: int) -> None:
    server = serve(script.fail(status))
    with pytest.raises(LlmError, match=f"HTTP {status}"):
        ask(server)
    assert len(server.bodies) == 1


def test_a_quota_that_is_used_up_is_not_tried_again(serve: Any, script: Any) -> None:
    server = serve(script.fail(429, {"code": "insufficient_quota", "message": "SECRET"}))
    with pytest.raises(LlmError, match="HTTP 429"):
        ask(server)
    assert len(server.bodies) == 1


def test_nobody_listening(serve: Any, script: Any) -> None:
    with pytest.raises(LlmError, match="cannot be reached"):
        OpenAILlm("m", "http://127.0.0.1:9/v1", retries=0).ask("s", "u", {}, timeout=2)


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_a_server_that_hangs_or_drips_is_given_up_in_time(serve: Any, kind: str) -> None:
    """The server goes on until the test ends: only giving up ends the question."""
    server = serve()
    server.steps.append(getattr(server, kind))
    with pytest.raises(LlmError, match="no reply"):
        ask(server, timeout=0.5)
    assert not server.released.is_set()
    assert len(server.bodies) == 1
    if kind == "drip":
        assert server.gone.wait(60), "the connection was closed"


def test_retries_share_one_deadline(serve: Any, script: Any, clock: Any) -> None:
    server = serve(script.fail(500, retry_after="0.3"))
    with pytest.raises(LlmError, match="HTTP 500"):
        ask(server, timeout=1.0, retries=50)
    assert clock.slept == [0.3, 0.3, 0.3]
    assert len(server.bodies) == 4


def test_each_try_has_only_the_time_that_is_left(
    serve: Any, script: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    llm = OpenAILlm("m", serve(script.fail(500, retry_after="4"), script.say("{}")).url)
    options = llm._client.with_options

    def noted(**how: Any) -> Any:
        given.append(how["timeout"])
        return options(**how)

    monkeypatch.setattr(llm._client, "with_options", noted)
    llm.ask("s", "u", {}, timeout=10.0)
    assert given == [10.0, 6.0]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not valid JSON"),
        (b'{"choices": [{"message"', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"choices": [{"message": {"content": "\xe9"}}]}', "not valid JSON"),
        (b"<html>SECRET</html>", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"null", "no choices"),
        (b"[]", "no choices"),
        (b"{}", "no choices"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": {"0": 1}}', "no choices"),
        (b'{"choices": ["SECRET"]}', "no choices"),
        (b'{"choices": [{"message": "SECRET"}]}', "no choices"),
        (b'{"choices": [{"message": {}}]}', "empty"),
        (b'{"choices": [{"message": {"content": null}}]}', "empty"),
        (b'{"choices": [{"message": {"content": "  \\n"}}]}', "empty"),
        (b'{"choices": [{"message": {"content": ["SECRET"]}}]}', "empty"),
    ],
)
def test_a_malformed_answer_is_an_error_that_quotes_nothing(serve: Any, script: Any, body: bytes, why: str) -> None:
    server = serve(script.raw(body))
    with pytest.raises(LlmError, match=why) as caught:
        ask(server)
    assert "SECRET" not in chain(caught.value)
    assert len(server.bodies) == 1


def test_a_huge_answer_is_not_read_to_its_end(serve: Any, script: Any) -> None:
    server = serve(script.say("x" * 30_000_000))
    with pytest.raises(LlmError, match="larger than"):
        ask(server)


@pytest.mark.parametrize(
    ("finish", "message", "why"),
    [
        ("length", {}, "cut off"),
        ("content_filter", {}, "declined"),
        ("stop", {"content": None, "refusal": "SECRET"}, "declined"),
    ],
)
def test_a_reply_that_is_no_answer(serve: Any, script: Any, finish: str, message: dict[str, Any], why: str) -> None:
    server = serve(script.say(message.pop("content", '{"a": 1'), finish=finish, **message))
    with pytest.raises(LlmError, match=why) as caught:
        ask(server)
    assert "SECRET" not in chain(caught.value)


@pytest.mark.parametrize(
    "usage", [None, "many", {"prompt_tokens": "9"}, {"prompt_tokens": -3}, {"prompt_tokens": True}]
)
def test_nonsense_about_tokens_counts_as_none(serve: Any, script: Any, usage: Any) -> None:
    assert ask(serve(script.say("{}", usage=usage))) == LlmReply("{}", 0, 0)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_nothing_of_a_body_or_a_key_gets_into_errors_or_logs(
    serve: Any, script: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "topicality")
    server = serve(script.fail(status, {"message": f"SECRET {KEY}", "code": "SECRET"}, retry_after="0"))
    with pytest.raises(LlmError) as caught:
        ask(server, user=SPOKEN)
    told = chain(caught.value) + "".join(r.getMessage() for r in caplog.records if r.name.startswith("topicality"))
    assert "SECRET" not in told
    assert KEY not in told


# Servers that cannot do everything.


def formats(server: Any) -> list[str]:
    return [body.get("response_format", {"type": "text"})["type"] for body in server.bodies]


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_without_json_schema_is_asked_for_plain_json_then_for_words(
    serve: Any, script: Any, status: int
) -> None:
    server = serve(script.fail(status), script.fail(status), script.say("{}"))
    llm = OpenAILlm("m", server.url)
    llm.ask("s", "u", SCHEMA, timeout=5)
    assert formats(server) == ["json_schema", "json_object", "text"]
    llm.ask("s", "u", SCHEMA, timeout=5)
    assert formats(server)[3:] == ["text"], "what worked is remembered"


def test_a_refusal_that_nothing_mends_changes_nothing_for_the_next_question(serve: Any, script: Any) -> None:
    server = serve(script.fail(400), script.fail(400), script.fail(400), script.say("{}"))
    llm = OpenAILlm("m", server.url)
    with pytest.raises(LlmError, match="HTTP 400"):
        llm.ask("s", "u", SCHEMA, timeout=5)
    llm.ask("s", "u", SCHEMA, timeout=5)
    assert formats(server) == ["json_schema", "json_object", "text", "json_schema"]


def test_a_context_that_is_too_long_is_no_reason_to_ask_for_less(serve: Any, script: Any) -> None:
    server = serve(script.fail(400, {"code": "context_length_exceeded"}))
    with pytest.raises(LlmError, match="HTTP 400"):
        ask(server)
    assert len(server.bodies) == 1


def test_newer_names_of_parameters_are_found_out(serve: Any, script: Any) -> None:
    server = serve(
        script.fail(400, {"param": "max_tokens", "code": "unsupported_parameter"}),
        script.fail(400, {"param": "temperature", "code": "unsupported_value"}),
        script.say("{}"),
    )
    ask(server, max_tokens=9)
    last = server.bodies[-1]
    assert last["max_completion_tokens"] == 9
    assert "temperature" not in last
    assert "max_tokens" not in last
    assert last["response_format"]["type"] == "json_schema"


# By name.


def test_names(serve: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(script.say("{}"))
    for llm in (
        load_llm("openai:a/b:c", server.url),
        load_llm(f"openai:a/b:c@{server.url}"),
        load_llm(f"openai:@cf/a@{server.url}"),
        load_llm(None, server.url),
    ):
        assert isinstance(llm, OpenAILlm)
        llm.ask("s", "u", {}, timeout=5)
    assert [body["model"] for body in server.bodies] == ["a/b:c", "a/b:c", "@cf/a", "first"]
    assert load_llm(None) is None
    assert load_llm(llm) is llm


@pytest.mark.parametrize("name", ["gpt-4o", "openai:", "ollama:x", "openai:a b", "", 5])
def test_an_unknown_name_is_a_config_error(name: Any) -> None:
    with pytest.raises(ConfigError, match="llm"):
        load_llm(name)


def test_what_cannot_work_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAILlm("m")
    with pytest.raises(ConfigError, match="http://"):
        OpenAILlm("m", "localhost:8080")
    with pytest.raises(ConfigError, match="two addresses"):
        load_llm("openai:m@http://a", "http://b")
    for limits in ({"retries": -1}, {"max_tokens": 0}):
        with pytest.raises(ConfigError, match="limits"):
            OpenAILlm("m", "http://x", **limits)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"topicality\[llm\]"):
        OpenAILlm("m", "http://x")


def test_half_a_surrogate_pair_does_no_harm(serve: Any, script: Any) -> None:
    server = serve(script.say("{}"))
    with pytest.raises(LlmError):
        ask(server, user=json.dumps({"m": "\ud800"}, ensure_ascii=False), retries=0)
