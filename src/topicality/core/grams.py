"""What a text could be named after: words and phrases that stand in it, each with the spellings they stand there in."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from topicality.core.text import content_stems, stems

Spellings = tuple[tuple[str, int], ...]

LONGEST = 3  # words in a phrase
_NOISE = re.compile(
    r"```.*?(?:```|\Z)|\]\([^)\n]{0,400}\)|\b(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+\.\w[\w.-]*|</?\w[^>\n]{0,200}>",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_JOINERS = frozenset(" -._/&+")
_OPENERS = frozenset(".!?…:;。！？\n\r\t*#>|•·-–—\"“'‘(")
_POINTS = (0, 4, 6, 7)  # for a word that stands once, twice, three times in a message; 8 from four on
_NUMBER = re.compile(r"v?\d[\d.,]*(?:st|nd|rd|th|s|k|m|am|pm|x|ms|px|fps|kb|mb|gb|h|min|km|kg)?")
_CONTRACTION = re.compile(r".*(?:n't|'(?:ll|ve|d|re|m|all))")

# Words that people use about anything. They may stand inside a name ("Good Omens"), but name nothing alone.
_CHATTER = """
able absolutely actually afternoon ago agree alright always amazing another answer anyway appreciate around article aspect
awesome away awhile back bad basically beautiful before best better bit both bye call cannot care case cause certain
certainly chance change check choose clear common completely cool couldnt course create curious current currently day days
deal dear definitely didnt difference different doesnt don't each early easy effective either else end enjoy enough
ensure especially etc evening example excited exactly excellent exciting experience explain fact fair fantastic far feel
felt find fine first focus following found friday friend full fun further future general glad goal going gonna good
goodbye gotta great guess guy haha half hand happen happy hard hate havent hear heard hello hello help helpful here hey hi
hmm hold hope hour huge idea ill important improve include including incredible inspiring instead interested interesting
involve issue its job keep key kind kinda kid last late later latest lately learn least leave left less lets level life
likely line list listen little living lol long look lot love lovely main major maybe mean meant meet mention mind minute
moment monday month months morning move much name near nearly nice night nope note nothing number oh okay old once open
option order overall part past people per perfect perhaps person piece place plan plenty point possible potential pretty
previous probably problem process provide put question quick quite read ready real reason recent recently remember remind
response result review right run saturday second seem self sense set share short side simple since single small somebody
someone something sometimes soon sorry sort sound special specific spend start stay step stop stuff suggest suggestion
sunday super support suppose sure talk tell text thank thanks that's thing think third though thought three through
throughout thursday today together told tomorrow tonight top total totally truly try tuesday turn type understand until
update use useful usually various view wait walk wanna wanted wasnt watch wednesday week weekend week welcome well went
while whole wish without won wonder wonderful word work worry worth would wouldnt wow write wrong yay yeah year years
yesterday yet given additional additionally explanation conclusion consideration unfortunately according within everything
myself yourself himself herself itself ourselves themselves congrats
youre yup mhm uh um ah aww hehe ha btw imo tbh thx pls ty np yep ok sir maam guys mate
"""
# Characters that carry grammar or assent where words are not spaced: what is left between them may be a name.
_GRAMMAR = frozenset(
    "的了是我你您他她它们們吗嗎呢吧啊呀哦噢嗯好对對也都就在有和与與及或这這那哪麼么嘛把被让讓给給很还還再又但而之其谢謝哈嘿喂请請"
)


@dataclass(frozen=True, slots=True)
class Gram:
    """A word or phrase of an exchange.

    Attributes:
        weight: how much is said of it; twice as much where the user says it, more where it is repeated.
        once: whether it stands there a single time.
        spellings: how it stands in the text, with a count; where a capital proves nothing (at the start of a sentence)
            a spelling counts little.
    """

    weight: int
    once: bool
    spellings: Spellings


@dataclass(frozen=True, slots=True)
class Grams:
    """The words and phrases of an exchange, by their stems joined with spaces (a run of characters in scripts without)."""

    found: dict[str, Gram] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """Those of one word, as the lexicon of a conversation counts them."""
        return [key for key in self.found if is_word(key)]


def is_word(key: str) -> bool:
    """Whether a key is one word, or a pair of characters in a script without spaces."""
    return " " not in key and (len(key) <= 2 or not _unspaced(key[0]))


def grams_of(
    user: str,
    reply: str = "",
    *,
    names: tuple[str, ...] = (),
    fillers: frozenset[str] = frozenset(),
) -> Grams:
    """The candidates of one exchange.

    Left out: function words and small talk, numbers alone, code blocks, links and addresses. A phrase has up to three
    words in a row, joined as they stand ("node.js", "follow-up", "annual fee"), none of them left out inside. In scripts
    without spaces: runs between grammar characters and their pieces of two to four characters; other runs (Thai) in
    pieces of at most twelve.

    Args:
        names: speakers; they are no subjects. fillers: further words to leave out, case-folded.
    Cost: O(len(user) + len(reply)).
    """
    skip = fillers | {part for name in names for part in stems(name)} if names else fillers
    counts: dict[str, list[int]] = {}
    spelled: dict[str, dict[str, int]] = {}
    for side, text in enumerate((user, reply)):
        for key, spelling, certain in _candidates(text, skip):
            sides = counts.get(key)
            if sides is None:
                sides, spelled[key] = counts.setdefault(key, [0, 0]), {}
            sides[side] += 1
            spelled[key][spelling] = spelled[key].get(spelling, 0) + (4 if certain else 1)
    found = {}
    for key, (said, answered) in counts.items():
        forms = spelled[key].items()
        spellings = tuple(forms) if len(forms) == 1 else tuple(sorted(forms))
        found[key] = Gram(2 * _points(said) + _points(answered), said + answered == 1, spellings)
    return Grams(found)


def _points(count: int) -> int:
    return _POINTS[count] if count < len(_POINTS) else 8


def _candidates(text: str, skip: frozenset[str]) -> Iterator[tuple[str, str, bool]]:
    """(key, spelling, whether its capitals are certain), once for each place."""
    shadow = _shadow(text)
    run: list[tuple[int, int, str, bool]] = []  # start, end, stem, whether it can stand alone
    for match in _WORD.finditer(shadow):
        start, end = match.span()
        if run and not (start - run[-1][1] == 1 and shadow[start - 1] in _JOINERS):
            yield from _phrases(text, shadow, run)
            run = []
        if not text.isascii() and any(map(_unspaced, text[start:end])):
            if run:
                yield from _phrases(text, shadow, run)
                run = []
            yield from _pieces(text[start:end])
            continue
        stem, alone = _analysed(text[start:end])
        if not stem or stem in skip or text[start:end].casefold() in skip:
            yield from _phrases(text, shadow, run)
            run = []
        else:
            run.append((start, end, stem, alone))
    yield from _phrases(text, shadow, run)


def _phrases(text: str, shadow: str, run: list[tuple[int, int, str, bool]]) -> Iterator[tuple[str, str, bool]]:
    for first, (start, end, stem, alone) in enumerate(run):
        if not alone:
            continue  # a phrase begins with a word that can stand alone ("Python 3") …
        yield stem, text[start:end], not _opens(shadow, start)
        key = stem
        for _, stop, other, _ in run[first + 1 : first + LONGEST]:
            if other in key.split(" ") or stop - start > 60:
                break  # … and says nothing twice
            key = f"{key} {other}"
            yield key, text[start:stop], True


@lru_cache(maxsize=16384)
def _analysed(word: str) -> tuple[str, bool]:
    """The stem of a word, "" when it names nothing; and whether it can stand alone."""
    if len(word) > 40:
        return "", False
    folded = word.casefold().replace("’", "'")
    if _NUMBER.fullmatch(folded):
        return folded, False
    if not folded.isascii():
        return folded.replace("'", ""), len(folded) > 1
    if _CONTRACTION.fullmatch(folded):
        return "", False
    possessive = folded.removesuffix("'s")
    content = content_stems(possessive)
    if not content or content[0] in _chatter():
        return "", False
    return content[0], True


@lru_cache(maxsize=1)
def _chatter() -> frozenset[str]:
    return frozenset(stems(_CHATTER))


def _opens(shadow: str, start: int) -> bool:
    """Whether a sentence or a line begins here, so that a capital letter proves nothing."""
    before = shadow[max(0, start - 4) : start].rstrip(" ")
    return not before or before[-1] in _OPENERS


def _shadow(text: str) -> str:
    """The text with what is no prose blanked out, and marks and joiners made letters; every index stays the same."""
    if "://" in text or "```" in text or "](" in text or "@" in text or "<" in text or "www." in text:
        text = _NOISE.sub(lambda match: "\n" * len(match.group()), text)
    if text.isascii():
        return text
    return "".join(
        "x" if character in "\u200c\u200d" or unicodedata.category(character)[0] == "M" else character
        for character in text
    )


def _pieces(run: str) -> Iterator[tuple[str, str, bool]]:
    """Candidates of a run of characters without spaces."""
    for part in _parts(run):
        if len(part) < 2:
            continue
        if _script(part[0]) == "other":
            start = 0
            while start < len(part):
                end = min(start + 12, len(part))
                while end < len(part) and unicodedata.category(part[end])[0] == "M":
                    end += 1
                yield part[start:end].casefold(), part[start:end], True
                start = end
            continue
        if len(part) > 4 and len(part) <= (20 if _script(part[0]) == "katakana" else 6):
            yield part, part, True
        if _script(part[0]) == "katakana":  # a word or two, not a sentence
            if len(part) <= 4:
                yield part, part, True
            continue
        for size in range(2, min(4, len(part)) + 1):
            for start in range(len(part) - size + 1):
                yield part[start : start + size], part[start : start + size], True


def _parts(run: str) -> Iterator[str]:
    """A run cut where the script changes and at grammar characters; hiragana is grammar."""
    start, kind = 0, ""
    for index, character in enumerate(run):
        now = "" if character in _GRAMMAR else _script(character)
        if now != kind:
            if kind:
                yield run[start:index]
            start, kind = index, now
    if kind:
        yield run[start:]


def _script(character: str) -> str:
    code = ord(character)
    if 0x3040 <= code <= 0x309F:
        return ""
    if 0x30A0 <= code <= 0x30FF or 0x31F0 <= code <= 0x31FF:
        return "katakana"
    if 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF or code == 0x3005:
        return "han"
    if unicodedata.category(character)[0] in "LM":
        return "latin" if code < 0x0250 else "other"
    return ""


def _unspaced(character: str) -> bool:
    """Scripts that put no space between words: Thai to Burmese, Khmer, kana and ideographs."""
    code = ord(character)
    return code >= 0x0E00 and (
        code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0x2E80 <= code <= 0x31FF
        or 0x3400 <= code <= 0x9FFF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x3FFFF
    )
