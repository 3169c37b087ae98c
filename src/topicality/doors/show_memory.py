"""What people and programs see of memory: topics, passages, the messages to send. User text is never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from topicality.core.packet import iso_time, relative_time
from topicality.core.spans import shown
from topicality.doors.show import console, plain

if TYPE_CHECKING:
    from topicality.core.context import Context
    from topicality.core.topics import Topic
    from topicality.layer.recall import Recall

_STATUS = {"open": "green", "provisional": "yellow", "finalized": "dim"}


def imported(conversations: int, counts: Mapping[str, int]) -> None:
    """What an import did, in a line or two."""
    out = console()
    known = counts["known"]
    line = f"{_counted(conversations, 'conversation')}: {_counted(counts['new'], 'exchange')} imported"
    out.print(Text(line + (f", {known} known already" if known else "")))
    more = {"answered": "given the reply they lacked", "other": "there with another text, left as they are",
            "dropped": "messages of tools and systems, not kept"}  # fmt: skip
    for name, what in more.items():
        if counts[name]:
            out.print(Text(f"  {counts[name]} {what}", style="dim"))


def topics(conversation: str, found: Sequence[Topic], now: float) -> None:
    """A conversation's topics, one a line, with terms below."""
    out = console()
    out.print(Text(plain(conversation, 100), style="bold"), Text(f"  {_counted(len(found), 'topic')}"), sep="")
    for topic in found:
        labels = ", ".join(topic.labels) or "small talk"
        when = relative_time(None if topic.ended_at is None else now - topic.ended_at)
        out.print(
            Text(f"  T{topic.number:<4} "),
            Text(plain(labels, 80), style="bold"),
            Text(f"  {shown(topic.spans)}  {when}  ", style="dim"),
            Text(topic.status, style=_STATUS.get(topic.status, "")),
            sep="",
        )
        terms = [term for term in topic.terms if term not in topic.labels]
        if terms:
            out.print(Text(f"         {plain(', '.join(terms), 110)}", style="dim"))


def topic_values(topic: Topic) -> dict[str, Any]:
    """A topic as plain values."""
    return {
        "id": topic.id,
        "number": topic.number,
        "status": topic.status,
        "labels": list(topic.labels),
        "terms": list(topic.terms),
        "spans": [list(span) for span in topic.spans],
        "exchanges": topic.count,
        "started_at": None if topic.started_at is None else iso_time(topic.started_at),
        "ended_at": None if topic.ended_at is None else iso_time(topic.ended_at),
    }


def recalled(found: Recall) -> None:
    """What was found, as it would be sent; its text says so where that is no answer."""
    out = console()
    if not found.text:
        out.print(Text("Nothing found.", style="yellow"))
    for line in found.text.split("\n") if found.text else []:
        out.print(Text(plain(line, 100_000), style="dim" if line.startswith(("#", "+")) else ""))
    if found.omitted:
        out.print(Text(f"{_counted(found.omitted, 'passage')} as good had no room", style="dim"))
    for note in found.selected.told() if found.selected else ():
        out.print(Text(plain(note, 300), style="dim"))


def recall_values(found: Recall) -> dict[str, Any]:
    """A recall as plain values."""
    return asdict(found)


def context(found: Context) -> None:
    """The messages to send, and what was left out."""
    out = console()
    for message in found.messages:
        out.print(Text(f"{message.role}", style="bold"))
        for line in message.text.split("\n"):
            out.print(Text(f"  {plain(line, 100_000)}"))
    out.print(Text(f"{found.tokens} tokens", style="dim"))
    for note in found.notes:
        out.print(Text(f"  {note}", style="dim"))


def context_values(found: Context) -> dict[str, Any]:
    """A context as plain values: messages as chat servers take them, and what was left out."""
    messages = []
    for message in found.messages:
        named = {} if message.name is None else {"name": message.name}
        messages.append({"role": message.role, "content": message.text, **named})
    counts = ("tokens", "stage", "dropped", "omitted", "omitted_evidence", "omitted_topics")
    plain_values = {name: getattr(found, name) for name in counts}
    use = None if found.llm is None else asdict(found.llm)
    return {"messages": messages, **plain_values, "notes": list(found.notes), "llm": use}


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
