"""The bundled encoder: agreement with the float model, windows, damaged files, one load, threads."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicality.embed import MiniLmEmbedder, minilm
from topicality.errors import EmbedError
from topicality.ports import Embedder
from topicality.testing import EmbedderContract
from topicality.vectors import Array, unit

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "minilm_reference.json"
SHARED = MiniLmEmbedder()


class TestMiniLm(EmbedderContract):
    def make(self) -> Embedder:
        return MiniLmEmbedder()


def reference() -> tuple[list[str], Array]:
    items = json.loads(REFERENCE.read_text("utf-8"))["items"]
    rows = [np.frombuffer(base64.b64decode(item["vector"]), dtype="<f2").astype(np.float32) for item in items]
    return [item["text"] for item in items], unit(np.array(rows))


def test_vectors_agree_with_the_float_model() -> None:
    texts, wanted = reference()
    assert len(texts) == 60
    cosines = (SHARED.embed(texts) * wanted).sum(axis=1)
    assert cosines.min() >= 0.97, texts[int(cosines.argmin())]
    assert cosines.mean() >= 0.985


def test_a_text_alone_has_the_vector_it_has_in_a_batch() -> None:
    texts, _ = reference()
    together = SHARED.embed(texts).astype(np.float64)
    alone = np.vstack([SHARED.embed([text]) for text in texts]).astype(np.float64)
    assert (1.0 - (together * alone).sum(axis=1)).max() <= 1e-4


def test_neighbours_in_meaning_are_nearer_than_strangers() -> None:
    one, two, other = SHARED.embed(["cancel my subscription", "I want to end my plan", "the moon orbits the earth"])
    assert one @ two > one @ other + 0.2


def test_the_space_names_the_very_file() -> None:
    card = json.loads(minilm._DATA.joinpath("minilm.json").read_text("utf-8"))
    assert SHARED.space.name == "minilm"
    assert SHARED.space.dimension == 384
    assert SHARED.space.revision == card["sha256"]["minilm.onnx"][:12]
    assert str(SHARED.space) == f"minilm[384]@{SHARED.space.revision}"


def test_it_covers_english_only() -> None:
    assert MiniLmEmbedder.languages == frozenset({"en"})


@pytest.mark.parametrize("words", [200, 254, 255, 600, 2000])
def test_windows_of_a_long_text_hold_every_word_and_fit_the_model(words: int) -> None:
    """One word is one token here, so that the model's own 254 is the border."""
    text = " ".join(["river", "apple", "stone", "cloud"][index % 4] for index in range(words))
    spans = SHARED.windows(text)
    assert (len(spans) == 1) == (words <= 254)
    covered = np.zeros(len(text), dtype=bool)
    for start, end in spans:
        covered[start:end] = True
        assert SHARED.count_tokens(text[start:end]) <= 254
    assert covered.all()


def test_a_text_that_is_one_endless_word_is_read() -> None:
    vectors = SHARED.embed(["x" * 5000, "\N{THUMBS UP SIGN}" * 2000])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)


def test_only_white_space_is_one_window() -> None:
    assert SHARED.windows("   ") == [(0, 3)]


def test_tokens_are_counted_without_the_ones_the_model_adds() -> None:
    assert SHARED.count_tokens("apple river stone") == 3


def ids(text: str) -> list[int]:
    return SHARED._ids(SHARED._loaded()[0], text)


def tokenized(text: str) -> list[int]:
    return list(SHARED._loaded()[0].encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    "text",
    [
        "How do I update my credit card?",
        "DON'T e-mail me: it's 3.50$ (or 10%), ok?!",
        "unbelievably hyperventilating xqzvv's snake_case a`b^c~d|e",
        "tabs\tand\nlines\r\nand   spaces ",
        "[MASK] me, [CLS] or [sep] or [UNK]",  # what the tokenizer takes for its own signs
        "##ing # # [ ] \\ [unused7]",
        "bell\x07 nul\x00 form\x0cfeed del\x7f vertical\x0btab",
        "café naïve bo\u0301mb \u4f60\u597d \u2014 dash \u200b zero",
        "x" * 99 + " " + "x" * 100 + " " + "x" * 101,
        "",
        "   ",
    ],
)
def test_the_table_of_words_gives_what_the_tokenizer_gives(text: str) -> None:
    for _ in range(2):  # words not seen before, and seen ones
        assert ids(text) == tokenized(text)
    assert SHARED.count_tokens(text) == len(tokenized(text))


@given(st.text(st.characters(max_codepoint=0x17F), max_size=60))
def test_the_table_of_words_gives_what_the_tokenizer_gives_for_any_text(text: str) -> None:
    assert ids(text) == tokenized(text)


def test_what_the_table_keeps_is_words_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "_WORDS", 5)
    embedder = MiniLmEmbedder()
    embedder._model = SHARED._loaded()
    for number in range(50):
        embedder.count_tokens(f"one two {number} {'long' * 20}")
        assert len(embedder._known) <= 5
    assert not any(" " in word or len(word) > 32 for word in embedder._known)
    assert ids("one two 7") == tokenized("one two 7")


