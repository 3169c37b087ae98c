"""What the words of one message say about topics: question, thanks, "another thing", content words. No vectors.

Source: the surface features of research on dialogue segmentation (cue phrases, lexical overlap); the lists are our own.
Case is ignored, and "i 'm" reads as "i'm", as tokenised corpora write it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from math import log1p
from typing import NamedTuple

SPOKEN_CHARACTERS = (1200, 800)  # of a long message, what is read: its head and its tail

_STOP = frozenset(
    """
    a an the and or but if then so of to in on at for from by with about as is are was were be been being am do does did
    have has had will would can could should may might must i you he she it we they me him her us them my your his its
    our their this that these those there here what which who whom when where why how not no yes just also too very
    really any some all more most much many other another get got go going know like want need please thank thanks ok
    okay yeah well oh hi hello hey one two im ive id ill dont didnt doesnt cant isnt arent youre thats its lets s t m re
    ve ll d up out than because into over let make sure good great help think see time way lot thing things something
    anything
    """.split()
)
_PRONOUNS = frozenset(
    "it its it's that that's this they them they're he she his her him those these one ones there then so".split()
)
_WH = frozenset("what what's whats where where's when why who who's which how how's whose".split())
_AUXILIARIES = frozenset("do does did is are am was were can could will would should have has may might shall".split())
_ANAPHORS = frozenset(
    "and but so or because then it it's its that that's this they they're he she he's she's those these which also".split()
)
_FIRST_PERSON = frozenset("i i'm im i've i'd i'll my we we're our me".split())
_SECOND_PERSON = frozenset("you your you're yours you've you'd u ur".split())
_NEGATIONS = frozenset("no not don't didn't doesn't can't won't isn't never nope cannot none nothing".split())
_ASSENTS = frozenset(
    """
    yes yeah yep yup no nope ok okay sure great right cool nice wow thanks thank good awesome perfect alright sounds haha
    lol oh ah exactly absolutely definitely correct fine indeed true agreed understood excellent wonderful interesting
    neat sweet hmm um well yea nah
    """.split()
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_DIGIT = re.compile(r"\d")
_SENTENCE_END = re.compile(r"[.!?]+(?:\s|$)")
_SPLIT_APOSTROPHE = re.compile(r"\s+(['’])\s?(s|m|re|ve|ll|d|t)\b")
_GREETING = re.compile(r"^\W*(hi|hello|hey|good (morning|evening|afternoon|day)|greetings|howdy)\b")
_THANKS = re.compile(r"\b(thanks?|thank you|appreciate|thx)\b")
_CLOSING = re.compile(
    r"\b(good ?bye|bye|have an? (good|great|nice|wonderful|lovely|safe|fantastic|blessed)|"
    r"that(?:'s| is|s) (all|it|everything)|you(?:'re| are) (very |most )?welcome|no problem|take care|all set|"
    r"glad (to|i)|my pleasure|nothing else|happy to help|nice (talking|chatting)|enjoy your)\b"
)
_SHIFT = re.compile(
    r"\b(also|another|what about|how about|else|other|by the way|btw|anyway|anyways|speaking of|different|additionally|"
    r"one more|moving on|next|now|instead|new|besides)\b"
)
_ASKING = re.compile(
    r"\b(i(?:'m| am)? (?:also )?(?:need|want|wish|look(?:ing)? for|trying|try|hop(?:e|ing)|interested)|"
    r"i(?:'d| would) (?:also )?like|i wanna|looking for|can you|could you|would you|will you|please|help me|help with|"
    r"find me|tell me|show me|give me|is there|are there|how (?:do|can|should|would|could) (?:i|we)|"
    r"what (?:do|should|can|if) i|do i|can i|may i|could i|where (?:do|can) i|i have a question)\b"
)
_OFFER = re.compile(
    r"\b(anything else|something else|can i help|may i help|help you|do you need|would you like|do you want|shall i|"
    r"should i|i can help|assist you|are you)\b"
)
_SMALL_TALK = re.compile(
    r"\b(do you (?:have|like|do|work|live|enjoy|ever)|have you|what do you|what's your|what is your|are you|"
    r"where are you|how are you|what are you|tell me about your)\b"
)
_ROLES = {"user": 1.0, "human": 1.0, "agent": 0.0, "assistant": 0.0, "system": 0.0, "bot": 0.0, "ai": 0.0}
_ENDINGS = ("'s", "ing", "ies", "ed", "es", "s", "ly")


class Cues(NamedTuple):
    """The cues of one message; every number is in [0, 1] but the logarithms (natural, of 1 + count)."""

    log_words: float
    log_content: float
    question_mark: float
    question: float
    wh: float
    auxiliary: float
    anaphor: float
    pronouns: float
    first_person: float
    shift: float
    asking: float
    greeting: float
    thanks: float
    closing: float
    assent: float
    only_assent: float
    digits: float
    exclamation: float
    offer: float
    second_person: float
    negation: float
    small_talk: float
    log_sentences: float
    user: float

    @property
    def acknowledges(self) -> bool:
        """Nothing but assent ("ok", "yes, thanks") and no question: such a message never starts a topic."""
        return self.only_assent > 0 and self.question_mark == 0


SILENT_CUES = Cues(*[0.0] * len(Cues._fields))
Words = frozenset[str]


def spoken_words(text: str) -> tuple[str, list[str]]:
    """A text in lower case, as far as it is read, and its words in order.

    Args:
        text: any length; of more than 2,000 characters the first 1,200 and the last 800 are read.
    """
    low = text.lower().replace("’", "'")
    if "'" in low:
        low = _SPLIT_APOSTROPHE.sub(r"\1\2", low)
    if len(low) > sum(SPOKEN_CHARACTERS):
        low = low[: SPOKEN_CHARACTERS[0]] + " " + low[-SPOKEN_CHARACTERS[1] :]
    return low, _WORD.findall(low)


def read_cues(text: str, role: str = "user") -> tuple[Cues, Words]:
    """The cues of a message and its content words, roughly stemmed: `cues_of` what `spoken_words` gives."""
    return cues_of(*spoken_words(text), role)


def cues_of(low: str, words: list[str], role: str) -> tuple[Cues, Words]:
    """The cues of a message and its content words, roughly stemmed.

    Args:
        low, words: from `spoken_words`. role: "user" or "assistant"; anything else counts as half of each.
    Cost: about 40 microseconds for a sentence or two.
    """
    count = len(words)
    share = 1.0 / max(count, 1)
    known = set(words)
    first = words[0] if count else ""
    second = words[1] if count > 1 else ""
    content = frozenset([_stem(word) for word in known if len(word) > 2 and word not in _STOP])
    asks, you = "?" in low, "you" in low
    # a pattern is tried only where it can match, which halves the time
    thanks = "thank" in low or "thx" in low or "appreciate" in low
    offers = you or "else" in low or "help" in low or "shall i" in low or "should i" in low
    wh = first in _WH or ((first in _ANAPHORS or first in _ASSENTS or first == "i") and second in _WH)
    auxiliary = first in _AUXILIARIES and second != ""
    assent = first in _ASSENTS
    digits = sum(1 for _ in islice(filter(_DIGIT.search, words), 3)) if _DIGIT.search(low) else 0
    values = (
        log1p(count),
        log1p(len(content)),
        asks,
        asks or wh or auxiliary,
        wh,
        auxiliary,
        first in _ANAPHORS,
        sum(map(_PRONOUNS.__contains__, words)) * share,
        first in _FIRST_PERSON,
        _SHIFT.search(low) is not None,
        _ASKING.search(low) is not None,
        _GREETING.match(low) is not None,
        thanks and _THANKS.search(low) is not None,
        _CLOSING.search(low) is not None,
        assent,
        assent and count <= 4,
        digits / 3.0,
        "!" in low,
        offers and _OFFER.search(low) is not None,
        sum(map(_SECOND_PERSON.__contains__, words)) * share,
        not known.isdisjoint(_NEGATIONS),
        you and _SMALL_TALK.search(low) is not None,
        log1p(len(_SENTENCE_END.findall(low))),
        _ROLES.get(role, 0.5),
    )
    return Cues(*map(float, values)), content


def overlap(left: Words, right: Words) -> float:
    """Shared content words over the smaller of two sets (plus one): [0, 1)."""
    return 0.0 if left.isdisjoint(right) else len(left & right) / (1.0 + min(len(left), len(right)))


@lru_cache(maxsize=16384)
def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
