"""WhatsApp's text export, in the shapes Android and iOS give it in different countries.

Times carry no zone and are taken as UTC. Whether 01/03 is in January or in March is decided once for the whole file: by
a number above 12, else by the reading in which time runs backwards less often, else by the one that spans less time,
else by the clock (12 hours: the United States). Media is kept as "[media]" or "[attachment: name]"; lines of the app
itself ("Ana joined") are system messages; deleted messages are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from topicality.doors.transcripts.record import Conversation, Malformed, Report, Thread, label, seconds_of
from topicality.doors.transcripts.source import Source

_DATE = r"(\d{1,4})[./-][ ]?(\d{1,2})[./-][ ]?(\d{1,4})\.?"
_TIME = r"(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?(?:\s?([AaPp])\.?\s?[Mm]\.?)?"
_HEADER = re.compile(
    rf"[\u200e\u200f\ufeff]*(?:\[{_DATE},?\s(?:\w{{2,3}}\.?\s)?{_TIME}\]|{_DATE},?\s(?:\w{{2,3}}\.?\s)?{_TIME}\s[-–])\s(.*)",
    re.DOTALL,
)
_NAMED = re.compile(r"([^:\u201c\"]{1,80}):(?:\s(.*)|)", re.DOTALL)
_EDITED = "<This message was edited>"
_MEDIA = re.compile(r"\u200e?<(?=[^<>\n]*[\s\u0080-\uffff])[^<>=/\n]{3,60}>|\u200e.{1,40}omitted", re.DOTALL)
_ATTACHED = re.compile(r"\u200e?<[^<>:\n]{1,30}: ([^<>\n]+)>|\u200e?([^\n/]{1,120}\.\w{2,4}) \([^()\n]*attached\)")
_DELETED = re.compile(r"\u200e?(?:This message was deleted|You deleted this message)\.?")
_MARKS = str.maketrans("", "", "\u200e\u200f")
_LOOK = 20


@dataclass(frozen=True, slots=True)
class _Header:
    date: tuple[int, int, int]
    clock: tuple[int, int, int]
    year_first: bool
    half: bool  # a 12-hour clock
    bracketed: bool
    rest: str


def is_whatsapp(start: str) -> bool:
    """Whether one of the first lines has WhatsApp's date, time and dash or brackets."""
    return any(_header(line) is not None for line in start.split("\n", _LOOK)[:_LOOK])


def read_whatsapp(source: Source, report: Report) -> Iterator[Conversation]:
    """The one conversation of the file."""
    if "month_first" not in source.memo:
        with source.glance() as text:
            source.memo["month_first"] = _month_first(line for _, line in text.lines())
    month_first: bool = source.memo["month_first"]
    thread = Thread("whatsapp")
    header: _Header | None = None
    lines: list[str] = []
    start = 0
    with source.text(report) as text:
        for number, line in text.lines():
            found = _header(line)
            if found is None:
                if header is None and start == 0:
                    if line.strip():
                        report(f"line {number}", "text before the first message")
                    continue
                lines.append(line)
                continue
            _add(thread, report, start, header, lines, month_first)
            header, lines, start = found, [found.rest], number
    _add(thread, report, start, header, lines, month_first)
    yield thread.done()


def _header(line: str) -> _Header | None:
    match = _HEADER.match(line)
    if match is None:
        return None
    groups = match.groups()
    bracketed = groups[0] is not None
    first, second, third, hour, minute, second_, half = groups[0:7] if bracketed else groups[7:14]
    hours = int(hour)
    if half:
        hours = hours % 12 + (12 if half in "Pp" else 0)
    return _Header(
        date=(int(first), int(second), int(third)),
        clock=(hours, int(minute), int(second_ or 0)),
        year_first=len(first) == 4,
        half=bool(half),
        bracketed=bracketed,
        rest=match.group(15),
    )


def _month_first(lines: Iterator[str]) -> bool:
    last: dict[bool, float] = {}
    low: dict[bool, float] = {}
    high: dict[bool, float] = {}
    back = {True: 0, False: 0}
    above = {True: 0, False: 0}
    american = False
    for line in lines:
        header = _header(line)
        if header is None or header.year_first:
            continue
        american = american or header.half
        above[False] += header.date[0] > 12
        above[True] += header.date[1] > 12
        for reading in (True, False):
            try:
                at = _seconds(header, month_first=reading)
            except Malformed:
                continue
            back[reading] += at < last.get(reading, at)
            last[reading] = at
            low[reading] = min(at, low.get(reading, at))
            high[reading] = max(at, high.get(reading, at))
    if above[True] != above[False]:
        return above[True] > above[False]
    if back[True] != back[False]:
        return back[True] < back[False]
    spans = {reading: high.get(reading, 0.0) - low.get(reading, 0.0) for reading in (True, False)}
    if spans[True] != spans[False]:
        return spans[True] < spans[False]
    return american


def _seconds(header: _Header, *, month_first: bool) -> float:
    first, second, third = header.date
    if header.year_first:
        year, month, day = first, second, third
    else:
        day, month, year = (second, first, third) if month_first else (first, second, third)
    if year < 100:
        year += 2000
    try:
        return seconds_of(datetime(year, month, day, *header.clock, tzinfo=UTC))
    except ValueError:
        raise Malformed("no such date or time") from None


def _add(
    thread: Thread, report: Report, start: int, header: _Header | None, lines: list[str], month_first: bool
) -> None:
    if header is None:
        return
    try:
        at = _seconds(header, month_first=month_first)
    except Malformed as problem:
        report(f"line {start}", str(problem))
        return
    whole = "\n".join(lines).rstrip("\n")
    named = _NAMED.fullmatch(whole)
    if named is None:
        thread.add("system", whole.translate(_MARKS), at=at)
        return
    name = label(named.group(1).translate(_MARKS))
    text = (named.group(2) or "").rstrip()
    if text.endswith(_EDITED):
        text = text.removesuffix(_EDITED).rstrip("\u200e").rstrip()
    if _DELETED.fullmatch(text.strip()):
        return
    attached = _ATTACHED.match(text)
    if attached:
        caption = text[attached.end() :].strip()
        text = caption or f"[attachment: {attached.group(1) or attached.group(2)}]"
    elif _MEDIA.fullmatch(text.strip()):
        text = "[media]"
    elif header.bracketed and text.startswith("\u200e"):
        thread.add("system", text.translate(_MARKS), at=at)
        return
    thread.add("user", text.translate(_MARKS), at=at, name=name)
