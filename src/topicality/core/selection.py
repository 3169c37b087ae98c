"""A selector's reply, never trusted: which topics of a directory are needed for a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topicality.core.directory import Listed, chosen_topics, name_of
from topicality.core.replies import objects

MOST = 3  # topics that are reopened for one message (system D)

_KEYS = ("needs_memory", "topics", "needs_time")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector chose.

    Attributes:
        topics: ids of known topics, each once, at most three, in its order; empty when it wants none.
        needs_time: whether the message asks when something was.
        notes: what was left out of its reply.
    """

    topics: tuple[str, ...]
    needs_time: bool
    notes: tuple[str, ...] = ()


def selection_schema(topics: Sequence[Listed]) -> dict[str, Any]:
    """JSON schema of a selector's reply: closed, with the names of the topics that it was shown."""
    names = [name_of(topic) for topic in topics]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(_KEYS),
        "properties": {
            "needs_memory": {"type": "boolean"},
            "topics": {"type": "array", "maxItems": MOST, "items": {"type": "string", "enum": names}},
            "needs_time": {"type": "boolean"},
        },
    }


def read_selection(reply: str, topics: Sequence[Listed]) -> Selection | list[str]:
    """The selection in a reply, or what is wrong with it.

    Unknown names and repetitions drop out before the cut to three, and are noted; the string "true" is not true. Several
    answers that contradict each other are none.

    Args:
        topics: those that it was shown.
    """
    faults: list[str] = []
    found: list[Selection] = []
    for candidate in objects(reply):
        answer = _selection(candidate, topics)
        if isinstance(answer, Selection):
            found.append(answer)
        else:
            faults = faults or answer
    if any((one.topics, one.needs_time) != (found[0].topics, found[0].needs_time) for one in found):
        return ["the reply has several answers that contradict each other; give one"]
    return found[0] if found else faults or ["the reply has no JSON object"]


def _selection(value: Mapping[str, Any], topics: Sequence[Listed]) -> Selection | list[str]:
    faults = [f"missing key {key!r}" for key in _KEYS if key not in value]
    faults += [f"unknown key {str(key)[:40]!r}" for key in value if key not in _KEYS]
    if faults:
        return faults
    wanted, names, timed = value["needs_memory"], value["topics"], value["needs_time"]
    if not isinstance(wanted, bool):
        faults.append("needs_memory must be true or false")
    if not isinstance(timed, bool):
        faults.append("needs_time must be true or false")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        faults.append("topics must be an array of names from the directory")
    if faults:
        return faults
    everything = chosen_topics(names, topics, len(topics))
    chosen = everything[:MOST] if wanted else []
    notes = []
    unknown = sum(not chosen_topics([name], topics) for name in names)
    if unknown:
        notes.append(f"the selector named {unknown} topics that it was not shown; they were left out")
    if wanted and len(everything) > MOST:
        notes.append(f"the selector chose {len(everything)} topics; the first {MOST} were taken")
    if wanted and names and not chosen:
        return ["none of the topics stands in the directory; spell the names exactly as given"]
    return Selection(tuple(chosen), timed, tuple(notes))
