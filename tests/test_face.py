"""The face of the package: which names there are, that they resolve, and that importing it stays light."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import topicality

NAMES = [
    "CachedEmbedder",
    "CalibrationError",
    "CallableEmbedder",
    "ConfigError",
    "Conversation",
    "DriftTracker",
    "EmbedError",
    "Guard",
    "InputError",
    "Layer",
    "LlmError",
    "Message",
    "MissingExtraError",
    "OffTopicError",
    "OpenAIEmbedder",
    "Policy",
    "RuleScore",
    "Space",
    "SpaceMismatchError",
    "StreamGuard",
    "TopicIndex",
    "TopicMatch",
    "TopicRule",
    "TopicalityError",
    "Turn",
    "Verdict",
    "Window",
    "__version__",
    "calibrate",
    "check_topic_tool",
    "fed_by",
    "heard_from",
    "load_embedder",
    "open",
    "similarity",
    "unit",
]

OPTIONAL = {"openai", "sentence_transformers", "sqlalchemy", "alembic", "psycopg", "pgvector", "fastapi", "starlette"}
HEAVY = OPTIONAL | {"onnxruntime", "tokenizers", "typer", "click", "rich", "snowballstemmer", "sqlite3", "asyncio"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after one statement."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    answer = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{report}"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(answer.stdout))


def test_public_names_are_pinned_and_sorted() -> None:
    assert topicality.__all__ == NAMES
    assert sorted(NAMES) == NAMES
    assert dir(topicality) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(topicality, name)
    assert value is not None
    if not name.startswith("__"):
        assert (value.__doc__ or "").strip(), f"{name} has no docstring"
        assert value is getattr(topicality, name), "resolved once, then the same object"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"topicality.*Gaurd"):
        _ = topicality.Gaurd


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert not loaded_by("import topicality") & (HEAVY | {"pydantic", "yaml"})


def test_the_guard_and_its_policy_load_no_encoder_and_no_command_line() -> None:
    assert not loaded_by("from topicality import Guard, Policy") & HEAVY


def test_the_command_line_loads_no_encoder_until_it_needs_one() -> None:
    assert not loaded_by("import topicality.doors.cli") & (OPTIONAL | {"onnxruntime", "tokenizers"})