def test_half_a_surrogate_pair_changes_neither_the_text_s_windows_nor_its_neighbours() -> None:
    """JSON may bring one in; the tokenizer has no name for it."""
    text = "cancel \ud83d my plan"
    assert SHARED.windows(text) == [(0, len(text))]
    assert SHARED.count_tokens(text) >= 3
    odd, plain = SHARED.embed([text, "cancel my plan"])
    assert odd @ plain > 0.5
    assert np.allclose(plain, SHARED.embed(["cancel my plan"])[0], atol=1e-2)


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_threads_than_one_are_refused(threads: int) -> None:
    with pytest.raises(EmbedError, match="at least 1"):
        MiniLmEmbedder(threads)


# The files


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The encoder's files in a place of the test's own; the model itself is a stand-in, the hash check comes first."""
    for name in ("minilm.json", "minilm.tokenizer.json", "minilm.onnx"):
        tmp_path.joinpath(name).write_bytes(minilm._DATA.joinpath(name).read_bytes())
    monkeypatch.setattr(minilm, "_DATA", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["minilm.onnx", "minilm.tokenizer.json"])
def test_a_damaged_file_is_refused_by_name_and_says_what_to_do(copied: Path, name: str) -> None:
    data = bytearray(copied.joinpath(name).read_bytes())
    data[len(data) // 2] ^= 1
    copied.joinpath(name).write_bytes(data)
    with pytest.raises(EmbedError, match=rf"{name}.*damaged.*reinstall") as caught:
        MiniLmEmbedder().embed(["hello"])
    assert caught.value.__cause__ is not None


def test_a_missing_file_is_an_embed_error_with_its_cause(copied: Path) -> None:
    copied.joinpath("minilm.onnx").unlink()
    with pytest.raises(EmbedError) as caught:
        MiniLmEmbedder().embed(["hello"])
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_undamaged_copies_are_accepted(copied: Path) -> None:
    assert copied.is_dir()
    assert np.allclose(MiniLmEmbedder().embed(["hello"]), SHARED.embed(["hello"]), atol=1e-3)


# Loading


class Slow(MiniLmEmbedder):
    """Counts its loads, which take a moment so that threads meet in them; fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.loads = 0
        self.failures = failures

    def _load(self) -> tuple[Any, Any]:
        self.loads += 1
        threading.Event().wait(0.02)
        if self.loads <= self.failures:
            raise OSError("no room")
        return SHARED._loaded()


def test_eight_threads_load_once() -> None:
    slow = Slow()
    gate = threading.Barrier(8)

    def ask(number: int) -> Array:
        gate.wait()
        return slow.embed([f"message {number}"])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert slow.loads == 1
    assert {answer.shape for answer in answers} == {(1, 384)}


def test_a_failed_load_is_tried_again_after_the_pause_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("topicality.embed.minilm.time.monotonic", lambda: clock[0])
    slow = Slow(failures=2)
    for now, loads in [(1000.0, 1), (1000.1, 1), (1004.9, 1), (1005.1, 2), (1010.0, 2)]:
        clock[0] = now
        with pytest.raises(EmbedError, match="could not be loaded") as caught:
            slow.embed(["hello"])
        assert isinstance(caught.value.__cause__, OSError)
        assert slow.loads == loads
    clock[0] = 1010.2
    assert slow.embed(["hello"]).shape == (1, 384)
    assert slow.embed(["again"]).shape == (1, 384)
    assert slow.loads == 3


def test_threads_that_meet_a_failing_load_all_get_the_error_of_one_try() -> None:
    slow = Slow(failures=99)
    gate = threading.Barrier(8)

    def ask(_: int) -> str:
        gate.wait()
        with pytest.raises(EmbedError) as caught:
            slow.embed(["hello"])
        return str(caught.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert slow.loads == 1


def test_a_model_that_fails_in_the_middle_is_an_embed_error_without_the_text() -> None:
    class Broken:
        def run(self, *_: Any) -> Any:
            raise RuntimeError("bad node")

    embedder = MiniLmEmbedder()
    embedder._model = (SHARED._loaded()[0], Broken())
    with pytest.raises(EmbedError, match="1 texts") as caught:
        embedder.embed(["my secret"])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "secret" not in str(caught.value)


def test_eight_threads_with_fifty_mixed_texts_each_get_the_serial_vectors() -> None:
    dice = np.random.default_rng(7)
    vocabulary = "river apple stone cloud invoice refund password violin how do I the a of".split()
    texts = [" ".join(dice.choice(vocabulary, size=int(size))) for size in dice.integers(1, 12, size=50)]
    texts[7] = " ".join(vocabulary * 5)  # a longer one among them
    serial = SHARED.embed(texts)

    def ask(seed: int) -> float:
        order = np.random.default_rng(seed).permutation(len(texts))
        found = np.zeros_like(serial)
        for part in np.array_split(order, 5):
            found[part] = SHARED.embed([texts[index] for index in part])
        return float((found * serial).sum(axis=1).min())

    with ThreadPoolExecutor(8) as pool:
        assert min(pool.map(ask, range(8))) >= 1.0 - 2e-4


def test_a_batch_is_bounded_by_its_tokens() -> None:
    lengths = sorted([3, 256, 40, 256, 7, 256, 12] * 30)
    batches = minilm._batches(range(len(lengths)), lengths)
    assert [index for batch in batches for index in batch] == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 4096 for batch in batches)
