"""What a conversation is asked for: passages, the directory, the messages to send. Reads the store, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import TYPE_CHECKING

from topicality.core.context import Context, Evidence, Layout, TopicNote, Turn, build_context
from topicality.core.directory import Directory, directory
from topicality.core.meter import TokenCounter
from topicality.core.packet import evidence_line
from topicality.core.shift import summarize_block
from topicality.core.spans import joined
from topicality.core.topics import Topic
from topicality.errors import ConfigError, InputError
from topicality.layer import flow
from topicality.layer.labelling import account
from topicality.layer.recall import Recall, Recalled, recall, token_counter
from topicality.layer.selecting import Candidates, Selected, select
from topicality.layer.topic_map import TopicMap, tag_of
from topicality.llm.settings import seconds
from topicality.records import Exchange, Scope
from topicality.types import Message

if TYPE_CHECKING:
    from topicality.layer.conversation import Conversation
    from topicality.layer.memory import Layer

HISTORY = 40  # of the latest exchanges, and as many of the current topic, that a context may show as they are
_NOTES = 24  # other topics that a context may name
_NOTED = 400  # tokens of the notes on them, about
_LEAST = 40  # tokens of evidence that are worth asking for
_HERE = "(this topic)"
_SHOWN = 800  # tokens of the directory that a selector is shown
_BEFORE, _CUT = 3, 600  # exchanges before the question that it is shown, and characters of each of their messages


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
    select: float | None = None


def recalled(
    layer: Layer,
    scope: Scope,
    question: str,
    budget: int,
    count: TokenCounter | None = None,
    favoured: Scope | None = None,
) -> Recall:
    """The passages that matter for a question, each with the first label of its topic."""
    label = layer.maps.labels(scope.owner, scope.conversation)

    return recall(
        layer.store,
        layer.embedder,
        scope,
        question,
        budget=budget,
        now=layer.clock(),
        count=count,
        topic_of=label,
        favoured=favoured,
    )


def reopened(
    talk: Conversation, scope: Scope, question: str, budget: int, count: TokenCounter | None, wait: float | None
) -> Recall:
    """As `recalled`; where the layer has a language model and the time, it says which topics' passages come first.

    Args:
        wait: seconds the selector may take; None for what the layer is set to, 0 for not asking.
    """
    layer = talk.layer
    wait = layer.roles.select if wait is None else seconds("select", wait)
    found = recalled(layer, scope, question, budget, count)
    if layer.asker is None or not wait or not question.strip():
        return found
    known = layer.maps.of(talk.owner, talk.id)
    here = Scope(talk.owner, talk.id)
    recent = [
        message.text[:_CUT]
        for exchange in layer.store.exchanges(here, statuses=("completed",), newest=_BEFORE)
        for message in (exchange.user, exchange.reply)
        if message is not None
    ]
    scores = _scores(known, found, talk.id)
    candidates = Candidates(known.listed(), scores, _SHOWN, count or token_counter(layer.embedder), layer.clock())
    chosen = select(layer.asker, question, recent, candidates, timeout=wait, conversation=account(talk.owner, talk.id))
    spans = joined(*(known.topics[name].spans for name in chosen.topics if name in known.topics))
    if chosen.strategy == "llm" and spans:
        found = recalled(layer, scope, question, budget, count, replace(here, sequences=spans))
    return replace(found, selected=chosen)


def _scores(known: TopicMap, found: Recall, conversation: str) -> dict[str, float]:
    """How much the topics matter that passages were found in."""
    scores: dict[str, float] = {}
    for place, passage in enumerate(sorted(found.passages, key=lambda passage: -passage.score)):
        topic = known.at(passage.sequence) if passage.conversation == conversation else None
        if topic is not None:
            scores[topic.id] = scores.get(topic.id, 0.0) + 1.0 / (1 + place)
    return scores


def directory_of(talk: Conversation, budget: int, question: str, count: TokenCounter | None) -> Directory:
    """The directory; topics that the question's passages are of first."""
    layer = talk.layer
    known = layer.maps.of(talk.owner, talk.id)
    scores: dict[str, float] = {}
    if question.strip():
        found = recalled(layer, Scope(talk.owner, talk.id), question, max(_LEAST, budget), count)
        scores = _scores(known, found, talk.id)
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
    selected: Selected | None = None
    if room >= _LEAST and asked.strip():
        where = replace(scope, conversation=None) if wish.everywhere else scope
        found = reopened(talk, where, asked, room, counter, wish.select)
        selected = found.selected
        for passage in sorted(found.passages, key=lambda passage: -passage.score):
            home = known.at(passage.sequence) if passage.conversation == talk.id else None
            if home is not None:
                others.append(home)
            one = evidence_of(passage, talk.id, None if home is None else tag_of(home))
            cost = counter(evidence_line(one, layout.now))
            if cost <= room:  # as it is quoted there, it is longer than in the answer that was asked for
                room -= cost
                evidence.append(one)
    notes = _notes(others, known, topic)
    if wish.layout is None:
        layout = replace(layout, max_notes=_fitting(notes, layout, counter))
    built = build_context(
        turns,
        wish.budget,
        counter,
        system=wish.system,
        policy_note=wish.policy_note,
        evidence=evidence,
        others=notes,
        layout=layout,
    )
    return built if selected is None else replace(built, notes=(*built.notes, *selected.told()), llm=selected.llm)


def evidence_of(passage: Recalled, conversation: str, topic: str | None = None) -> Evidence:
    """A recalled passage as evidence for a conversation: one that is its own carries the id that its message has there.

    Args:
        topic: what its topic is called; None for what the recall called it.
    """
    here = passage.conversation == conversation
    key = message_key(passage.sequence, passage.side)
    message = Message(
        passage.side, passage.text, passage.at, key if here else f"{passage.conversation}:{key}", passage.name
    )
    return Evidence(message, topic or passage.topic, passage.sequence if here else None, passage.cut)


def message_key(sequence: int, side: str) -> str:
    """The id that a message of the store has among those of a context."""
    return f"{sequence}:{side}"


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
                turns.append(Turn(replace(message, id=message_key(exchange.sequence, side)), tag))
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


def _fitting(notes: Sequence[TopicNote], layout: Layout, count: TokenCounter) -> int:
    """How many notes are about as long as notes should be together: what memory takes of a prompt has a bound."""
    spent = 0
    for number, note in enumerate(notes[: layout.max_notes]):
        spent += count(summarize_block(note.tag, note.count, note.text, layout.note_limit))
        if spent > _NOTED:
            return number
    return layout.max_notes
