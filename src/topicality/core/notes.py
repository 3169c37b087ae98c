"""Which other topics a context names, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topicality.core.atoms import Atom, Turn
from topicality.core.packet import topic_order


@dataclass(frozen=True, slots=True)
class TopicNote:
    """A topic that is known from elsewhere (a store), to be named in one line.

    Attributes:
        tag: its tag or label.
        count: how many messages it has, in all.
        text: what it is about, or how it begins; only its beginning is shown.
        started: seconds since the epoch; None when unknown.
    """

    tag: str
    count: int
    text: str
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A topic to be named: its tag, how many of its messages are not shown, how it begins, its place."""

    tag: str
    count: int
    text: str
    place: int


def other_topics(
    turns: Sequence[Turn], atoms: list[Atom], current: str | None, others: Sequence[TopicNote], shown: frozenset[int]
) -> list[Note]:
    """Other topics with messages that are not shown: of the conversation, latest first, then from elsewhere.

    Args:
        current: tag of the current topic; None when there is none, and then no topic of the conversation is another.
        others: topics known from elsewhere, best first; their text and count go before what the conversation shows.
        shown: positions of the messages that are sent in full.
    Cost: O(len(turns) + M log M) for M topics.
    """
    if current is None and not others:
        return []
    sent: dict[str, int] = {}
    hidden: dict[str, list[int]] = {}
    for atom in atoms:
        if atom.topic is not None and atom.topic != current:
            if atom.members[0] in shown:
                sent[atom.topic] = sent.get(atom.topic, 0) + len(atom.members)
            elif current is not None:
                hidden.setdefault(atom.topic, []).extend(atom.members)
    known: dict[str, TopicNote] = {}
    for note in others:
        if note.tag != current:
            known.setdefault(note.tag, note)
    ordered = sorted(known.values(), key=lambda note: topic_order(note.tag, note.started))
    place = {note.tag: n - len(ordered) for n, note in enumerate(ordered)}
    found = []
    for tag in sorted(hidden, key=lambda tag: -hidden[tag][-1]):
        members = hidden[tag]
        text = next((turns[n].message.text for n in members if turns[n].message.role == "user"), "")
        known_note = known.pop(tag, None)
        count = max(len(members), known_note.count - sent.get(tag, 0)) if known_note else len(members)
        found.append(Note(tag, count, (known_note and known_note.text) or text, members[0]))
    for tag, note in known.items():
        if note.count > sent.get(tag, 0):
            found.append(Note(tag, note.count - sent.get(tag, 0), note.text, place[tag]))
    return found


def unnamed(notes: Sequence[Note]) -> Callable[[Sequence[int]], str]:
    """A last line that counts the topics without a note, from the positions of those with one; "" when all have."""

    def line(chosen: Sequence[int]) -> str:
        inside = set(chosen)
        counts = [note.count for n, note in enumerate(notes) if n not in inside]
        return f"[Earlier topics without a note: {len(counts)}, with {sum(counts)} messages]" if counts else ""

    return line
