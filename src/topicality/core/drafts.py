"""A labeller's reply, never trusted: found in prose and fences, held against every rule, explained if refused.

Every rule is checked before the reply is used, and all faults are collected, so that one repair can mend them together. No
number is coerced, and no range is walked before it is known to lie inside the batch.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topicality.core import spans as sets
from topicality.core.grams import grams_of
from topicality.core.replies import objects
from topicality.core.revise import Found
from topicality.core.spans import Span
from topicality.core.text import contains, stems, words
from topicality.records import Exchange

_STATUSES = ("open", "provisional", "finalized")
_KEYS = ("status", "labels", "terms", "spans", "secondary", "continues")
_LONGEST = 60  # characters of a label or term
_MOST_FAULTS = 40
_BIG = 10**15


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a reply: a code for machines, a sentence for the labeller. Never contains transcript text."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reply must keep to.

    Attributes:
        labels, terms: least and most of each. singles: most topics of one exchange.
        finalized_after: exchanges of the batch after a topic that is called finalized.
    """

    labels: tuple[int, int] = (2, 5)
    terms: tuple[int, int] = (3, 12)
    singles: int = 1
    finalized_after: int = 4


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Checked:
    """A reply that was held against the rules.

    Attributes:
        topics: what was found; empty when there are faults. faults: all of them, in order.
        notes: what was left out without refusing the reply: blank, repeated or ungrounded entries.
    """

    topics: tuple[Found, ...] = ()
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether it may be used."""
        return not self.faults


@dataclass(slots=True)
class _Sheet:
    """The batch as the checks need it, and what they have found so far."""

    sequences: list[int]
    texts: dict[int, tuple[str, str]]
    known: frozenset[str]
    limits: Limits
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    continued: set[str] = field(default_factory=set)

    def fault(self, code: str, text: str) -> None:
        self.faults.append(Fault(code, text))

    def inside(self, first: int, last: int) -> list[int]:
        """The sequences of the batch in a range; nothing is walked outside the batch."""
        return self.sequences[bisect_left(self.sequences, first) : bisect_right(self.sequences, last)]


def check(reply: object, batch: Sequence[Exchange], *, known: Sequence[str] = (), limits: Limits = LIMITS) -> Checked:
    """Hold a reply against the rules.

    Args:
        reply: text, or an object that is already parsed.
        batch: the exchanges that were shown, ascending. known: ids of topics that may be continued.
    Returns:
        The first JSON object in the reply that satisfies all rules; otherwise the faults of the first one.
    Cost: O(size of the reply + size of the batch), whatever numbers the reply names. Source: system D (ancestors 5.7).
    """
    if isinstance(reply, Mapping):
        return _checked(reply, batch, known, limits)
    if not isinstance(reply, str):
        return Checked(faults=(Fault("NOT_JSON", f"the reply must be a JSON object, got {type(reply).__name__}"),))
    if not reply.strip():
        return Checked(faults=(Fault("BLANK", "the reply is blank"),))
    first: Checked | None = None
    for candidate in objects(reply):
        result = _checked(candidate, batch, known, limits)
        if result.accepted:
            return result
        first = first or result
    return first or Checked(faults=(Fault("NOT_JSON", "the reply has no JSON object; give one, and nothing else"),))


def schema(limits: Limits = LIMITS, known: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of a reply: closed, with the ids of the topics that may be continued."""
    span = {
        "type": "object",
        "additionalProperties": False,
        "required": ["first", "last"],
        "properties": {"first": {"type": "integer", "minimum": 1}, "last": {"type": "integer", "minimum": 1}},
    }
    text = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
    topic: dict[str, Any] = {
        "status": {"type": "string", "enum": list(_STATUSES)},
        "labels": {"type": "array", "minItems": limits.labels[0], "maxItems": limits.labels[1], "items": text},
        "terms": {"type": "array", "minItems": limits.terms[0], "maxItems": limits.terms[1], "items": text},
        "spans": {"type": "array", "minItems": 1, "items": span},
        "secondary": {"type": "array", "items": span},
    }
    if known:
        topic["continues"] = {"type": ["string", "null"], "enum": [*known, None]}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["topics"],
        "properties": {
            "topics": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["status", "labels", "terms", "spans"],
                    "properties": topic,
                },
            }
        },
    }


def low_content(exchange: Exchange) -> bool:
    """Whether an exchange is nothing but acknowledgement or small talk: nothing in it could name a topic.

    In every language that has its fillers in `core.grams`; system D knew Chinese ones only.
    """
    reply = "" if exchange.reply is None else exchange.reply.text
    return len(words(exchange.user.text)) + len(words(reply)) <= 12 and not grams_of(exchange.user.text, reply).found


