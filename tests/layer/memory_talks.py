"""Conversations for the tests of memory, and an encoder that is quick."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from topicality.core.spans import holds
from topicality.layer.memory import Layer
from topicality.ports import Store
from topicality.records import Scope
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

FLIGHT = [
    (
        "Hi, I need to cancel my flight to Lisbon next Friday.",
        "I can cancel the flight to Lisbon. What is the booking?",
    ),
    ("The booking code of the Lisbon flight is QX81.", "The flight to Lisbon with booking QX81 is cancelled."),
    ("Is there a refund for the flight to Lisbon?", "Yes, the refund for the Lisbon flight takes five days."),
]
PASTA = [
    (
        "How long should I boil spaghetti so that the pasta stays firm?",
        "Boil spaghetti nine minutes, then taste the pasta.",
    ),
    ("And how much salt goes into the pasta water?", "Ten grams of salt for a litre of pasta water."),
    ("Which sauce goes with spaghetti pasta?", "Tomato sauce with basil is good with spaghetti pasta."),
]


def ids(prefix: str = "id") -> Callable[[], str]:
    counter = itertools.count(1)
    return lambda: f"{prefix}{next(counter)}"


class Clock:
    """A clock that moves a minute each time it is asked."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        self.at += 60.0
        return self.at


def layer_on(store: Store | str, policy: object = None, prefix: str = "id") -> Layer:
    kept = open_store(store) if isinstance(store, str) else store
    return Layer(kept, policy, WordEmbedder(), clock=Clock(), ids=ids(prefix))  # type: ignore[arg-type]  # any policy


def sound(layer: Layer, conversation: str = "c", owner: str = "default") -> None:
    """Every completed exchange is in exactly one topic, no other one is in any; numbers have no gaps."""
    talk = layer.conversation(conversation, owner)
    topics = [record for _, record in layer.store.topics(owner, conversation, dropped=True)]
    assert [topic.number for topic in topics] == list(range(1, len(topics) + 1))
    live = [topic for topic in topics if topic.status != "dropped"]
    exchanges = layer.store.exchanges(
        Scope(owner, conversation), statuses=("pending", "completed", "failed", "deleted")
    )
    assert [exchange.sequence for exchange in exchanges] == list(range(1, len(exchanges) + 1))
    for exchange in exchanges:
        homes = [topic.id for topic in live if holds(topic.spans, exchange.sequence)]
        assert len(homes) == (1 if exchange.status == "completed" else 0), (exchange.sequence, exchange.status, homes)
    assert {topic.id: topic.spans for topic in talk.topics()} == {topic.id: topic.spans for topic in live}
