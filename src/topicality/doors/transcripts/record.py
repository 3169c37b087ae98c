"""What every reader makes: conversations, problems, clean text, roles and times."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from topicality.errors import InputError
from topicality.types import Message

MAX_PROBLEMS = 1000
"""Problems kept for one conversation; more are counted, not kept."""

_ROLES = {
    "user": "user human customer client visitor caller patient prompter me you question q",
    "assistant": "assistant ai gpt bot chatbot chatgpt model agent claude gemini copilot llm answer a function_call",
    "system": "system developer instruction instructions context",
    "tool": "tool function observation ipython environment tool_response tool_result function_response",
}
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words.split()}
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that could not be read.

    Attributes:
        position: where it is, such as "line 12", "[3].messages[2]" or "support/2026-03-01.json: [4]".
        what: what is wrong with it. Never contains the text of a message.
    """

    position: str
    what: str

    def __str__(self) -> str:
        return f"{self.position}: {self.what}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a transcript, in the order it was held.

    Attributes:
        id: the id it was given, else its number in the file, from "1".
        title: its title, or the name of the channel or chat; None when it has none.
        messages: what was said. Abandoned branches, hidden prompts, reasoning and empty messages are left out.
        source: name of the format it was read from (see `FORMATS`).
        problems: with `keep_going`, what was met and skipped since the conversation before it.
    """

    id: str
    title: str | None
    messages: tuple[Message, ...]
    source: str
    problems: tuple[Problem, ...] = ()


class Malformed(Exception):  # noqa: N818 - not an error anybody sees
    """One record is unusable. Caught by the loop that knows where the record is; never leaves this room."""


class Report:
    """Takes problems. Without `keep_going` the first one is raised as InputError."""

    def __init__(self, *, keep_going: bool) -> None:
        self.keep_going = keep_going
        self.prefix = ""
        self._problems: list[Problem] = []
        self._more = 0

    def __call__(self, position: str, what: str) -> None:
        """Note a problem, or raise it.

        Raises:
            InputError: not keeping going.
        """
        position = f"{self.prefix}{position or 'the document'}"
        if not self.keep_going:
            raise InputError(f"{position}: {what}")
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(Problem(position, what))
        else:
            self._more += 1

    def take(self) -> tuple[Problem, ...]:
        """The problems since the last call."""
        taken = self._problems
        if self._more:
            taken.append(Problem(f"{self.prefix}the document", f"{self._more} more problems"))
        self._problems, self._more = [], 0
        return tuple(taken)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: its id if it has one, and how it reads as text."""

    id: str | None
    text: str


class Thread:
    """A conversation being read. Gives calls without an id one, pairs results with calls, keeps ids unique."""

    def __init__(self, source: str, key: str | None = None, title: str | None = None) -> None:
        self.source = source
        self.id = key
        self.title = title
        self._messages: list[Message] = []
        self._seen: dict[str, int] = {}
        self._unanswered: dict[str, None] = {}
        self._made = 0

    def add(
        self,
        role: str,
        text: str,
        *,
        at: float | None = None,
        key: str | None = None,
        name: str | None = None,
        calls: Iterable[Call] = (),
        call: str | None = None,
    ) -> None:
        """Append a message; `key` is its id. One that says nothing, calls nothing and answers nothing is left out."""
        text = clean(text)
        made: list[str] = []
        shown: list[str] = []
        for each in calls:
            given = each.id
            if given is None:
                self._made += 1
                given = f"call-{self._made}"
            made.append(given)
            shown.append(clean(each.text))
            self._unanswered[given] = None
        if role == "tool":
            if call is None:
                call = next(iter(self._unanswered), None)
            if call is not None:
                self._unanswered.pop(call, None)
        if not text.strip():
            if not made and call is None:
                return
            text = "\n".join(shown)
        if key is not None:
            times = self._seen[key] = self._seen.get(key, 0) + 1
            if times > 1:
                key = f"{key}#{times}"
        self._messages.append(Message(role, text, at, key, name, tuple(made), call))

    def __len__(self) -> int:
        return len(self._messages)

    def reorder(self, keys: list[float]) -> None:
        """Sort the messages by a key for each of them."""
        self._messages = [self._messages[index] for index in sorted(range(len(keys)), key=keys.__getitem__)]

    def done(self, *, by_time: bool = False) -> Conversation:
        """The conversation; its id is "" if it has none. With `by_time` in order of time, if all times are known."""
        messages = self._messages
        if by_time and all(message.at is not None for message in messages):
            messages = sorted(messages, key=lambda message: message.at or 0.0)
        return Conversation(self.id or "", self.title, tuple(messages), self.source)


def clean(text: str) -> str:
    """The text without NUL characters and with lone surrogates replaced, so that it can be encoded and stored."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def label(value: Any) -> str | None:
    """A name, title or id as a short clean string; None for anything that is not one."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    try:
        text = clean(str(value)).strip()
    except ValueError:  # an integer with thousands of digits
        return None
    return text[:500] or None


def speaker(value: Any) -> tuple[str, str | None]:
    """Role and name of a speaker as transcripts write it: a known role, or somebody's name (a user).

    Raises:
        Malformed: it is missing, or not a string.
    """
    name = label(value) if isinstance(value, str) else None
    if name is None:
        raise Malformed("the role is missing" if value in (None, "") else "the role is not a string")
    role = known_role(name)
    return (role, None) if role else ("user", name)


def known_role(word: str) -> str | None:
    """The role a word stands for ("Human" → "user"), or None."""
    return _ROLE_OF.get(word.strip().casefold().replace(" ", "_"))


def moment(value: Any) -> float | None:
    """A time as seconds since the epoch; None stays None.

    Numbers are seconds, or milli-, micro- or nanoseconds when they are too large for that. Text is a number or an ISO
    8601 time; one without an offset is taken as UTC.

    Raises:
        Malformed: it is something else.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return _moment_of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed("the time is neither a number nor text")
    try:
        seconds = float(value)
    except OverflowError:
        raise Malformed("the time is out of range") from None
    while abs(seconds) > 1e11:  # year 5138 in seconds: milliseconds or finer
        if abs(seconds) > 1e20 or not math.isfinite(seconds):
            raise Malformed("the time is out of range")
        seconds /= 1000.0
    if math.isnan(seconds):
        raise Malformed("the time is not a number")
    return seconds


def _moment_of_text(text: str) -> float | None:
    if not text:
        return None
    if len(text) > 64:
        raise Malformed("the time is not understood")
    if _NUMBER.fullmatch(text):
        return moment(float(text))
    text = text.removesuffix(" UTC").replace("/", "-")
    try:
        return seconds_of(datetime.fromisoformat(text))
    except ValueError:
        raise Malformed("the time is not understood; write it as ISO 8601") from None


def seconds_of(value: datetime) -> float:
    """Seconds since the epoch; a time without an offset is UTC."""
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise Malformed("the time is out of range") from None


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def first(row: dict[str, Any], *keys: str) -> Any:
    """The first of the keys that is there and not null."""
    for key in keys:
        value = row.get(key)
        if value is not None:
            return value
    return None


def when(report: Report, position: str, value: Any) -> float | None:
    """`moment`, with a time that cannot be understood reported and left unknown: the message itself is kept."""
    try:
        return moment(value)
    except Malformed as problem:
        report(position, str(problem))
        return None


def place(position: str, tail: str) -> str:
    """Position of a part of a record: "line 3" + "messages[2]" → "line 3: messages[2]"."""
    if not position:
        return tail
    return f"{position}: {tail}" if position.startswith("line ") else f"{position}.{tail}"
