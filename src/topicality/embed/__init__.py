"""Text to unit vectors: `load(name)` gives an `Embedder`."""

from topicality.core.background import Background
from topicality.embed.adapters import CallableEmbedder, OpenAIEmbedder
from topicality.embed.background import load_background, load_weights
from topicality.embed.cache import CachedEmbedder
from topicality.embed.load import load
from topicality.embed.minilm import MiniLmEmbedder

__all__ = [
    "Background",
    "CachedEmbedder",
    "CallableEmbedder",
    "MiniLmEmbedder",
    "OpenAIEmbedder",
    "load",
    "load_background",
    "load_weights",
]
