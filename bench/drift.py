"""How soon drift is noticed, and how often for nothing, on conversations made of labelled guard data.

    python bench/drift.py DATA                        # the half of the files that nothing was fitted on
    python bench/drift.py DATA --half fit --tune 300  # look for better constants on the other half
    python bench/drift.py DATA --json

DATA has NAME.jsonl ({"text", "label": "allowed" | "off_topic", "source", "context"?}) with NAME.policy0.json and
NAME.policy10.json. Files are taken by turns, in the order of their names: odd ones to report on, even ones to fit on.

Conversations, drawn from one file each (rows do not repeat before all are used up):

    on        50 on-topic messages
    abrupt    5 to 40 on-topic messages, then 12 off-topic ones
    gradual   5 to 20 on-topic, then 10 to 20 among which off-topic ones get more likely, up to all, then 8 off-topic
    tangent   50 on-topic messages but one             apart   but two, with one to five on-topic messages between
    pair      but two in a row                         hops    a policy joined of four files, another topic every 1 to 4

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topicality.config import Policy
from topicality.core.drift import Detector, Settings, fed_by, step
from topicality.embed import load
from topicality.embed.cache import CachedEmbedder
from topicality.layer.guard import Guard
from topicality.types import Verdict

KINDS = ("on", "abrupt", "gradual", "tangent", "apart", "pair", "hops")
FEEDS = ("alone", "context", "better")
QUIET = ("on", "tangent", "apart", "pair", "hops")
LEVELS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)


@dataclass(frozen=True)
class Talk:
    """One conversation: which messages are off-topic, and what each feed says of each message."""

    kind: str
    file: str
    policy: int
    off: tuple[bool, ...]
    fed: dict[str, tuple[float | None, ...]]


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
    if kind == "abrupt":
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
    if kind != "hops":
        on, away = drawn(rng, group[0].on, off.count(False)), drawn(rng, group[0].off, off.count(True))
        return off, [away.pop() if gone else on.pop() for gone in off]
    told: list[dict[str, Any]] = []
    place = -1
    while len(told) < len(off):
        place = rng.choice([index for index in range(len(group)) if index != place])
        told += rng.sample(group[place].on, rng.randint(1, 4))
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


def talks(data: Path, names: Sequence[str], policies: Sequence[int], each: int, kinds: Iterable[str]) -> list[Talk]:
    embedder = CachedEmbedder(load("minilm"), 200_000)
    files = {name: rows_of(data / f"{name}.jsonl") for name in names}
    found = []
    for policy in policies:
        guards = {name: Guard(joined([data / f"{name}.policy{policy}.json"]), embedder) for name in names}
        for kind in kinds:
            for group in groups(names) if kind == "hops" else [[name] for name in names]:
                title = "+".join(group)
                rng = random.Random(f"{title} {policy} {kind}")
                guard = guards[title] if kind != "hops" else None
                guard = guard or Guard(joined([data / f"{name}.policy{policy}.json" for name in group]), embedder)
                for _ in range(each * len(group) if kind == "hops" else each):
                    off, told = messages(rng, kind, [files[name] for name in group])
                    verdicts = guard.check_many([row["text"] for row in told], contexts(off, told))
                    fed = {
                        feed: tuple(read(verdict) for verdict in verdicts)
                        for feed, read in zip(FEEDS, (alone, with_context, fed_by), strict=True)
                    }
                    found.append(Talk(kind, title, policy, tuple(off), fed))
    return found


def groups(names: Sequence[str]) -> list[list[str]]:
    """Files of one data set (their names start alike), by fours."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split("__")[0], []).append(name)
    cut = [family[start : start + 4] for family in families.values() for start in range(0, len(family), 4)]
    return [group for group in cut if len(group) > 1]


def levels(talk: Talk, feed: str, settings: Settings) -> list[float]:
    """The level after each message."""
    state, found = None, []
    for index, probability in enumerate(talk.fed[feed]):
        state, reading = step(state, None, probability, now=float(index), settings=settings)
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
            **{f"within_{n}": share(count is not None and count <= n for count in counts) for n in (3, 4, 5, 8)},
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


def report(made: Sequence[Talk], policies: Sequence[int], settings: Settings) -> dict[str, Any]:
    result: dict[str, Any] = {"level": settings.level, "policies": {}}
    for policy in policies:
        part: dict[str, Any] = {}
        for feed in FEEDS:
            found = [(talk, levels(talk, feed, settings)) for talk in made if talk.policy == policy]
            part[feed] = measured(found, settings.level)
            if feed == "better":
                part["by_level"] = {str(level): brief(measured(found, level)) for level in LEVELS}
                part["alarmed_by_file"] = worst(found, settings.level)
                part["without_weak_policies"] = measured(sound(found), settings.level)
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


