"""What every encoder has to do, and a small one to test with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from topicality.errors import EmbedError
from topicality.ports import Embedder
from topicality.types import Space
from topicality.vectors import Array, unit

_WORD = re.compile(r"\w+")
_CLOSE = 1e-4  # a text's vector may differ by this much in cosine from call to call: batching changes rounding
SAID = (
    "hello",
    "How do I cancel my subscription?",
    "Kannst du mir bitte bei der Rechnung helfen?",
    "it's 21:30, isn't it",
    "a",
    "!!!",
    "\N{THUMBS UP SIGN}\N{ZERO WIDTH JOINER}\N{FEMALE SIGN}",
    "tabs\tand\nnew\r\nlines",
    "你好，我想取消订阅",
    "nul \0 inside",
    "combining e\u0301 and o\u0308",
    "x" * 300,
    "The quick brown fox jumps over the lazy dog while the small grey cat sleeps on a warm stone in the sun.",
)


class EmbedderContract:
    """Inherit, and define `make`: an encoder, a new instance each time it is called."""

    def make(self) -> Embedder:
        """A new instance of the encoder."""
        raise NotImplementedError

    @pytest.fixture
    def embedder(self) -> Embedder:
        return self.make()

    def long_text(self) -> str:
        """Longer than the encoder reads at once; many different words, and the last one tells."""
        return " ".join(f"{word} number {count}" for count in range(100) for word in ("apple", "river"))

    def test_it_is_an_embedder(self, embedder: Embedder) -> None:
        assert isinstance(embedder, Embedder)

    def test_its_space_is_constant_and_the_same_for_another_instance(self, embedder: Embedder) -> None:
        space = embedder.space
        assert space.name
        assert space.dimension >= 1
        embedder.embed(["hello"])
        assert embedder.space == space == self.make().space
        assert hash(space) == hash(self.make().space)

    def test_its_languages_are_two_letter_codes_or_any(self, embedder: Embedder) -> None:
        languages = embedder.languages
        assert languages is None or (languages and all(re.fullmatch("[a-z]{2}", code) for code in languages))

    def test_vectors_are_rows_of_length_one_in_float32(self, embedder: Embedder) -> None:
        vectors = embedder.embed(SAID)
        assert isinstance(vectors, np.ndarray)
        assert vectors.dtype == np.float32
        assert vectors.shape == (len(SAID), embedder.space.dimension)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)

    def test_no_texts_give_no_rows_of_the_right_width(self, embedder: Embedder) -> None:
        assert embedder.embed([]).shape == (0, embedder.space.dimension)

    def test_a_batch_is_the_same_as_one_by_one_in_order(self, embedder: Embedder) -> None:
        together = embedder.embed(SAID)
        for text, vector in zip(SAID, together, strict=True):
            _assert_close(embedder.embed([text])[0], vector)

    def test_what_else_is_in_the_call_and_in_what_order_changes_nothing(self, embedder: Embedder) -> None:
        order = np.random.default_rng(5).permutation(len(SAID))
        alone, mixed = self.make().embed(SAID), embedder.embed([SAID[index] for index in order])
        for place, index in enumerate(order):
            _assert_close(mixed[place], alone[index])

    def test_a_text_that_is_there_twice_has_one_vector(self, embedder: Embedder) -> None:
        vectors = embedder.embed(["hello there", "something else", "hello there"])
        _assert_close(vectors[0], vectors[2])
        assert float(vectors[0] @ vectors[1]) < 0.99

    def test_another_instance_gives_the_same_vectors(self, embedder: Embedder) -> None:
        for one, two in zip(embedder.embed(SAID), self.make().embed(SAID), strict=True):
            _assert_close(one, two)

    def test_the_callers_list_is_left_alone_and_its_answer_is_the_callers_own(self, embedder: Embedder) -> None:
        texts = list(SAID)
        first = embedder.embed(texts)
        assert texts == list(SAID)
        kept = first.copy()
        first[:] = 0.0
        assert np.allclose(embedder.embed(texts), kept, atol=1e-3)

    def test_half_a_surrogate_pair_is_read_or_refused_with_a_typed_error(self, embedder: Embedder) -> None:
        try:
            vectors = embedder.embed(["half \ud83d a pair"])
        except EmbedError:
            return
        assert np.isfinite(vectors).all()

    @pytest.mark.parametrize("text", ["hello", "two words", "  white  space \n", "你好", "!"])
    def test_a_short_text_is_one_window(self, embedder: Embedder, text: str) -> None:
        assert embedder.windows(text) == [(0, len(text))]

    def test_windows_cover_a_long_text_and_overlap(self, embedder: Embedder) -> None:
        text = self.long_text()
        spans = embedder.windows(text)
        assert len(spans) > 1, "the contract's long text is read at once; give a longer one in `long_text`"
        assert spans[0][0] == 0
        assert spans[-1][1] == len(text)
        assert all(start < end for start, end in spans)
        for (start, end), (following, last) in pairwise(spans):
            assert start < following <= end < last
        assert any(following < end for (_, end), (following, _) in pairwise(spans))

    def test_a_window_is_read_at_once(self, embedder: Embedder) -> None:
        """A cut may fall inside a word, so that a window read alone has a token or two more."""
        text = self.long_text()
        for start, end in embedder.windows(text):
            assert len(embedder.windows(text[start : end - 40])) == 1

    def test_a_long_text_is_the_mean_of_its_windows(self, embedder: Embedder) -> None:
        text = self.long_text()
        whole = embedder.embed([text])[0]
        parts = embedder.embed([text[start:end] for start, end in embedder.windows(text)])
        assert float(whole @ unit(parts.mean(axis=0))) >= 0.98
        assert np.isclose(np.linalg.norm(whole), 1.0, atol=1e-3)

    def test_nothing_of_a_long_text_is_cut(self, embedder: Embedder) -> None:
        """Other words, wherever they stand, move the vector. As many as before, so that the windows stay where they are."""
        words = self.long_text().split(" ")
        other = "music book table house garden light".split()
        step = max(len(words) // 20, 1)
        places = [*range(0, len(words) - len(other), step), len(words) - len(other)]
        changed = [" ".join([*words[:place], *other, *words[place + len(other) :]]) for place in places]
        before = embedder.embed([" ".join(words)])[0]
        for place, text in zip(places, changed, strict=True):
            assert np.abs(embedder.embed([text])[0] - before).max() > 1e-6, f"words {place} to {place + len(other)}"

    def test_long_and_short_texts_in_one_call_keep_their_places(self, embedder: Embedder) -> None:
        texts = ["hello", self.long_text(), "something else", self.long_text()[:-200], "good bye"]
        for text, vector in zip(texts, embedder.embed(texts), strict=True):
            _assert_close(vector, embedder.embed([text])[0])

    def test_many_threads_get_what_one_gets(self, embedder: Embedder) -> None:
        """On a new instance, so that the threads also race for its start."""
        texts = [f"{text} {number}" for number in range(4) for text in SAID]
        expected = self.make().embed(texts)

        def ask(thread: int) -> float:
            order = np.random.default_rng(thread).permutation(len(texts))[:16]
            found = embedder.embed([texts[index] for index in order])
            return float((found * expected[order]).sum(axis=1).min())

        with ThreadPoolExecutor(8) as pool:
            assert min(pool.map(ask, range(8))) >= 1.0 - 2 * _CLOSE


def _assert_close(one: Array, two: Array) -> None:
    cosine = float(one.astype(np.float64) @ two.astype(np.float64))
    cosine /= float(np.linalg.norm(one.astype(np.float64)) * np.linalg.norm(two.astype(np.float64)))
    assert 1.0 - cosine <= _CLOSE


class WordEmbedder:
    """An encoder to test with: the mean of a fixed random direction for each word. Texts that share words are close.

    Args:
        dimension: length of the vectors. seed: another one gives another encoder of the same kind.
        words: most words read at once. languages: what it says it covers.
    """

    def __init__(
        self, dimension: int = 64, *, seed: int = 0, words: int = 100, languages: frozenset[str] | None = None
    ) -> None:
        self.space = Space("words", dimension, str(seed))
        self.languages = languages
        self.calls: list[list[str]] = []
        self._words = words
        self._known: dict[str, Array] = {}

    def embed(self, texts: Sequence[str]) -> Array:
        """See `ports.Embedder.embed`. Keeps what it was asked in `calls`."""
        self.calls.append(list(texts))
        rows = np.zeros((len(texts), self.space.dimension))
        for row, text in enumerate(texts):
            pieces = [self._whole(text[start:end]) for start, end in self.windows(text)]
            rows[row] = pieces[0] if len(pieces) == 1 else np.mean(pieces, axis=0)
        return unit(rows)

    def windows(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Embedder.windows`."""
        spans = [match.span() for match in _WORD.finditer(text)]
        if len(spans) <= self._words:
            return [(0, len(text))]
        step = self._words - self._words // 10
        starts = range(0, len(spans) - self._words // 10, step)
        found = [(spans[start][0], spans[min(start + self._words, len(spans)) - 1][1]) for start in starts]
        return [(0, found[0][1]), *found[1:-1], (found[-1][0], len(text))]

    def _whole(self, text: str) -> Array:
        found = _WORD.findall(text.casefold()) or [text]
        return unit(np.mean([self._direction(word) for word in found], axis=0))

    def _direction(self, word: str) -> Array:
        if word not in self._known:
            self._known[word] = self._drawn(word)
        return self._known[word]

    def _drawn(self, word: str) -> Array:
        key = hashlib.blake2b(f"{self.space.revision}:{word}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return unit(np.random.default_rng(int.from_bytes(key, "big")).standard_normal(self.space.dimension))
