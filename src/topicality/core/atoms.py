"""A conversation as pieces that cannot be split: a message, or a tool call with all its replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topicality.errors import InputError
from topicality.types import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """A message with what the context builder needs to know about it.

    Attributes:
        message: what was said, with its tool calls or the call it answers. A tool message that names no call answers
            the message before it.
        topic: tag of its topic; None or blank when it has none.
        payload: what is sent besides the text (names and arguments of calls, as sent); only counted.
    """

    message: Message
    topic: str | None = None
    payload: str = ""


@dataclass(frozen=True, slots=True)
class Atom:
    """Messages that are sent together or not at all.

    Attributes:
        members: positions of its messages, ascending; not always in a row.
        topic: the first tag in it, None when it has none.
    """

    members: tuple[int, ...]
    topic: str | None


def atoms_of(turns: Sequence[Turn]) -> list[Atom]:
    """Group a conversation into atoms.

    A reply belongs to the latest call of its id before it, also when other messages came between. Left out, since
    servers reject them: a reply whose call is unknown, and a call that was made before the latest user message and has
    a reply missing, with the replies it has. Of messages with the same id, role and text the last one counts.

    Returns:
        Atoms in the order of their first messages; each position in at most one.
    Raises:
        InputError: the same id on messages of different text or role.
    Cost: O(len(turns)). Source: the Go port of system C, which knew only replies that follow in a row.
    """
    repeated = _repeated(turns)
    latest = max((n for n, turn in enumerate(turns) if turn.message.role == "user"), default=len(turns))
    members: dict[int, list[int]] = {}
    pending: dict[int, list[str]] = {}
    caller: dict[str, int] = {}
    before: int | None = None  # first position of the atom that a reply without id would join
    for n, turn in enumerate(turns):
        if n in repeated:
            continue
        if turn.message.role == "tool":
            first = before if turn.message.call is None else caller.get(turn.message.call)
            if first is None:
                continue
            members[first].append(n)
            _answer(pending.get(first, []), turn.message.call)
            before = first
            continue
        members[n] = [n]
        before = None
        if turn.message.role == "assistant":
            before = n
            pending[n] = list(turn.message.calls)
            caller.update(dict.fromkeys(turn.message.calls, n))
    atoms = []
    for first, inside in members.items():
        if first > latest or not pending.get(first):
            tags = (topic for n in inside if (topic := turns[n].topic) and topic.strip())
            atoms.append(Atom(tuple(inside), next(tags, None)))
    return atoms


def latest_user(turns: Sequence[Turn]) -> int:
    """Position of the latest user message.

    Raises:
        InputError: there is none.
    """
    for n in range(len(turns) - 1, -1, -1):
        if turns[n].message.role == "user":
            return n
    raise InputError('the conversation has no message of role "user"; there is nothing to answer')


def current_topic(turns: Sequence[Turn]) -> str | None:
    """Tag of the latest user message that has one; None when none has."""
    for turn in reversed(turns):
        if turn.message.role == "user" and turn.topic and turn.topic.strip():
            return turn.topic
    return None


def _repeated(turns: Sequence[Turn]) -> set[int]:
    """Positions of messages that occur again later."""
    repeated: set[int] = set()
    at: dict[str, int] = {}
    for n, turn in enumerate(turns):
        key = turn.message.id
        if key is None:
            continue
        if key in at:
            earlier = turns[at[key]].message
            if (earlier.role, earlier.text) != (turn.message.role, turn.message.text):
                raise InputError(
                    f"messages {at[key]} and {n} have the same id {key!r} but differ; an id names one message"
                )
            repeated.add(at[key])
        at[key] = n
    return repeated


def _answer(pending: list[str], call: str | None) -> None:
    if call is None:
        del pending[:1]
    elif call in pending:
        pending.remove(call)
