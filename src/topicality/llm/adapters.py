"""A language model from a name, an address, or any callable, synchronous or not."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from topicality.errors import ConfigError, LlmError
from topicality.llm.endpoint import Key, OpenAILlm
from topicality.ports import Llm
from topicality.types import LlmReply

_NAME = re.compile(r"openai:(?P<model>\S+?)(?:@(?P<url>https?://\S+))?")
_HOW = "openai:MODEL, openai:MODEL@BASE_URL, or the address of a server"


class CallableLlm:
    """Any `(system, user) -> reply`, synchronous or `async`; the reply is text, a JSON value, or an `LlmReply`.

    The schema is not passed on: the prompt states the shape. A coroutine is cancelled when the time is up; a plain function
    cannot be, so `Asker` stops waiting for it.
    """

    def __init__(self, function: Callable[[str, str], Any]) -> None:
        self._function = function

    @property
    def model(self) -> str:
        """Its name, for logs."""
        return str(getattr(self._function, "__name__", type(self._function).__name__))

    def ask(self, system: str, user: str, schema: Mapping[str, Any], *, timeout: float) -> LlmReply:
        """See `ports.Llm.ask`."""
        answer, why = None, ""
        try:
            answer = self._function(system, user)
            if inspect.isawaitable(answer):
                answer = _awaited(answer, timeout)
        except TimeoutError:
            why = "no reply in time"
        except LlmError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - it may raise anything, with text of the conversation in its words
            why = f"the callable raised {type(error).__name__}"
        if why:
            raise LlmError(why)
        if isinstance(answer, LlmReply):
            return answer
        if isinstance(answer, bytes):
            return LlmReply(answer.decode("utf-8", "replace"))
        return LlmReply(answer if isinstance(answer, str) else _dumped(answer))


def load_llm(
    name: str | Llm | Callable[[str, str], Any] | None, url: str | None = None, *, api_key: Key = None
) -> Llm | None:
    """A language model by name.

    Args:
        name: "openai:MODEL" or "openai:MODEL@BASE_URL", an address ("http://localhost:8080/v1", whose first model is
            taken), an `Llm`, any callable, or None.
        url: base URL of an OpenAI-compatible server; without a name, its first model is taken.
    Returns:
        None when neither is given.
    Raises:
        ConfigError: unknown name, two addresses, or no key. MissingExtraError: the client library is not installed.
    """
    if name is None:
        return OpenAILlm(None, url, api_key=api_key) if url else None
    if isinstance(name, str):
        if name.startswith(("http://", "https://")) and not url:
            return OpenAILlm(None, name, api_key=api_key)
        found = _NAME.fullmatch(name)
        if found is None:
            raise ConfigError("unknown language model", key="llm", got=name, accepted=_HOW)
        if url and found["url"]:
            raise ConfigError("two addresses for one language model", key="llm", got=name, accepted=_HOW)
        return OpenAILlm(found["model"], url or found["url"], api_key=api_key)
    if isinstance(name, Llm):
        return name
    if callable(name):
        return CallableLlm(name)
    raise ConfigError("unknown language model", key="llm", got=name, accepted="a name, an Llm or a callable")


def _awaited(answer: Awaitable[Any], timeout: float) -> Any:
    """Run to its end in a thread of its own: the calling one may have an event loop."""
    import asyncio

    box: list[Any] = []
    failed: list[Exception] = []

    async def within() -> None:
        try:
            box.append(await asyncio.wait_for(answer, timeout))
        except Exception as error:  # noqa: BLE001 - handed on to the thread that waits
            failed.append(error)

    thread = threading.Thread(target=lambda: asyncio.run(within()), name="topicality-async", daemon=True)
    thread.start()
    thread.join(timeout + 1.0)  # a coroutine may refuse to be cancelled
    if failed:
        raise failed[0]
    if not box:
        raise TimeoutError
    return box[0]


def _dumped(answer: object) -> str:
    try:
        return json.dumps(answer, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        why = type(error).__name__
    raise LlmError(f"the callable gave {type(answer).__name__}, not text or a JSON value ({why})")
