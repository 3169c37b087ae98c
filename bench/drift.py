"""How soon drift is noticed, and how often for nothing, on conversations made of labelled guard data.

    python bench/drift.py DATA                        # the half of the files that nothing was fitted on
    python bench/drift.py DATA --json
    python bench/drift.py DATA --each 20 --into docs/drift.md      # and write the page's tables anew

bench/talks.py says how conversations are built, and DATA's format. Files are taken by turns, in the order of their names:
odd ones to report on, even ones to fit on (`tools/fit_drift.py`). Latency counts off-topic messages from the first one up
to the alarm. A conversation that was alarmed before is not in it: see `early`. Milliseconds are of the process, the median
over conversations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from talks import FEEDS, KINDS, SEEING, Space, Talk, talks

from topicality.core.drift import Settings, step
from topicality.core.drift_state import DriftState

QUIET = ("on", "tangent", "apart", "pair", "hops", "moves")
LEVELS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)


def levels(talk: Talk, feed: str, settings: Settings, space: Space) -> list[float]:
    """The level after each message."""
    return followed(talk, feed, settings, space)[0]


def followed(talk: Talk, feed: str, settings: Settings, space: Space) -> tuple[list[float], DriftState]:
    """The level after each message, and the state after the last."""
    state, found = DriftState(), []
    seen = feed in SEEING
    for index, (probability, row) in enumerate(zip(talk.fed[feed], talk.rows, strict=True)):
        vector = space.vectors[row] if seen else None
        state, reading = step(
            state, vector, probability, now=float(index), settings=settings, landmarks=space.landmarks if seen else None
        )
        found.append(reading.level)
    return found, state


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


def costs(found: Sequence[Talk], space: Space, settings: Settings) -> dict[str, float]:
    """Milliseconds a message, with vectors and without, and of writing a state as JSON and reading it again; its bytes."""
    spent: dict[str, list[float]] = {"heard": [], "better": [], "json": [], "bytes": []}
    for talk in found[:200]:
        for feed in ("heard", "better"):
            began = time.process_time()
            _, state = followed(talk, feed, settings, space)
            spent[feed].append((time.process_time() - began) / len(talk.off) * 1000)
            if feed == "better":
                continue
            began = time.process_time()
            for _ in talk.off:
                written = json.dumps(state.to_dict(), separators=(",", ":")).encode()
                state = DriftState.from_dict(json.loads(written))
            spent["json"].append((time.process_time() - began) / len(talk.off) * 1000)
            spent["bytes"].append(len(written))
    return {"landmarks": len(space.landmarks), **{name: round(median(every), 3) for name, every in spent.items()}}


def worst(found: Sequence[tuple[Talk, list[float]]], level: float) -> dict[str, float]:
    """Share of on-topic conversations alarmed, for each file that has one."""
    by_file: dict[str, list[bool]] = {}
    for talk, values in found:
        if talk.kind == "on":
            by_file.setdefault(f"{talk.file} policy{talk.policy}", []).append(first_at(values, level) is not None)
    return {name: share(hits) for name, hits in sorted(by_file.items(), key=lambda e: -sum(e[1])) if any(hits)}


def report(made: Sequence[Talk], space: Space, policies: Sequence[int], settings: Settings) -> dict[str, Any]:
    quiet = [talk for talk in made if talk.kind == "on"]
    result: dict[str, Any] = {"level": settings.level, "costs": costs(quiet, space, settings), "policies": {}}
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
    print("costs:", "  ".join(f"{name} {value:g}" for name, value in result["costs"].items()))
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
            spread = " ".join(f"{n}:{value:.3f}" for n, value in part[FEEDS[-1]][kind]["latency"].items())
            print(f"  {kind}: off-topic messages until the alarm  {spread}  never:{part[FEEDS[-1]][kind]['never']:.3f}")
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
            for feed, told in (("heard", ""), ("vectors", ", the better reading only"), ("better", ", and no vectors")):
                row = [f"{part[feed][kind][f'within_{n}']:.2f}" for n in (2, 3, 4, 5, 8)]
                lines.append(f"| {title}, {name}{told} | {' | '.join(row)} |")
    columns = [(name, feed) for name in parts for feed in ("heard", "without_weak_policies", "vectors", "better")]
    titles = {"heard": "", "without_weak_policies": ", usable policies"}
    titles |= {"vectors": ", the better reading only", "better": ", and no vectors"}
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
    spent = result["costs"]
    lines += [
        "",
        f"| milliseconds a message, {spent['landmarks']} landmarks | without vectors | state to JSON and back | its bytes |",
        "|---|---|---|---|",
        f"| {spent['heard']:.2f} | {spent['better']:.2f} | {spent['json']:.2f} | {spent['bytes']:.0f} |",
    ]
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
