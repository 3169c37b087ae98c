"""From a policy's rules to what is scored: the texts to embed, and the compiled sides once they are vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topicality.config import Side, TopicRule
from topicality.core.background import Background
from topicality.core.score import RuleBook, RuleMembers, Weights, lexicon
from topicality.core.text import content_stems, fold, parts
from topicality.types import Space
from topicality.vectors import Array


@dataclass(frozen=True, slots=True)
class RuleTexts:
    """One rule as text: members and counterexamples, folded, in the order they are embedded."""

    rule: TopicRule
    side: Side
    members: tuple[str, ...]
    counter: tuple[str, ...]


def texts_of(rules: Sequence[tuple[Side, TopicRule]]) -> list[RuleTexts]:
    """What has to be embedded for these rules: name, description, its enumerated parts, examples; counterexamples."""
    found = []
    for side, rule in rules:
        members = [*parts(rule.name, rule.description), *rule.examples]
        found.append(
            RuleTexts(
                rule,
                side,
                tuple(dict.fromkeys(fold(text).text for text in members)),
                tuple(dict.fromkeys(fold(text).text for text in rule.counterexamples)),
            )
        )
    return found


def flattened(rules: Sequence[RuleTexts]) -> list[str]:
    """All texts of the rules in one list, to be embedded in one call."""
    return [text for rule in rules for text in (*rule.members, *rule.counter)]


def compiled(
    rules: Sequence[RuleTexts],
    vectors: Array,
    background: Background | None,
    weights: Weights,
    space: Space | None = None,
) -> RuleBook | None:
    """The rules as a rule book, or None if there are none.

    Args:
        rules: what `texts_of` gave. vectors: shape (T, D), the vectors of `flattened(rules)`.
    """
    if not rules:
        return None
    members: list[RuleMembers] = []
    start = 0
    for entry in rules:
        middle = start + len(entry.members)
        end = middle + len(entry.counter)
        members.append(
            RuleMembers(
                entry.rule.name,
                entry.members,
                vectors[start:middle],
                vectors[middle:end] if end > middle else None,
                lexicon(
                    content_stems(entry.rule.name),
                    content_stems(entry.rule.description),
                    [content_stems(example) for example in entry.rule.examples],
                ),
            )
        )
        start = end
    return RuleBook(members, background, weights, space)