def _checked(value: Mapping[str, Any], batch: Sequence[Exchange], known: Sequence[str], limits: Limits) -> Checked:
    texts = {e.sequence: (e.user.text, "" if e.reply is None else e.reply.text) for e in batch}
    sheet = _Sheet(sorted(texts), texts, frozenset(known), limits)
    _keys(sheet, value, ("topics",), "the reply")
    listed = value.get("topics")
    if not isinstance(listed, list):
        sheet.fault("TOPICS", "topics must be an array")
        listed = []
    if len(listed) > len(batch):
        sheet.fault("TOO_MANY", f"{len(listed)} topics for {len(batch)} exchanges; merge them")
        listed = listed[: len(batch)]
    topics = [found for place, topic in enumerate(listed, 1) if (found := _topic(sheet, topic, place)) is not None]
    for sequence in sheet.sequences:
        if sequence not in sheet.taken:
            sheet.fault("UNASSIGNED", f"exchange {sequence} is in no topic")
    _weigh(sheet, topics, batch)
    if sheet.faults:
        return Checked(faults=tuple(sheet.faults[:_MOST_FAULTS]), notes=tuple(sheet.notes))
    return Checked(tuple(topics), notes=tuple(sheet.notes))


def _topic(sheet: _Sheet, topic: object, place: int) -> Found | None:
    where = f"topic {place}"
    if not isinstance(topic, dict):
        sheet.fault("NOT_TOPIC", f"{where} must be an object")
        return None
    _keys(sheet, topic, _KEYS, where)
    status = topic.get("status")
    if not isinstance(status, str) or status not in _STATUSES:
        sheet.fault("STATUS", f"status of {where} must be one of {', '.join(_STATUSES)}")
        status = "provisional"
    continues = topic.get("continues")
    if continues is not None and (not isinstance(continues, str) or continues not in sheet.known):
        sheet.fault("UNKNOWN_TOPIC", f"{where} continues a topic that was not given")
        continues = None
    elif continues is not None:
        if continues in sheet.continued:
            sheet.fault("REPEATED", f"{where} continues a topic that another one continues; make one topic of them")
        sheet.continued.add(continues)
    labels = _entries(sheet, topic.get("labels"), f"labels of {where}")
    if not sheet.limits.labels[0] <= len(labels) <= sheet.limits.labels[1]:
        least, most = sheet.limits.labels
        sheet.fault("LABELS", f"{where} must have {least} to {most} labels, has {len(labels)}")
    own = _spans(sheet, topic.get("spans"), where)
    also = _secondary(sheet, topic.get("secondary"), own, where)
    terms = _grounded(sheet, _entries(sheet, topic.get("terms"), f"terms of {where}"), (*own, *also), where)
    if not sheet.limits.terms[0] <= len(terms) <= sheet.limits.terms[1]:
        least, most = sheet.limits.terms
        sheet.fault("TERMS", f"{where} must have {least} to {most} terms from its exchanges, has {len(terms)}")
    return Found(tuple(labels), tuple(terms), sets.of(own), sets.of(also), continues, status)


def _keys(sheet: _Sheet, value: Mapping[str, Any], wanted: Sequence[str], where: str) -> None:
    extra = [_shown(key) for key in value if key not in wanted]
    if extra:
        sheet.fault("KEYS", f"{where} has unknown keys: {', '.join(extra[:8])}")


def _shown(key: object) -> str:
    text = str(key)[:40]
    return text if text.isidentifier() and text.isascii() else repr(text.encode("unicode_escape").decode())


def _entries(sheet: _Sheet, value: object, where: str) -> list[str]:
    """Non-blank strings on one line, trimmed, each once; what is left out is noted, as in system D it was not."""
    if not isinstance(value, list):
        return []
    kept: list[str] = []
    seen: set[str] = set()
    for entry in value[:200]:
        text = " ".join(entry.split()) if isinstance(entry, str) else ""
        plain = all(unicodedata.category(character)[0] != "C" or character in "\u200c\u200d" for character in text)
        if not text or not plain or len(text) > _LONGEST:
            sheet.notes.append(f"{where}: an entry that is blank, too long or not plain text was left out")
        elif (key := " ".join(stems(text)) or text.casefold()) in seen:
            sheet.notes.append(f"{where}: a repeated entry was left out")
        else:
            seen.add(key)
            kept.append(text)
    if len(value) > 200:
        sheet.notes.append(f"{where}: entries after the first 200 were left out")
    return kept


