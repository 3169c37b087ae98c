"""Labels and retrieval terms of a topic from its text, without a language model: what it says often and the rest does not.

Class-based TF-IDF: a topic is one document, counted by exchanges, against the conversation it is part of and the shipped
background of everyday words. Everything here is a counter that grows by one exchange at a time and is bounded, so that one
more exchange costs the same after ten as after a million.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import log, log2

from topicality.core.grams import Grams, Spellings, is_word
from topicality.errors import StoreError

LABELS = (2, 5)
TERMS = (3, 12)

_WORDS = 256  # keys a topic keeps when it is pruned, at twice as many
_LEXICON = 1024  # stems a conversation keeps, likewise
_RANKED = 160  # of them, the heaviest, are looked at closely
_SPELLINGS = 8
_TELLING = 0.85  # the background is small: a word it never has may still be an ordinary one
_KEEP = 0.18  # a term beyond the least number must score this share of the best one


@dataclass(frozen=True, slots=True)
class Entry:
    """What a topic knows of a word or phrase: weight, exchanges it stands in, the last of them, spellings."""

    weight: int
    docs: int
    last: int
    once: bool
    spellings: Spellings

    @property
    def best(self) -> tuple[str, int]:
        """The most frequent spelling; of equal ones the shortest, then the one with fewer capitals."""
        return self.spellings[0] if len(self.spellings) == 1 else max(self.spellings, key=_preference)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one topic. Immutable: adding an exchange gives another one.

    Exact up to 512 keys; then the 256 heaviest stay (equal ones: the latest), as in lossy counting. Within the exact range
    the order of exchanges and merges does not matter; beyond it, the same order gives the same words.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    docs: int = 0

    def added(self, grams: Grams, sequence: int) -> Words:
        """With one more exchange. Cost: O(its size), and a copy of at most 512 references."""
        entries = dict(self.entries)
        for key, gram in grams.found.items():
            entries[key] = _joined(entries.get(key), Entry(gram.weight, 1, sequence, gram.once, gram.spellings))
        return Words(_pruned(entries), self.docs + 1)

    def merged(self, other: Words) -> Words:
        """The words of two topics that turned out to be one."""
        entries = dict(self.entries)
        for key, entry in other.entries.items():
            entries[key] = _joined(entries.get(key), entry)
        return Words(_pruned(entries), self.docs + other.docs)

    def dump(self) -> bytes:
        """As bytes for a store; `load` gives the same words back."""
        rows = {key: [e.weight, e.docs, e.last, e.once, dict(e.spellings)] for key, e in sorted(self.entries.items())}
        return json.dumps([self.docs, rows], separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> Words:
        """Read what `dump` wrote.

        Raises:
            StoreError: the bytes are something else.
        """
        try:
            docs, rows = json.loads(data)
            entries = {
                key: Entry(weight, count, last, once, tuple(sorted(spelled.items())))
                for key, (weight, count, last, once, spelled) in rows.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError("the words kept for a topic are damaged; make them again from its exchanges") from error
        return cls(entries, docs)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """In how many exchanges of a conversation each word stands. Bounded: words that stay rare are forgotten.

    Attributes:
        counts: exchanges by word. exchanges: how many were counted.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    exchanges: int = 0

    def added(self, grams: Grams) -> Lexicon:
        """With one more exchange. Cost: O(its size), and a copy of at most 2,048 numbers."""
        counts = dict(self.counts)
        for word in grams.words:
            counts[word] = counts.get(word, 0) + 1
        if len(counts) > 2 * _LEXICON:
            counts = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LEXICON])
        return Lexicon(counts, self.exchanges + 1)

    def removed(self, grams: Grams) -> Lexicon:
        """Without an exchange that was deleted (or edited: remove the old text, add the new one)."""
        counts = dict(self.counts)
        for word in grams.words:
            if word in counts:
                counts[word] -= 1
                if counts[word] <= 0:
                    del counts[word]
        return Lexicon(counts, max(0, self.exchanges - 1))

    def rarity(self, word: str) -> float:
        """How telling a word is in this conversation, (0, 1]."""
        if self.exchanges < 2:
            return 1.0
        return log(1 + self.exchanges / max(1, self.counts.get(word, 1))) / log(1 + self.exchanges)

    def dump(self) -> bytes:
        """As bytes for a store."""
        return json.dumps([self.exchanges, dict(sorted(self.counts.items()))], separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> Lexicon:
        """Read what `dump` wrote.

        Raises:
            StoreError: the bytes are something else.
        """
        try:
            exchanges, counts = json.loads(data)
            return cls({str(word): int(count) for word, count in counts.items()}, int(exchanges))
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                "the word counts kept for a conversation are damaged; count its exchanges again"
            ) from error


@dataclass(frozen=True, slots=True)
class Description:
    """What a topic is about: labels for people, terms for retrieval, best first; each stands in its text as it is."""

    labels: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


def words_of(exchanges: Iterable[tuple[int, Grams]]) -> Words:
    """The words of a topic from its exchanges, in the order given: how a touched topic is made again."""
    words = Words()
    for sequence, grams in exchanges:
        words = words.added(grams, sequence)
    return words


