"""Topics of conversations in memory, to say which one an exchange is in: a bounded cache of what the store has."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable

from topicality.core.directory import name_of
from topicality.core.topics import Topic, topic_of
from topicality.ports import Store, Turn
from topicality.records import ConversationRecord

_ROOM = 50_000  # topics remembered in all
_LABELS = 2_000_000  # spans whose labels are remembered in all, 20 bytes each and the labels

Mark = tuple[int, int]  # which conversation, and the version of its topics


_NOTHING: Mark = (0, 0)


def _mark(record: ConversationRecord) -> Mark:
    return record.born, record.topics_version


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

    def label(self, sequence: int) -> str | None:
        """The first label of the topic an exchange is in."""
        topic = self.at(sequence)
        return topic.labels[0] if topic is not None and topic.labels else None

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


class Labels:
    """The first label of the topic that each exchange of a conversation is in, and nothing else: small. Never changed."""

    def __init__(self, mark: Mark, topics: Iterable[Topic]) -> None:
        self.mark = mark
        self._names: list[str | None] = []
        spans = []
        for number, topic in enumerate(topics):
            self._names.append(topic.labels[0] if topic.labels else None)
            spans += [(first, last, number) for first, last in topic.spans]
        spans.sort()
        self._firsts, self._lasts, self._homes = (array("q", [span[part] for span in spans]) for part in range(3))

    def __len__(self) -> int:
        return len(self._firsts)

    def label(self, sequence: int) -> str | None:
        """See `TopicMap.label`."""
        place = bisect_right(self._firsts, sequence) - 1
        if place < 0 or self._lasts[place] < sequence:
            return None
        return self._names[self._homes[place]]


class TopicMaps:
    """Maps of many conversations; thread-safe. The store is asked for one row to know whether a map still holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._maps: OrderedDict[tuple[str, str], TopicMap] = OrderedDict()
        self._labels: OrderedDict[tuple[str, str], Labels] = OrderedDict()
        self._lock = threading.RLock()

    def of(self, owner: str, conversation: str) -> TopicMap:
        """The topics of a conversation as the store has them. Cost: all topics are read where they changed elsewhere."""
        mark = _mark(self._store.conversation(owner, conversation))
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

    def labels(self, owner: str, conversation: str | None) -> Callable[[str, int], str | None]:
        """The first label of the topic of an exchange, by conversation and sequence, as the store has them now.

        Args:
            conversation: the only one that will be asked for; None for all of the owner's.
        Cost: for all, a row of each; then see `of`, but only small maps are kept.
        """
        if conversation is not None:
            known = self.of(owner, conversation)
            return lambda _, sequence: known.label(sequence)
        marks = {record.id: _mark(record) for record in self._store.conversations(owner)}

        def label(conversation: str, sequence: int) -> str | None:
            return self._labelled(owner, conversation, marks.get(conversation, _NOTHING)).label(sequence)

        return label

    def _labelled(self, owner: str, conversation: str, mark: Mark) -> TopicMap | Labels:
        place = (owner, conversation)
        with self._lock:
            whole, known = self._maps.get(place), self._labels.get(place)
            if whole is not None and whole.mark == mark:
                return whole
            if known is not None and known.mark == mark:
                self._labels.move_to_end(place)
                return known
        fresh = Labels(mark, [topic_of(record) for _, record in self._store.topics(owner, conversation)])
        with self._lock:
            self._labels[place] = fresh
            self._labels.move_to_end(place)
            while len(self._labels) > 1 and sum(map(len, self._labels.values())) > _LABELS:
                self._labels.popitem(last=False)
        return fresh

    def before(self, turn: Turn) -> Mark | None:
        """What marks the topics of the conversation that a turn holds; None when nothing is remembered of it."""
        info = turn.info()
        with self._lock:
            if (info.owner, info.id) not in self._maps:
                return None
        return _mark(info)

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
        known.put(topics, _mark(turn.info()))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._maps.clear()
            self._labels.clear()


def tag_of(topic: Topic) -> str:
    """How a topic is called in what is sent to a model: its number and its first labels."""
    return " ".join([name_of(topic), ", ".join(topic.labels[:2])]).strip()
