"""Any OpenAI-compatible endpoint behind the `Llm` port: one deadline for everything, bounded retries, no surprises."""

from __future__ import annotations

import json
import math
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from topicality.errors import ConfigError, LlmError, MissingExtraError
from topicality.types import LlmReply

Key = str | Callable[[], str] | None

_LARGEST = 4_000_000  # bytes of a reply that are read
_SHAPES = ("json_schema", "json_object", "text")
_MENDABLE = (400, 422)  # a server that does not know a parameter says so with one of these
_AGAIN = (408, 409, 425, 429)


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a server wants to be asked; found out by asking."""

    shape: str = "json_schema"
    limit: str = "max_tokens"
    temperature: bool = True

    def milder(self, parameter: str) -> _Manner | None:
        """What to try after a refusal, by the parameter that the server named; None when nothing is left."""
        if parameter == self.limit == "max_tokens":
            return replace(self, limit="max_completion_tokens")
        if parameter == "temperature" and self.temperature:
            return replace(self, temperature=False)
        place = _SHAPES.index(self.shape) + 1
        return replace(self, shape=_SHAPES[place]) if place < len(_SHAPES) else None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why there is no reply: words for an error, and what may be done about it."""

    why: str
    again: bool = False
    wait: float | None = None
    parameter: str | None = None


