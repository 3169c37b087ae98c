"""Segmentation with an encoder: each message is embedded once. The decisions are made in `core.segment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from topicality.core.grams import grams_of
from topicality.core.label import Lexicon, Words, describe
from topicality.core.segment import Decision, Segmentation, Segmenter, segment
from topicality.core.segment.decisions import Talk
from topicality.core.segment.entry import check_settings, is_silent
from topicality.core.text import fold, language
from topicality.embed import load, load_background
from topicality.embed.segment import load_heads
from topicality.errors import InputError, SpaceMismatchError
from topicality.layer.words import function_words
from topicality.ports import Embedder
from topicality.types import Message
from topicality.vectors import Array

_BATCH = 256
_SAMPLE = 200  # messages whose language is looked at
_FOREIGN = 0.5  # share of them, of those whose language shows, from which on a transcript is in another language

Progress = Callable[[int], None]


class TopicSegmenter:
    """An encoder, the heads learned for it, and the host's settings.

    Args:
        embedder: an encoder, or a name for `load_embedder`. An encoder without heads works too, by a simpler method.
        granularity, expected_rate, limit, talk: see `core.segment.Segmenter`.
    Raises:
        ConfigError: a setting is out of range, or the encoder's name is unknown.
    """

    def __init__(
        self,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        granularity: str = "balanced",
        expected_rate: float | None = None,
        limit: int = 200,
        talk: Talk = "auto",
    ) -> None:
        check_settings(granularity, expected_rate, limit, talk)
        self.embedder = load(embedder)
        self.granularity = granularity
        self.expected_rate = expected_rate
        self.limit = limit
        self.talk: Talk = talk

    def segment(
        self, messages: Sequence[Message], vectors: ArrayLike | None = None, progress: Progress | None = None
    ) -> Segmentation:
        """Cut a whole transcript.

        Args:
            vectors: shape (N, D), if the caller has them; the messages are then not embedded again.
            progress: called with the number of messages embedded so far, and at last with all of them.
        Returns:
            Segments, topics and decisions. `fallback` says why, where the learned heads could not be used.
        Raises:
            EmbedError: the encoder failed. InputError, SpaceMismatchError: see `core.segment.segment`.
        Cost: the encoder, plus about 0.15 ms a message.
        """
        said = list(messages)
        for message in said:
            if not isinstance(message, Message):
                raise InputError(f"a transcript is a list of Message, got {type(message).__name__} inside")
        rows = vectors if vectors is not None else self.embed(said, progress)
        found = segment(
            said,
            rows,
            load_heads(self.embedder),
            space=self.embedder.space,
            granularity=self.granularity,
            expected_rate=self.expected_rate,
            talk=self.talk,
            fallback=self.foreign(said),
        )
        if progress is not None:
            progress(len(said))
        return found

    def embed(self, messages: Sequence[Message], progress: Progress | None = None) -> Array:
        """Vectors of the messages, shape (N, D), in batches; zeros for messages that decide nothing (see `is_silent`)."""
        rows = np.zeros((len(messages), self.embedder.space.dimension), np.float32)
        spoken = [index for index, message in enumerate(messages) if not is_silent(message)]
        for start in range(0, len(spoken), _BATCH):
            batch = spoken[start : start + _BATCH]
            rows[batch] = self.embedder.embed([messages[index].text for index in batch])
            if progress is not None:
                progress(batch[-1] + 1)
        return rows

    def foreign(self, messages: Sequence[Message]) -> str | None:
        """Why the heads cannot read these messages: most are in a language that the encoder does not know. Else None."""
        covered = self.embedder.languages
        if covered is None:
            return None
        told: dict[str, int] = {}
        heard = 0
        spoken = [message for message in messages if not is_silent(message)]
        step = max(1, len(spoken) // _SAMPLE)
        for message in spoken[::step]:
            heard += 1
            found = language(fold(message.text).text, function_words())
            if found is not None and found not in covered:
                told[found] = told.get(found, 0) + 1
        if not told or sum(told.values()) < _FOREIGN * heard:
            return None
        return f"the encoder does not cover {max(sorted(told), key=lambda code: told[code])}"

    def live(self) -> LiveSegmenter:
        """A conversation that begins."""
        return LiveSegmenter(self)

    def begun(self, messages: Sequence[Message]) -> Segmenter:
        """The segmenter of a conversation whose first messages are these."""
        return Segmenter(
            load_heads(self.embedder),
            space=self.embedder.space,
            granularity=self.granularity,
            expected_rate=self.expected_rate,
            limit=self.limit,
            talk=self.talk,
            fallback=self.foreign(messages),
        )

    def resume(self, snapshot: bytes) -> LiveSegmenter:
        """A conversation that goes on, from `LiveSegmenter.snapshot`, maybe of another process.

        Raises:
            InputError: the bytes are something else or damaged. SpaceMismatchError: of another encoder.
        """
        restored = Segmenter.restore(load_heads(self.embedder), snapshot)
        if restored.space != self.embedder.space:
            raise SpaceMismatchError(restored.space, self.embedder.space)
        return LiveSegmenter(self, restored)


class LiveSegmenter:
    """One conversation as it is held: a decision a message. Used by one thread at a time.

    The first message decides whether the heads can read the language.
    """

    def __init__(self, settings: TopicSegmenter, inner: Segmenter | None = None) -> None:
        self.settings = settings
        self._inner = inner

    def receive(self, message: Message, vector: ArrayLike | None = None) -> Decision:
        """Decide on the next message.

        Args:
            vector: its embedding, shape (D,), if the caller has it; it is then not embedded again.
        Raises:
            EmbedError: the encoder failed. InputError, SpaceMismatchError: see `core.segment.Segmenter.receive`.
                Nothing has changed in any of these cases.
        Cost: one encoder call, plus about 0.3 ms.
        """
        if vector is None and not is_silent(message):
            vector = self.settings.embedder.embed([message.text])[0]
        inner = self._inner or self.settings.begun([message])
        decision = inner.receive(message, vector)
        self._inner = inner
        return decision

    def finish(self) -> tuple[Decision, ...]:
        """Let what is pending stand, as nothing follows: the final decisions on the last messages."""
        return () if self._inner is None else self._inner.finish()

    @property
    def fallback(self) -> str | None:
        """Why the learned heads are not used; None when they are, or before the first message."""
        return None if self._inner is None else self._inner.fallback

    def snapshot(self) -> bytes:
        """The state as bytes, for `TopicSegmenter.resume`."""
        return (self._inner or self.settings.begun([])).snapshot()


def labels_of(found: Segmentation, messages: Sequence[Message]) -> dict[int, tuple[str, ...]]:
    """A few words that say what each topic is about, by topic number; none for a topic of small talk.

    Cost: O(text); about 2 ms a topic and 0.1 ms a message.
    """
    words: dict[int, Words] = {}
    lexicon = Lexicon()
    names = tuple({message.name for message in messages if message.name})
    for index, message in enumerate(messages):
        if message.role in ("tool", "system") or message.calls:
            continue
        user = message.role != "assistant"
        grams = grams_of(message.text if user else "", "" if user else message.text, names=names)
        topic = found.topics[index]
        words[topic] = words.get(topic, Words()).added(grams, index)
        lexicon = lexicon.added(grams)
    return {topic: describe(kept, lexicon, _everyday()).labels for topic, kept in words.items()}


def _everyday() -> Callable[[str], float]:
    return load_background(load("minilm")).rarity
