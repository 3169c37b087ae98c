"""The made-up archive that `scale.py` measures with: always the same, of any size, and an encoder that knows it."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topicality.core.recall.analysis import terms
from topicality.embed import load
from topicality.records import SIDES, Exchange, TopicRecord
from topicality.store import rules, transfer
from topicality.types import Message
from topicality.vectors import Array, unit

OWNER = "owner"
SPACE = load("minilm").space
CENTRES = np.random.default_rng(7).standard_normal((512, SPACE.dimension)).astype(np.float32)
THEMES = 512
POOL = 4096  # message bodies that are made once and used again


def spoken(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))


VOCABULARY = [spoken(random.Random(n)) for n in range(20_000)]
WEIGHTS = np.cumsum(1.0 / (np.arange(len(VOCABULARY)) + 50.0))


class Encoder:
    """Stands in for the bundled one: a message's first word names its theme. `seconds` is what it took."""

    space = SPACE
    languages = None

    def __init__(self) -> None:
        self.seconds = 0.0

    def embed(self, texts: Sequence[str]) -> Array:
        started = time.perf_counter()
        rows = [vector_of(text) for text in texts]
        found = unit(np.array(rows)) if rows else np.zeros((0, SPACE.dimension), np.float32)
        self.seconds += time.perf_counter() - started
        return found

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def vector_of(text: str) -> Array:
    first = text.split(" ", 1)[0]
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    theme = int(first[5:]) if first.startswith("theme") and first[5:].isdigit() else seed
    noise = np.random.default_rng(seed).standard_normal(SPACE.dimension).astype(np.float32)
    found: Array = CENTRES[theme % THEMES] + 0.9 * noise
    return found


@dataclass(frozen=True)
class Body:
    text: str
    terms: str
    blob: bytes


class Archive:
    """Exchanges without end, the same every time."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._bodies: dict[tuple[int, int, int], Body] = {}
        self.topic, self.topics = 0, 0

    def step(self) -> bool:
        """Go on to the next exchange's topic; whether it is another one than before."""
        if self.topics and self._rng.random() >= 1 / 8:
            return False
        before = self.topic
        if self.topics > 2 and self._rng.random() < 0.2:
            self.topic = self._rng.randint(max(1, self.topics - 20), self.topics)
        else:
            self.topics += 1
            self.topic = self.topics
        return self.topic != before

    def body(self, words: int) -> Body:
        theme = self.topic % THEMES
        key = (theme, words, self._rng.randrange(POOL // THEMES))
        if key not in self._bodies:
            own = random.Random(f"{key}")
            names = [VOCABULARY[(theme * 37 + n * 11) % len(VOCABULARY)] for n in range(12)]
            drawn = np.searchsorted(WEIGHTS, [own.random() * WEIGHTS[-1] for _ in range(words)])
            said = [own.choice(names) if own.random() < 0.15 else VOCABULARY[n] for n in drawn]
            text = f"theme{theme} " + " ".join(said) + "."
            blob = rules.encode(unit(vector_of(text)), SPACE)
            self._bodies[key] = Body(text, " ".join(terms(text)), blob)
        return self._bodies[key]


def own_word(number: int) -> str:
    return f"zq{number}x"


def export(exchanges: int, conversations: int) -> Iterator[str]:
    """An archive as import lines."""
    yield transfer.header(SPACE)
    each = exchanges // conversations
    for talk in range(conversations):
        archive = Archive(talk + 1)
        bundle = transfer.Bundle(OWNER, f"c{talk:04}")
        spans: dict[int, list[list[int]]] = {}
        for sequence in range(1, each + 1):
            archive.step()
            mine = spans.setdefault(archive.topic, [])
            if mine and mine[-1][1] == sequence - 1:
                mine[-1][1] = sequence
            else:
                mine.append([sequence, sequence])
            question, reply = archive.body(20), archive.body(60)
            word = own_word(talk * each + sequence)
            messages = [
                Message("user", f"{question.text} {word}", sequence * 60.0),
                Message("assistant", reply.text, sequence * 60.0 + 30),
            ]
            bundle.exchanges.append(
                Exchange(OWNER, bundle.conversation, sequence, f"e{sequence}", "completed", *messages)
            )
            for side, message, words, blob in (
                (SIDES[0], messages[0], f"{word} {question.terms}", question.blob),
                (SIDES[1], messages[1], reply.terms, reply.blob),
            ):
                bundle.passages.append(transfer.Kept(sequence, side, 0, 0, len(message.text), words, blob))
        for number, topic in enumerate(spans, 1):
            names = tuple(VOCABULARY[(topic % THEMES * 37 + n * 11) % len(VOCABULARY)] for n in range(8))
            runs = tuple((a, b) for a, b in spans[topic])
            times = (runs[0][0] * 60.0, runs[-1][1] * 60.0)
            bundle.topics.append(TopicRecord(f"t{topic}", number, "finalized", names[:3], names, runs, *times, 1.0))
        bundle.topics_version = len(bundle.topics)
        yield from bundle.lines()
