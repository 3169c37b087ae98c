"""Recalled text as data: cut without breaking, quoted so that nothing in it can alter the structure around it.

Everything a transcript contributes to a prompt outside its own message goes through here: one JSON string or object a
line, with line breaks, angle brackets, chat-template markers and invisible characters escaped.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from topicality.errors import ConfigError, InputError
from topicality.types import Message

ELLIPSIS = "..."
MINUTE = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What JSON leaves as it is but a prompt must not: tags, line breaks of other kinds, controls, direction overrides,
# invisible and tag characters, lone surrogates, and bracketed markers of chat templates such as "[INST]".
_UNSAFE = re.compile(
    "[<>&\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
    r"|\[(?=/?[A-Z_]{2,24}\])"
)
_JSON = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes one each time
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One passage recalled from what was said before.

    Attributes:
        message: who said it, and the text to show: the whole of a message, or a passage that keeps the message's id.
        topic: tag or label of its topic, if known.
        sequence: number of its exchange, if known; evidence is shown in this order.
        cut: whether the text is only a part of the message.
    """

    message: Message
    topic: str | None = None
    sequence: int | None = None
    cut: bool = False


def cut(text: str, limit: int) -> str:
    """Fold white space and keep the beginning: whole words, with "..." behind it only when something was left out.

    A single word longer than the limit is cut inside, as is text that is written without spaces, but never inside a
    character as a reader sees it (base with its marks, emoji sequences, flags, Hangul syllables).

    Args:
        text: anything; line breaks and runs of white space become one space.
        limit: most characters (code points) kept, at least 1; the "..." is not counted.
    Returns:
        At most limit + 3 code points on one line. Empty when the text is blank.
    Raises:
        ConfigError: limit below 1.
    Cost: O(len(text)). Source: system C (80 characters); there "..." was always added and words were cut.
    """
    if isinstance(limit, bool) or limit < 1:
        raise ConfigError("a text cannot be cut to this", key="limit", got=limit, accepted="a whole number from 1")
    folded = " ".join(text.split())
    if len(folded) <= limit:
        return folded
    end = limit
    while end > 0 and _inside(folded, end):
        end -= 1
    word = end
    while word > 0 and (_inside(folded, word) or not _between_words(folded[word - 1], folded[word])):
        word -= 1
    return folded[: word or end].rstrip() + ELLIPSIS


def quoted(text: str) -> str:
    """A JSON string on one line that shows the text and cannot break out of a line, a tag or a chat template.

    Returns:
        A string s with json.loads(s) == text, without line breaks, "<", ">", "&" or invisible characters.
    Cost: O(len(text)).
    """
    body = _UNSAFE.sub(_escaped, _JSON(text))
    if text and body[1] == text[0] and _joins(text[0]):  # a mark would merge with the quotation mark before it
        body = f'"{_escaped(text[0])}{body[2:]}'
    return body


def record(fields: Mapping[str, str | int | float | bool | None]) -> str:
    """A JSON object on one line, in the order given; fields that are None are left out. See `quoted`."""
    pairs = []
    for key, value in fields.items():
        if value is not None:
            shown = quoted(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)
            pairs.append(f"{quoted(key)}: {shown}")
    return "{" + ", ".join(pairs) + "}"


def evidence_line(evidence: Evidence, now: float | None = None) -> str:
    """One recalled passage as a JSON object on one line: sequence, topic, role, name, time, whether it is cut, text.

    Args:
        now: seconds since the epoch; given, the line also says how long ago it was.
    Raises:
        InputError: a time is not a finite number, or lies outside the years 1 to 9999.
    Cost: O(len(text)).
    """
    message = evidence.message
    return record(
        {
            "exchange": evidence.sequence,
            "topic": evidence.topic,
            "role": message.role,
            "name": message.name,
            "at": None if message.at is None else iso_time(message.at),
            "when": None if message.at is None or now is None else relative_time(now - message.at),
            "cut": evidence.cut or None,
            "text": message.text,
        }
    )


