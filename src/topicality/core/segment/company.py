"""Who talks: two, a crowd whose threads interleave, or a long meeting. And whom a message names."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Literal

from topicality.types import Message

Kind = Literal["pair", "crowd", "meeting", "unknown"]

_TOKEN = re.compile(r"[^\s,:;.!?()<>\"']+")
_TOKENS = 60  # words of a message that are searched for names
_NAMES = 4096  # speakers remembered; the one silent for longest is forgotten
_PATIENCE = 20  # messages by named speakers before two of them are believed to be all
_ADDRESSED = (2, 0.05)  # messages, and share of messages, that address somebody: what makes a company a crowd
_PARTIES = frozenset({"user", "human", "assistant", "agent", "bot", "ai", "model", "system", "tool", "function", ""})
_COMMON = frozenset(
    """
    the and you are for can was has not but all any one out get how now new use who did yes run set try him her its it's
    let say she too old own root user help test love guest hello well here good time just like work file linux ubuntu
    """.split()
)


def speaker_of(message: Message) -> str | None:
    """Who speaks, in lower case: the name, or a role that is somebody's name; None where only the role is known."""
    if message.name:
        return message.name.lower()
    return None if message.role.lower() in _PARTIES else message.role.lower()


def mentions(text: str, known: Container[str]) -> tuple[str | None, list[str]]:
    """Known speakers that a text names.

    An address stands first ("anna: …", "anna, …") or begins with "@". A short or common word counts as a name only there.

    Args:
        known: names in lower case. Names of several words are not found, except written as one after an "@".
    Returns:
        Who is addressed (or named first of all), and everybody named, in order.
    """
    low = text.lower()
    named: list[str] = []
    addressed = None
    for place, token in enumerate(_TOKEN.findall(low)[:_TOKENS]):
        name = token.lstrip("@")
        if name not in known:
            continue
        leads = "@" + name in low or (
            place == 0 and re.match(r"\s*@?" + re.escape(name) + r"\s*[,:;>-]", low) is not None
        )
        if not leads and (len(name) < 3 or name in _COMMON):
            continue
        if name not in named:
            named.append(name)
        if addressed is None and (leads or place == 0):
            addressed = name
    return addressed, named


class Company:
    """The people heard so far, and how they talk. Bounded."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # name -> messages
        self.heard = 0
        self.addressed = 0

    def hear(self, message: Message) -> None:
        """Take one message in."""
        speaker = speaker_of(message)
        if speaker is None:
            return
        self.heard += 1
        if len(self.names) >= 2:
            addressed, _ = mentions(message.text, self.names)
            self.addressed += addressed is not None and addressed != speaker
        self.names[speaker] = self.names.pop(speaker, 0) + 1
        if len(self.names) > _NAMES:
            del self.names[next(iter(self.names))]

    @property
    def kind(self) -> Kind:
        """What it is so far; "unknown" while named speakers are few and new: better no boundary than a wrong one."""
        if len(self.names) < 3:
            return "unknown" if 0 < self.heard < _PATIENCE else "pair"
        least, share = _ADDRESSED
        return "crowd" if self.addressed >= max(least, share * self.heard) else "meeting"
