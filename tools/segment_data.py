"""Dialogues to learn segmentation from: gold ones, and such as are made by joining dialogues of one topic each.

Used by tools/train_segment.py. All of it is read from a data directory outside the repository; nothing is kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

DOMAINS = (
    "Events", "Flights", "Homes", "Hotels", "Media", "Movies", "Music", "RentalCars", "Restaurants", "RideSharing",
    "Services_1", "Services_2", "Services_3", "Travel", "Weather",
)  # fmt: skip
ANOTHER = (
    "Another thing:", "Also,", "By the way,", "One more thing.", "Now something else:", "On another subject:",
    "I also need help with something else.", "Besides that,", "Next question:", "Okay. What about this:", "Anyway,",
    "Thanks. I have another question.",
)  # fmt: skip
BACK = (
    "Back to my earlier question:", "Coming back to what we talked about:", "About the first thing again:",
    "Returning to the earlier subject,", "Going back to before:", "Again about the other matter:",
)  # fmt: skip
NEAR = 0.9  # cosine of two dialogues' means from which on one is a copy of the other
Vectors = Callable[[Sequence[str]], np.ndarray]


@dataclass
class Dialogue:
    texts: list[str]
    roles: list[str]
    marks: list[int]  # 1 where a segment starts
    topics: list[int] = field(default_factory=list)  # only where returns are known


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def gold(folder: Path, name: str) -> list[Dialogue]:
    return [
        Dialogue([t["text"] for t in row["turns"]], [t["role"] for t in row["turns"]], list(row["boundaries"]))
        for row in lines(folder / "segment" / f"{name}.jsonl")
    ]


def tasks(folder: Path, domains: Sequence[str]) -> list[Dialogue]:
    """The longest known beginning of every task dialogue: one service each, the user first, turn by turn."""
    best: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for domain in domains:
        for row in lines(folder / "guard" / f"sgd_train__{domain}.jsonl"):
            if row["label"] != "allowed":
                continue
            said = [(t["text"], "user" if t["role"] == "user" else "agent") for t in row.get("context") or []]
            said.append((row["text"], "user"))
            key = (domain, said[0][0])
            if len(said) > len(best.get(key, [])):
                best[key] = said
    return [
        Dialogue([text for text, _ in said], [role for _, role in said], [0] * len(said))
        for said in best.values()
        if len(said) >= 3
    ]


def everyday() -> list[Dialogue]:
    """Questions to an assistant on one everyday subject each, written for this project: `segment_chats.txt`."""
    blocks = (Path(__file__).parent / "segment_chats.txt").read_text("utf-8").strip().split("\n\n")
    found = []
    for texts in (block.split("\n") for block in blocks):
        roles = ["user" if place % 2 == 0 else "agent" for place in range(len(texts))]
        found.append(Dialogue(texts, roles, [0] * len(texts)))
    return found


def segments(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """Each segment as a dialogue of its own."""
    found = []
    for each in dialogues:
        cuts = [0, *np.flatnonzero(each.marks[1:]) + 1, len(each.texts)]
        for first, last in pairwise(cuts):
            found.append(Dialogue(each.texts[first:last], each.roles[first:last], [0] * (last - first)))
    return found


def spliced(
    pool: list[Dialogue],
    count: int,
    seed: int,
    *,
    lengths: tuple[int, int] = (2, 9),
    segments: tuple[int, int] = (3, 7),
    inner: bool = False,
    even: float = 0.95,
    starts: float = 0.6,
) -> list[Dialogue]:
    """Pieces of different dialogues, one after the other.

    even: share of pieces that begin with a user's turn and end with a reply. starts: share that begin where their dialogue
    begins. inner: keep the boundaries inside the pieces as well.
    """
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        texts: list[str] = []
        roles: list[str] = []
        marks: list[int] = []
        used: set[int] = set()
        for _piece in range(int(rng.integers(*segments))):
            for _try in range(20):
                chosen = int(rng.integers(len(pool)))
                if chosen not in used:
                    break
            used.add(chosen)
            source = pool[chosen]
            size = len(source.texts)
            length = int(min(size, rng.integers(lengths[0], lengths[1] + 1)))
            first = 0 if rng.random() < starts else int(rng.integers(0, size - length + 1))
            last = min(size, first + length)
            if rng.random() < even:
                while first > 0 and source.roles[first] != "user":
                    first -= 1
                last = min(size, first + length)
                while last > first + 2 and source.roles[last - 1] == "user":
                    last -= 1
            texts += source.texts[first:last]
            roles += source.roles[first:last]
            marks += [1, *(source.marks[first + 1 : last] if inner else [0] * (last - first - 1))]
        marks[0] = 0
        made.append(Dialogue(texts, roles, marks))
    return made


def by_parity(dialogues: list[Dialogue]) -> list[Dialogue]:
    """Roles by turns, right or wrong, as corpora without roles have them."""
    return [
        replace(each, roles=["user" if place % 2 == 0 else "agent" for place in range(len(each.texts))])
        for each in dialogues
    ]


def task_splices(pool: list[Dialogue], count: int, seed: int) -> list[Dialogue]:
    return spliced(pool, count, seed) + by_parity(spliced(pool, count // 2, seed + 1, even=0.9, starts=0.5))


def with_returns(
    pool: list[Dialogue],
    count: int,
    seed: int,
    *,
    pieces: Sequence[int] = (3, 4, 4, 5),
    longest: tuple[int, int] = (7, 13),
    anywhere: bool = False,
    cued: float = 0.0,
) -> list[Dialogue]:
    """Beginnings of some dialogues of one topic each; one to three are broken off and taken up again after another.

    pieces: how many dialogues, equally likely each. longest: turns of each at most, drawn anew: if all were as long, how
    long a topic has lasted would tell where it ends.
    anywhere: they are broken off after any turn from the second on; otherwise before a turn of the user.
    cued: share of the changes that are announced ("another thing: …"), as people do and joined dialogues do not.
    """
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        number = int(rng.choice(pieces))
        picked = rng.choice(len(pool), number, replace=False)
        want = int(rng.choice((1, 1, 1, 2, 2, 3))) if number > 1 else 0
        parts: list[list[tuple[int, int, int]]] = []
        for chosen in picked:
            size = min(len(pool[chosen].texts), int(rng.integers(longest[0], longest[1] + 1)))
            parts.append([(int(chosen), 0, size)])
        for topic in rng.permutation(number)[:want]:
            chosen, _, size = parts[topic][0]
            places = [place for place in range(2, size - 1) if anywhere or pool[chosen].roles[place] == "user"]
            if places:
                broken = int(rng.choice(places))
                parts[topic] = [(chosen, 0, broken), (chosen, broken, size)]
        order = [(int(topic), parts[topic][0]) for topic in rng.permutation(number)]
        later = [(topic, part) for topic in range(number) for part in parts[topic][1:]]
        for topic, part in later:
            at = next(place for place, (other, _) in enumerate(order) if other == topic)
            spots = list(range(at + 2, len(order) + 1))
            if not spots:  # its opening is the last one: move the opening to the front
                order.insert(0, order.pop(at))
                spots = list(range(2, len(order) + 1))
            order.insert(int(rng.choice(spots)), (topic, part))
        whole = _laid_out(pool, order)
        for place in np.flatnonzero(whole.marks) if cued else ():
            if whole.roles[place] == "user" and rng.random() < cued:
                known = whole.topics[place] in whole.topics[:place]
                phrases = BACK if known else ANOTHER
                whole.texts[place] = phrases[int(rng.integers(len(phrases)))] + " " + whole.texts[place]
        made.append(whole)
    return made


def _laid_out(pool: list[Dialogue], order: list[tuple[int, tuple[int, int, int]]]) -> Dialogue:
    whole = Dialogue([], [], [])
    for topic, (source, first, last) in order:
        new = not whole.topics or whole.topics[-1] != topic
        whole.texts += pool[source].texts[first:last]
        whole.roles += pool[source].roles[first:last]
        whole.marks += [int(new)] + [0] * (last - first - 1)
        whole.topics += [topic] * (last - first)
    whole.marks[0] = 0
    return whole


def clusters(dialogues: list[Dialogue], vectors: Vectors, folds: int, groups: int = 60) -> np.ndarray:
    """A fold for each dialogue; dialogues about the same documents (near duplicates) share one."""
    from sklearn.cluster import KMeans

    means = np.stack([vectors(each.texts).mean(axis=0) for each in dialogues])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    group = KMeans(groups, random_state=0, n_init=3).fit_predict(means)
    fold = np.zeros(len(dialogues), int)
    load = np.zeros(folds)
    for number, size in Counter(group.tolist()).most_common():
        lightest = int(load.argmin())
        load[lightest] += size
        fold[group == number] = lightest
    return fold


def given_returns(
    folder: Path, pool: list[Dialogue], vectors: Vectors, count: int = 60
) -> tuple[list[Dialogue], set[int]]:
    """Some of the given dialogues with returns, and which dialogues of the pool must not be learned from then.

    Those are the ones that share a user's turn of six words or more with them (what they were made from, and copies of
    it), and near duplicates of those.
    """
    rows = lines(folder / "segment" / "return_synth_superseg.val.jsonl")
    picked = [rows[place] for place in np.random.default_rng(11).choice(len(rows), count, replace=False)]
    said = {t["text"] for row in picked for t in row["turns"] if t["role"] == "user" and len(t["text"].split()) >= 6}
    sources = [
        place
        for place, each in enumerate(pool)
        if any(role == "user" and text in said for text, role in zip(each.texts, each.roles, strict=True))
    ]
    means = np.stack([vectors(each.texts[:10]).mean(axis=0) for each in pool])
    means -= means.mean(axis=0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    near = np.flatnonzero(((means @ means[sources].T) > NEAR).any(axis=1))
    given = [
        Dialogue([t["text"] for t in row["turns"]], [t["role"] for t in row["turns"]], row["boundaries"], row["topic"])
        for row in picked
    ]
    return given, {*sources, *near.tolist()}
