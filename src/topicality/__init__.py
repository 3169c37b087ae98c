"""The topic layer for LLM conversations: a guard for allowed and blocked topics, with drift, segments and memory to come.

Names are loaded at first use, so that `import topicality` costs little more than numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
