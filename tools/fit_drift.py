# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality"]
# ///
"""Fit the constants of drift's "change" (`core.drift_change.Detector`) on conversations made of labelled messages.

    python tools/fit_drift.py DATA                   # on every other file; prints the constants, writes nothing
    python tools/fit_drift.py DATA --families        # leaves out each data set in turn and prints the figures on it

Conversations are those of bench/talks.py (DATA is described there); bench/drift.py reports on the files that nothing was
fitted on.
The search tries neighbours of the best constants so far, all conversations at a time: `played` is `changed` in arrays, and
the script stops if the two disagree. The alarm level stays the default one. tools/fit_drift_window.py comes after this.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from drift import levels, measured, sound
from talks import Space, Talk, talks

from topicality.core.drift import Settings
from topicality.core.drift_change import Detector, log_odds
from topicality.core.drift_window import ALONE

Floats = NDArray[np.float64]

NEAR: dict[str, Sequence[Any]] = {
    "leave": (0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06, 0.08),
    "back": (0.003, 0.01, 0.03),
    "looks_on": (0.1, 0.15, 0.2, 0.25, 0.3),
    "low": ((0.05, 3.05), (0.1, 3.1), (0.2, 3.2), (0.1, 2.1), (0.3, 3.3), (0.2, 6.2), (0.1, 6.1)),
    "usual": (3.0, 3.5, 4.0),
    "turn": (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75),
    "follow": (0.1, 0.2, 0.3, 0.4, 0.5),
    "steepness": (0.4, 0.5, 0.6, 0.7, 0.8, 1.0),
    "lowest": (-6.0, -5.0, -4.0, -3.0),
    "highest": (4.0, 5.0, 6.0, 8.0),
    "likeness": (0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    "alike": (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5),
    "alike_follow": (0.0, 0.2, 0.3, 0.5, 0.7),
    "least_alike": (-6.0, -5.0, -4.0, -3.0, -2.0),
    "most_alike": (0.0, 0.5, 1.0, 1.5, 2.0),
    "most": (2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0),
    "doubt": (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
    "few": (0.5, 1.0, 2.0),
    "surely_on": (0.5, 0.7, 0.8, 0.9),
    "own_part": (-3.0, -2.0, -0.85, 0.0),
    "memory": (20.0, 30.0, 40.0),
}


@dataclass(frozen=True)
class Played:
    """Conversations side by side, N of at most T messages that were read: arrays of shape (N, T), `cosines` (N, T, T)."""

    talks: list[Talk]
    x: Floats  # log-odds
    read: NDArray[np.bool_]
    place: NDArray[np.int64]  # of the message in its conversation
    cosines: NDArray[np.float32]
    background: Floats
    spread: float


def laid_out(made: list[Talk], space: Space) -> Played:
    size = max(len(talk.off) for talk in made)
    shape = (len(made), size)
    x, read, place = np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
    rows = np.zeros(shape, dtype=np.int64)
    for index, talk in enumerate(made):
        heard = [(at, p) for at, p in enumerate(talk.fed["vectors"]) if p is not None]
        count = len(heard)
        chances = np.clip([p for _, p in heard], 1e-9, 1 - 1e-9)
        x[index, :count], read[index, :count] = np.log(chances / (1 - chances)), True
        place[index, :count] = [at for at, _ in heard]
        rows[index, :count] = [talk.rows[at] for at, _ in heard]
    unit = np.array([space.landmarks.measurable(row.astype(np.float64)) for row in space.vectors])
    cosines = np.stack([unit[each] @ unit[each].T for each in rows])
    near = np.array([space.landmarks.among_background(row) for row in unit])[rows]
    return Played(made, x, read, place, cosines, near[..., 0], space.landmarks.yardstick or 1.0)


def played(data: Played, d: Detector) -> Floats:
    """The level after each message that was read, shape (N, T); 0 elsewhere. The same as `changed`."""
    count, size = data.x.shape
    full = lambda value: np.full(count, float(value))  # noqa: E731 - said six times below
    odds, low, of = full(np.log(d.leave / (1 - d.leave))), full(d.low[0]), full(d.low[1])
    total, weight = full(d.usual * d.usual_weight), full(d.usual_weight)
    alike, likes, held = full(0), full(d.usual_weight), full(0)
    kept, every = np.zeros((count, size), dtype=bool), np.arange(count)
    found = np.zeros((count, size))
    for t in range(size):
        heard = data.read[:, t]
        x = np.clip(data.x[:, t], d.lowest, d.highest)
        left = 1 / (1 + np.exp(-odds))
        prior = left * (1 - d.back) + (1 - left) * d.leave
        trust = held / (held + d.few)
        nearest = np.where(kept[:, :t], data.cosines[:, t, :t], -2).max(axis=1, initial=-2)
        far = (nearest - data.background[:, t]) / data.spread - d.alike
        like = np.clip(far, d.least_alike, d.most_alike)
        evidence = -d.steepness * (x - d.turn - d.follow * (total / weight - d.usual))
        usual = like - d.alike_follow * alike / likes
        usual *= np.where(usual < 0, 1 / (1 + np.exp(x - d.doubt)), 1)
        evidence -= np.where(held > 0, d.likeness * trust * usual, 0)
        ratio, share = np.exp(np.minimum(evidence, d.most)), low / of
        under_on = share * ratio + 1 - share
        now = np.log(prior / (1 - prior)) + np.log(((1 - d.looks_on) * ratio + d.looks_on) / under_on)
        on = np.where(heard, 1 / (1 + np.exp(now)), 0)
        low, of, total, weight = (
            low + on * share * ratio / under_on,
            of + on,
            total + on * np.maximum(x, -1),
            weight + on,
        )
        alike, likes = alike + on * trust * np.maximum(like, -2), likes + on * trust
        fade, dim, pale = (np.minimum(1, d.memory / sums) for sums in (of, weight, likes))
        low, of, total, weight, alike, likes = (
            low * fade,
            of * fade,
            total * dim,
            weight * dim,
            alike * pale,
            likes * pale,
        )
        new = heard & (x >= d.own_part) & (on >= d.surely_on)
        kept[new, t] = True
        held[new] += 1
        over = held > d.keep
        kept[every[over], kept[over].argmax(axis=1)] = False
        held[over] -= 1
        odds = np.where(heard, now, odds)
        found[:, t] = np.where(heard, 1 / (1 + np.exp(-now)), 0)
    return found


def judged(data: Played, detector: Detector) -> dict[str, dict[str, Any]]:
    """Rates at the default level."""
    return measured(paired(data, played(data, detector)), Settings().level)


def paired(data: Played, values: Floats) -> list[tuple[Talk, list[float]]]:
    found = []
    for index, talk in enumerate(data.talks):
        line = [0.0] * len(talk.off)
        for at, value in zip(data.place[index][data.read[index]], values[index][data.read[index]], strict=True):
            line[at] = float(value)
        found.append((talk, line))
    return found


def worth(data: Played, detector: Detector) -> tuple[float, dict[str, float]]:
    """What is to be made large: speed, less what false alarms go beyond."""
    rates = judged(data, detector)
    speed = 0.4 * rates["abrupt"]["within_3"] + 0.4 * rates["gradual"]["within_5"] + 0.2 * rates["subject"]["within_5"]
    limits = (("on", 0.01, 8.0), ("hops", 0.01, 4.0), ("moves", 0.015, 4.0), ("tangent", 0.02, 2.0))
    beyond = sum(cost * max(0.0, rates[kind]["alarmed"] - most) for kind, most, cost in limits)
    brief = {kind: rates[kind]["alarmed"] for kind, _, _ in limits}
    brief |= {kind: rates[kind][f"within_{n}"] for kind, n in (("abrupt", 3), ("gradual", 5), ("subject", 5))}
    return speed - beyond, brief


def steady(detector: Detector) -> bool:
    """What no figure may buy: one clear tangent never alarms, nor two apart; two clear ones in a row, or three first, do."""
    sure = 3.4761
    line = lambda text: [-sure if sign == "-" else sure for sign in text]  # noqa: E731 - said in each case below
    cases = [("+" * 10 + "-" * 4, 11), ("-" * 6, 2)]
    cases += [("+" * lead + "-" + "+" * 9, None) for lead in (0, 1, 2, 5, 10, 30, 60)]
    cases += [("+" * lead + "-" + "+" * gap + "-" + "+" * 9, None) for lead in (0, 1, 5, 20, 60) for gap in (1, 2, 4)]
    size = max(len(text) for text, _ in cases)
    x = np.array([line(text) + [0.0] * (size - len(text)) for text, _ in cases])
    read = np.array([[at < len(text) for at in range(size)] for text, _ in cases])
    empty = np.zeros((len(cases), size, size), dtype=np.float32)
    none, zeros = replace(detector, likeness=0.0), np.zeros_like(x)
    data = Played([], x, read, np.zeros_like(x, dtype=np.int64), empty, zeros, 1.0)
    hits = played(data, none) >= Settings().level
    extreme = replace(data, x=np.where(x < 0, -60.0, x))  # as much as any vector could add
    alone = played(extreme, replace(none, lowest=-60.0)) >= Settings().level
    first = [int(row.argmax()) if row.any() else None for row in hits]
    room = 1 / (1 + np.exp(ALONE - log_odds(Settings().level)))  # what the network may add stays below the alarm too
    within = (played(extreme, replace(none, lowest=-60.0)) < room)[2:9].all()
    return first == [want for _, want in cases] and not alone[2:9].any() and bool(within)


def search(data: Played, tries: int, seed: int) -> Detector:
    rng = random.Random(seed)
    best, kept = -9.0, Detector()
    for attempt in range(tries):
        chosen = {key: rng.choice(NEAR[key]) for key in rng.sample(sorted(NEAR), rng.choice((1, 2, 2, 3)))}
        detector = replace(kept, **chosen) if attempt else kept
        if attempt and not steady(detector):
            continue
        score, brief = worth(data, detector)
        if score > best:
            best, kept = score, detector
            print(f"{attempt:4} {score:.4f}", " ".join(f"{k} {v:.3f}" for k, v in brief.items()))
            print(f"     {kept}", flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--each", type=int, default=20, help="conversations of a kind for each file")
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", action="store_true", help="fit on all data sets but one, report on that, in turn")
    asked = parser.parse_args()
    every = sorted(path.stem for path in asked.data.glob("*.jsonl"))
    if not asked.families:
        print(search(usable(every[::2], asked.data, asked.each), asked.tries, asked.seed))
        return
    data = usable(every, asked.data, asked.each)
    family = np.array([talk.file.split("__")[0] for talk in data.talks])
    for name in sorted(set(family.tolist())):
        detector = search(chosen(data, np.flatnonzero(family != name)), asked.tries, asked.seed)
        brief = worth(chosen(data, np.flatnonzero(family == name)), detector)[1]
        print(name, "left out:", " ".join(f"{key} {value:.3f}" for key, value in brief.items()), flush=True)


def usable(names: Sequence[str], path: Path, each: int) -> Played:
    """Conversations of the policies that the guard can read (`sound` in bench/drift.py)."""
    kinds = ("on", "abrupt", "subject", "gradual", "tangent", "hops", "moves")
    parts, space = [], None
    made, space = talks(path, names, (0, 10), each, kinds)
    for policy in (0, 10):
        parts += [talk for talk, _ in sound([(talk, []) for talk in made if talk.policy == policy])]
    data = laid_out(parts, space)
    few = chosen(data, np.arange(0, len(parts), max(1, len(parts) // 30)))
    for talk, values in paired(few, played(few, Detector())):
        told = levels(talk, "vectors", Settings(detector=Detector()), space)
        read = [at for at, p in enumerate(talk.fed["vectors"]) if p is not None]
        if max(abs(told[at] - values[at]) for at in read) > 0.02:  # remembered vectors are rounded
            raise SystemExit("`played` and `changed` disagree; mend the one that is wrong")
    return data


def chosen(data: Played, pick: NDArray[np.intp]) -> Played:
    """Some of the conversations."""
    cut = {key: getattr(data, key)[pick] for key in ("x", "read", "place", "cosines", "background")}
    return replace(data, talks=[data.talks[index] for index in pick], **cut)


if __name__ == "__main__":
    main()
