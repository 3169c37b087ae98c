"""The shipped background: its text, its vectors, and the constants fitted against it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import topicality.embed.background as room
from topicality.core.followup import FEATURES as FUSION_FEATURES
from topicality.core.score import FEATURES
from topicality.core.text import content_stems
from topicality.embed import load, load_background, load_weights
from topicality.embed.background import quantise, read_corpus
from topicality.errors import EmbedError
from topicality.testing import WordEmbedder
from topicality.vectors import Array, unit


def test_the_corpus_is_large_wide_and_without_repetition() -> None:
    corpus = read_corpus()
    assert len(corpus.utterances) >= 1200
    assert len(corpus.subjects) >= 150
    assert len(corpus.descriptions) == len(corpus.subjects)
    assert len(set(corpus.subjects)) == len(corpus.subjects)
    assert len(set(corpus.utterances)) >= 0.998 * len(corpus.utterances)
    assert all(text.strip() == text and text for text in (*corpus.subjects, *corpus.descriptions, *corpus.utterances))
    assert len(corpus.owner) == len(corpus.utterances)
    assert set(corpus.owner) == set(range(len(corpus.subjects)))


def test_the_stem_counts_belong_to_the_corpus() -> None:
    counts = json.loads(room._DATA.joinpath("background.stems.json").read_text("utf-8"))
    corpus = read_corpus()
    assert counts["utterances"] == len(corpus.utterances)
    fresh = Counter(stem for text in corpus.utterances for stem in set(content_stems(text)))
    assert {stem: fresh[stem] for stem in counts["stems"]} == counts["stems"]


def test_the_shipped_vectors_are_the_bundled_encoder_s() -> None:
    """If this fails, the background was not made again after the encoder or the corpus changed."""
    embedder = load()
    background = load_background(embedder)
    corpus = read_corpus()
    assert background.space == embedder.space
    assert background.subjects == corpus.subjects
    assert background.utterances.shape == (len(corpus.utterances), 384)
    assert np.allclose(np.linalg.norm(background.utterances, axis=1), 1.0, atol=1e-3)
    some = range(0, len(corpus.utterances), 97)
    fresh = embedder.embed([corpus.utterances[index] for index in some])
    assert (fresh * background.utterances[list(some)]).sum(axis=1).min() >= 0.99
    assert (embedder.embed(corpus.subjects[:20]) * background.names[:20]).sum(axis=1).min() >= 0.99
    assert (embedder.embed(corpus.descriptions[:20]) * background.descriptions[:20]).sum(axis=1).min() >= 0.99


class Counting(WordEmbedder):
    """Of a space of its own in each test, so that the process has no background for it yet."""

    def __init__(self, seed: int) -> None:
        super().__init__(16, seed=seed)
        self.texts = 0

    def embed(self, texts: Sequence[str]) -> Array:
        self.texts += len(texts)
        return super().embed(texts)


def test_another_encoder_embeds_the_corpus_once_whatever_the_number_of_threads() -> None:
    embedder = Counting(101)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_background(embedder), range(8)))
    corpus = read_corpus()
    assert embedder.texts == len(corpus.utterances) + 2 * len(corpus.subjects)
    assert max(len(call) for call in embedder.calls) <= 512
    assert all(background is found[0] for background in found)
    assert found[0].space == embedder.space
    assert np.allclose(found[0].utterances[5], WordEmbedder(16, seed=101).embed([corpus.utterances[5]])[0])
    assert np.allclose(found[0].names[3], WordEmbedder(16, seed=101).embed([corpus.subjects[3]])[0])
    assert load_background(embedder) is found[0]


def test_an_encoder_that_fails_leaves_nothing_behind_and_is_asked_again() -> None:
    class Moody(Counting):
        down = True

        def embed(self, texts: Sequence[str]) -> Array:
            if self.down and self.texts > 1000:
                raise EmbedError("down")
            return super().embed(texts)

    moody = Moody(102)
    with pytest.raises(EmbedError, match="down"):
        load_background(moody)
    moody.down = False
    assert load_background(moody).space == moody.space


def test_quantised_vectors_keep_their_cosines() -> None:
    vectors = unit(np.random.default_rng(3).standard_normal((200, 384)))
    packed = quantise(vectors)
    assert packed.dtype == np.int8
    again = unit(packed.astype(np.float32))
    assert np.abs(again @ again.T - vectors @ vectors.T).max() <= 0.004
    assert (again * vectors).sum(axis=1).min() >= 0.999


def test_the_fitted_constants_fit_the_features() -> None:
    weights, fusion = load_weights()
    values = json.loads(room._DATA.joinpath("guard.json").read_text("utf-8"))
    assert tuple(values["features"]) == FEATURES
    assert tuple(values["fusion"]["features"]) == FUSION_FEATURES
    assert len(weights.weights) == len(FEATURES)
    size = len(FUSION_FEATURES)
    assert len(fusion.mean) == len(fusion.scale) == size
    assert len(fusion.weights) == size + size * (size + 1) // 2
    assert min(fusion.scale) > 0
    assert min(weights.weights) > 0  # more evidence never speaks against a rule
