"""Conversations made of labelled guard data, for bench/drift.py and tools/fit_drift.py.

DATA has NAME.jsonl ({"text", "label": "allowed" | "off_topic", "source", "context"?}) with NAME.policy0.json and
NAME.policy10.json.

Conversations, drawn from one file each (rows do not repeat before all are used up):

    on        50 on-topic messages
    abrupt    5 to 40 on-topic messages, then 12 off-topic ones
    subject   the same, but the off-topic ones are all of one subject: on-topic rows of another file of the data set
    gradual   5 to 20 on-topic, then 10 to 20 among which off-topic ones get more likely, up to all, then 8 off-topic
    tangent   50 on-topic messages but one             apart   but two, with one to five on-topic messages between
    pair      but two in a row
    hops      50 on-topic messages of a policy joined of four files: another topic every 1 to 4 messages
    moves     the same, every 10 to 25

`talks(…, mixed=N)` adds N of each of the first kinds for policies joined of two or three files of a data set, to fit on:
there the off-topic messages are on-topic ones of its other files. Policies are 0 (descriptions), 10 (and ten examples), and
to fit on also -1 (names only: a poor one) and 3 (three examples and no description).

Rows that have a context of their own are read with it while they are on-topic; all others with the four messages before
them. Off-topic rows that only their own dialogue explains (source "switch") are left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.config import Policy
from topicality.core.drift import fed_by, heard_from
from topicality.core.drift_heard import Heard
from topicality.core.landmarks import Landmarks
from topicality.embed import load, load_background
from topicality.embed.cache import CachedEmbedder
from topicality.embed.segment import load_heads
from topicality.layer.guard import Guard
from topicality.types import Verdict

KINDS = ("on", "abrupt", "subject", "gradual", "tangent", "apart", "pair", "hops", "moves")
MIXED = ("on", "abrupt", "subject", "gradual", "tangent")
FEEDS = ("alone", "context", "better", "vectors", "heard")  # vectors: with the better reading; heard: with both
SEEING = ("vectors", "heard")
STAYS = {"hops": (1, 4), "moves": (10, 25)}  # messages on a topic of a joined policy


@dataclass(frozen=True)
class Talk:
    """One conversation: which messages are off-topic, what each reading says of each, and its row of the vectors."""

    kind: str
    file: str
    policy: int
    off: tuple[bool, ...]
    fed: dict[str, tuple[Heard | float | None, ...]]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """Vectors of all messages, shape (N, D), and what they are measured against; also without the map of subjects."""

    vectors: NDArray[np.float32]
    landmarks: Landmarks
    plain: Landmarks


@dataclass(frozen=True)
class Rows:
    name: str
    on: list[dict[str, Any]]
    off: list[dict[str, Any]]


def rows_of(path: Path) -> Rows:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    on = [row for row in rows if row["label"] == "allowed"]
    return Rows(path.stem, on, [row for row in rows if row["label"] == "off_topic" and row.get("source") != "switch"])


def drawn(rng: random.Random, rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += rng.sample(rows, len(rows))
    return found[:count]


def plan(rng: random.Random, kind: str) -> list[bool]:
    """Which messages are off-topic."""
    if kind in {"abrupt", "subject"}:
        return [False] * rng.randint(5, 40) + [True] * 12
    if kind == "gradual":
        ramp = rng.randint(10, 20)
        rising = [rng.random() < (index + 1) / ramp for index in range(ramp)]
        return [False] * rng.randint(5, 20) + rising + [True] * 8
    off = [False] * 50
    first, second = rng.randint(3, 43), rng.randint(2, 6)
    for index in {"tangent": [first], "apart": [first, first + second], "pair": [first, first + 1]}.get(kind, []):
        off[index] = True
    return off


Made = tuple[list[bool], list[dict[str, Any]]]


def messages(rng: random.Random, kind: str, group: Sequence[Rows]) -> Made:
    off = plan(rng, kind)
    if kind not in STAYS:
        other = [row for row in rng.choice(group[1:]).on if "context" not in row] if kind == "subject" else group[0].off
        on, away = drawn(rng, group[0].on, off.count(False)), drawn(rng, other, off.count(True))
        return off, [away.pop() if gone else on.pop() for gone in off]
    told: list[dict[str, Any]] = []
    place = -1
    while len(told) < len(off):
        place = rng.choice([index for index in range(len(group)) if index != place])
        told += rng.sample(group[place].on, rng.randint(*STAYS[kind]))
    return off, told[: len(off)]


def contexts(off: Sequence[bool], told: Sequence[dict[str, Any]]) -> list[list[Any]]:
    texts = [row["text"] for row in told]
    return [
        row["context"] if not gone and "context" in row else texts[max(0, index - 4) : index]
        for index, (gone, row) in enumerate(zip(off, told, strict=True))
    ]


def alone(verdict: Verdict) -> float | None:
    return None if fed_by(verdict) is None else max(s.probability for s in verdict.scores if s.side == "allowed")


def with_context(verdict: Verdict) -> float | None:
    return None if fed_by(verdict) is None else verdict.probability


def rules_of(data: Path, name: str, policy: int) -> list[dict[str, Any]]:
    file = data / f"{name}.policy{10 if policy in {3, 10} else 0}.json"
    rules: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["allowed"]
    if policy == -1:
        return [{"name": rule["name"]} for rule in rules]
    if policy == 3:
        return [{"name": rule["name"], "examples": rule["examples"][:3]} for rule in rules]
    return rules


def talks(
    data: Path, names: Sequence[str], policies: Sequence[int], each: int, kinds: Iterable[str], mixed: int = 0
) -> tuple[list[Talk], Space]:
    embedder = CachedEmbedder(load("minilm"), 200_000)
    files = {name: rows_of(data / f"{name}.jsonl") for name in names}
    found = []
    row: dict[str, int] = {}

    def guarded(group: Sequence[str], policy: int) -> Guard:
        return Guard(Policy(allowed=[rule for name in group for rule in rules_of(data, name, policy)]), embedder)

    def add(kind: str, group: Sequence[str], policy: int, guard: Guard, made: Made) -> None:
        off, told = made
        texts = [entry["text"] for entry in told]
        verdicts = guard.check_many(texts, contexts(off, told))
        readers = (alone, with_context, fed_by, fed_by, heard_from)
        fed = {feed: tuple(map(read, verdicts)) for feed, read in zip(FEEDS, readers, strict=True)}
        rows = tuple(row.setdefault(text, len(row)) for text in texts)
        found.append(Talk(kind, "+".join(group), policy, tuple(off), fed, rows))

    for policy in policies:
        guards = {name: guarded([name], policy) for name in names}
        for kind in kinds:
            for group in groups(names) if kind in STAYS else [[name] for name in names]:
                title = "+".join(group)
                rng = random.Random(f"{title} {policy} {kind}")
                guard = guards[title] if kind not in STAYS else guarded(group, policy)
                for _ in range(each * len(group) if kind in STAYS else each):
                    of = group if kind != "subject" else [*group, *others(names, group[0])]
                    add(kind, group, policy, guard, messages(rng, kind, [files[name] for name in of]))
        for group in few(names) if mixed else ():
            guard, rest = guarded(group, policy), [files[name] for name in others(names, group[0]) if name not in group]
            rng = random.Random(f"{group} {policy}")
            for kind in MIXED * mixed:
                add(kind, group, policy, guard, mixed_messages(rng, kind, [files[name] for name in group], rest))
    vectors = np.asarray(embedder.embed(list(row)), dtype=np.float32)
    background, heads = load_background(embedder), load_heads(embedder)
    mapped = Landmarks.of_rules([], [], background, subjects=None if heads is None else heads.subjects)
    return found, Space(vectors, mapped, Landmarks.of_rules([], [], background))


def mixed_messages(rng: random.Random, kind: str, group: Sequence[Rows], rest: Sequence[Rows]) -> Made:
    """A conversation on several files' topics; what is off-topic there comes from the other files of the data set."""
    off, stay = plan(rng, kind), rng.choice((1, 3, 8, 15))
    strange = [row for rows in group for row in rows.off if str(row.get("source")).endswith("oos")]
    other = [rng.choice(rest)] if kind == "subject" else rest
    pool = [row for rows in other for row in rng.sample(rows.on, min(12, len(rows.on))) if "context" not in row]
    pool += [] if kind == "subject" and pool else rng.sample(strange, min(15, len(strange)))
    on: list[dict[str, Any]] = []
    while len(on) < off.count(False):
        on += drawn(rng, rng.choice(group).on, rng.randint(1, stay))
    away = drawn(rng, pool, off.count(True))
    return off, [away.pop() if gone else on.pop() for gone in off]


def few(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Files by twos and threes, within their data set, where it has others."""
    rng, found = random.Random(7), set()
    for family in families(names):
        for size in (2, 2, 2, 3):
            mixed = rng.sample(family, len(family))
            found |= {tuple(sorted(mixed[at : at + size])) for at in range(0, len(family) - size + 1, size)}
    return sorted(group for group in found if len(others(names, group[0])) >= len(group))


def others(names: Sequence[str], name: str) -> list[str]:
    """The other files of a file's data set."""
    return [other for other in names if other != name and other.split("__")[0] == name.split("__", maxsplit=1)[0]]


def families(names: Sequence[str]) -> list[list[str]]:
    """Files of one data set: their names start alike."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.split("__")[0], []).append(name)
    return list(found.values())


def groups(names: Sequence[str]) -> list[list[str]]:
    """Files of one data set, by fours."""
    cut = [family[start : start + 4] for family in families(names) for start in range(0, len(family), 4)]
    return [group for group in cut if len(group) > 1]