def iso_time(at: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, to the second. 0 is a time (system D took it for "unknown")."""
    if not math.isfinite(at):
        raise InputError(f"a time must be a finite number of seconds since the epoch, got {at}")
    try:
        moment = _EPOCH + timedelta(seconds=math.floor(at))
    except OverflowError as error:
        raise InputError(f"a time must lie between the years 1 and 9999, got {at} seconds since the epoch") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment.year >= 1000 else moment.isoformat().replace("+00:00", "Z")


def relative_time(elapsed: float | None) -> str:
    """How long ago, in one coarse unit, rounded down.

    Args:
        elapsed: seconds that have passed; negative counts as 0; None is "unknown".
    Returns:
        "less than 1 minute ago", "5 minutes ago", "1 hour ago", … Months are 30 days and years 12 such months, as in
        system D, so that "12 months ago" is never said.
    Raises:
        InputError: not a finite number.
    """
    if elapsed is None:
        return "unknown"
    if not math.isfinite(elapsed):
        raise InputError(f"elapsed seconds must be a finite number, got {elapsed}")
    amount = int(max(0.0, elapsed) // MINUTE)
    if amount < 1:
        return "less than 1 minute ago"
    unit = "minute"
    for size, larger in ((60, "hour"), (24, "day"), (30, "month"), (12, "year")):
        if amount < size:
            break
        amount, unit = amount // size, larger
    return f"{amount} {unit}{'' if amount == 1 else 's'} ago"


def topic_order(topic: str, started: float | None) -> tuple[bool, float, tuple[tuple[int, int, str], ...]]:
    """Sort key for topics: by the time they started, then by id with numbers as numbers (T2 before T10).

    Unknown times come first. System D took "unknown" for 0 and compared ids as text.
    """
    pieces = _DIGITS.split(topic)
    natural = tuple((1, int(p), p) if n % 2 else (0, 0, p) for n, p in enumerate(pieces) if p)
    return started is not None, 0.0 if started is None else started, natural


def _escaped(found: re.Match[str] | str) -> str:
    code = ord(found if isinstance(found, str) else found.group())
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def _between_words(before: str, after: str) -> bool:
    return before == " " or after == " " or _unspaced(before) or _unspaced(after)


def _unspaced(character: str) -> bool:
    """Scripts that put no space between words: Thai to Burmese, Khmer, kana and ideographs."""
    code = ord(character)
    return (
        0x0E00 <= code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0x2E80 <= code <= 0x31FF
        or 0x3400 <= code <= 0x9FFF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x3FFFF
    )


def _inside(text: str, index: int) -> bool:
    """Whether a cut before text[index] would split what a reader sees as one character (Unicode UAX #29, in short)."""
    before, after = text[index - 1], text[index]
    if before.isascii() and after.isascii():
        return False
    if _joins(after) or before == "\u200d":
        return True
    if unicodedata.combining(before) == 9 and after.isalpha():  # a virama ties two consonants
        return True
    if _flag(before) and _flag(after):
        start = index
        while start > 0 and _flag(text[start - 1]):
            start -= 1
        return (index - start) % 2 == 1
    return _hangul(before, after)


def _joins(character: str) -> bool:
    code = ord(character)
    return (
        unicodedata.category(character)[0] == "M"
        or code in (0x200C, 0x200D, 0xFF9E, 0xFF9F)
        or 0x1F3FB <= code <= 0x1F3FF
        or 0xE0020 <= code <= 0xE007F
    )


def _flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _hangul(before: str, after: str) -> bool:
    left, right = _jamo(before), _jamo(after)
    return (
        (left == "L" and right in ("L", "V", "S", "s"))
        or (left in ("V", "S") and right in ("V", "T"))
        or (left in ("T", "s") and right == "T")
    )


def _jamo(character: str) -> str:
    """L, V, T for Hangul letters; S for a syllable without, s for one with a final consonant; "" otherwise."""
    code = ord(character)
    if 0x1100 <= code <= 0x115F or 0xA960 <= code <= 0xA97C:
        return "L"
    if 0x1160 <= code <= 0x11A7 or 0xD7B0 <= code <= 0xD7C6:
        return "V"
    if 0x11A8 <= code <= 0x11FF or 0xD7CB <= code <= 0xD7FB:
        return "T"
    if 0xAC00 <= code <= 0xD7A3:
        return "S" if (code - 0xAC00) % 28 == 0 else "s"
    return ""
