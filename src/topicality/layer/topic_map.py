"""Topics of conversations in memory, to say which one an exchange is in: a bounded cache of what the store has."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable

from topicality.core.directory import name_of
from topicality.core.topics import Topic, topic_of
from topicality.ports import Store, Turn

_ROOM = 50_000  # topics remembered in all
_MARKS = ("topics", "labeller")  # states of which one changes whenever the topics do

Mark = tuple[bytes | None, ...]


class TopicMap:
    """The topics of one conversation, by id and by sequence; thread-safe."""

    def __init__(self, mark: Mark, topics: Iterable[Topic]) -> None:
        self.mark = mark
        self._lock = threading.Lock()
        self.topics: dict[str, Topic] = {}
        self._spans: list[tuple[int, int, str]] = []
        for topic in topics:
            self.topics[topic.id] = topic
            self._spans += [(first, last, topic.id) for first, last in topic.spans]
        self._spans.sort()

    def at(self, sequence: int) -> Topic | None:
        """The topic an exchange is in."""
        with self._lock:
            place = bisect_right(self._spans, (sequence, float("inf"), "")) - 1
            if place < 0 or self._spans[place][1] < sequence:
                return None
            return self.topics.get(self._spans[place][2])

    def listed(self) -> list[Topic]:
        """All topics, by number."""
        with self._lock:
            return sorted(self.topics.values(), key=lambda topic: topic.number)

    def put(self, topics: Iterable[Topic], mark: Mark) -> None:
        """Some topics are new or different now."""
        with self._lock:
            for topic in topics:
                self._put(topic)
            self.mark = mark

    def _put(self, topic: Topic) -> None:
        old = self.topics.pop(topic.id, None)
        kept = set(topic.spans)
        known = set() if old is None else set(old.spans)
        for first, last in known - kept:
            place = bisect_left(self._spans, (first, last, topic.id))
            if place < len(self._spans) and self._spans[place] == (first, last, topic.id):
                del self._spans[place]
        if topic.status != "dropped" and topic.spans:
            self.topics[topic.id] = topic
            for first, last in kept - known:
                insort(self._spans, (first, last, topic.id))


class TopicMaps:
    """Maps of many conversations; thread-safe. The store is asked for one small value to know whether a map still holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._maps: OrderedDict[tuple[str, str], TopicMap] = OrderedDict()
        self._lock = threading.RLock()

    def of(self, owner: str, conversation: str) -> TopicMap:
        """The topics of a conversation as the store has them. Cost: all topics are read where they changed elsewhere."""
        mark = tuple(self._store.state(owner, conversation, name) for name in _MARKS)
        with self._lock:
            known = self._maps.get((owner, conversation))
            if known is not None and known.mark == mark:
                self._maps.move_to_end((owner, conversation))
                return known
        fresh = TopicMap(mark, [topic_of(record) for _, record in self._store.topics(owner, conversation)])
        with self._lock:
            self._maps[owner, conversation] = fresh
            self._maps.move_to_end((owner, conversation))
            while len(self._maps) > 1 and sum(len(one.topics) for one in self._maps.values()) > _ROOM:
                self._maps.popitem(last=False)
        return fresh

    def before(self, turn: Turn) -> Mark | None:
        """What marks the topics of the conversation that a turn holds; None when nothing is remembered of it."""
        info = turn.info()
        with self._lock:
            if (info.owner, info.id) not in self._maps:
                return None
        return tuple(turn.state(name) for name in _MARKS)

    def changed(self, turn: Turn, before: Mark | None, topics: Iterable[Topic]) -> None:
        """A turn wrote topics: carry the map on, if it was that of before."""
        if before is None:
            return
        info = turn.info()
        with self._lock:
            known = self._maps.get((info.owner, info.id))
            if known is None or known.mark != before:
                self._maps.pop((info.owner, info.id), None)
                return
        known.put(topics, tuple(turn.state(name) for name in _MARKS))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._maps.clear()


def tag_of(topic: Topic) -> str:
    """How a topic is called in what is sent to a model: its number and its first labels."""
    return " ".join([name_of(topic), ", ".join(topic.labels[:2])]).strip()
