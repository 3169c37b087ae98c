"""From a policy's rules to the texts that are embedded, and back to compiled rules."""

from __future__ import annotations

import numpy as np
import pytest

from topicality.config import Policy
from topicality.core.rules import compiled, flattened, texts_of
from topicality.core.score import Weights
from topicality.testing import WordEmbedder

WEIGHTS = Weights(0.8, (2.0, 3.0), 0.6, (0.2, 0.5, 0.9, 2.5), 0.4)
POLICY = Policy(
    allowed=[
        {"name": "billing", "description": "invoices, refunds", "examples": ["Where is my invoice?", "invoices"]},
        {"name": "shipping", "counterexamples": ["shipping forecast", "ｓｈｉｐ\u200bping forecast"]},
    ],
    blocked=[{"name": "vi\u200bolence", "examples": ["kіll him"]}],
)


def test_a_rule_is_embedded_as_its_name_description_parts_and_examples_each_once_and_folded() -> None:
    billing, shipping, violence = texts_of(POLICY.sided())
    assert billing.members == ("billing", "invoices, refunds", "invoices", "refunds", "Where is my invoice?")
    assert billing.counter == ()
    assert shipping.members == ("shipping",)
    assert shipping.counter == ("shipping forecast",)
    assert violence.members == ("violence", "kill him")
    assert [entry.side for entry in (billing, shipping, violence)] == ["allowed", "allowed", "blocked"]
    assert billing.rule is POLICY.allowed[0]


def test_the_texts_of_all_rules_are_one_list_members_before_counterexamples() -> None:
    assert flattened(texts_of(POLICY.sided())) == [
        "billing", "invoices, refunds", "invoices", "refunds", "Where is my invoice?",
        "shipping", "shipping forecast",
        "violence", "kill him",
    ]  # fmt: skip
    assert flattened([]) == []


def test_each_rule_gets_its_own_vectors_and_words() -> None:
    embedder = WordEmbedder(16)
    entries = texts_of(POLICY.sided())
    book = compiled(entries, embedder.embed(flattened(entries)), None, WEIGHTS, embedder.space)
    assert book is not None
    for made, entry in zip(book.rules, entries, strict=True):
        assert made.name == entry.rule.name
        assert made.texts == entry.members
        assert np.array_equal(made.vectors, embedder.embed(entry.members))
        if entry.counter:
            assert made.counter is not None
            assert np.array_equal(made.counter, embedder.embed(entry.counter))
        else:
            assert made.counter is None
    assert book.rules[0].lexicon == {"bill": 1.0, "invoic": 0.8, "refund": 0.8}
    assert book.rules[1].lexicon == {"ship": 1.0}
    found = book.score(embedder.embed(["refunds", "kill him"]))
    assert found.best[0, 0] == pytest.approx(1.0, abs=1e-6)
    assert found.best[1, 2] == pytest.approx(1.0, abs=1e-6)


def test_no_rules_make_no_book() -> None:
    assert compiled([], np.zeros((0, 4), np.float32), None, WEIGHTS) is None
