"""What a message is filed under: windows of a long one, stems of its words, who spoke, and a mark of what it looks like.

The terms of a passage are its stems in order, then one `@part` for each part of the speaker's name, then one mark such as
`?qt2`. Neither can be a stem, so a search for stems never meets them; a search for `@caroline` finds who that is. With them
in the store, passages are ranked without reading their texts.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from topicality.core.text import stemmed

PASSAGE_WORDS = 800  # a message with more words is filed in windows of about equal length
WORD_CHARACTERS = 5.7  # of an average word with its space, for guessing the number of words from the characters
_LONGEST_TERM = 100  # what a store keeps of a term
_HEAD = 4000  # characters that are looked at to say what a text looks like

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]{2,}")
FUNCTION_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being but by can could did do does doing
    for from get got had has have having he her here hers him his how i if in into is it its just like me more most
    my no nor not of off on or our out over own s she should so some such t than that the their them then there
    these they this those through to too under up very was we were what when where which while who whom why will
    with would you your im ive id ill dont didnt doesnt isnt wasnt wont cant its thats whats youre hes shes theyre
    weve lets us ok okay yes yeah oh hey hi hello thanks thank much many really well one mention only say said tell
    """.split()
)
_MINE = frozenset("i im ive id ill my me mine we our weve".split())

# Searched in lower case: several times faster than without regard to case.
_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|recently|ago"
    r"|(?:last|next|this|past|previous|coming) (?:night|week|weekend|month|year|summer|winter|spring|fall|autumn|mon|tues"
    r"|wednes|thurs|fri|satur|sun|few)|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{1,2}(?:st|nd|rd|th)|(?:19|20)\d\d"
    r"|january|february|march|april|june|july|august|september|october|november|december)",
)
_NUMBER = re.compile(
    r"\b(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten|twice|once|couple|several|dozen|few|first|second|third)\b",
)
_STANDING = re.compile(
    r"\b(?:when(?:ever)? i ask|from now on|i(?:'d| would)? (?:prefer|rather)|keep in mind|please remember"
    r"|(?:always|never|please) (?:use|include|give|format|provide|explain|answer|respond|reply|write|show|add|start|end"
    r"|call|mention))\b",
)
_PROPER = re.compile(r"(?<=[a-z,;:] )[A-Z][\w'-]+")
_END = re.compile(r"[.!?:…]['\")*\]]*\s+|\n\s*")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a text looks like.

    Attributes:
        question: it ends with a question mark. time: it names a day, a month, "last week". number: it counts something.
        standing: it says how things should be done from now on. proper: it names somebody or something.
        mine: how much it is about the speaker, 0 to 3 words such as "I" and "my".
    """

    question: bool = False
    time: bool = False
    number: bool = False
    standing: bool = False
    proper: bool = False
    mine: int = 0

    @property
    def mark(self) -> str:
        """As a term."""
        flags = (self.question, self.time, self.number, self.standing, self.proper)
        return "?" + "".join(letter for letter, flag in zip("qtnsp", flags, strict=True) if flag) + str(self.mine)

    @classmethod
    def of_mark(cls, mark: str) -> Facts:
        """From a term; a mark that is none says nothing."""
        question, time, number, standing, proper = (letter in mark for letter in "qtnsp")
        mine = int(mark[-1]) if mark[-1:] in ("0", "1", "2", "3") else 0
        return cls(question, time, number, standing, proper, mine)


def words(text: str) -> list[str]:
    """Words in order: compatibility forms and accents undone, case folded, the possessive 's and apostrophes dropped.

    Runs of a script without spaces between words are given as pairs of characters.
    """
    if text.isascii():
        found = _WORD.findall(text.lower())
        return [(w[:-2] if w.endswith("'s") else w.replace("'", "")) if "'" in w else w for w in found]
    plain = unicodedata.normalize("NFKD", text).replace("’", "'")
    plain = unicodedata.normalize("NFKC", re.sub("[\u0300-\u036f]", "", plain))
    found = _WORD.findall(plain.casefold())
    spoken = [w[:-2] if w.endswith("'s") else w.replace("'", "") for w in found]
    if not _UNSPACED.search(plain):
        return spoken
    return [part for w in spoken for part in (_pairs(w) if _UNSPACED.search(w) else [w])]


def stems(text: str) -> list[str]:
    """Stems of the words that carry meaning, in order, repeats kept."""
    return [_stem(word)[:_LONGEST_TERM] for word in words(text) if word not in FUNCTION_WORDS]


def facts(text: str) -> Facts:
    """What a text looks like, from its first 4,000 characters. Cost: a few regular expressions."""
    head = text[:_HEAD]
    low = head.lower()
    return Facts(
        question=head.rstrip().endswith("?"),
        time=bool(_TIME.search(low)),
        number=bool(_NUMBER.search(low)),
        standing=bool(_STANDING.search(low)),
        proper=bool(_PROPER.search(head)),
        mine=min(3, sum(map(_MINE.__contains__, words(head[:800])[:80]))),
    )


def name_terms(name: str | None) -> list[str]:
    """A speaker's name as terms, one a part; none for nobody or for a mere role."""
    if not name or name.casefold() in ("user", "assistant"):
        return []
    return [f"@{part[: _LONGEST_TERM - 1]}" for part in dict.fromkeys(words(name))][:4]


def terms(text: str, name: str | None = None) -> tuple[str, ...]:
    """All terms of a passage: stems, speaker, mark."""
    return (*stems(text), *name_terms(name), facts(text).mark)


def plain_terms(found: Sequence[str]) -> tuple[str, ...]:
    """Only the stems among a passage's terms."""
    return tuple(term for term in found if term[0] not in "@?")


def windows(text: str, most: int = PASSAGE_WORDS) -> list[tuple[int, int]]:
    """Character ranges [start, end) in which a message is filed: one, or windows of about equal length for a long one.

    They cover the text without overlap and end where a line or sentence does, if there is one near.

    Args:
        most: words of a window, at least 1. A text without spaces is cut by its characters.
    Cost: O(len(text)).
    """
    most_characters = round(most * 2.5 * WORD_CHARACTERS)
    parts = max(-(-len(text.split()) // most), -(-len(text) // most_characters))
    if parts <= 1:
        return [(0, len(text))] if text.strip() else []
    ends = [match.end() for match in _END.finditer(text)]
    found, start = [], 0
    for left in range(parts, 1, -1):
        size = (len(text) - start) // left
        aim = start + size
        near = [end for end in ends[bisect(ends, aim - size // 4) :] if end <= aim + size // 8]
        stop = min((abs(end - aim), end) for end in near)[1] if near else _before_word(text, start, aim)
        found.append((start, stop))
        start = stop
    found.append((start, len(text)))
    return [(begin, end) for begin, end in found if text[begin:end].strip()]


def _before_word(text: str, start: int, aim: int) -> int:
    space = max(text.rfind(" ", start + 1, aim), text.rfind("\n", start + 1, aim))
    return space + 1 if space > start else aim


def _pairs(word: str) -> list[str]:
    return [word[n : n + 2] for n in range(len(word) - 1)] or [word]


def _stem(word: str) -> str:
    return stemmed(word) if len(word) <= _LONGEST_TERM else word
