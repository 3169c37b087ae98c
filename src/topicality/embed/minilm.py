"""The bundled encoder: all-MiniLM-L6-v2 as a quantised ONNX graph, run by onnxruntime on the CPU. No download."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from topicality.errors import EmbedError
from topicality.types import Space
from topicality.vectors import Array, unit

_DATA = files("topicality").joinpath("embed", "data")
# Tokens in one run, padding included. Bounds memory whatever the messages are, and is where a run is fastest: its
# intermediate values stay in the processor's second cache. 4,096 takes twice the time a message (docs/encoder.md).
_BATCH_TOKENS = 160
_OVERLAP = 32  # tokens that neighbouring windows share
_RETRY_SECONDS = 5.0  # pause after a failed load before the next try
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a pair is no character, and the tokenizer refuses the whole text
# Text that the table of words reads as the tokenizer does: printable ASCII, but for "[", which may open "[MASK]".
_PLAIN = re.compile(r"[\t\n\r -Z\\-~]*")
_TOKEN = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
_WORDS = 50_000  # words kept in the table
_CLS, _SEP = 101, 102  # what the model wants around a text; the tokenizer's file is checked against its hash
_ONES = np.ones((1, 256), dtype=np.int64)


class MiniLmEmbedder:
    """all-MiniLM-L6-v2, 384 dimensions, English. See `ports.Embedder` for the contract.

    The model is loaded at the first use, once, whatever the number of threads; a failed load is tried again after a
    pause. Its files are checked against their hashes before they are used.

    Args:
        threads: CPU threads inside one call, at least 1.
    """

    languages = frozenset({"en"})

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise EmbedError(f"threads must be at least 1, got {threads}")
        self._threads = threads
        self._lock = threading.Lock()
        self._model: tuple[Any, Any] | None = None
        self._known: dict[str, list[int]] = {}  # single words, never a text
        self._failed: tuple[float, EmbedError] | None = None

    @cached_property
    def _card(self) -> dict[str, Any]:
        return dict(json.loads(_DATA.joinpath("minilm.json").read_text("utf-8")))

    @cached_property
    def space(self) -> Space:
        """Name, dimension and the first twelve digits of the model file's hash."""
        return Space("minilm", int(self._card["dimension"]), str(self._card["sha256"]["minilm.onnx"])[:12])

    def embed(self, texts: Sequence[str]) -> Array:
        """See `ports.Embedder.embed`. Cost: about 2 ms a short message on one thread, less in batches."""
        tokenizer, session = self._loaded()
        pieces, owner = self._pieces(tokenizer, texts)
        try:
            if len(pieces) == 1:
                return _run(session, pieces)
            vectors = np.zeros((len(pieces), self.space.dimension), dtype=np.float32)
            order = sorted(range(len(pieces)), key=lambda index: len(pieces[index]))
            for batch in _batches(order, [len(piece) for piece in pieces]):
                vectors[batch] = _run(session, [pieces[index] for index in batch])
        except Exception as error:
            raise EmbedError(f"the bundled encoder failed on {len(texts)} texts ({type(error).__name__})") from error
        if len(pieces) == len(texts):
            return vectors
        sums = np.zeros((len(texts), self.space.dimension), dtype=np.float32)
        np.add.at(sums, np.asarray(owner), vectors)
        return unit(sums)

    def windows(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Embedder.windows`."""
        tokenizer, _ = self._loaded()
        offsets = [
            span for span in tokenizer.encode(_readable(text), add_special_tokens=False).offsets if span[1] > span[0]
        ]
        if not offsets:
            return [(0, len(text))]
        spans = [(offsets[start][0], offsets[end - 1][1]) for start, end in self._cuts(len(offsets))]
        spans[0] = (0, spans[0][1])
        spans[-1] = (spans[-1][0], len(text))
        return spans

    def count_tokens(self, text: str) -> int:
        """Tokens of this encoder in a text, without the two it adds itself."""
        tokenizer, _ = self._loaded()
        return len(self._ids(tokenizer, text))

    def _cuts(self, length: int) -> list[tuple[int, int]]:
        size = int(self._card["max_tokens"]) - 2
        if length <= size:
            return [(0, length)]
        starts = range(0, length - _OVERLAP, size - _OVERLAP)
        return [(start, min(length, start + size)) for start in starts]

    def _pieces(self, tokenizer: Any, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        pieces: list[list[int]] = []
        owner: list[int] = []
        for index, text in enumerate(texts):  # not encode_batch, which starts threads of its own and is no faster
            ids = self._ids(tokenizer, text)
            for start, end in self._cuts(len(ids)):
                pieces.append([_CLS, *ids[start:end], _SEP])
                owner.append(index)
        return pieces, owner

    def _ids(self, tokenizer: Any, text: str) -> list[int]:
        """The tokenizer's ids, without the two the model adds; for plain text from a table, in a quarter of the time."""
        if _PLAIN.fullmatch(text) is None:
            return list(tokenizer.encode(_readable(text), add_special_tokens=False).ids)
        ids: list[int] = []
        for word in _TOKEN.findall(text.lower()):
            ids += self._known.get(word) or self._learnt(tokenizer, word)
        return ids

    def _learnt(self, tokenizer: Any, word: str) -> list[int]:
        whole = tokenizer.token_to_id(word)
        found = tokenizer.encode(word, add_special_tokens=False).ids if whole is None else [whole]
        if len(word) <= 32:
            if len(self._known) >= _WORDS:
                self._known.clear()
            self._known[word] = found
        return list(found)

    def _loaded(self) -> tuple[Any, Any]:
        if self._model is None:
            with self._lock:
                if self._model is None:
                    if self._failed and time.monotonic() - self._failed[0] < _RETRY_SECONDS:
                        raise self._failed[1]
                    try:
                        self._model = self._load()
                        self._failed = None
                    except Exception as error:
                        failure = EmbedError(f"the bundled encoder could not be loaded: {error}")
                        failure.__cause__ = error
                        self._failed = (time.monotonic(), failure)
                        raise failure from error
        return self._model

    def _load(self) -> tuple[Any, Any]:
        import onnxruntime
        from tokenizers import Tokenizer

        contents: dict[str, bytes] = {}
        for name, wanted in self._card["sha256"].items():
            contents[name] = _DATA.joinpath(name).read_bytes()
            found = hashlib.sha256(contents[name]).hexdigest()
            if found != wanted:
                raise EmbedError(
                    f"{name} is damaged (sha256 {found[:12]}…, wanted {wanted[:12]}…); reinstall topicality"
                )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with as_file(_DATA.joinpath("minilm.onnx")) as path:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_str(contents["minilm.tokenizer.json"].decode("utf-8"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer, session


def _readable(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def _batches(order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    current: list[int] = []
    for index in order:  # ascending length, so the newest is the longest of its batch
        if current and (len(current) + 1) * lengths[index] > _BATCH_TOKENS:
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    return batches


def _run(session: Any, pieces: Sequence[Sequence[int]]) -> Array:
    width = max(map(len, pieces))
    if len(pieces) == 1:
        ids, mask = np.array(pieces, dtype=np.int64), _ONES[:, :width]
    else:
        ids = np.zeros((len(pieces), width), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, piece in enumerate(pieces):
            ids[row, : len(piece)] = piece
            mask[row, : len(piece)] = 1
    result: Array = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    return result
