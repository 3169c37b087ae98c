"""How soon drift is noticed, and how often for nothing, on conversations made of labelled guard data.

    python bench/drift.py DATA                        # the half of the files that nothing was fitted on
    python bench/drift.py DATA --json
    python bench/drift.py DATA --each 20 --into docs/drift.md      # and write the page's tables anew

DATA has NAME.jsonl ({"text", "label": "allowed" | "off_topic", "source", "context"?}) with NAME.policy0.json and
NAME.policy10.json. Files are taken by turns, in the order of their names: odd ones to report on, even ones to
fit on (`tools/fit_drift.py`).

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
them. Off-topic rows that only their own dialogue explains (source "switch") are left out. Latency counts off-topic
messages from the first one up to the alarm. A conversation that was alarmed before is not in it: see `early`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.config import Policy
from topicality.core.drift import Settings, fed_by, step
from topicality.core.landmarks import Landmarks
from topicality.embed import load, load_background
from topicality.embed.cache import CachedEmbedder
from topicality.layer.guard import Guard
from topicality.types import Verdict

KINDS = ("on", "abrupt", "subject", "gradual", "tangent", "apart", "pair", "hops", "moves")
FEEDS = ("alone", "context", "better", "vectors")  # the last is the better reading and the messages' vectors
QUIET = ("on", "tangent", "apart", "pair", "hops", "moves")
STAYS = {"hops": (1, 4), "moves": (10, 25)}  # messages on a topic of a joined policy
LEVELS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)


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


def levels(talk: Talk, feed: str, settings: Settings, space: Space) -> list[float]:
    """The level after each message."""
    state, found = None, []
    seen = feed == "vectors"
    for index, (probability, row) in enumerate(zip(talk.fed[feed], talk.rows, strict=True)):
        vector = space.vectors[row] if seen else None
        state, reading = step(
            state, vector, probability, now=float(index), settings=settings, landmarks=space.landmarks if seen else None
        )
        found.append(reading.level)
    return found


def first_at(found: Sequence[float], level: float) -> int | None:
    """Where the first alarm is: the first level that is met."""
    return next((index for index, value in enumerate(found) if value >= level), None)


def measured(found: Sequence[tuple[Talk, list[float]]], level: float) -> dict[str, Any]:
    """Rates at one alarm level, over conversations."""
    result: dict[str, Any] = {}
    for kind in KINDS:
        mine = [(talk, first_at(values, level)) for talk, values in found if talk.kind == kind]
        if not mine:
            continue
        if kind in QUIET:
            result[kind] = {"n": len(mine), "alarmed": share(at is not None for _, at in mine)}
            continue
        counts: list[int | None] = []
        early = 0
        for talk, at in mine:
            if at is not None and at < talk.off.index(True):
                early += 1
            else:
                counts.append(None if at is None else sum(talk.off[: at + 1]))
        result[kind] = {
            "n": len(mine),
            "early": early / len(mine),
            "latency": {str(n): share(count == n for count in counts) for n in range(1, 9)},
            "never": share(count is None for count in counts),
            **{f"within_{n}": share(count is not None and count <= n for count in counts) for n in (2, 3, 4, 5, 8)},
        }
    return result


def share(values: Iterable[bool]) -> float:
    every = list(values)
    return round(sum(every) / len(every), 4) if every else 0.0


def worst(found: Sequence[tuple[Talk, list[float]]], level: float) -> dict[str, float]:
    """Share of on-topic conversations alarmed, for each file that has one."""
    by_file: dict[str, list[bool]] = {}
    for talk, values in found:
        if talk.kind == "on":
            by_file.setdefault(f"{talk.file} policy{talk.policy}", []).append(first_at(values, level) is not None)
    return {name: share(hits) for name, hits in sorted(by_file.items(), key=lambda e: -sum(e[1])) if any(hits)}


def report(made: Sequence[Talk], space: Space, policies: Sequence[int], settings: Settings) -> dict[str, Any]:
    result: dict[str, Any] = {"level": settings.level, "policies": {}}
    for policy in policies:
        part: dict[str, Any] = {}
        for feed in FEEDS:
            found = [(talk, levels(talk, feed, settings, space)) for talk in made if talk.policy == policy]
            part[feed] = measured(found, settings.level)
            if feed == FEEDS[-1]:
                part["by_level"] = {str(level): brief(measured(found, level)) for level in LEVELS}
                part["alarmed_by_file"] = worst(found, settings.level)
                part["without_weak_policies"] = measured(sound(found), settings.level)
                part["weak_policies"] = sorted(
                    {talk.file for talk, _ in found} - {talk.file for talk, _ in sound(found)}
                )
        result["policies"][str(policy)] = part
    return result


def sound(found: Sequence[tuple[Talk, list[float]]]) -> list[tuple[Talk, list[float]]]:
    """Without the files of which the guard itself rejects more than a fifth of the on-topic messages."""
    fed: dict[str, list[bool]] = {}
    for talk, _ in found:
        if talk.kind == "on":
            fed.setdefault(talk.file, []).extend(p < 0.3 for p in talk.fed["better"] if p is not None)
    weak = {name for name, hits in fed.items() if share(hits) > 0.2}
    return [(talk, values) for talk, values in found if not weak & set(talk.file.split("+"))]


def brief(rates: dict[str, Any]) -> dict[str, float]:
    return {
        "false_alarms": rates["on"]["alarmed"],
        "abrupt_within_3": rates["abrupt"]["within_3"],
        "gradual_within_5": rates["gradual"]["within_5"],
    }


def show(result: dict[str, Any]) -> None:
    for policy, part in result["policies"].items():
        print(f"\npolicy{policy}: alarms, share of conversations (level {result['level']})")
        print(f"{'feed':<24}{'on':>7}{'tangent':>9}{'apart':>7}{'pair':>7}{'hops':>7}{'moves':>7}", end="")
        print(
            f"{'abrupt<=3':>11}{'<=4':>7}{'<=5':>7}{'subject<=3':>12}{'<=5':>7}{'gradual<=5':>12}{'<=8':>7}{'early':>7}"
        )
        for feed in (*FEEDS, "without_weak_policies"):
            rates = part[feed]
            print(f"{feed:<24}", end="")
            for kind, width in zip(QUIET, (7, 9, 7, 7, 7, 7), strict=True):
                print(f"{rates[kind]['alarmed']:>{width}.3f}" if kind in rates else " " * width, end="")
            abrupt, gradual = rates["abrupt"], rates["gradual"]
            print(f"{abrupt['within_3']:>11.3f}{abrupt['within_4']:>7.3f}{abrupt['within_5']:>7.3f}", end="")
            print(f"{rates['subject']['within_3']:>12.3f}{rates['subject']['within_5']:>7.3f}", end="")
            print(f"{gradual['within_5']:>12.3f}{gradual['within_8']:>7.3f}{abrupt['early']:>7.3f}")
        for kind in ("abrupt", "subject", "gradual"):
            spread = " ".join(f"{n}:{value:.3f}" for n, value in part["vectors"][kind]["latency"].items())
            print(f"  {kind}: off-topic messages until the alarm  {spread}  never:{part['vectors'][kind]['never']:.3f}")
        for level, rates in part["by_level"].items():
            print(f"  level {level:<5}", "  ".join(f"{key} {value:.3f}" for key, value in rates.items()))
        print("  on-topic conversations alarmed, by file:", part["alarmed_by_file"] or "none")


def tables(result: dict[str, Any]) -> str:
    """The tables of docs/drift.md."""
    named = {"0": "descriptions only", "10": "ten examples"}
    parts = {named[key]: part for key, part in result["policies"].items()}
    lines = ["| alarm after so many off-topic messages, at most | 2 | 3 | 4 | 5 | 8 |", "|---|---|---|---|---|---|"]
    turns = {"abrupt": "abrupt turn", "gradual": "gradual", "subject": "abrupt turn to one other subject"}
    for kind, title in turns.items():
        for name, part in parts.items():
            for feed, told in (("vectors", ""), ("better", ", without vectors")):
                row = [f"{part[feed][kind][f'within_{n}']:.2f}" for n in (2, 3, 4, 5, 8)]
                lines.append(f"| {title}, {name}{told} | {' | '.join(row)} |")
    columns = [(name, feed) for name in parts for feed in ("vectors", "without_weak_policies", "better")]
    titles = {"vectors": "", "without_weak_policies": ", usable policies", "better": ", without vectors"}
    heads = [f"{name}{titles[feed]}" for name, feed in columns]
    lines += [
        "",
        f"| conversations of 50 messages with any alarm | {' | '.join(heads)} |",
        "|---" * (1 + len(heads)) + "|",
    ]
    quiet = {
        "on": "all on-topic",
        "tangent": "one off-topic message",
        "apart": "two, with 1 to 5 on-topic ones between",
        "pair": "two in a row",
        "hops": "another of four policies' topics every 1 to 4 messages, all allowed",
        "moves": "the same, every 10 to 25",
    }
    for kind, title in quiet.items():
        row = [
            f"{parts[name][feed][kind]['alarmed']:.3f}" if kind in parts[name][feed] else "" for name, feed in columns
        ]
        lines.append(f"| {title} | {' | '.join(row)} |")
    lines += [
        "",
        f"| level | on-topic alarmed: {' / '.join(parts)} | abrupt within 3 | gradual within 5 |",
        "|---|---|---|---|",
    ]
    for level in LEVELS:
        briefs = [part["by_level"][str(level)] for part in parts.values()]
        row = [" / ".join(f"{one[key]:.3f}" for one in briefs) for key in briefs[0]]
        told = f"**{level}**" if level == result["level"] else str(level)
        lines.append(f"| {told} | {' | '.join(row)} |")
    return "\n".join(lines)


def put(page: Path, result: dict[str, Any]) -> None:
    """Write the tables into a page, between its two marks."""
    first, last = "<!-- bench/drift.py -->", "<!-- to here -->"
    text = page.read_text("utf-8")
    head, rest = text.split(first, 1)
    page.write_text(f"{head}{first}\n{tables(result)}\n{last}{rest.split(last, 1)[1]}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--half", choices=("held-out", "fit", "all"), default="held-out")
    parser.add_argument("--policies", type=int, nargs="+", default=[0, 10])
    parser.add_argument("--each", type=int, default=25, help="conversations of a kind for each file")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="a page to write the tables into")
    asked = parser.parse_args()
    every = sorted(path.stem for path in asked.data.glob("*.jsonl"))
    names = {"fit": every[::2], "held-out": every[1::2], "all": every}[asked.half]
    began = time.perf_counter()
    made, space = talks(asked.data, names, asked.policies, asked.each, KINDS)
    result = {
        "half": asked.half,
        "files": len(names),
        "each": asked.each,
        **report(made, space, asked.policies, Settings()),
    }
    result["seconds"] = round(time.perf_counter() - began, 1)
    if asked.into:
        put(asked.into, result)
    if asked.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{len(names)} files ({asked.half}), {len(made)} conversations, {result['seconds']} s")
    show(result)


if __name__ == "__main__":
    main()
