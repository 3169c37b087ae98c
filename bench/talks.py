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
from topicality.core.drift import fed_by
from topicality.core.landmarks import Landmarks
from topicality.embed import load, load_background
from topicality.embed.cache import CachedEmbedder
from topicality.layer.guard import Guard
from topicality.types import Verdict

KINDS = ("on", "abrupt", "subject", "gradual", "tangent", "apart", "pair", "hops", "moves")
FEEDS = ("alone", "context", "better", "vectors")  # the last is the better reading and the messages' vectors
STAYS = {"hops": (1, 4), "moves": (10, 25)}  # messages on a topic of a joined policy


@dataclass(frozen=True)
class Talk:
    """One conversation: which messages are off-topic, what each reading says of each, and its row of the vectors."""

    kind: str
    file: str
    policy: int
    off: tuple[bool, ...]
    fed: dict[str, tuple[float | None, ...]]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """Vectors of all messages, shape (N, D), and what they are measured against."""

    vectors: NDArray[np.float32]
    landmarks: Landmarks


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


def messages(rng: random.Random, kind: str, group: Sequence[Rows]) -> tuple[list[bool], list[dict[str, Any]]]:
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


def joined(paths: Sequence[Path]) -> Policy:
    rules = [json.loads(path.read_text("utf-8"))["allowed"] for path in paths]
    return Policy(allowed=[rule for group in rules for rule in group])


def talks(
    data: Path, names: Sequence[str], policies: Sequence[int], each: int, kinds: Iterable[str]
) -> tuple[list[Talk], Space]:
    embedder = CachedEmbedder(load("minilm"), 200_000)
    files = {name: rows_of(data / f"{name}.jsonl") for name in names}
    found = []
    row: dict[str, int] = {}
    for policy in policies:
        guards = {name: Guard(joined([data / f"{name}.policy{policy}.json"]), embedder) for name in names}
        for kind in kinds:
            for group in groups(names) if kind in STAYS else [[name] for name in names]:
                title = "+".join(group)
                rng = random.Random(f"{title} {policy} {kind}")
                guard = guards[title] if kind not in STAYS else None
                guard = guard or Guard(joined([data / f"{name}.policy{policy}.json" for name in group]), embedder)
                for _ in range(each * len(group) if kind in STAYS else each):
                    of = group if kind != "subject" else [*group, *others(names, group[0])]
                    off, told = messages(rng, kind, [files[name] for name in of])
                    texts = [entry["text"] for entry in told]
                    verdicts = guard.check_many(texts, contexts(off, told))
                    fed = {
                        feed: tuple(read(verdict) for verdict in verdicts)
                        for feed, read in zip(FEEDS[:3], (alone, with_context, fed_by), strict=True)
                    }
                    rows = tuple(row.setdefault(text, len(row)) for text in texts)
                    found.append(Talk(kind, title, policy, tuple(off), {**fed, "vectors": fed["better"]}, rows))
    vectors = np.asarray(embedder.embed(list(row)), dtype=np.float32)
    return found, Space(vectors, Landmarks.of_rules([], [], load_background(embedder)))


def others(names: Sequence[str], name: str) -> list[str]:
    """The other files of a file's data set."""
    return [other for other in names if other != name and other.split("__")[0] == name.split("__", maxsplit=1)[0]]


def groups(names: Sequence[str]) -> list[list[str]]:
    """Files of one data set (their names start alike), by fours."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split("__")[0], []).append(name)
    cut = [family[start : start + 4] for family in families.values() for start in range(0, len(family), 4)]
    return [group for group in cut if len(group) > 1]
