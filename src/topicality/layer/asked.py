"""What a conversation is asked for: passages, the directory, the messages to send. Reads the store, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import TYPE_CHECKING

from topicality.core.context import Context, Evidence, Layout, TopicNote, Turn, build_context
from topicality.core.directory import Directory, directory
from topicality.core.meter import TokenCounter
from topicality.core.topics import Topic
from topicality.errors import ConfigError, InputError
from topicality.layer import flow
from topicality.layer.recall import Recall, recall, token_counter
from topicality.layer.topic_map import TopicMap, tag_of
from topicality.records import Exchange, Scope
from topicality.types import Message

if TYPE_CHECKING:
    from topicality.layer.conversation import Conversation
    from topicality.layer.memory import Layer

HISTORY = 40  # of the latest exchanges, and as many of the current topic, that a context may show as they are
_NOTES = 24  # other topics that a context may name
_LEAST = 40  # tokens of evidence that are worth asking for
_HERE = "(this topic)"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a context is to be like: see `Conversation.context`."""

    budget: int
    system: str = ""
    question: str | None = None
    policy_note: str = ""
    memory: int = 1500
    everywhere: bool = False
    layout: Layout | None = None
    count: TokenCounter | None = None


def recalled(layer: Layer, scope: Scope, question: str, budget: int, count: TokenCounter | None = None) -> Recall:
    """The passages that matter for a question, each with the first label of its topic."""
    maps: dict[str, TopicMap] = {}

    def label(conversation: str, sequence: int) -> str | None:
        if conversation not in maps:
            maps[conversation] = layer.maps.of(scope.owner, conversation)
        topic = maps[conversation].at(sequence)
        return topic.labels[0] if topic is not None and topic.labels else None

    return recall(
        layer.store, layer.embedder, scope, question, budget=budget, now=layer.clock(), count=count, topic_of=label
    )


def directory_of(talk: Conversation, budget: int, question: str, count: TokenCounter | None) -> Directory:
    """The directory; topics that the question's passages are of first."""
    layer = talk.layer
    known = layer.maps.of(talk.owner, talk.id)
    scores: dict[str, float] = {}
    if question.strip():
        found = recalled(layer, Scope(talk.owner, talk.id), question, max(_LEAST, budget), count)
        ranked = sorted(found.passages, key=lambda passage: -passage.score)
        for place, passage in enumerate(ranked):
            topic = known.at(passage.sequence)
            if topic is not None:
                scores[topic.id] = scores.get(topic.id, 0.0) + 1.0 / (1 + place)
    counter = count or token_counter(layer.embedder)
    return directory(known.listed(), budget, counter, now=layer.clock(), scores=scores)


def context_of(talk: Conversation, wish: Wish) -> Context:
    """The messages to send: history and current topic as they are, evidence and other topics as quoted data."""
    layer = talk.layer
    if isinstance(wish.memory, bool) or wish.memory < 0:
        raise ConfigError("cannot be used", key="memory", got=wish.memory, accepted="tokens, a whole number from 0")
    counter = wish.count or token_counter(layer.embedder)
    known = layer.maps.of(talk.owner, talk.id)
    scope = Scope(talk.owner, talk.id)
    recent = layer.store.exchanges(scope, statuses=("completed", "pending"), newest=HISTORY)
    asked = _asked(recent, wish.question)
    current = None
    if wish.question is None:
        waiting = flow.waiting_topics(layer.store.state(talk.owner, talk.id, flow.FLOW))
        last = max((e.sequence for e in recent if e.status == "pending"), default=0)
        current = waiting.get(last)
    topic = known.topics.get(current or "")
    tag = tag_of(topic) if topic is not None else _HERE if current is not None else None
    said = _with_topic(layer, scope, recent, topic)
    turns = _turns(said, known, wish.question, tag)
    base = wish.layout or Layout()
    layout = replace(base, now=base.now if base.now is not None else layer.clock(), current=base.current or tag)
    room = min(wish.memory, int(base.evidence_share * wish.budget))
    evidence: list[Evidence] = []
    others: list[Topic] = []
    if room >= _LEAST and asked.strip():
        where = replace(scope, conversation=None) if wish.everywhere else scope
        found = recalled(layer, where, asked, room, counter)
        for passage in sorted(found.passages, key=lambda passage: -passage.score):
            home = known.at(passage.sequence) if passage.conversation == talk.id else None
            if home is not None:
                others.append(home)
            key = _key(passage.sequence, passage.side)
            if passage.conversation != talk.id:
                key = f"{passage.conversation}:{key}"
            message = Message(passage.side, passage.text, passage.at, key, passage.name)
            shown = tag_of(home) if home is not None else passage.topic
            sequence = passage.sequence if passage.conversation == talk.id else None
            evidence.append(Evidence(message, shown, sequence, passage.cut))
    return build_context(
        turns,
        wish.budget,
        counter,
        system=wish.system,
        policy_note=wish.policy_note,
        evidence=evidence,
        others=_notes(others, known, topic),
        layout=layout,
    )


def _asked(recent: Sequence[Exchange], question: str | None) -> str:
    if question is not None:
        return question
    if not recent or all(exchange.status != "pending" for exchange in recent):
        raise InputError("there is no message to answer: receive one first, or give a question")
    return next(exchange.user.text for exchange in reversed(recent) if exchange.status == "pending")


def _with_topic(layer: Layer, scope: Scope, recent: list[Exchange], topic: Topic | None) -> list[Exchange]:
    """The latest exchanges, with those of the current topic from before them."""
    if topic is None or not recent:
        return recent
    first = recent[0].sequence
    spans, left = [], HISTORY
    for start, end in reversed(topic.spans):
        last = min(end, first - 1)
        if last >= start and left > 0:
            begin = max(start, last - left + 1)
            spans.append((begin, last))
            left -= last - begin + 1
    if not spans:
        return recent
    earlier = layer.store.exchanges(replace(scope, sequences=tuple(spans)), statuses=("completed",))
    return [*earlier, *recent]


def _turns(said: Sequence[Exchange], known: TopicMap, question: str | None, current: str | None) -> list[Turn]:
    turns: list[Turn] = []
    pending = [exchange for exchange in said if exchange.status == "pending"]
    latest = pending[-1] if pending and question is None else None
    for exchange in said:
        if exchange.status == "pending" and exchange is not latest:
            continue  # nobody has answered it, and nobody is asked to now
        topic = known.at(exchange.sequence)
        tag = tag_of(topic) if topic is not None else current if exchange is latest else None
        for side, message in (("user", exchange.user), ("assistant", exchange.reply)):
            if message is not None and message.text.strip():
                turns.append(Turn(replace(message, id=_key(exchange.sequence, side)), tag))
    if latest is not None and not latest.user.text.strip():
        raise InputError("the message to answer is blank")
    if question is not None:
        if not question.strip():
            raise InputError("the question is blank")
        turns.append(Turn(Message("user", question), None))
    return turns


def _notes(found: Sequence[Topic], known: TopicMap, current: Topic | None) -> list[TopicNote]:
    """Topics to be named: those that something was recalled from, then the latest ones."""
    latest = nlargest(_NOTES, known.listed(), key=lambda topic: topic.last)
    chosen = {topic.id: topic for topic in [*found, *latest] if current is None or topic.id != current.id}
    return [
        TopicNote(tag_of(topic), 2 * topic.count, "; ".join(topic.terms), topic.started_at)
        for topic in list(chosen.values())[:_NOTES]
    ]


def _key(sequence: int, side: str) -> str:
    return f"{sequence}:{side}"
