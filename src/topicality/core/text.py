"""Plain facts about a text: folded form, words, script, language, small talk, parts of a description."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from snowballstemmer.basestemmer import BaseStemmer

# Letters that look like Latin ones. NFKC does not join these: they are different letters, used to slip past word lists.
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝѵкмтвнАЕОРСУХІЈЅМТВНКЗαοεινρτυκχΑΒΕΖΗΙΚΜΝΟΡΤΥΧɑɡıℓ",
    "aeopcyxijshdqwvkmtbhAEOPCYXIJSMTBHK3aoeivptukxABEZHIKMNOPTYXagil",
)
_STRUCK = str.maketrans("øØłŁđĐħĦŧŦƀɓɗɠƙƭⱥɇɨɉɍʉ", "oOlLdDhHtTbbdgktaeijru")  # Latin, and without a decomposition
# Invisible, but neither format characters nor unassigned: variation selectors, grapheme joiner, fillers.
_HIDDEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u3164\uffa0") | {*map(chr, range(0xFE00, 0xFE10))}
# Signs that are part of a word where they follow a letter: accents, Hebrew and Arabic points, vowels of Indian scripts and
# their neighbours.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0903\u093a-\u0963\u0981-\u0dff"
    "\u0e31-\u0e4e\u0eb1-\u0ecd\u0f71-\u0f87\u102b-\u103e\u1056-\u109d\u17b6-\u17d3"
)
_RUN = rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*"
_WORD = re.compile(rf"{_RUN}(?:['’]{_RUN})*")
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")  # the same for what is left of it in case-folded ASCII
_SPLIT = re.compile(
    r"[;,:•|/\n]|\s[-–—]\s|\.\s+|\b(?:and|or|including|such as|e\.g\.|as well as|und|et|y)\b", re.IGNORECASE
)


class Folded(NamedTuple):
    """A text with hidden and look-alike characters undone.

    Attributes:
        text: the folded text.
        changed: whether anything but white space was different.
        origin: for each folded character the index it came from; None when the two texts line up one to one.
    """

    text: str
    changed: bool
    origin: tuple[int, ...] | None = None

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The range of the text as given that the folded range [start, end) came from."""
        if self.origin is None or start >= end:
            return start, end
        return self.origin[start], self.origin[end - 1] + 1


def fold(text: str) -> Folded:
    """Undo what hides a word from a reader of code but not from a reader of the screen.

    Removes zero-width and other format characters, applies NFKC (full-width, ligatures, styled letters), and maps
    Cyrillic and Greek look-alikes to Latin in words that mix scripts. Words wholly in another script are kept.

    Cost: O(len(text)); text that is ASCII is returned as it is.
    """
    if text.isascii():
        return Folded(text, False)
    characters: list[str] = []
    origin: list[int] = []
    index = 0
    while index < len(text):
        end = index + 1
        while end < len(text) and unicodedata.category(text[end]) in ("Mn", "Me"):
            end += 1
        cluster = text[index : min(end, index + 3)]  # more than two marks on one letter is noise, not spelling
        if unicodedata.category(cluster[0]) not in ("Cf", "Cs", "Mn", "Me", "Co", "Cn"):
            for character in unicodedata.normalize("NFKC", cluster):
                if _shows(character, characters):
                    characters.append(character)
                    origin.append(index)
        index = end
    folded = _latin_words("".join(characters))
    aligned = len(folded) == len(text) and origin == list(range(len(text)))
    return Folded(folded, changed=folded != text, origin=None if aligned else tuple(origin))


def _shows(character: str, before: Sequence[str]) -> bool:
    """Whether a character can be seen: not hidden, and no mark that lies across a plain letter (struck out, dotted)."""
    if character in _HIDDEN or unicodedata.category(character) == "Cf":
        return False
    return not ("\u0300" <= character <= "\u036f" and before and before[-1].isascii())


def _latin_words(text: str) -> str:
    mostly_latin = script_shares(text).get("LATIN", 0.0) >= 0.5

    def undo(match: re.Match[str]) -> str:
        word = match.group()
        if word.isascii():
            return word
        plain = word.translate(_LOOKALIKES)
        mixed = any(character.isascii() and character.isalpha() for character in word)
        return plain if (plain.isascii() and (mixed or mostly_latin)) or (mixed and plain != word) else word

    return _WORD.sub(undo, text)


def unaccented(text: str) -> str:
    """Latin letters without their accents and strokes; all other letters and signs as they are.

    Not part of `fold`: an accent may be right, and what is embedded should keep it.
    """
    bare = [unicodedata.normalize("NFD", character)[0] for character in text]
    plain = (base if base.isascii() else character for base, character in zip(bare, text, strict=True))
    return "".join(plain).translate(_STRUCK)


def words(text: str) -> list[str]:
    """The words of a text, case-folded; apostrophes inside a word are dropped ("don't" is "dont")."""
    if text.isascii():
        found = _ASCII_WORD.findall(text.lower())
        return [word.replace("'", "") for word in found] if "'" in text else found
    found = _WORD.findall(text.casefold())
    return [word.replace("'", "").replace("’", "") for word in found]