def describe(
    words: Words,
    lexicon: Lexicon,
    everyday: Callable[[str], float] | None = None,
    *,
    labels: tuple[int, int] = LABELS,
    terms: tuple[int, int] = TERMS,
) -> Description:
    """Choose labels and terms.

    Args:
        everyday: how telling a stem is against everyday talk, (0, 1] (`Background.rarity`); None for 1.
        labels, terms: least and most.
    Returns:
        No two labels share a stem where there is a choice, no term is part of another one. Fewer than the least number
        only when the text has no more words that name anything; none for small talk.
    Cost: O(words kept for the topic), at most 512: under 2 ms.
    """
    scores = _scores(words, lexicon, everyday or (lambda _: 1.0))
    ranked = sorted(scores, key=lambda key: (-scores[key], key))
    chosen: list[str] = []
    for shared in (False, True):  # a label that shares a word with another one only when there are too few
        for key in ranked:
            if len(chosen) >= (labels[0] if shared else labels[1]):
                break
            if not shared and len(chosen) >= labels[0] and scores[key] < 2 * _KEEP * scores[ranked[0]]:
                break
            if not any(_covers(key, other, part=not shared) for other in chosen):
                chosen.append(key)
    more = list(chosen)
    for key in ranked:
        enough = len(more) >= terms[0] and scores[key] < _KEEP * scores[ranked[0]]
        if enough or len(more) >= terms[1]:
            break
        if not any(_covers(key, other, part=False) for other in more):
            more.append(key)
    for key in ranked:  # words of a phrase, where there is nothing else
        if len(more) >= terms[0]:
            break
        if key not in more:
            more.append(key)
    shown = [words.entries[key].best[0] for key in more]
    unique = list(dict.fromkeys(shown))
    return Description(tuple(shown[: len(chosen)]), tuple(unique[: terms[1]]))


def _scores(words: Words, lexicon: Lexicon, everyday: Callable[[str], float]) -> dict[str, float]:
    scores = {}
    telling: dict[str, float] = {}
    heavy = sorted(words.entries, key=lambda key: (-words.entries[key].weight, -words.entries[key].last, key))[:_RANKED]
    for key in heavy:
        entry = words.entries[key]
        parts = _parts(key)
        for part in parts:
            if part not in telling:
                telling[part] = min(_TELLING, everyday(part)) * lexicon.rarity(part)
        said = log2(1 + entry.weight / 4) * (1 + 0.6 * log2(entry.docs))
        score = said * sum([telling[part] for part in parts]) / len(parts)
        spelling, count = entry.best
        if count >= 4 and spelling[0].isupper():  # a capital inside a sentence: a name
            score *= 1.2
        if entry.once:
            score *= 0.8
        elif len(parts) > 1:
            score *= 1.25
        scores[key] = score
    for key in heavy:
        entry = words.entries[key]
        if not entry.once and not is_word(key):
            share = 0.4 if entry.docs > 1 and not key[-1].isdigit() else 0.6
            for word in _parts(key):
                inside = words.entries.get(word)
                # the word stands in the phrase often enough to be shown with it
                if inside is not None and word in scores and entry.weight >= share * inside.weight:
                    scores[key] = max(scores[key], 1.05 * scores[word])
    return scores


def _parts(key: str) -> list[str]:
    """What rarity is known of: the words of a phrase without numbers, or the pairs of a run of characters."""
    if " " in key:
        words = key.split(" ")
        return [word for word in words if not word[0].isdigit()] or words
    return [key] if is_word(key) else [key[n : n + 2] for n in range(len(key) - 1)]


def _covers(key: str, other: str, *, part: bool) -> bool:
    """Whether two keys say the same: one contains the other, or (part) they share a word."""
    if " " in key or " " in other:
        mine, theirs = set(key.split(" ")), set(other.split(" "))
        return bool(mine & theirs) if part else mine <= theirs or theirs <= mine
    if key == other:
        return True
    if key.isascii() or other.isascii() or len(key) == 1 or len(other) == 1:
        return False
    if is_word(key) and is_word(other) and len(key) > 2:
        return False  # words of a script with spaces
    pairs = {other[n : n + 2] for n in range(len(other) - 1)}
    return key[0] == other[-1] or key[-1] == other[0] or any(key[n : n + 2] in pairs for n in range(len(key) - 1))


def _preference(spelled: tuple[str, int]) -> tuple[int, int, int, str]:
    text, count = spelled
    return count, -len(text), -sum(map(str.isupper, text)), text


def _joined(known: Entry | None, new: Entry) -> Entry:
    if known is None:
        return new
    counts = dict(known.spellings)
    for text, count in new.spellings:
        counts[text] = counts.get(text, 0) + count
    spelled = counts.items() if len(counts) <= _SPELLINGS else sorted(counts.items(), key=_preference)[-_SPELLINGS:]
    return Entry(
        known.weight + new.weight, known.docs + new.docs, max(known.last, new.last), False, tuple(sorted(spelled))
    )


def _pruned(entries: dict[str, Entry]) -> dict[str, Entry]:
    if len(entries) <= 2 * _WORDS:
        return entries
    order = sorted(entries, key=lambda key: (-entries[key].weight, -entries[key].last, key))
    return {key: entries[key] for key in order[:_WORDS]}
