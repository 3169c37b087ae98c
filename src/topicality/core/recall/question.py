"""What a question asks for, and the words it is looked up by."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from topicality.core.recall.analysis import stems, words
from topicality.core.recall.dates import Range, time_ranges

_WHEN = re.compile(
    r"\b(?:when|what (?:date|day|time|year|month|week)|which (?:date|day|year|month|week)|how (?:long|old|recently))\b",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\b(?:how (?:many|much|often|far|tall|big)|what (?:percentage|number|amount))\b", re.IGNORECASE)
_NAMES = re.compile(r"\b(?:who|where|whose|which|what(?:'s| is| was| are| were)? the names?)\b", re.IGNORECASE)
_BROAD = re.compile(
    r"\b(?:summar\w+|overview|in order|the order|list|walk me through|across (?:my|our|all)|throughout|over time|so far)\b",
    re.IGNORECASE,
)
_FIRST = re.compile(r"\b(?:first|initially|originally|at the (?:start|beginning)|earliest)\b", re.IGNORECASE)
_LAST = re.compile(
    r"\b(?:latest|last time|most recent(?:ly)?|currently|nowadays|these days|now|recent|final)\b", re.IGNORECASE
)
_FROM_USER = re.compile(r"\b(?:i|my|me|i've|i'm)\b", re.IGNORECASE)
_FROM_REPLY = re.compile(
    r"\b(?:you|your)\b (?:\w+ )?(?:recommend|suggest|advis|propos|tell|told|say|said|explain|give|gave|mention|answer|list"
    r"|show|recommended)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it was read.

    Attributes:
        words: all of them, folded. stems: those to look up, each once. entities: stems written with a capital or a digit.
        when, count, names, broad, first, last, from_user, from_reply: what it asks for: a time, a number, a name, an
            overview, the first or the latest of something, something the user or the assistant said.
        ranges: times it names, [start, end) in seconds since the epoch.
    """

    words: tuple[str, ...]
    stems: tuple[str, ...]
    entities: frozenset[str]
    when: bool
    count: bool
    names: bool
    broad: bool
    first: bool
    last: bool
    from_user: bool
    from_reply: bool
    ranges: tuple[Range, ...]

    def without(self, names: Iterable[str]) -> tuple[str, ...]:
        """The stems without those of these name parts; all of them when nothing else would be left.

        Who is spoken of is known from who speaks; as a word it would find greetings.
        """
        skipped = {stem for name in names for stem in stems(name)}
        return tuple(stem for stem in self.stems if stem not in skipped) or self.stems


def read(text: str, now: float) -> Question:
    """Read a question.

    Args:
        now: seconds since the epoch; "last week" counts from here.
    """
    reply = bool(_FROM_REPLY.search(text))
    written = text.split()
    capital = [w for i, w in enumerate(written) if (i and w[:1].isupper()) or any(c.isdigit() for c in w)]
    return Question(
        words=tuple(words(text)),
        stems=tuple(dict.fromkeys(stems(text))),
        entities=frozenset(stem for word in capital for stem in stems(word)),
        when=bool(_WHEN.search(text)),
        count=bool(_COUNT.search(text)),
        names=bool(_NAMES.search(text)),
        broad=bool(_BROAD.search(text)),
        first=bool(_FIRST.search(text)),
        last=bool(_LAST.search(text)),
        from_user=bool(_FROM_USER.search(text)) and not reply,
        from_reply=reply,
        ranges=time_ranges(text, now),
    )


def is_named(name: Collection[str], spoken: Collection[str]) -> bool:
    """Whether a speaker is named in a question, by a part of the name or a short form of the first ("Mel" for Melanie).

    Args:
        name: folded parts of the name. spoken: folded words of the question.
    """
    if any(part in spoken for part in name if len(part) > 2):
        return True
    first = next(iter(name), "")
    return len(first) > 3 and any(
        len(w) > 2 and (first.startswith(w) or w.startswith(first)) and abs(len(w) - len(first)) <= 4 for w in spoken
    )
