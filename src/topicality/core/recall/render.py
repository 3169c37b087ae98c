"""Evidence as text: oldest first, one header a day, one line a passage, everything that was said inside a JSON string.

    #12 7 May 2023 "pottery, kids"
    Caroline: "I went to a support group yesterday and it was so powerful."
      …"The stories were so inspiring"…
    +14 left out

"#12" is the number of the first exchange shown. Two spaces: the speaker of the line above. "…" outside the quotation marks:
the message goes on there. Nothing that was said can start a line, end a string or look like a tag (`core.packet`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from topicality.core.packet import quoted

CUT = "…"
SAME = "  "
_NAME = 40  # characters of a speaker's name
_LINE = re.compile(rf'(?:({SAME})|(.+?): )({CUT}?)("(?:[^"\\]|\\.)*")({CUT}?)')
_HEADER = re.compile(
    r"#\d+(?: (\d{1,2} [A-Z][a-z]{2} \d{1,4}))?(?: in (\"(?:[^\"\\]|\\.)*\"))?(?: (\"(?:[^\"\\]|\\.)*\"))?"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of evidence, read back.

    Attributes:
        speaker: as shown. text: what was said, white space folded. before, after: whether the message has more there.
    """

    speaker: str
    text: str
    before: bool
    after: bool


def header(sequence: int, at: float | None, conversation: str | None = None, topic: str | None = None) -> str:
    """Opens a day: number of its first exchange, date in UTC, conversation if there are several, topic if known."""
    parts = [f"#{sequence}"]
    if at is not None:
        try:
            day = datetime.fromtimestamp(at, UTC)
            parts.append(f"{day.day} {_MONTHS[day.month - 1]} {day.year}")
        except (ValueError, OverflowError, OSError):  # a time outside the calendar is as good as none
            pass
    if conversation is not None:
        parts.append(f"in {quoted(conversation)}")
    if topic:
        parts.append(quoted(" ".join(topic.split())))
    return " ".join(parts)


def speaker(name: str | None, side: str) -> str:
    """Who speaks, as shown: the name on one line, or the role."""
    folded = " ".join((name or "").split())[:_NAME].strip()
    if not folded or folded[0] == "+":
        return side
    return quoted(folded)[1:-1].replace("#", "\\u0023")


def body(text: str, start: int, end: int) -> str:
    """The characters [start, end) of a message as a JSON string, cuts marked outside of it."""
    shown = quoted(" ".join(text[start:end].split()))
    return f"{CUT if text[:start].strip() else ''}{shown}{CUT if text[end:].strip() else ''}"


def left_out(count: int) -> str:
    """The last line; "" when nothing was left out."""
    return f"+{count} left out" if count else ""


def read(text: str) -> list[Line]:
    """The lines of an evidence text, headers and notes left aside. What `render` wrote comes back as it was said.

    Raises:
        ValueError: a line that no evidence text has.
    """
    found: list[Line] = []
    last = ""
    for number, line in enumerate(text.split("\n") if text else []):
        match = _LINE.fullmatch(line)
        if match:
            last = last if match[1] else match[2]
            found.append(Line(last, json.loads(match[4]), bool(match[3]), bool(match[5])))
        elif not (_HEADER.fullmatch(line) or re.fullmatch(r"\+\d+ left out", line) or (number == 0 and line in NOTES)):
            raise ValueError(f"line {number + 1} is no line of evidence")
    return found


NOTHING_NOTE = "Nothing found that clearly answers this; nearest:"
NOTES: Sequence[str] = (NOTHING_NOTE,)
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
