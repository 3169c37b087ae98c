"""Short ways to say things to a store, for its contract."""

from __future__ import annotations

import numpy as np

from topicality.ports import Store
from topicality.records import Applied, Begin, Change, Complete, Operation, Passage, Scope
from topicality.types import Space
from topicality.vectors import Array, unit

SPACE = Space("contract", 24, "1")
ANN = Scope("ann", "c1")


def vector(seed: int) -> Array:
    """A direction of its own for each seed."""
    return unit(np.random.default_rng(seed).standard_normal(SPACE.dimension))


def passage(text: str, seed: int | None = None) -> tuple[Passage, ...]:
    """The whole text as one passage."""
    return (Passage(0, len(text), tuple(text.casefold().split()), None if seed is None else vector(seed)),)


def change(name: str, *operations: Operation, scope: Scope = ANN, expect: int | None = None) -> Change:
    """A change of one conversation."""
    return Change(name, scope.owner, scope.conversation or "", operations, expect)


def begin(
    store: Store, key: str, text: str, seed: int | None = None, *, at: float | None = None, scope: Scope = ANN
) -> Applied:
    """Begin an exchange; `begun_at` is its time."""
    return store.apply(
        change(f"begin:{key}", Begin(key, text, passage(text, seed), at, begun_at=at or 0.0), scope=scope)
    )


def say(
    store: Store,
    key: str,
    text: str,
    reply: str = "noted",
    seed: int | None = None,
    *,
    at: float | None = None,
    scope: Scope = ANN,
) -> int:
    """A completed exchange; its sequence. The reply's direction is that of seed + 100,000."""
    begin(store, key, text, seed, at=at, scope=scope)
    answer = Complete(
        key, reply, passage(reply, None if seed is None else seed + 100_000), None if at is None else at + 1
    )
    return store.apply(change(f"complete:{key}", answer, scope=scope)).sequences[key]