def _grounded(sheet: _Sheet, terms: list[str], sequences: Sequence[int], where: str) -> list[str]:
    """The terms that stand in the exchanges of the topic: literally, or word for word apart from inflection."""
    texts = [text for sequence in dict.fromkeys(sequences) for text in sheet.texts[sequence]]
    whole = [" ".join(text.casefold().split()) for text in texts]
    spoken: list[list[str]] | None = None
    kept = []
    for term in terms:
        bare = term.casefold()
        grounded = any(_stands(bare, text) for text in whole)
        simple = all(character.isalnum() or character in " -'’" for character in term)
        if not grounded and simple and (stemmed := stems(term)):
            spoken = [stems(text) for text in texts] if spoken is None else spoken
            grounded = any(contains(said, stemmed) for said in spoken)
        if grounded:
            kept.append(term)
    if len(kept) < len(terms):
        sheet.notes.append(
            f"terms of {where}: {len(terms) - len(kept)} that stand in none of its exchanges were left out"
        )
    return kept


def _stands(term: str, text: str) -> bool:
    """Whether a term stands in a text, not as a part of an ASCII word."""
    start = text.find(term)
    while start != -1:
        end = start + len(term)
        before = start == 0 or not (_plain(text[start - 1]) and _plain(term[0]))
        after = end == len(text) or not (_plain(text[end]) and _plain(term[-1]))
        if before and after:
            return True
        start = text.find(term, start + 1)
    return False


def _plain(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _spans(sheet: _Sheet, value: object, where: str) -> list[int]:
    """The sequences of a topic. Each exchange belongs to one topic."""
    if not isinstance(value, list) or not value:
        sheet.fault("NO_SPANS", f"{where} must have at least one span")
        return []
    own: list[int] = []
    for first, last in _ranges(sheet, value, where):
        inside = sheet.inside(first, last)
        double = [sequence for sequence in inside if sequence in sheet.taken]
        if double:
            sheet.fault("OVERLAP", f"exchange {double[0]} is in two spans ({where}); each belongs to one topic")
        sheet.taken.update(inside)
        own += [sequence for sequence in inside if sequence not in double]
    return own


def _secondary(sheet: _Sheet, value: object, own: list[int], where: str) -> list[int]:
    """Sequences that a topic is also about; they may overlap those of other topics, and not its own."""
    if value is None:
        return []
    if not isinstance(value, list):
        sheet.fault("SPANS", f"secondary of {where} must be an array of spans")
        return []
    also: list[int] = []
    for first, last in _ranges(sheet, value, where):
        also += sheet.inside(first, last)
    if set(also) & set(own) or len(set(also)) < len(also):
        sheet.fault("OVERLAP", f"secondary of {where} overlaps itself or the topic's own spans")
        return []
    return also


def _ranges(sheet: _Sheet, value: list[Any], where: str) -> list[Span]:
    ranges: list[Span] = []
    if len(value) > len(sheet.sequences):
        sheet.fault("SPANS", f"{where} has {len(value)} spans for {len(sheet.sequences)} exchanges")
        value = value[: len(sheet.sequences)]
    for span in value:
        if not isinstance(span, dict):
            sheet.fault("SPANS", f"a span of {where} must be an object with first and last")
            continue
        _keys(sheet, span, ("first", "last"), f"a span of {where}")
        first, last = span.get("first"), span.get("last")
        if type(first) is not int or type(last) is not int or abs(first) > _BIG or abs(last) > _BIG:
            sheet.fault("NOT_INT", f"first and last of a span of {where} must be whole numbers")
        elif first > last:
            sheet.fault("REVERSED", f"a span of {where} runs backwards: {first} to {last}")
        else:
            inside = sheet.inside(first, last)
            if not inside or inside[0] != first or inside[-1] != last:
                sheet.fault("ENDPOINT", f"span {first} to {last} of {where} must begin and end with a given exchange")
            elif len(inside) != last - first + 1:
                sheet.fault("CROSSES", f"span {first} to {last} of {where} has exchanges in it that were not given")
            ranges.append((first, last))
    return ranges


def _weigh(sheet: _Sheet, topics: Sequence[Found], batch: Sequence[Exchange]) -> None:
    """Rules about topics as a whole: too many single ones, fillers as topics, finalized too early."""
    limits = sheet.limits
    sizes = Counter(min(2, sets.size(topic.spans)) for topic in topics)
    if sizes[1] > limits.singles:
        sheet.fault("SINGLES", f"{sizes[1]} topics of one exchange, at most {limits.singles}; merge them into others")
    texts = {exchange.sequence: exchange for exchange in batch}
    for topic in topics:
        if sets.size(topic.spans) == 1 and low_content(texts[topic.spans[0][0]]):
            sheet.fault("LOW_CONTENT", f"exchange {topic.spans[0][0]} is only small talk; put it into another topic")
        if topic.status == "finalized" and topic.spans:
            after = len(sheet.sequences) - bisect_right(sheet.sequences, topic.spans[-1][1])
            if after < limits.finalized_after:
                sheet.fault(
                    "FINALIZED_EARLY",
                    f"a finalized topic needs {limits.finalized_after} later exchanges, the one that ends with "
                    f"{topic.spans[-1][1]} has {after}",
                )
