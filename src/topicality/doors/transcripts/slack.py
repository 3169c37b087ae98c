"""Slack's workspace export: a folder a channel, a file a day, and files that say who and what the ids are.

A thread that has replies is a conversation of its own (the message it hangs on comes first, and is not repeated in the
channel); the rest of a channel is one conversation. Each message comes once, in order of time. Joins and changes of
topic are system messages, posts of bots are the assistant's, deleted messages are left out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

from topicality.doors.transcripts.cursor import rows
from topicality.doors.transcripts.record import (
    Conversation,
    Malformed,
    Report,
    Thread,
    first,
    label,
    mapping,
    sequence,
    when,
)
from topicality.doors.transcripts.source import Source

DAY = re.compile(r"(?:.*/)?([^/]+)/\d{4}-\d{2}-\d{2}\.json")
_INDEX = re.compile(r"(?:[^/]+/)?(users|channels|groups|dms|mpims)\.json")
_REFERENCE = re.compile(r"<([^<>|]{1,2000})(?:\|([^<>]{0,2000}))?>")
_SAID = frozenset({"me_message", "file_share", "thread_broadcast", "file_comment", "reply_broadcast"})
_GONE = frozenset({"message_deleted", "message_changed", "tombstone", "message_replied"})

Names = dict[str, str]


def is_member(name: str) -> bool:
    """Whether a member of the archive is a channel's day, or says who and what the ids are."""
    return DAY.fullmatch(name) is not None or _INDEX.fullmatch(name) is not None


def read_slack_day(source: Source, report: Report) -> Iterator[Conversation]:
    """One day's file by itself: names are ids where the messages do not carry a profile."""
    yield from _channel([source], None, None, {}, {}, report)


def read_slack(members: Iterable[Source], report: Report) -> Iterator[Conversation]:
    """The members of an export."""
    people: Names = {}
    channels: Names = {}
    days: dict[str, list[Source]] = {}
    for member in members:
        index = _INDEX.fullmatch(member.label)
        day = DAY.fullmatch(member.label)
        if index is not None:
            report.prefix = f"{member.label}: "
            for _, row in rows(member, report):
                _learn(mapping(row), people if index.group(1) == "users" else channels)
        elif day is not None:
            days.setdefault(day.group(1), []).append(member)
    ids = {name: key for key, name in channels.items()}
    for folder, files in days.items():
        key = ids.get(folder, folder)
        files.sort(key=lambda file: file.label)
        yield from _channel(files, key, channels.get(key, folder), people, channels, report)
    report.prefix = ""


def _learn(row: dict[str, Any], names: Names) -> None:
    key = label(row.get("id"))
    name = _person(row) or label(row.get("name"))
    if key is not None and name is not None:
        names[key] = name


def _person(row: dict[str, Any]) -> str | None:
    profile = mapping(row.get("profile"))
    for each in (profile.get("display_name"), profile.get("real_name"), row.get("real_name"), row.get("display_name")):
        if label(each):
            return label(each)
    return None


def _channel(
    files: list[Source], key: str | None, title: str | None, people: Names, channels: Names, report: Report
) -> Iterator[Conversation]:
    main = Thread("slack", key, title)
    threads: dict[str, Thread] = {}
    for file in files:
        report.prefix = f"{file.label}: " if key is not None else ""
        for position, row in rows(file, report):
            if not isinstance(row, dict):
                report(position, "expected an object")
                continue
            root = label(row.get("thread_ts"))
            thread = main
            if root is not None and (root != row.get("ts") or row.get("reply_count") or row.get("replies")):
                if root not in threads:
                    threads[root] = Thread("slack", f"{key}/{root}" if key else root, title)
                thread = threads[root]
            try:
                _add(thread, row, people, channels, position, report)
            except Malformed as problem:
                report(position, str(problem))
    yield main.done(by_time=True)
    for thread in threads.values():
        yield thread.done(by_time=True)


def _add(thread: Thread, row: dict[str, Any], people: Names, channels: Names, position: str, report: Report) -> None:
    if row.get("type", "message") != "message":
        return
    kind = label(row.get("subtype"))
    if kind in _GONE:
        return
    text = row.get("text")
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise Malformed("the text is not text")
    user = label(row.get("user"))
    name = people.get(user or "") or _person({"profile": row.get("user_profile")}) or label(row.get("username")) or user
    if kind == "bot_message" or (user is None and row.get("bot_id")):
        role, name = "assistant", label(row.get("username")) or name or label(row.get("bot_id"))
    elif kind is None or kind in _SAID:
        role = "user"
        if name is None:
            raise Malformed("the user is missing")
    else:
        role = "system"
    text = _readable(text, people, channels)
    if not text.strip():
        others = [first(mapping(each), "text", "fallback") for each in sequence(row.get("attachments"))]
        text = "\n".join(_readable(each, people, channels) for each in others if isinstance(each, str) and each)
    if not text.strip():
        files = [label(first(mapping(each), "title", "name")) or "file" for each in sequence(row.get("files"))]
        text = "\n".join(f"[file: {each}]" for each in files)
    ts = label(row.get("ts"))
    if ts is None:
        raise Malformed("the ts is missing")
    thread.add(role, text, at=when(report, position, ts), key=ts, name=name)


def _readable(text: str, people: Names, channels: Names) -> str:
    """Slack's markup as people see it: mentions by name, links by their label, `&amp;` undone."""

    def one(match: re.Match[str]) -> str:
        target, shown = match.group(1), match.group(2)
        if target.startswith("@"):
            return "@" + (people.get(target[1:]) or shown or target[1:])
        if target.startswith("#"):
            return "#" + (shown or channels.get(target[1:]) or target[1:])
        if target.startswith("!"):
            return shown or "@" + target[1:].split("^")[0]
        return shown or target.removeprefix("mailto:")

    return html.unescape(_REFERENCE.sub(one, text))
