"""Text to read: "role: what was said", and WebVTT captions."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from topicality.doors.transcripts.record import Conversation, Report, Thread, known_role, label, speaker
from topicality.doors.transcripts.source import Source

_TURN = re.compile(r"(?:#{1,6} |\*\*|__)?([^\W\d_][\w .'’()-]{0,39}?)(?:\*\*|__)?:(?:\*\*|__)?(?:[ \t]+(.*)|)")
_CUE = re.compile(r"(?:\d+:)?\d{1,2}:\d{2}\.\d{3}[ \t]+-->[ \t]+(?:\d+:)?\d{1,2}:\d{2}\.\d{3}.*")
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^<>]*)>")
_TAG = re.compile(r"<[^<>]*>")
_NAMED = re.compile(r"([^\W\d_][\w .'’()-]{0,39}): (.*)", re.DOTALL)
_SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！", "؟")
_LOOK = 400


def _turn(line: str) -> tuple[str, str] | None:
    match = _TURN.fullmatch(line)
    if match is None or len(match.group(1).split()) > 4:
        return None
    return match.group(1).strip(), match.group(2) or ""


def is_plain(start: str) -> bool:
    """Whether the first line is a turn, and its speaker is a known role or turns make up the text."""
    lines = [line for line in start.split("\n", _LOOK)[:_LOOK] if line.strip()]
    opening = _turn(lines[0]) if lines else None
    if opening is None:
        return False
    if known_role(opening[0]):
        return True
    return sum(_turn(line) is not None for line in lines) >= 2


def read_plain(source: Source, report: Report) -> Iterator[Conversation]:
    """The one conversation of the text.

    A line that starts with a speaker and a colon starts a message, other lines continue it. If the first speaker is a
    role ("User"), only roles are speakers, so that "Note: …" inside an answer stays in it; else every name is one.
    """
    thread = Thread("plain")
    roles_only: bool | None = None
    who = ""
    lines: list[str] = []
    with source.text(report) as text:
        for _number, line in text.lines():
            turn = _turn(line.lstrip("\ufeff"))
            if turn is not None and roles_only is None:
                roles_only = known_role(turn[0]) is not None
            if turn is None or (roles_only and known_role(turn[0]) is None):
                lines.append(line)
                continue
            _say(thread, who, lines)
            who, lines = turn[0], [turn[1]]
    _say(thread, who, lines)
    yield thread.done()


def _say(thread: Thread, who: str, lines: list[str]) -> None:
    if who:
        role, name = speaker(who)
        thread.add(role, "\n".join(lines).strip("\n").rstrip(), name=name)


def is_webvtt(start: str) -> bool:
    """Whether the text has WebVTT's first line."""
    return re.match(r"WEBVTT(?:[ \t\n]|$)", start) is not None


def read_webvtt(source: Source, report: Report) -> Iterator[Conversation]:
    """The one conversation of the captions. Caption times count from the start of a recording, so `at` stays unknown.

    Captions cut sentences: while the speaker is the same and no sentence has ended, captions are joined.
    """
    thread = Thread("webvtt")
    who: str | None = None
    said = ""
    with source.text(report) as text:
        for number, block in _blocks(text.lines()):
            timing = next((index for index, line in enumerate(block[:2]) if "-->" in line), None)
            if timing is None or not _CUE.fullmatch(block[timing].strip()):
                if number > 1 and not block[0].startswith(("NOTE", "STYLE", "REGION", "WEBVTT")):
                    report(f"line {number}", "a caption without its times")
                continue
            for name, words in _voices("\n".join(block[timing + 1 :])):
                if said and name == who and not said.endswith(_SENTENCE_ENDS):
                    said = f"{said} {words}"
                    continue
                _caption(thread, who, said)
                who, said = name, words
    _caption(thread, who, said)
    yield thread.done()


def _blocks(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    block: list[str] = []
    start = 0
    for number, line in lines:
        if line.strip():
            start = start if block else number
            block.append(line)
        elif block:
            yield start, block
            block = []
    if block:
        yield start, block


def _voices(payload: str) -> Iterator[tuple[str | None, str]]:
    pieces = _VOICE.split(payload)
    if pieces[0].strip():
        words = _words(pieces[0])
        named = _NAMED.fullmatch(words) if len(pieces) == 1 else None
        if words:
            yield (named.group(1).strip(), named.group(2)) if named else (None, words)
    for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        words = _words(piece)
        if words:
            yield label(html.unescape(name)), words


def _words(piece: str) -> str:
    return " ".join(html.unescape(_TAG.sub("", piece)).split())


def _caption(thread: Thread, who: str | None, said: str) -> None:
    if said:
        role, name = speaker(who) if who else ("user", None)
        thread.add(role, said, name=name)
