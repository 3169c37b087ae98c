"""`read`: from any source to conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO

from topicality.doors.transcripts.archive import open_archive
from topicality.doors.transcripts.detect import detect
from topicality.doors.transcripts.exports import read_chatgpt, read_claude, read_discord, read_telegram
from topicality.doors.transcripts.models import SHAPES, read_shape
from topicality.doors.transcripts.plain import read_plain, read_webvtt
from topicality.doors.transcripts.record import Conversation, Problem, Report
from topicality.doors.transcripts.slack import is_member, read_slack, read_slack_day
from topicality.doors.transcripts.source import Meter, Progress, Source, open_source
from topicality.doors.transcripts.stream import read_stream
from topicality.doors.transcripts.table import read_csv
from topicality.doors.transcripts.whatsapp import read_whatsapp

_READERS: dict[str, Callable[[Source, Report], Iterator[Conversation]]] = {
    "chatgpt": read_chatgpt,
    "claude": read_claude,
    "discord": read_discord,
    "telegram": read_telegram,
    "slack": read_slack_day,
    "whatsapp": read_whatsapp,
    "webvtt": read_webvtt,
    "csv": read_csv,
    "plain": read_plain,
}


def read(
    source: str | Path | TextIO | BinaryIO, *, keep_going: bool = False, progress: Progress | None = None
) -> Iterator[Conversation]:
    """Read the conversations of a transcript, whatever its format.

    The format is found by content (see `detect`). Records are streamed: what is held at a time is one conversation, or
    the conversations whose messages are interleaved. A file that is one long chat is one conversation, held whole.

    Nothing half-read comes out: without `keep_going` the source is read twice, and the first conversation is given only
    when all of it was found to be good. A stream that cannot be rewound is copied first (in memory up to 16 MiB, then
    in an unnamed temporary file).

    Args:
        source: path of a file (a str is a path, never the transcript itself), or a stream of bytes or text. A stream is
            read from where it stands and is not closed.
        keep_going: pass over malformed records and report them in `problems`; bytes that are no text become U+FFFD.
        progress: called with the bytes read so far and the bytes to read in all (None if unknown), several times a
            second on long work. Both readings count, as do all members of an archive that are read.
    Returns:
        Conversations that have messages, in the order in which they end in the source. If there is none but there were
        problems, one conversation without messages carries them. An empty source gives none. `at` of the messages is in
        seconds since the epoch; times without a zone are taken as UTC.
    Raises:
        InputError: when iterated: the source cannot be read, is of no known format, or (not keeping going) has a
            malformed record, which the message names by its position. A zip that unpacks to too much, at any setting.
    Cost: O(bytes); some 10 microseconds a message, twice that when not keeping going.
    """
    opened = open_source(source)
    try:
        passes = 1 if keep_going else 2
        opened.meter = Meter(progress, None if opened.size is None else opened.size * passes)
        if not keep_going:
            for _ in _conversations(opened, Report(keep_going=False), passes):
                pass
        yield from _numbered(opened, Report(keep_going=keep_going), passes)
    finally:
        opened.close()


def _numbered(source: Source, report: Report, passes: int) -> Iterator[Conversation]:
    """Conversations with an id and their problems. One is held back, so that what follows the last is not lost."""
    held: Conversation | None = None
    waiting: tuple[Problem, ...] = ()
    number = 0
    last = ""
    for conversation in _conversations(source, report, passes):
        waiting += report.take()
        last = conversation.source
        if not conversation.messages:
            continue
        number += 1
        if held is not None:
            yield held
        held = replace(conversation, id=conversation.id or str(number), problems=waiting)
        waiting = ()
    waiting += report.take()
    if held is not None:
        yield replace(held, problems=held.problems + waiting)
    elif waiting:
        yield Conversation("1", None, (), last or detect(source.head()), waiting)


def _conversations(source: Source, report: Report, passes: int) -> Iterator[Conversation]:
    name = detect(source.head(), source.label)
    if name == "zip":
        with open_archive(source) as (inside, members):
            meter = source.meter
            if meter is not None:
                meter.total = sum(member.size or 0 for member in members) * passes
            for member in members:
                member.meter = meter
            if inside == "slack" and is_member(members[0].label):
                yield from read_slack(members, report)
                return
            for member in members:
                report.prefix = f"{member.label}: "
                yield from _one(inside, member, report)
            report.prefix = ""
    elif name != "empty":
        yield from _one(name, source, report)


def _one(name: str, source: Source, report: Report) -> Iterator[Conversation]:
    if name in SHAPES:
        return read_shape(SHAPES[name], source, report)
    if name.endswith("-stream"):
        return read_stream(source, report, name)
    return _READERS[name](source, report)
