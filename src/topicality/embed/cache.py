"""A bounded cache around an encoder, so that context and topic texts are not embedded twice."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from topicality.errors import ConfigError
from topicality.ports import Embedder
from topicality.types import Space
from topicality.vectors import Array


class CachedEmbedder:
    """An `Embedder` that remembers its latest vectors. Keeps hashes and vectors, never the text itself.

    Args:
        inner: the encoder.
        entries: vectors kept, least recently used first out; 0 keeps none. 4,096 vectors of 384 are 6 MB.
    """

    def __init__(self, inner: Embedder, entries: int = 4096) -> None:
        if entries < 0:
            raise ConfigError("cache size", key="entries", got=entries, accepted="0 or more")
        self.inner = inner
        self._entries = entries
        self._kept: OrderedDict[bytes, Array] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def space(self) -> Space:
        """The inner encoder's space."""
        return self.inner.space

    @property
    def languages(self) -> frozenset[str] | None:
        """The inner encoder's languages."""
        return self.inner.languages

    def embed(self, texts: Sequence[str]) -> Array:
        """See `ports.Embedder.embed`. Only texts that are not kept reach the encoder, each once, in one call."""
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        found: dict[bytes, Array] = {}
        missing: dict[bytes, str] = {}
        with self._lock:
            for key, text in zip(keys, texts, strict=True):
                kept = self._kept.get(key)
                if kept is None:
                    missing[key] = text
                else:
                    self._kept.move_to_end(key)
                    found[key] = kept
        if missing:
            fresh = self.inner.embed(list(missing.values()))
            if self._entries:
                self._keep(missing, fresh)
            if len(missing) == len(keys):
                return fresh
            found.update(zip(missing, fresh, strict=True))
        if not keys:
            return np.zeros((0, self.space.dimension), dtype=np.float32)
        return np.stack([found[key] for key in keys])

    def _keep(self, keys: Iterable[bytes], vectors: Array) -> None:
        with self._lock:
            for key, row in zip(keys, vectors, strict=True):
                self._kept[key] = row.copy()  # a row alone: a view would hold the whole batch
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)

    def windows(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Embedder.windows`."""
        return self.inner.windows(text)

    def clear(self) -> None:
        """Forget all vectors."""
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
