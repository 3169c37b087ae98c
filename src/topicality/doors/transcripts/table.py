"""CSV: a header row, one message a row. Columns are found by their usual names, the delimiter by trying."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from topicality.doors.transcripts.record import Conversation, Malformed, Report, Thread, label, speaker, when
from topicality.doors.transcripts.source import MAX_RECORD, Source, Text

_COLUMNS = {
    "text": "content text message body utterance msg message_text value comment",
    "role": "role speaker_role sender_type author_role type",
    "who": "speaker sender author from user username user_name name participant agent",
    "conversation": "conversation_id conversation thread_id session_id chat_id dialogue_id dialog_id thread session",
    "at": "created_at timestamp time date datetime sent_at at ts date_time",
    "id": "message_id msg_id uuid id",
    "turn": "turn turn_id turn_index index sequence seq position turn_number",
    "title": "title subject conversation_title",
}
_WORDS = {use: names.split() for use, names in _COLUMNS.items()}
_DELIMITERS = ",;\t|"
_SEP = re.compile(r"sep=(.)\n?")


def header_of(start: str) -> tuple[str, dict[str, int]] | None:
    """Delimiter and columns (by use) of a table that starts so; None if it is not one."""
    match = _SEP.match(start)
    line = (start[match.end() :] if match else start).split("\n", 1)[0]
    if len(line) > 4000:
        return None
    best: tuple[str, dict[str, int]] | None = None
    for delimiter in match.group(1) if match else _DELIMITERS:
        if not delimiter.isprintable() and delimiter != "\t":
            continue
        try:
            cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except (csv.Error, TypeError, ValueError):
            continue
        columns = _columns(cells)
        usable = "text" in columns and ("role" in columns or "who" in columns)
        if usable and (best is None or len(columns) > len(best[1])):
            best = (delimiter, columns)
    return best


def _columns(cells: list[str]) -> dict[str, int]:
    names = [re.sub(r"[\W_]+", "_", cell.strip().casefold()).strip("_") for cell in cells]
    found: dict[str, int] = {}
    for use, words in _WORDS.items():
        for word in words:
            if word in names and names.index(word) not in found.values():
                found[use] = names.index(word)
                break
    return found


def read_csv(source: Source, report: Report) -> Iterator[Conversation]:
    """The conversations of a table, each as soon as its last row is read, its messages in order of turn or time."""
    found = header_of(source.head_text.lstrip())
    if found is None:
        return
    delimiter, columns = found
    key = columns.get("conversation")
    left = Counter[str]()
    if key is not None:
        if "rows" not in source.memo:
            with source.glance() as text:
                rows = _rows(text, delimiter, Report(keep_going=True))
                source.memo["rows"] = Counter(cells[key] for _, cells in rows)
        left = source.memo["rows"].copy()
    open_: dict[str, tuple[Thread, list[float]]] = {}
    with source.text(report) as text:
        for position, cells in _rows(text, delimiter, report):
            name = "" if key is None else cells[key]
            if name not in open_:
                title = label(cells[columns["title"]]) if "title" in columns else None
                open_[name] = (Thread("csv", label(name), title), [])
            thread, turns = open_[name]
            before = len(thread)
            try:
                _add(thread, columns, cells, position, report)
            except Malformed as problem:
                report(position, str(problem))
            if len(thread) > before:
                turns.append(_turn(cells, columns))
            if key is not None:
                left[name] -= 1
                if left[name] == 0:
                    yield _ordered(*open_.pop(name))
    for thread, turns in open_.values():
        yield _ordered(thread, turns)


def _rows(text: Text, delimiter: str, report: Report) -> Iterator[tuple[str, list[str]]]:
    """Rows below the header as wide as the header, with their position (the line they end on)."""
    if csv.field_size_limit() < MAX_RECORD:  # a pasted document is longer than the module's 128 KiB
        csv.field_size_limit(MAX_RECORD)
    reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
    width = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report(f"line {reader.line_num}", f"not valid CSV: {error}")
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if not width:
            width = len(cells)
        elif len(cells) != width:
            report(f"line {reader.line_num}", f"{len(cells)} columns where the header has {width}")
        else:
            yield f"line {reader.line_num}", cells


def _lines(text: Text) -> Iterable[str]:
    for number, line in text.lines():
        yield "\n" if number == 1 and _SEP.fullmatch(line) else line + "\n"


def _add(thread: Thread, columns: dict[str, int], cells: list[str], position: str, report: Report) -> None:
    def cell(use: str) -> str | None:
        return cells[columns[use]].strip() or None if use in columns else None

    who = cell("who")
    if "role" in columns:
        role, other = speaker(cell("role"))
        name = who or other
    else:
        role, name = speaker(who)
    at = when(report, position, cell("at"))
    thread.add(role, cells[columns["text"]], at=at, key=label(cell("id")), name=label(name))


def _turn(cells: list[str], columns: dict[str, int]) -> float:
    try:
        return float(cells[columns["turn"]])
    except (KeyError, ValueError):
        return float("nan")


def _ordered(thread: Thread, turns: list[float]) -> Conversation:
    if not any(map(math.isnan, turns)):
        thread.reorder(turns)
        return thread.done()
    return thread.done(by_time=True)