class OpenAILlm:
    """Any OpenAI-compatible `/chat/completions`. Needs the extra `llm`.

    The reply's shape is asked for as strictly as the server can take it: a JSON schema, or else plain JSON, or else words
    alone. What worked is remembered. Nothing of a server's answer gets into an error: it may hold text of the conversation.

    Args:
        model: name sent to the server; None takes the first one that it lists.
        base_url: such as "http://localhost:8080/v1"; None is the client library's default.
        api_key: a key, a function that gives one at each call, or None for OPENAI_API_KEY.
        retries: further tries after 408, 409, 425, 429, 5xx and lost connections, with backoff, jitter and Retry-After,
            as far as the caller's timeout allows.
        max_tokens: of the reply.
    Raises:
        ConfigError: a limit or the address cannot be used, or there is no key for the default address.
    """

    def __init__(
        self,
        model: str | None = None,
        base_url: str | None = None,
        *,
        api_key: Key = None,
        retries: int = 2,
        max_tokens: int = 1024,
    ) -> None:
        if retries < 0 or max_tokens < 1:
            raise ConfigError(
                "language model limits", key="retries", got=(retries, max_tokens), accepted="0 or more, 1 or more"
            )
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise ConfigError("language model address", key="url", got=base_url, accepted="http://… or https://…")
        elsewhere = base_url or os.environ.get("OPENAI_BASE_URL")
        if api_key is None and not elsewhere and not os.environ.get("OPENAI_API_KEY"):
            raise ConfigError("no key for the language model: set OPENAI_API_KEY, or name a server that needs none")
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError("a language model", "llm") from error
        self._sdk = openai
        self._model = model
        self._key = api_key
        self._retries = retries
        self._max_tokens = max_tokens
        self._manner = _Manner()
        self._client: Any = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
        weakref.finalize(self, self._client.close)  # its kept connections, in order, rather than by the collector

    @property
    def model(self) -> str:
        """Its name; "first of the server's" before it was asked for one."""
        return self._model or "first of the server's"

    def ask(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LlmReply:
        """See `ports.Llm.ask`."""
        deadline = time.monotonic() + timeout
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        manner, tried = self._manner, 0
        while True:
            answer = self._once(messages, schema, manner, deadline)
            if isinstance(answer, LlmReply):
                self._manner = manner
                return answer
            milder = None if answer.parameter is None else manner.milder(answer.parameter)
            if milder is not None:
                manner = milder
                continue
            wait = _backoff(tried) if answer.wait is None else answer.wait
            if not answer.again or tried >= self._retries or time.monotonic() + wait >= deadline:
                raise LlmError(answer.why)
            time.sleep(wait)
            tried += 1

    def _once(
        self, messages: list[dict[str, str]], schema: Mapping[str, Any], manner: _Manner, deadline: float
    ) -> LlmReply | _Refusal:
        """One request. Returns rather than raises: an error raised from the library's would carry the server's words."""
        left = deadline - time.monotonic()
        if left <= 0:
            return _Refusal("no reply in time")
        try:
            client = self._client.with_options(timeout=left, api_key=self._current_key())
            request: dict[str, Any] = {
                "model": self._named(client),
                "messages": messages,
                manner.limit: self._max_tokens,
                **({"temperature": 0} if manner.temperature else {}),
                **_response_format(manner.shape, schema),
            }
            with client.chat.completions.with_streaming_response.create(**request) as response:
                body = _read(response, deadline)
        except self._sdk.APITimeoutError:
            return _Refusal("no reply in time")
        except self._sdk.APIStatusError as error:
            return _status(error)
        except self._sdk.APIError as error:
            return _Refusal(f"the model server cannot be reached ({type(error).__name__})", again=True)
        except LlmError as error:
            return _Refusal(str(error))
        except Exception as error:  # noqa: BLE001 - what else a server can make the libraries raise; the type is told
            lost = "Timeout" not in type(error).__name__
            return _Refusal(f"the model server's reply broke off ({type(error).__name__})", again=lost)
        return body if isinstance(body, _Refusal) else _reply(body)

    def _named(self, client: Any) -> str:
        if self._model is None:
            listed = list(client.models.list())
            if not listed:
                raise LlmError("the model server lists no model; name one")
            self._model = str(listed[0].id)
        return self._model

    def _current_key(self) -> str:
        try:
            key = self._key() if callable(self._key) else self._key
        except Exception as error:  # noqa: BLE001 - the host's function may raise anything, with the key in its words
            key, why = None, type(error).__name__
        else:
            why = ""
        if why:
            raise LlmError(f"the function for the key raised {why}")
        return key or os.environ.get("OPENAI_API_KEY") or "none"


def _read(response: Any, deadline: float) -> bytes | _Refusal:
    """The body, as long as it comes in time and is not absurdly long: a server may send a byte a second, for ever."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _LARGEST:
            return _Refusal(f"the reply is larger than {_LARGEST:,} bytes")
        if time.monotonic() >= deadline:
            return _Refusal("no reply in time")
    return bytes(body)


def _status(error: Any) -> _Refusal:
    status = int(error.status_code)
    code = str(getattr(error, "code", None) or "")
    hint = "; is the key right?" if status in (401, 403) else ""
    why = f"the model server answered HTTP {status}{hint}"
    if status in _MENDABLE and code != "context_length_exceeded":
        return _Refusal(why, parameter=str(getattr(error, "param", None) or ""))
    again = (status in _AGAIN or status >= 500) and code != "insufficient_quota"
    return _Refusal(why, again=again, wait=_retry_after(error.response.headers.get("retry-after")))


def _retry_after(value: str | None) -> float | None:
    """Seconds a server asks to wait; None when it names none, or a date or nonsense (then our own backoff counts)."""
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _backoff(tried: int) -> float:
    return float(0.5 * 2**tried * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries; protects nothing


def _response_format(shape: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if shape == "json_schema":
        wanted = {"name": "answer", "schema": dict(schema)}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    return {"response_format": {"type": "json_object"}} if shape == "json_object" else {}


def _reply(body: bytes) -> LlmReply | _Refusal:
    try:
        answer = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return _Refusal(f"the model server's reply is not valid JSON ({type(error).__name__})")
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return _Refusal("the model server's reply has no choices")
    text, finish = message.get("content"), choice.get("finish_reason")
    if finish == "length":
        return _Refusal("the reply was cut off at its token limit; raise max_tokens")
    if finish == "content_filter" or (message.get("refusal") and not text):
        return _Refusal("the model declined to answer")
    if not isinstance(text, str) or not text.strip():
        return _Refusal("the reply is empty")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return LlmReply(text, _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens")))


def _tokens(value: object) -> int:
    return value if type(value) is int and 0 <= value < 10**9 else 0