def stems(text: str) -> list[str]:
    """The words of a text, reduced to their stems (Snowball, English), so that inflected forms are equal."""
    return [_stem(word) for word in words(text)]


def _stem(word: str) -> str:
    return stemmed(word) if word.isascii() else word


@lru_cache(maxsize=65536)
def stemmed(word: str) -> str:
    """The stem of a folded word (Snowball, English). Cost: tens of microseconds the first time. Thread-safe."""
    return str(_stemmer().stemWord(word))


def _stemmer() -> BaseStemmer:
    from snowballstemmer import stemmer

    return stemmer("english")  # a new one each time: it keeps the word it works on, so threads must not share one


def parts(name: str, description: str) -> list[str]:
    """What a rule is matched by: its name, its description, and each part of a description that enumerates.

    "Bank accounts: balances, transfers and cards" gives the whole, "Bank accounts", "balances", "transfers", "cards".
    A part that is a lone short word is read together with the name, which says what it is a part of.
    """
    members = [name]
    text = " ".join(description.split())
    if text:
        members.append(text)
        pieces = [piece.strip(" .") for piece in _SPLIT.split(text)]
        pieces = [piece for piece in pieces if len(piece) > 2 and words(piece)]
        if len(pieces) > 1:
            members.extend(pieces)
    return list(dict.fromkeys(members))


def script_shares(text: str) -> dict[str, float]:
    """Share of letters by script ("LATIN", "CYRILLIC", "CJK" …), [0, 1]; empty when there is no letter.

    An ideograph or a syllable stands for about a word, so it counts 2.5 letters.
    """
    counts: dict[str, float] = {}
    if text.isascii():
        return {"LATIN": 1.0} if any(character.isalpha() for character in text) else {}
    for character in text:
        if character.isalpha():
            script = "LATIN" if character.isascii() else unicodedata.name(character, "UNKNOWN").split(" ", 1)[0]
            counts[script] = counts.get(script, 0.0) + (
                2.5 if script in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL") else 1.0
            )
    total = sum(counts.values())
    return {script: count / total for script, count in counts.items()} if total else {}


@dataclass(frozen=True, slots=True)
class FunctionWords:
    """Words that tell languages apart.

    Attributes:
        english: the English ones. codes: of a word of other languages, their ISO 639-1 codes.
    """

    english: frozenset[str]
    codes: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, lists: Mapping[str, Iterable[str]]) -> FunctionWords:
        """From words by code, of which "en" is English."""
        codes: dict[str, tuple[str, ...]] = {}
        for code, known in lists.items():
            for word in known if code != "en" else ():
                codes[word] = (*codes.get(word, ()), code)
        return cls(frozenset(lists.get("en", ())), codes)


def language(text: str, function_words: FunctionWords, spoken: Sequence[str] | None = None) -> str | None:
    """Best guess at the language, as ISO 639-1 code or a script name in upper case; None when nothing stands out.

    Made to be sure rather than complete: another script by its share of the letters, a language in Latin script only
    when its function words clearly outnumber the English ones. Names and titles in an English sentence are not enough.

    Args:
        text: folded text; the first 4,000 characters are read.
        function_words: words that only that language uses often.
        spoken: its words, if the caller has them.
    Cost: O(len(text)), a few microseconds a message.
    """
    head = text[:4000]
    if not head.isascii():
        foreign = {script: share for script, share in script_shares(head).items() if script != "LATIN"}
        if sum(foreign.values()) >= 0.3:
            return max(foreign, key=lambda script: foreign[script])
    if spoken is None or len(head) < len(text):
        spoken = words(head)
    if len(spoken) < 2:
        return None
    english = sum(map(function_words.english.__contains__, spoken))
    if 2 * english >= len(spoken):
        return None  # no other language can outnumber it any more
    hits: dict[str, int] = {}
    for word in spoken:
        for code in function_words.codes.get(word, ()):
            hits[code] = hits.get(code, 0) + 1
    if not hits:
        return None
    code = max(sorted(hits), key=lambda key: hits[key])
    found = hits[code]
    enough = found >= 3 or (found == 2 and len(spoken) <= 5)
    return code if enough and found >= 2 * english + 1 and found >= 0.3 * len(spoken) else None


def is_small_talk(
    text: str, phrases: frozenset[tuple[str, ...]], longest: int, spoken: Sequence[str] | None = None
) -> bool:
    """Whether a text is nothing but small talk: one or more known phrases, end to end.

    Args:
        phrases: known phrases, as word tuples. longest: words in the longest one.
        spoken: the text's words, if the caller has them.
    Cost: O(words · longest); texts of more than 12 words are never small talk.
    """
    spoken = tuple(words(text) if spoken is None else spoken)
    if not 0 < len(spoken) <= 12:
        return False  # only emoji or punctuation: the caller decides
    reachable = [0]
    for start in reachable:  # grows as it goes
        for end in range(start + 1, min(start + longest, len(spoken)) + 1):
            if end not in reachable and spoken[start:end] in phrases:
                reachable.append(end)
    return len(spoken) in reachable


