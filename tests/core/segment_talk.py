"""Messages with their vectors, and the shipped heads, for the tests of segmentation."""

from __future__ import annotations

import numpy as np

from topicality.core.segment import Heads
from topicality.embed import load
from topicality.embed.segment import load_heads
from topicality.types import Message
from topicality.vectors import Array

Turns = list[tuple[str, str]]

FLIGHT: Turns = [
    ("user", "Hi, I need to cancel my flight to Lisbon next Friday."),
    ("assistant", "I can cancel the flight to Lisbon. Do you have your booking code?"),
    ("user", "Yes, the booking code of the flight is QX81."),
    ("assistant", "Thanks. Your flight to Lisbon is cancelled and the refund takes five days."),
]
PASTA: Turns = [
    ("user", "Another thing: how long should I boil pasta so that the spaghetti stays firm?"),
    ("assistant", "Boil spaghetti for about nine minutes in salted water, then taste the pasta."),
    ("user", "And how much salt goes into the pasta water?"),
    ("assistant", "About ten grams of salt for each litre of pasta water."),
]
BACK: Turns = [
    ("user", "Back to my cancelled flight to Lisbon: when does the refund for the booking QX81 arrive?"),
    ("assistant", "The refund for your cancelled Lisbon flight arrives within five days."),
]


def shipped() -> Heads:
    found = load_heads(load("minilm"))
    assert found is not None
    return found


HEADS = shipped()
SPACE = HEADS.space


def embed(turns: Turns) -> tuple[list[Message], Array]:
    return [Message(role, text) for role, text in turns], load("minilm").embed([text for _, text in turns])


def talk(seed: int, length: int) -> tuple[list[Message], Array]:
    """Random messages around a few directions: something for every branch of the code."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, SPACE.dimension))
    texts = (
        "ok", "thanks, that is all, bye", "I also need another train ticket to Bergen", "what about the hotel?", "",
        "It costs 30 euros.", "How are you?", "The invoice is wrong, please help me", "hello", "yes!",
    )  # fmt: skip
    messages, rows = [], []
    topic = 0
    for place in range(length):
        if rng.random() < 0.3:
            topic = int(rng.integers(len(centres)))
        rows.append(centres[topic] + rng.normal(scale=rng.uniform(0.3, 2.0), size=SPACE.dimension))
        role = "tool" if rng.random() < 0.08 else ("user", "assistant")[place % 2]
        calls = (f"c{place}",) if role == "assistant" and rng.random() < 0.2 else ()
        call = f"c{place - 1}" if role == "tool" else None
        messages.append(Message(role, texts[int(rng.integers(len(texts)))], id=str(place), calls=calls, call=call))
    matrix = np.asarray(rows, np.float32)
    return messages, (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)
