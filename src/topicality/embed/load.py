"""An encoder by name."""

from __future__ import annotations

import threading
from collections.abc import Callable

from numpy.typing import ArrayLike

from topicality.embed.adapters import CallableEmbedder, OpenAIEmbedder, sentence_transformer
from topicality.embed.cache import CachedEmbedder
from topicality.embed.minilm import MiniLmEmbedder
from topicality.errors import ConfigError
from topicality.ports import Embedder

_shared: dict[str, CachedEmbedder] = {}
_lock = threading.Lock()


def load(name: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm", *, cache: int = 4096) -> Embedder:
    """An encoder, with a bounded cache around it.

    Args:
        name: "minilm" (bundled); "openai:MODEL" or "openai:MODEL@BASE_URL"; "st:PATH_OR_NAME"; any callable
            `list[str] -> array`; or an `Embedder`, which is given back as it is.
        cache: vectors kept.
    Returns:
        The encoder. The bundled one is shared in the process: its model is in memory once.
    Raises:
        ConfigError: unknown name. MissingExtraError: its library is not installed.
    """
    if isinstance(name, str):
        if name == "minilm":
            with _lock:
                if name not in _shared:
                    _shared[name] = CachedEmbedder(MiniLmEmbedder(), cache)
                return _shared[name]
        kind, _, rest = name.partition(":")
        if kind == "openai" and rest:
            model, _, url = rest.partition("@")
            return CachedEmbedder(OpenAIEmbedder(model, url or None), cache)
        if kind == "st" and rest:
            return CachedEmbedder(sentence_transformer(rest), cache)
        raise ConfigError(
            "unknown encoder", key="encoder", got=name, accepted="minilm, openai:MODEL[@BASE_URL], st:NAME"
        )
    if isinstance(name, Embedder):
        return name
    if callable(name):
        return CachedEmbedder(CallableEmbedder(name, getattr(name, "__name__", "custom")), cache)
    raise ConfigError("unknown encoder", key="encoder", got=name, accepted="a name, an Embedder or a callable")