def sections(lines: Iterable[str]) -> dict[str, list[str]]:
    """Read "# name" sections of a plain word list; blank lines are skipped."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in lines:
        entry = line.strip()
        if entry.startswith("#"):
            current = entry.lstrip("# ").strip()
        elif entry:
            found.setdefault(current, []).append(entry)
    return found


def contains(haystack: Sequence[str], needle: Sequence[str]) -> bool:
    """Whether one word sequence stands in another, whole and in a row."""
    return any(True for _ in positions(haystack, needle))


def positions(haystack: Sequence[str], needle: Sequence[str]) -> Iterator[int]:
    """Where one word sequence stands in another."""
    size = len(needle)
    if size:
        for start in range(len(haystack) - size + 1):
            if list(haystack[start : start + size]) == list(needle):
                yield start


_FUNCTION_STEMS = frozenset(
    """
    a about after again all also am an and ani anyon anyth are as ask at be becaus been but by can could did do
    doe doesnt dont each even ever everi few for from get give go good got had has have he her here him his how
    i if ill im in into is isnt it it its ive just know let like littl lot made make mani may me mean more most
    much must my need never new next no not now of off ok okay on one onli or other our out over own pleas put
    realli right said same say see she should show so some someth still such take tell than thank that the their
    them then there these they thing think this those time to too tri two up us use veri want was way we well
    were what whatev when where which while who whose whi will with without wont would yes yet you your youre
    """.split()
)


def content_stems(text: str, spoken: Sequence[str] | None = None) -> list[str]:
    """Stems of the words that carry a subject: no function words, nothing of one letter.

    Args:
        spoken: the text's words, if the caller has them.
    """
    found = map(_content, words(text) if spoken is None else spoken)
    return [stem for stem in found if stem]


@lru_cache(maxsize=32768)
def _content(word: str) -> str:
    """The word's stem, or nothing for one that carries no subject."""
    stem = _stem(word)
    return stem if len(stem) > 1 and stem not in _FUNCTION_STEMS else ""


_LONG, _PIECE, _BOOK = 80, 40, 1500  # words: read as a whole up to; most words of a window; from here on larger ones


_SENTENCE = re.compile(r"[.!?…]+[\"')\]]*\s+|\n+")


def sentences(text: str, least: int = 4) -> list[tuple[int, int]]:
    """Character ranges of the sentences of a text; one of fewer than `least` words is joined to the one before it."""
    if _SENTENCE.search(text) is None:
        return [(0, len(text))]
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    spans: list[tuple[int, int]] = []
    start = 0
    for end in [*ends, len(text)]:
        count = len(text[start:end].split())
        if spans and (count < least or len(text[slice(*spans[-1])].split()) < least):
            spans[-1] = (spans[-1][0], end)
        elif count:
            spans.append((start, end))
        else:
            continue
        start = end
    return spans or [(0, len(text))]


def is_long(text: str) -> bool:
    """Whether a text is too long to be read by one vector: more than 80 words or 1,200 characters."""
    return len(text) > 1200 or (len(text) > 2 * _LONG and len(text.split()) > _LONG)


def pieces(text: str) -> list[tuple[int, int]]:
    """Character ranges in which a text is read: one for a sentence or two, else windows that cover it.

    A short request at the end of a long message would drown in one vector. Texts of up to 80 words are cut at their
    sentences, longer ones into windows of a sentence or two and at most 40 words, books (from 1,500 words) into windows of
    about 150 words, so that the cost stays bounded. Nothing is left out.
    """
    if not is_long(text):
        return sentences(text)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if not spans:
        return [(0, len(text))]
    size, least = (_PIECE, 6) if len(spans) <= _BOOK else (150, 100)
    cuts: list[tuple[int, int]] = []
    start, count = 0, 0
    for index, (_, end) in enumerate(spans):
        count += 1
        while end - start > 1600:  # a word without end, or a run of very long ones
            cuts.append((start, start + 1200))
            start, count = start + 1200, 0
        closes = text[end - 1] in ".!?…\n" or "\n" in text[end : end + 1]
        if count >= size or (count >= least and closes):
            stop = spans[index + 1][0] if index + 1 < len(spans) else len(text)
            cuts.append((start, stop))
            start, count = stop, 0
    if start < len(text):
        if cuts and count < 4 and text[start:].strip() and len(text) - start < 400:
            cuts[-1] = (cuts[-1][0], len(text))
        elif text[start:].strip():
            cuts.append((start, len(text)))
        else:
            cuts[-1] = (cuts[-1][0], len(text))
    return _filled(text, cuts)


def _filled(text: str, cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, blank ones joined to the one before (or, at the start, behind): an encoder is never asked about nothing."""
    found: list[tuple[int, int]] = []
    for start, end in cuts:
        if found and not (text[start:end].strip() and text[slice(*found[-1])].strip()):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
