"""Encoders from elsewhere: what they may give, what is refused, how long text is cut, and an endpoint on this machine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from topicality.embed import CallableEmbedder, OpenAIEmbedder
from topicality.embed.adapters import character_windows, sentence_transformer
from topicality.errors import ConfigError, EmbedError, MissingExtraError
from topicality.ports import Embedder
from topicality.testing import EmbedderContract, WordEmbedder
from topicality.types import Space

Answer = Callable[[list[str]], Any]


def words(texts: list[str]) -> ArrayLike:
    return 3.0 * WordEmbedder(32, words=10_000).embed(texts).astype(np.float64)


class TestCallable(EmbedderContract):
    def make(self) -> Embedder:
        return CallableEmbedder(words)


class TestCallableThatGivesLists(EmbedderContract):
    def make(self) -> Embedder:
        return CallableEmbedder(lambda texts: np.asarray(words(texts)).tolist(), max_chars=500)


def test_the_function_is_asked_one_word_first_and_only_once() -> None:
    asked: list[list[str]] = []

    def spy(texts: list[str]) -> ArrayLike:
        asked.append(texts)
        return words(texts)

    embedder = CallableEmbedder(spy, "mine", revision="7", languages=["en", "de"])
    assert asked == []
    assert embedder.space == Space("mine", 32, "7")
    assert embedder.space.dimension == 32
    assert len(asked) == 1
    assert len(asked[0]) == 1
    assert embedder.languages == frozenset({"en", "de"})
    embedder.embed([])
    assert len(asked) == 1


def test_eight_threads_ask_for_the_dimension_once() -> None:
    asked: list[list[str]] = []
    gate = threading.Barrier(8)

    def slow(texts: list[str]) -> ArrayLike:
        asked.append(texts)
        threading.Event().wait(0.02)
        return words(texts)

    embedder = CallableEmbedder(slow)
    threads = [threading.Thread(target=lambda: (gate.wait(), embedder.space)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


BAD: list[tuple[str, Answer, str]] = [
    ("one row too few", lambda texts: np.ones((len(texts) - 1, 4)), "one row each"),
    ("one row too many", lambda texts: np.ones((len(texts) + 1, 4)), "one row each"),
    ("one vector for all", lambda _: np.ones(4), "one row each"),
    ("another dimension", lambda texts: np.ones((len(texts), 5)), "dimension from 4 to 5"),
    ("NaN inside", lambda texts: np.full((len(texts), 4), np.nan), "NaN or infinity"),
    ("infinity inside", lambda texts: np.full((len(texts), 4), np.inf), "NaN or infinity"),
    ("no columns", lambda texts: np.ones((len(texts), 0)), "unusable"),
    ("three axes", lambda texts: np.ones((len(texts), 2, 2)), "unusable"),
    ("ragged rows", lambda texts: [[1.0] * (4 + index) for index in range(len(texts))], "unusable"),
    ("not numbers", lambda texts: [["x"] * 4 for _ in texts], "unusable"),
    ("nothing", lambda _: None, "encoder"),
]


@pytest.mark.parametrize(("answer", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_malformed_answer_is_an_embed_error_that_names_the_encoder(answer: Answer, message: str) -> None:
    good = True

    def moody(texts: list[str]) -> Any:
        return np.ones((len(texts), 4)) if good else answer(texts)

    embedder = CallableEmbedder(moody, "mine")
    assert embedder.space.dimension == 4
    good = False
    with pytest.raises(EmbedError, match=message) as caught:
        embedder.embed(["my secret", "another secret"])
    assert "'mine'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_exception_is_chained_and_its_text_stays_out_of_the_message() -> None:
    def down(_: list[str]) -> ArrayLike:
        raise ConnectionError("my secret could not be sent")

    embedder = CallableEmbedder(down, "mine")
    for ask in (lambda: embedder.space, lambda: embedder.embed(["my secret"])):
        with pytest.raises(EmbedError, match="ConnectionError") as caught:
            ask()
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert "secret" not in str(caught.value)


def test_a_function_that_was_down_at_first_is_asked_again() -> None:
    up = False

    def moody(texts: list[str]) -> ArrayLike:
        if not up:
            raise ConnectionError
        return words(texts)

    embedder = CallableEmbedder(moody)
    with pytest.raises(EmbedError):
        _ = embedder.space
    up = True
    assert embedder.space.dimension == 32


def test_a_long_text_reaches_the_function_in_windows_and_comes_back_as_one_vector() -> None:
    asked: list[str] = []

    def spy(texts: list[str]) -> ArrayLike:
        asked.extend(texts)
        return words(texts)

    embedder = CallableEmbedder(spy, max_chars=100)
    _ = embedder.space
    asked.clear()
    text = "apple river stone " * 30
    vectors = embedder.embed(["short", text])
    assert vectors.shape == (2, 32)
    assert asked == ["short", *(text[start:end] for start, end in embedder.windows(text))]
    assert all(len(piece) <= 100 for piece in asked)


@pytest.mark.parametrize("size", [0, 99, -5])
def test_a_window_that_is_too_small_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=r"max_chars.*100 or more"):
        CallableEmbedder(words, max_chars=size)


@given(st.text(st.sampled_from("ab \n"), max_size=900), st.integers(100, 300))
def test_character_windows_cover_the_text_within_their_size_and_overlap(text: str, size: int) -> None:
    spans = character_windows(text, size)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(end - start <= size for start, end in spans)
    for (start, end), (following, _) in pairwise(spans):
        assert start < following == end - size // 10


def test_windows_are_cut_at_white_space_where_there_is_some() -> None:
    text = "word " * 100
    assert all(text[end : end + 1] in ("", " ") for _, end in character_windows(text, 103))


# An OpenAI-compatible endpoint


class _Endpoint(BaseHTTPRequestHandler):
    """Embeds like `WordEmbedder`, but gives the rows back in reverse order with their index, as the protocol allows."""

    asked: ClassVar[list[dict[str, Any]]] = []
    failures: ClassVar[list[int]] = []
    keys: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        type(self).keys.append(self.headers["Authorization"])
        if self.failures:
            return self._say(self.failures.pop(0), {"error": {"message": "busy", "type": "server_error"}})
        vectors = WordEmbedder(32, words=10_000).embed(body["input"]).tolist()
        rows = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return self._say(200, {"object": "list", "model": body["model"], "data": rows[::-1], "usage": usage})

    def _say(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Retry-After-Ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("openai", reason="the extra 'openai' is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def endpoint(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("asked", "failures", "keys"):
        getattr(_Endpoint, name).clear()
    return server


def test_an_endpoint_gives_vectors_in_the_order_of_the_texts(endpoint: str) -> None:
    embedder = OpenAIEmbedder("tiny", endpoint)
    assert embedder.space == Space("openai:tiny", 32)
    texts = ["apple", "river stone", "cloud"]
    assert np.allclose(embedder.embed(texts), WordEmbedder(32).embed(texts), atol=1e-5)
    assert _Endpoint.asked[-1]["model"] == "tiny"
    assert _Endpoint.asked[-1]["input"] == texts
    assert _Endpoint.asked[-1]["encoding_format"] == "float"


def test_many_texts_go_to_the_endpoint_in_parts(endpoint: str) -> None:
    embedder = OpenAIEmbedder("tiny", endpoint)
    _ = embedder.space
    _Endpoint.asked.clear()
    texts = [f"text {number}" for number in range(300)]
    assert np.allclose(embedder.embed(texts), WordEmbedder(32).embed(texts), atol=1e-5)
    assert [len(body["input"]) for body in _Endpoint.asked] == [256, 44]


def test_an_endpoint_that_is_busy_for_a_moment_is_asked_again(endpoint: str) -> None:
    _Endpoint.failures[:] = [429, 503]
    assert OpenAIEmbedder("tiny", endpoint).space.dimension == 32


def test_an_endpoint_that_refuses_is_an_embed_error_with_its_cause(endpoint: str) -> None:
    _Endpoint.failures[:] = [400]
    with pytest.raises(EmbedError, match="BadRequestError") as caught:
        OpenAIEmbedder("tiny", endpoint).embed(["hello"])
    assert caught.value.__cause__ is not None


def test_an_endpoint_that_is_not_there_is_an_embed_error(endpoint: str) -> None:
    assert endpoint
    with pytest.raises(EmbedError, match="openai:tiny"):
        OpenAIEmbedder("tiny", "http://127.0.0.1:9/v1", timeout=1.0).embed(["hello"])


def test_the_key_is_the_given_one_or_the_environment_s_or_a_placeholder(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = OpenAIEmbedder("tiny", endpoint).space
    _ = OpenAIEmbedder("tiny", endpoint, api_key="mine").space
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    _ = OpenAIEmbedder("tiny", endpoint).space
    assert _Endpoint.keys == ["Bearer none", "Bearer mine", "Bearer theirs"]


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("openai", lambda: OpenAIEmbedder("tiny"), "openai"),
        ("sentence_transformers", lambda: sentence_transformer("tiny"), "st"),
    ],
)
def test_a_missing_library_names_the_extra(
    module: str, make: Callable[[], object], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"topicality\[{extra}\]") as caught:
        make()
    assert caught.value.extra == extra


# sentence-transformers, played by a stand-in: the library brings torch


def _library(model: Callable[[str], Any]) -> ModuleType:
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = model  # type: ignore[attr-defined]
    return module


def test_a_sentence_transformer_is_one_encoder_and_asked_by_one_thread_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside: list[int] = []

    def encode(texts: list[str], **_: Any) -> ArrayLike:
        inside.append(1)
        assert len(inside) == 1
        threading.Event().wait(0.001)
        inside.pop()
        return words(texts)

    monkeypatch.setitem(sys.modules, "sentence_transformers", _library(lambda _: SimpleNamespace(encode=encode)))
    embedder = sentence_transformer("some/model")
    assert embedder.space == Space("st:some/model", 32)
    threads = [threading.Thread(target=embedder.embed, args=(["a", "b"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.allclose(embedder.embed(["apple"]), WordEmbedder(32).embed(["apple"]), atol=1e-5)


def test_a_sentence_transformer_that_does_not_load_is_an_embed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setitem(sys.modules, "sentence_transformers", _library(missing))
    with pytest.raises(EmbedError, match=r"some/model.*OSError") as caught:
        sentence_transformer("some/model")
    assert isinstance(caught.value.__cause__, OSError)
