"""Two adapters behind the `Llm` port: any OpenAI-compatible endpoint, and any callable, synchronous or not."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from topicality.errors import ConfigError, LlmError, MissingExtraError
from topicality.ports import Llm
from topicality.types import LlmReply

Key = str | Callable[[], str] | None


class OpenAILlm:
    """Any OpenAI-compatible `/v1/chat/completions`. Needs the extra `openai`.

    The reply's shape is asked for as strictly as the server can take it: a JSON schema, or else plain JSON, or else words
    alone; what a server refuses is not tried again. Nothing of a server's error body gets into a message: it may hold text
    of the conversation.

    Args:
        model: name sent to the server; None takes the first one that it lists.
        base_url: such as "http://localhost:8080/v1"; None is the client library's default.
        api_key: a key, a function that gives one at each call, or None for OPENAI_API_KEY.
        retries: further tries after 429, 5xx and lost connections, with backoff, jitter and Retry-After.
        max_tokens: of the reply.
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
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError("a language model", "openai") from error
        if retries < 0 or max_tokens < 1:
            raise ConfigError("language model limits", key="retries", got=(retries, max_tokens), accepted="0 or more, 1 or more")
        self._sdk = openai
        self._model = model
        self._key = api_key
        self._max_tokens = max_tokens
        self._formats = ["json_schema", "json_object", "text"]
        self._client: Any = openai.OpenAI(base_url=base_url, api_key=self._current_key(), max_retries=retries)

    def ask(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LlmReply:
        """See `ports.Llm.ask`."""
        client = self._client.with_options(timeout=timeout, api_key=self._current_key())
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        while True:
            shape = self._formats[0]
            try:
                answer = client.chat.completions.create(
                    model=self._named(client),
                    messages=messages,
                    temperature=0,
                    max_tokens=self._max_tokens,
                    **_response_format(shape, schema),
                )
                return _reply(answer)
            except self._sdk.BadRequestError as error:
                if shape == "text":
                    raise LlmError("the model server refused the request (HTTP 400)") from error
                self._formats = self._formats[1:]
            except self._sdk.APITimeoutError as error:
                raise LlmError(f"no reply within {timeout:g} s") from error
            except self._sdk.APIStatusError as error:
                raise LlmError(f"the model server answered HTTP {error.status_code}") from error
            except self._sdk.APIError as error:
                raise LlmError(f"the model server cannot be reached ({type(error).__name__})") from error
            except (ValueError, TypeError) as error:
                raise LlmError(f"the model server's reply is not valid JSON ({type(error).__name__})") from error

    def _named(self, client: Any) -> str:
        if self._model is None:
            listed = list(client.models.list())
            if not listed:
                raise LlmError("the model server lists no model; name one")
            self._model = str(listed[0].id)
        return self._model

    def _current_key(self) -> str:
        key = self._key() if callable(self._key) else self._key
        return key or os.environ.get("OPENAI_API_KEY") or "none"


class CallableLlm:
    """Any `(system, user) -> reply`, synchronous or `async`; the reply is text or an object.

    A coroutine is run to its end in the calling thread, which is never an event loop's: judges are asked in a thread of
    their own.
    """

    def __init__(self, function: Callable[[str, str], Any]) -> None:
        self._function = function

    def ask(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LlmReply:
        """See `ports.Llm.ask`. The schema is not passed on: the prompt states the shape."""
        try:
            answer = self._function(system, user)
            if inspect.isawaitable(answer):
                answer = asyncio.run(_within(answer, timeout))
        except TimeoutError as error:
            raise LlmError(f"no reply within {timeout:g} s") from error
        except Exception as error:
            raise LlmError(f"the callable raised {type(error).__name__}") from error
        if isinstance(answer, LlmReply):
            return answer
        if isinstance(answer, str):
            return LlmReply(answer)
        try:
            return LlmReply(json.dumps(answer, ensure_ascii=False))
        except (TypeError, ValueError) as error:
            raise LlmError(f"the callable gave {type(answer).__name__}, not text or a JSON value") from error


def load_llm(name: str | Llm | Callable[[str, str], Any] | None, url: str | None = None, *, api_key: Key = None) -> Llm | None:
    """A language model by name.

    Args:
        name: "openai:MODEL" or "openai:MODEL@BASE_URL", an `Llm`, any callable, or None.
        url: base URL of an OpenAI-compatible server; alone, its first model is taken.
    Returns:
        None when neither is given.
    Raises:
        ConfigError: unknown name. MissingExtraError: the client library is not installed.
    """
    if name is None:
        return OpenAILlm(None, url, api_key=api_key) if url else None
    if isinstance(name, str):
        kind, _, rest = name.partition(":")
        if kind != "openai" or not rest:
            raise ConfigError("unknown language model", key="llm", got=name, accepted="openai:MODEL or openai:MODEL@BASE_URL")
        model, _, inside = rest.partition("@")
        return OpenAILlm(model or None, url or inside or None, api_key=api_key)
    if isinstance(name, Llm):
        return name
    if callable(name):
        return CallableLlm(name)
    raise ConfigError("unknown language model", key="llm", got=name, accepted="a name, an Llm or a callable")


async def _within(answer: Any, timeout: float) -> Any:
    return await asyncio.wait_for(answer, timeout)


def _response_format(shape: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if shape == "json_schema":
        wanted = {"name": "answer", "schema": dict(schema), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    return {"response_format": {"type": "json_object"}} if shape == "json_object" else {}


def _reply(answer: Any) -> LlmReply:
    choices = getattr(answer, "choices", None)
    if not choices:
        raise LlmError("the model server's reply has no choices")
    choice = choices[0]
    text = getattr(choice.message, "content", None)
    if choice.finish_reason == "length":
        raise LlmError("the reply was cut off at its token limit; raise max_tokens")
    if not isinstance(text, str) or not text.strip():
        raise LlmError(f"the reply is empty (finish reason {choice.finish_reason})")
    usage = getattr(answer, "usage", None)
    return LlmReply(text, int(getattr(usage, "prompt_tokens", 0) or 0), int(getattr(usage, "completion_tokens", 0) or 0))
