"""JSON read piece by piece: arrays of any length in bounded memory, lines, and the way on after a broken record.

The values themselves are decoded by the standard library at C speed; only the walk from one to the next is done here.
A buffer grows while a value is not whole yet, and what has been read is dropped. An event parser such as ijson would do
the first half, but it cannot go on after a broken element and would be one more dependency.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from topicality.doors.transcripts.record import Malformed, Report
from topicality.doors.transcripts.source import MAX_RECORD, Source, Text

_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"[ \t\n\r\ufeff]*")
_MARK = re.compile(r'["{}\[\],]')
_STRING_END = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NEAR_END = 16  # a cut-off literal or escape fails at most this many characters before the end of the buffer


class Cursor:
    """A place in a JSON text."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._buffer = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is not white space, not consumed; "" at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> bool:
        """Consume the next character if it is this one."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def value(self) -> Any:
        """Decode and consume the next value.

        Raises:
            Malformed: it is not JSON, too deep, or too large. Nothing is consumed then.
        """
        self.peek()
        while True:
            try:
                value, self._at = _DECODER.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._buffer) - _NEAR_END
                if cut and len(self._buffer) - self._at > MAX_RECORD:
                    raise Malformed(f"larger than {MAX_RECORD} characters, or a quote is missing") from None
                if cut and self._more():
                    continue
                what = "the file ends inside this record" if cut and self._ended else f"not valid JSON: {error.msg}"
                raise Malformed(what) from None
            except RecursionError:
                raise Malformed("nested too deeply") from None
            except ValueError:
                raise Malformed("a number has too many digits") from None
            return value

    def skip(self) -> None:
        """Go on to the next comma or closing bracket of this level, past something broken."""
        depth = 0
        while True:
            match = _MARK.search(self._buffer, self._at)
            if match is None:
                self._at = len(self._buffer)
                if not self._more():
                    return
                continue
            mark = match.group()
            self._at = match.start()
            if depth == 0 and mark in ",]}":
                return
            self._at += 1
            if mark == '"':
                self._skip_string()
            elif mark in "{[":
                depth += 1
            elif mark in "}]":
                depth -= 1

    def _skip_string(self) -> None:
        while (match := _STRING_END.match(self._buffer, self._at)) is None:
            if len(self._buffer) - self._at > MAX_RECORD:
                self._at = len(self._buffer)
                return
            if not self._more():
                self._at = len(self._buffer)
                return
        self._at = match.end()

    def elements(self, report: Report, where: str = "") -> Iterator[tuple[str, Any]]:
        """Decode the elements of the array that comes next, one at a time, each with its position."""
        for position in self.places(report, where):
            try:
                value = self.value()
            except Malformed as problem:
                report(position, str(problem))
                self.skip()
            else:
                yield position, value

    def places(self, report: Report, where: str = "") -> Iterator[str]:
        """Walk the array that comes next; the caller consumes each element, or skips it."""
        self.take("[")
        if self.take("]"):
            return
        index = 0
        while True:
            yield f"{where}[{index}]"
            index += 1
            if self.peek() not in (",", "]"):
                report(f"{where}[{index}]", self._expected("array"))
                self.skip()
            if self.take(","):
                if self.take("]"):
                    return
                continue
            self.take("]")
            return

    def keys(self, report: Report, where: str = "") -> Iterator[str]:
        """Walk the object that comes next; the caller consumes the value of each key, or skips it."""
        self.take("{")
        if self.take("}"):
            return
        while True:
            try:
                key = self.value()
            except Malformed as problem:
                report(where, str(problem))
                return
            if not isinstance(key, str) or not self.take(":"):
                report(where, "expected a key and a colon")
                return
            yield key
            if self.take(","):
                continue
            if not self.take("}"):
                report(where, self._expected("object"))
            return

    def _expected(self, what: str) -> str:
        return f"expected a comma or the end of the {what}" if self.peek() else "the file ends here"

    def _more(self) -> bool:
        """Drop what was consumed and at least double what is left."""
        if self._ended:
            return False
        pieces = [self._buffer[self._at :]]
        wanted = len(pieces[0])
        got = 0
        while got == 0 or got < wanted:
            chunk = self._text.chunk()
            if not chunk:
                self._ended = True
                break
            pieces.append(chunk)
            got += len(chunk)
        self._buffer = "".join(pieces)
        self._at = 0
        return got > 0


def decode(text: str) -> Any:
    """A whole JSON text, such as one line.

    Raises:
        Malformed: it is not JSON.
    """
    text = text.strip(" \t\n\r\ufeff\x00")
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"not valid JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except ValueError:
        raise Malformed("a number has too many digits") from None
    if end < len(text):
        raise Malformed(f"not valid JSON: more text after the value (column {end + 1})")
    return value


def rows(source: Source, report: Report | None) -> Iterator[tuple[str, Any]]:
    """The records of a JSON text with their positions: elements of an array, lines, or the one document.

    Without a report this is a look beforehand: it is not counted, and problems are passed over in silence.
    """
    opened = source.glance() if report is None else source.text(report)
    report = report or Report(keep_going=True)
    if looks_like_lines(source.head_text):
        with opened as text:
            yield from line_rows(text, report)
        return
    with opened as text:
        cursor = Cursor(text)
        if cursor.peek() == "[":
            yield from cursor.elements(report)
        else:
            try:
                value = cursor.value()
            except Malformed as problem:
                report("", str(problem))
                return
            yield "", value
        if cursor.peek():
            report("the end of the document", "more text after it")


def line_rows(text: Text, report: Report) -> Iterator[tuple[str, Any]]:
    """The records of JSON Lines; blank lines are passed over."""
    for number, line in text.lines():
        if not line or line.isspace():
            continue
        try:
            value = decode(line)
        except Malformed as problem:
            report(f"line {number}", str(problem))
        else:
            yield f"line {number}", value


def looks_like_lines(head: str) -> bool:
    """Whether a text that starts so is JSON Lines and not one JSON document."""
    lines = [line.strip() for line in head.split("\n", 40)[:40]]
    lines = [line for line in lines if line]
    if not lines:
        return False
    start = lines[0]
    after = lines[1] if len(lines) > 1 else ""
    if start.startswith("{"):
        return not after or start.endswith("}") or (after.startswith("{") and start[-1] not in "[{,:")
    if start.startswith("["):
        return len(start) > 1 and start.endswith("]") and after.startswith("[")
    return 2 * sum(line.startswith("{") for line in lines) >= len(lines)
