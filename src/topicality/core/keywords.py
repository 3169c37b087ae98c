"""The keyword tier: whole words and phrases, inflected forms included. Knows no vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topicality.config import Policy, Side, TopicRule
from topicality.core.text import contains, fold, parts, stems, unaccented, words

# How sure a bare word makes us, as a probability; the ancestor's figures, so that the tiers' answers can be compared.
BLOCKED_HIT, ALLOWED_HIT, NO_HIT = 0.8, 0.7, 0.5
_GENERIC = frozenset(
    "and or of the a an in on for to with by at from about other general all any question help".split()
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule's word that stands in the message."""

    rule: str
    side: Side
    word: str


@dataclass(frozen=True, slots=True)
class _Term:
    rule: str
    side: Side
    text: str
    stems: tuple[str, ...]


class KeywordIndex:
    """The words of a policy, stemmed once.

    `explicit` hits come from a rule's own `keywords` and count in every tier; `match` also looks for the rule's name and
    the short parts of its description, and is the tier of last resort.
    """

    def __init__(self, policy: Policy) -> None:
        self._explicit: list[_Term] = []
        self._names: list[_Term] = []
        for side, rule in policy.sided():
            self._explicit += [_Term(rule.name, side, word, _read(word)) for word in rule.keywords]
            self._names += _terms(rule, side)

    @property
    def has_explicit(self) -> bool:
        """Whether any rule lists keywords of its own."""
        return bool(self._explicit)

    def explicit(self, text: str) -> list[Hit]:
        """Hits of the rules' own keywords, blocked first, in policy order. Cost: O(words · keywords)."""
        return _found(self._explicit, text) if self._explicit else []

    def match(self, text: str) -> list[Hit]:
        """Hits of keywords, names and short description parts, blocked first, in policy order.

        A message that is itself part of a rule's name ("billing" for "billing and payments") counts when it is an
        allowed rule and the message has a word of four letters or more: a letter or "hi" never matches by accident.
        """
        spoken = stems(text)
        hits = _found([*self._explicit, *self._names], text)
        if any(len(word) >= 4 for word in words(text)):
            for term in self._names:
                if term.side == "allowed" and contains(term.stems, spoken):
                    hits.append(Hit(term.rule, term.side, term.text))
        return hits


def _read(text: str) -> tuple[str, ...]:
    """Stems of a policy's text, folded as messages are."""
    return tuple(stems(fold(text).text))


def _terms(rule: TopicRule, side: Side) -> list[_Term]:
    texts = [rule.name, *parts(rule.name, rule.name)]
    texts += [part for part in parts(rule.name, rule.description)[1:] if len(words(part)) <= 3]
    terms: dict[tuple[str, ...], _Term] = {}
    for text in texts:
        stemmed = _read(text)
        if stemmed and not all(stem in _GENERIC for stem in stemmed):
            terms.setdefault(stemmed, _Term(rule.name, side, text, stemmed))
    return list(terms.values())


def _found(terms: Sequence[_Term], text: str) -> list[Hit]:
    readings = [stems(text)]
    if not text.isascii() and (bare := unaccented(text)) != text:
        readings.append(stems(bare))  # "bómb" is read as "bomb" too; "café" stays what it is, besides
    hits = [
        Hit(term.rule, term.side, term.text)
        for term in terms
        if any(term.stems and term.stems[0] in spoken and contains(spoken, term.stems) for spoken in readings)
    ]
    return sorted(hits, key=lambda hit: hit.side == "allowed")
