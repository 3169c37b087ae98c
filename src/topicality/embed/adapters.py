"""Encoders from elsewhere: any callable, sentence-transformers, any OpenAI-compatible `/v1/embeddings` endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from topicality.errors import ConfigError, EmbedError, InputError, MissingExtraError
from topicality.types import Space
from topicality.vectors import Array, unit


class CallableEmbedder:
    """Any function from a list of texts to an array of vectors, as an `Embedder`.

    The function is asked one word at the first use to learn the dimension, and its answers are checked from then on:
    count, dimension, finite numbers. Concurrent calls reach the function concurrently.

    Args:
        function: list of texts -> array (N, D); need not be of unit length.
        name: what to call this encoder in spaces and verdicts. Choose another when the function's model changes.
        revision: version of the model behind it.
        languages: ISO 639-1 codes it covers; None means any.
        max_chars: longest text the function reads whole; longer ones are split into overlapping windows.
    """

    def __init__(
        self,
        function: Callable[[list[str]], ArrayLike],
        name: str = "custom",
        *,
        revision: str = "",
        languages: Iterable[str] | None = None,
        max_chars: int = 2000,
    ) -> None:
        if max_chars < 100:
            raise ConfigError("window size", key="max_chars", got=max_chars, accepted="100 or more")
        self._function = function
        self._name = name
        self._revision = revision
        self._languages = None if languages is None else frozenset(languages)
        self._max_chars = max_chars
        self._space: Space | None = None
        self._lock = threading.Lock()

    @property
    def space(self) -> Space:
        """Asks the function for one vector the first time, to learn the dimension."""
        if self._space is None:
            with self._lock:
                if self._space is None:
                    self._space = Space(self._name, self._call(["topic"], None).shape[1], self._revision)
        return self._space

    @property
    def languages(self) -> frozenset[str] | None:
        """See `ports.Embedder.languages`."""
        return self._languages

    def embed(self, texts: Sequence[str]) -> Array:
        """See `ports.Embedder.embed`."""
        dimension = self.space.dimension
        if not texts:
            return np.zeros((0, dimension), dtype=np.float32)
        spans = [self.windows(text) for text in texts]
        pieces = [text[start:end] for text, cuts in zip(texts, spans, strict=True) for start, end in cuts]
        vectors = self._call(pieces, dimension)
        if len(pieces) == len(texts):
            return vectors
        owner = np.repeat(np.arange(len(texts)), [len(cuts) for cuts in spans])
        sums = np.zeros((len(texts), dimension), dtype=np.float32)
        np.add.at(sums, owner, vectors)
        return unit(sums)

    def windows(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Embedder.windows`. Cuts at white space where there is some."""
        return character_windows(text, self._max_chars)

    def _call(self, texts: list[str], dimension: int | None) -> Array:
        try:
            answer = self._function(texts)
        except Exception as error:
            raise EmbedError(f"encoder {self._name!r} failed on {len(texts)} texts ({type(error).__name__})") from error
        try:
            vectors = unit(answer)
        except InputError as error:
            raise EmbedError(f"encoder {self._name!r} gave unusable vectors: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EmbedError(f"encoder {self._name!r} gave shape {vectors.shape} for {len(texts)} texts; one row each")
        if dimension is not None and vectors.shape[1] != dimension:
            raise EmbedError(f"encoder {self._name!r} changed its dimension from {dimension} to {vectors.shape[1]}")
        return vectors


class OpenAIEmbedder(CallableEmbedder):
    """Any OpenAI-compatible embeddings endpoint. Needs the extra `openai`.

    Args:
        model: model name sent to the endpoint.
        base_url: such as "http://localhost:8080/v1"; None is the client library's own default.
        api_key: key, or None to read OPENAI_API_KEY (an endpoint that wants none still gets a placeholder).
        timeout: seconds for one request. The client retries twice on 429 and 5xx.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        languages: Iterable[str] | None = None,
        max_chars: int = 8000,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError("an OpenAI-compatible encoder", "openai") from error
        import os

        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        client: Any = openai.OpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=2)

        def ask(texts: list[str]) -> ArrayLike:
            rows: list[list[float]] = []
            for start in range(0, len(texts), 256):
                answer = client.embeddings.create(
                    model=model, input=texts[start : start + 256], encoding_format="float"
                )
                rows += [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
            return np.asarray(rows)

        super().__init__(ask, f"openai:{model}", languages=languages, max_chars=max_chars)


def sentence_transformer(name: str) -> CallableEmbedder:
    """A sentence-transformers model by path or name, if that library is installed (it brings torch).

    Raises:
        MissingExtraError: it is not installed.
        EmbedError: the model cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(f"the encoder st:{name}", "st") from error
    try:
        model: Any = SentenceTransformer(name)
    except Exception as error:
        raise EmbedError(f"sentence-transformers cannot load {name!r} ({type(error).__name__})") from error
    lock = threading.Lock()

    def ask(texts: list[str]) -> ArrayLike:
        with lock:  # torch modules keep per-call state
            vectors: ArrayLike = model.encode(texts, convert_to_numpy=True, show_progress_bar=False)
        return vectors

    return CallableEmbedder(ask, f"st:{name}", max_chars=1000)


def character_windows(text: str, size: int) -> list[tuple[int, int]]:
    """Ranges of at most `size` characters that cover the text, overlapping by a tenth, cut at white space if possible."""
    spans: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > size:
        cut = text.rfind(" ", start + size // 2, start + size)
        end = cut if cut > 0 else start + size
        spans.append((start, end))
        start = end - size // 10
    return [*spans, (start, len(text))]