def tune(made: Sequence[Talk], tries: int) -> None:
    """Neighbours of the best so far; the level is what gives 1 % of false alarms."""
    rng = random.Random(0)
    near = {
        "leave": (0.02, 0.04, 0.06, 0.08),
        "back": (0.002, 0.01, 0.03),
        "looks_on": (0.1, 0.15, 0.2, 0.3),
        "low": ((0.1, 3.1), (0.2, 3.2), (0.4, 3.4), (0.2, 6.2), (0.4, 10.4)),
        "turn": (-0.5, -0.25, 0.0, 0.25, 0.5),
        "follow": (0.0, 0.1, 0.2, 0.3),
        "steepness": (0.4, 0.5, 0.6, 0.8, 1.0),
        "usual": (3.0, 3.5, 4.0),
        "memory": (20.0, 40.0, 80.0),
    }
    best, kept = -1.0, Detector()
    for attempt in range(tries):
        chosen = {key: rng.choice(near[key]) for key in rng.sample(sorted(near), 2)} if attempt else {}
        detector = replace(kept, **chosen)  # type: ignore[arg-type]  # values of the fields' own types
        settings = Settings(detector=detector)
        found = [(talk, levels(talk, "better", settings)) for talk in made if talk.kind in {"on", "abrupt", "gradual"}]
        peaks = sorted(max(values) for talk, values in found if talk.kind == "on")
        level = peaks[-1 - len(peaks) // 100] + 1e-9
        rates = measured(found, level)
        score = (rates["abrupt"]["within_3"] + rates["gradual"]["within_5"]) / 2
        if score > best:
            best, kept = score, detector
            print(f"{attempt:4} {score:.4f} at level {level:.3f} {detector}", flush=True)


def show(result: dict[str, Any]) -> None:
    for policy, part in result["policies"].items():
        print(f"\npolicy{policy}: alarms, share of conversations (level {result['level']})")
        print(f"{'feed':<24}{'on':>7}{'tangent':>9}{'apart':>7}{'pair':>7}{'hops':>7}", end="")
        print(f"{'abrupt<=3':>11}{'<=4':>7}{'<=5':>7}{'gradual<=5':>12}{'<=8':>7}{'early':>7}")
        for feed in (*FEEDS, "without_weak_policies"):
            rates = part[feed]
            print(f"{feed:<24}", end="")
            for kind, width in zip(QUIET, (7, 9, 7, 7, 7), strict=True):
                print(f"{rates[kind]['alarmed']:>{width}.3f}" if kind in rates else " " * width, end="")
            abrupt, gradual = rates["abrupt"], rates["gradual"]
            print(f"{abrupt['within_3']:>11.3f}{abrupt['within_4']:>7.3f}{abrupt['within_5']:>7.3f}", end="")
            print(f"{gradual['within_5']:>12.3f}{gradual['within_8']:>7.3f}{abrupt['early']:>7.3f}")
        for kind in ("abrupt", "gradual"):
            spread = " ".join(f"{n}:{value:.3f}" for n, value in part["better"][kind]["latency"].items())
            print(f"  {kind}: off-topic messages until the alarm  {spread}  never:{part['better'][kind]['never']:.3f}")
        for level, rates in part["by_level"].items():
            print(f"  level {level:<5}", "  ".join(f"{key} {value:.3f}" for key, value in rates.items()))
        print("  on-topic conversations alarmed, by file:", part["alarmed_by_file"] or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--half", choices=("held-out", "fit", "all"), default="held-out")
    parser.add_argument("--policies", type=int, nargs="+", default=[0, 10])
    parser.add_argument("--each", type=int, default=25, help="conversations of a kind for each file")
    parser.add_argument("--tune", type=int, default=0, metavar="TRIES")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    every = sorted(path.stem for path in asked.data.glob("*.jsonl"))
    names = {"fit": every[::2], "held-out": every[1::2], "all": every}[asked.half]
    kinds = KINDS if not asked.tune else ("on", "abrupt", "gradual")
    began = time.perf_counter()
    made = talks(asked.data, names, asked.policies, asked.each, kinds)
    if asked.tune:
        tune(made, asked.tune)
        return
    result = {"half": asked.half, "files": len(names), "each": asked.each, **report(made, asked.policies, Settings())}
    result["seconds"] = round(time.perf_counter() - began, 1)
    if asked.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{len(names)} files ({asked.half}), {len(made)} conversations, {result['seconds']} s")
    show(result)


if __name__ == "__main__":
    main()
