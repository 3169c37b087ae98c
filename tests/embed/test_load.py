"""An encoder by name."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from topicality.embed import CachedEmbedder, CallableEmbedder, MiniLmEmbedder, OpenAIEmbedder, load
from topicality.errors import ConfigError
from topicality.testing import WordEmbedder


def mine(texts: list[str]) -> ArrayLike:
    return WordEmbedder(16).embed(texts)


def test_the_bundled_encoder_is_the_default_cached_and_shared_in_the_process() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load("minilm"), range(8)))
    assert all(embedder is load() for embedder in found)
    assert isinstance(found[0], CachedEmbedder)
    assert isinstance(found[0].inner, MiniLmEmbedder)


def test_an_embedder_is_given_back_as_it_is() -> None:
    embedder = WordEmbedder()
    assert load(embedder) is embedder


def test_a_callable_is_wrapped_named_after_itself_and_cached() -> None:
    embedder = load(mine, cache=5)
    assert isinstance(embedder, CachedEmbedder)
    assert isinstance(embedder.inner, CallableEmbedder)
    assert embedder.space.name == "mine"
    embedder.embed([str(number) for number in range(9)])
    assert len(embedder) == 5


def test_a_callable_object_without_a_name_is_custom() -> None:
    class Mine:
        def __call__(self, texts: list[str]) -> ArrayLike:
            return mine(texts)

    assert load(Mine()).space.name == "custom"


@pytest.mark.parametrize(
    ("name", "model", "url"),
    [
        ("openai:tiny", "tiny", None),
        ("openai:tiny@http://127.0.0.1:9/v1", "tiny", "http://127.0.0.1:9/v1"),
    ],
)
def test_an_endpoint_is_named_by_model_and_address(
    name: str, model: str, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    module = ModuleType("openai")

    def create(**values: Any) -> SimpleNamespace:
        asked.append(values)
        return SimpleNamespace(data=[SimpleNamespace(index=0, embedding=[1.0, 0.0])])

    def client(**values: Any) -> SimpleNamespace:
        asked.append(values)
        return SimpleNamespace(embeddings=SimpleNamespace(create=create))

    module.OpenAI = client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openai", module)
    embedder = load(name)
    assert isinstance(embedder, CachedEmbedder)
    assert isinstance(embedder.inner, OpenAIEmbedder)
    assert embedder.space.name == f"openai:{model}"
    assert asked[0]["base_url"] == url
    assert asked[1]["model"] == model


def test_a_sentence_transformer_is_named_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sentence_transformers")
    made: list[str] = []

    def model(name: str) -> SimpleNamespace:
        made.append(name)
        return SimpleNamespace(encode=lambda texts, **_: np.ones((len(texts), 3)))

    module.SentenceTransformer = model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    assert load("st:some/model").space.name == "st:some/model"
    assert made == ["some/model"]


@pytest.mark.parametrize("name", ["", "mini", "MiniLM", "openai:", "openai", "st:", "st", "http://127.0.0.1", 7, None])
def test_an_unknown_name_says_what_there_is(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"encoder: unknown encoder; got .*accepted: ") as caught:
        load(name)
    assert caught.value.key == "encoder"
    assert caught.value.got == name
