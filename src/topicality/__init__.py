"""The topic layer for LLM conversations: keeps a chat on its allowed topics, and remembers it.

Names are loaded at first use, so that `import topicality` costs little more than numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topicality.config import Policy as Policy
    from topicality.config import TopicRule as TopicRule
    from topicality.core.drift import fed_by as fed_by
    from topicality.core.drift import heard_from as heard_from
    from topicality.core.index import TopicIndex as TopicIndex
    from topicality.core.index import TopicMatch as TopicMatch
    from topicality.embed import CachedEmbedder as CachedEmbedder
    from topicality.embed import CallableEmbedder as CallableEmbedder
    from topicality.embed import OpenAIEmbedder as OpenAIEmbedder
    from topicality.embed import load as _load
    from topicality.errors import CalibrationError as CalibrationError
    from topicality.errors import ConfigError as ConfigError
    from topicality.errors import EmbedError as EmbedError
    from topicality.errors import InputError as InputError
    from topicality.errors import LlmError as LlmError
    from topicality.errors import MissingExtraError as MissingExtraError
    from topicality.errors import OffTopicError as OffTopicError
    from topicality.errors import SpaceMismatchError as SpaceMismatchError
    from topicality.errors import TopicalityError as TopicalityError
    from topicality.layer.calibration import calibrate as calibrate
    from topicality.layer.conversation import Conversation as Conversation
    from topicality.layer.conversation import Turn as Turn
    from topicality.layer.drift import DriftTracker as DriftTracker
    from topicality.layer.guard import Guard as Guard
    from topicality.layer.memory import Layer as Layer
    from topicality.layer.memory import open_layer as _open
    from topicality.layer.stream import StreamGuard as StreamGuard
    from topicality.layer.tool import check_topic_tool as check_topic_tool
    from topicality.types import Message as Message
    from topicality.types import RuleScore as RuleScore
    from topicality.types import Space as Space
    from topicality.types import Verdict as Verdict
    from topicality.types import Window as Window
    from topicality.vectors import similarity as similarity
    from topicality.vectors import unit as unit

    load_embedder = _load
    open = _open  # noqa: A001 - reads as `topicality.open(url)`; nothing here opens a file

__version__ = "0.1.0"

_HOME = {
    "CachedEmbedder": "embed",
    "CalibrationError": "errors",
    "CallableEmbedder": "embed",
    "ConfigError": "errors",
    "Conversation": "layer.conversation",
    "DriftTracker": "layer.drift",
    "EmbedError": "errors",
    "Guard": "layer.guard",
    "InputError": "errors",
    "Layer": "layer.memory",
    "LlmError": "errors",
    "Message": "types",
    "MissingExtraError": "errors",
    "OffTopicError": "errors",
    "OpenAIEmbedder": "embed",
    "Policy": "config",
    "RuleScore": "types",
    "Space": "types",
    "SpaceMismatchError": "errors",
    "StreamGuard": "layer.stream",
    "TopicIndex": "core.index",
    "TopicMatch": "core.index",
    "TopicRule": "config",
    "TopicalityError": "errors",
    "Turn": "layer.conversation",
    "Verdict": "types",
    "Window": "types",
    "calibrate": "layer.calibration",
    "check_topic_tool": "layer.tool",
    "fed_by": "core.drift",
    "heard_from": "core.drift",
    "load_embedder": "embed",
    "open": "layer.memory",
    "similarity": "vectors",
    "unit": "vectors",
}
_RENAMED = {"load_embedder": "load", "open": "open_layer"}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'topicality' has no attribute {name!r}")
    value = getattr(import_module(f"topicality.{home}"), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
