"""What a language model says a rule includes and what only looks like it, never trusted: read, cleaned, bounded."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topicality.config import TopicRule
from topicality.core.replies import objects

MOST = 15  # entries of a kind that are taken
LONGEST = 160  # characters of an entry

_KEYS = ("includes", "near_misses")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Entries that a rule does not have yet: what the topic includes, and near misses that it does not."""

    includes: tuple[str, ...]
    near_misses: tuple[str, ...]


def expansion_schema() -> dict[str, Any]:
    """JSON schema of the reply: closed."""
    texts = {"type": "array", "maxItems": MOST, "items": {"type": "string", "maxLength": LONGEST}}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(_KEYS),
        "properties": dict.fromkeys(_KEYS, texts),
    }


def read_expansion(reply: str, rule: TopicRule) -> Expansion | list[str]:
    """The expansion in a reply, or what is wrong with it. What the rule has already is left out.

    An entry is plain text on one line; anything else is a fault, so that nothing strange gets into a policy unseen.
    """
    faults: list[str] = []
    for candidate in objects(reply):
        answer = _expansion(candidate, rule)
        if isinstance(answer, Expansion):
            return answer
        faults = faults or answer
    return faults or ["the reply has no JSON object"]


def _expansion(value: Mapping[str, Any], rule: TopicRule) -> Expansion | list[str]:
    faults = [f"missing key {key!r}" for key in _KEYS if key not in value]
    faults += [f"unknown key {str(key)[:40]!r}" for key in value if key not in _KEYS]
    for key in _KEYS:
        entries = value.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            faults.append(f"{key} must be an array of texts")
        elif any(len(entry) > LONGEST or not _plain(entry) for entry in entries):
            faults.append(f"{key}: every entry must be plain text on one line of at most {LONGEST} characters")
    if not faults and not value["includes"]:
        faults.append("includes must not be empty")
    if faults:
        return faults
    seen = {_key(text) for text in (rule.name, rule.description, *rule.examples, *rule.counterexamples)}
    includes = _fresh(value["includes"], seen)
    return Expansion(includes, _fresh(value["near_misses"], seen))


def _fresh(entries: list[str], seen: set[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for entry in entries:
        text = " ".join(entry.split())
        if text and _key(text) not in seen and len(kept) < MOST:
            seen.add(_key(text))
            kept.append(text)
    return tuple(kept)


def _key(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _plain(text: str) -> bool:
    return all(unicodedata.category(char)[0] != "C" or char in "\u200c\u200d" for char in text)
