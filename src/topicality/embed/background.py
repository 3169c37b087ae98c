"""The shipped background, in any encoder's space: precomputed for the bundled one, embedded once for the others."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from topicality.core.background import Background
from topicality.core.followup import Fusion
from topicality.core.score import Weights
from topicality.ports import Embedder
from topicality.types import Space
from topicality.vectors import Array, unit

_DATA = files("topicality").joinpath("embed", "data")
_loaded: WeakKeyDictionary[Embedder, Background] = WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Corpus:
    """The background as text: S subjects with a description each, N utterances with their subject's index."""

    subjects: tuple[str, ...]
    descriptions: tuple[str, ...]
    utterances: tuple[str, ...]
    owner: tuple[int, ...]


def read_corpus() -> Corpus:
    """The shipped corpus, written for this project (embed/data/background.jsonl)."""
    rows = [json.loads(line) for line in _DATA.joinpath("background.jsonl").read_text("utf-8").splitlines()]
    spoken = [(index, text) for index, row in enumerate(rows) for text in row["utterances"]]
    return Corpus(
        tuple(row["subject"] for row in rows),
        tuple(row["description"] for row in rows),
        tuple(text for _, text in spoken),
        tuple(index for index, _ in spoken),
    )


def load_background(embedder: Embedder) -> Background:
    """The background in the encoder's space; made once for each encoder and kept as long as it lives.

    Raises:
        EmbedError: the encoder failed.
    Cost: 20 ms for the bundled encoder; one call with about 4,500 short texts for another one.
    """
    with _lock:
        # Kept by encoder and not by space: two callables may bear the same name.
        known = _kept(embedder)
        if known is None:
            known = _shipped(embedder.space) or _embedded(embedder)
            with suppress(TypeError):  # an encoder that cannot be referred to weakly is read against afresh
                _loaded[embedder] = known
        return known


def halved(embedder: Embedder) -> tuple[Background, NDArray[np.bool_]]:
    """The shipped background with every other utterance of each subject, so that the others are messages to measure on.

    Returns:
        The background, and which utterances of `read_corpus` it has, shape (N,).
    """
    whole, owner = load_background(embedder), np.array(read_corpus().owner)
    rank = np.concatenate([np.arange(count) for count in np.bincount(owner)])
    kept: NDArray[np.bool_] = rank % 2 == 0
    return replace(whole, utterances=whole.utterances[kept], owner=whole.owner[kept]), kept


def _kept(embedder: Embedder) -> Background | None:
    try:
        return _loaded.get(embedder)
    except TypeError:
        return None


def load_weights() -> tuple[Weights, Fusion]:
    """The guard's fitted constants (embed/data/guard.json, made by tools/fit_guard.py)."""
    values = json.loads(_DATA.joinpath("guard.json").read_text("utf-8"))
    head = values["fusion"]
    weights = Weights(
        values["softness"],
        tuple(values["kin"]),
        values["temperature"],
        tuple(values["weights"]),
        values["bias"],
        values["counter"],
    )
    mean, scale, terms = (np.array(head[key]) for key in ("mean", "scale", "weights"))
    return weights, Fusion(mean, scale, terms, head["bias"])


def quantise(vectors: Array) -> NDArray[np.int8]:
    """Unit vectors as int8 with one scale for all; the error is below 0.002 in cosine."""
    scale = float(np.abs(vectors).max())
    packed: NDArray[np.int8] = np.round(vectors / scale * 127).astype(np.int8)
    return packed


def _shipped(space: Space) -> Background | None:
    from importlib.resources import as_file

    with as_file(_DATA.joinpath("background.minilm.npz")) as path:
        if not path.is_file():
            return None
        with np.load(path) as arrays:
            if str(arrays["space"]) != str(space):
                return None
            names, descriptions, utterances = (
                unit(arrays[key].astype(np.float32)) for key in ("names", "descriptions", "utterances")
            )
    return _assembled(space, read_corpus(), names, descriptions, utterances)


def _embedded(embedder: Embedder) -> Background:
    corpus = read_corpus()
    texts = [*corpus.subjects, *corpus.descriptions, *corpus.utterances]
    vectors = np.vstack([embedder.embed(texts[start : start + 512]) for start in range(0, len(texts), 512)])
    size = len(corpus.subjects)
    return _assembled(embedder.space, corpus, vectors[:size], vectors[size : 2 * size], vectors[2 * size :])


def _assembled(space: Space, corpus: Corpus, names: Array, descriptions: Array, utterances: Array) -> Background:
    counts = json.loads(_DATA.joinpath("background.stems.json").read_text("utf-8"))
    owner = np.asarray(corpus.owner, dtype=np.intp)
    return Background(
        space, corpus.subjects, names, descriptions, utterances, owner, counts["stems"], counts["utterances"]
    )
