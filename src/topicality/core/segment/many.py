"""The other ways to decide on a message, final at once: a crowd by who replies to whom, and the fallback by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.core.segment.crowd import Crowd, Said, Thread
from topicality.core.segment.cues import Cues
from topicality.core.segment.heads import Heads
from topicality.core.segment.pair import Choice
from topicality.core.segment.plain import RATES, Quantile
from topicality.vectors import Array

_LEAST = 10  # cosines before the first boundary without heads
_LOOK_BACK = 2


@dataclass(slots=True)
class Heard:
    """A message of a named speaker, kept in case its company turns out to be a crowd."""

    index: int
    text: str
    speaker: str
    vector: Array
    at: float | None
    topic: int


class CrowdTalk:
    """State of a talk of several people.

    Args:
        heads: learned for the encoder. first: number of the first topic that is opened here.
    """

    def __init__(self, heads: Heads, first: int = 0) -> None:
        self.heads = heads
        self.crowd = Crowd()
        self.topic_of: dict[int, int] = {}  # live thread -> topic
        self.next_topic = first
        self.current = -1

    def notice(self, index: int, text: str, at: float | None, dimension: int) -> tuple[Choice, int | None]:
        """Somebody came or went: a thread of its own, which nobody joins."""
        return self.receive(index, text, "", np.zeros(dimension, np.float32), at)

    def receive(
        self, index: int, text: str, speaker: str, vector: Array, at: float | None
    ) -> tuple[Choice, int | None]:
        """Decide on a message: its choice, and the index of the message it replies to (None: it starts a thread)."""
        said = self.crowd.read(index, text, speaker, vector, at)
        link, thread, away = self.crowd.place(said, self.heads.link, self.heads.settings.thread)
        known = thread in self.topic_of
        if not known:
            self.topic_of[thread] = self.next_topic
            self.next_topic += 1
            self.topic_of = {live: topic for live, topic in self.topic_of.items() if live in self.crowd.threads}
        topic, before = self.topic_of[thread], self.current
        self.current = topic
        replied = None if link == index else link
        if topic == before:
            return Choice("continue", topic, boundary=False, score=away), replied
        return Choice("return" if known else "new", topic, boundary=before >= 0, score=away), replied

    def replay(self, heard: Sequence[Heard]) -> None:
        """Read earlier messages, whose topics are known. The first thread of a topic keeps its number."""
        for message in heard:
            said = self.crowd.read(message.index, message.text, message.speaker, message.vector, message.at)
            _, thread, _ = self.crowd.place(said, self.heads.link, self.heads.settings.thread)
            if thread not in self.topic_of and message.topic not in self.topic_of.values():
                self.topic_of[thread] = message.topic
            self.current = message.topic

    def dump(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything that the next decision depends on."""
        crowd = self.crowd
        items = [
            {name: value for name, value in asdict(item).items() if name != "vector"}
            | {"words": sorted(item.words), "cues": [float(value) for value in item.cues]}
            for item in crowd.items
        ]
        values = {
            "items": items, "last": list(crowd.last.items()),
            "messages": crowd.messages, "partner": crowd.partner, "to_speaker": crowd.to_speaker,
            "threads": [[key, thread.size, thread.latest, sorted(thread.people)] for key, thread in crowd.threads.items()],
            "topic_of": list(self.topic_of.items()), "next_topic": self.next_topic, "current": self.current,
        }  # fmt: skip
        dimension = self.heads.space.dimension
        return values, {"crowd": np.array([item.vector for item in crowd.items], np.float32).reshape(-1, dimension)}

    def load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over what `dump` gave."""
        crowd = self.crowd
        crowd.items = [
            Said(**(item | {"vector": vector, "words": frozenset(item["words"]), "cues": Cues(*item["cues"])}))
            for item, vector in zip(values["items"], arrays["crowd"], strict=True)
        ]
        crowd.last = dict(values["last"])
        crowd.messages, crowd.partner, crowd.to_speaker = values["messages"], values["partner"], values["to_speaker"]
        crowd.threads = {key: Thread(size, latest, set(people)) for key, size, latest, people in values["threads"]}
        self.topic_of, self.next_topic = dict(values["topic_of"]), values["next_topic"]
        self.current = values["current"]


class CosineTalk:
    """State of the fallback: a message less like the last two than most so far starts a topic. There are no returns."""

    def __init__(self, granularity: str, expected_rate: float | None, dimension: int) -> None:
        self.rate = RATES[granularity] if expected_rate is None else expected_rate
        self.recent = np.zeros((0, dimension), np.float32)
        self.seen = Quantile()
        self.topic = -1

    def receive(self, vector: Array) -> Choice:
        """Decide on a message."""
        if self.topic < 0:
            self.topic = 0
            self.recent = vector[None]
            return Choice("new", 0, boundary=False, score=0.0)
        cosine = float((self.recent @ vector).max())
        self.recent = np.concatenate([vector[None], self.recent[: _LOOK_BACK - 1]])
        self.seen.add(cosine)
        new = len(self.seen) >= _LEAST and cosine < self.seen.lowest(self.rate)
        self.topic += new
        return Choice("new" if new else "continue", self.topic, boundary=new, score=1.0 - cosine)

    def dump(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything that the next decision depends on."""
        return {"seen": list(self.seen.values), "topic": self.topic}, {"recent": self.recent}

    def load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over what `dump` gave."""
        self.seen, self.topic, self.recent = Quantile(values["seen"]), values["topic"], arrays["recent"]
