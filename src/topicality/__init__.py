"""The topic layer for LLM conversations: keeps a chat on its allowed topics.

Names are loaded at first use, so that `import topicality` costs little more than numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topicality.config import Policy as Policy
    from topicality.config import TopicRule as TopicRule
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
    from topicality.layer.guard import Guard as Guard
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

__version__ = "0.1.0"

_HOME = {
    "CachedEmbedder": "embed",
    "CallableEmbedder": "embed",
    "CalibrationError": "errors",
    "ConfigError": "errors",
    "EmbedError": "errors",
    "Guard": "layer.guard",
    "InputError": "errors",
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
    "Verdict": "types",
    "Window": "types",
    "calibrate": "layer.calibration",
    "check_topic_tool": "layer.tool",
    "load_embedder": "embed",
    "similarity": "vectors",
    "unit": "vectors",
}
_RENAMED = {"load_embedder": "load"}

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
