# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality"]
# ///
"""Fit the networks of `core.drift_window`, which read a conversation's last messages together.

    python tools/fit_drift_window.py DATA src/topicality/core/drift_weights.py

They are fitted on the conversations of bench/talks.py, from every other file, as they look with the constants that are in
`core.drift_change`: `step` plays them, and what the networks would read is noted. First the evidence of one message, then the
last messages together: the second is told what the first says of messages of files that it was not fitted on. So are the
figures that are printed, and the bias, with which at most `LIMITS` of the quiet conversations are alarmed.

A share of the conversations is played without the map of subjects that an encoder may have, so that the same networks serve
those that have none; figures are told for both.

The second is fitted on whole conversations: where one is to alarm within so many messages, only its highest log-odds there
count, and only its highest where it is not to.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from drift import followed, measured
from talks import KINDS, MIXED, STAYS, Space, Talk, talks

from topicality.core import drift_window as window
from topicality.core.drift import Settings
from topicality.core.drift_network import Network, standard
from topicality.core.drift_window import FEATURES, KEPT, LAST, OF_ONE, Seen

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FOLDS = 4
HIDDEN, SEEDS, EPOCHS = 16, 3, 12
LIMITS = {"on": 0.01, "tangent": 0.03, "apart": 0.1, "hops": 0.013, "moves": 0.022}
WEIGHTS = {"on": 1.0, "moves": 0.8, "apart": 0.2}  # of not alarming; others 0.5
QUIET = 6.0  # what not to alarm counts for, against to alarm
UNHEARD = 0.12  # share of conversations of which the readings are hidden, so that it does without
PLAIN = 0.15  # share of conversations that are played without the map of subjects
READINGS = [at for at, name in enumerate(FEATURES) if "alone" in name or "context" in name]
ODDS, LEFT, EVIDENCE = (FEATURES.index(f"{name}0") for name in ("odds", "left", "evidence"))
KNOWN = FEATURES.index("count")
LEVEL = math.log(Settings().level / (1 - Settings().level))


@dataclass
class Noted:
    """Conversations side by side, N of at most T messages that were read.

    Attributes:
        seen: shape (N, T, F), what the networks read; NaN for what is not known. room: shape (N, T), see
            `drift_window.room`, but for the evidence. read, off: shape (N, T). place: of a message in its conversation.
            count: off-topic ones so far.
        folds: shape (N, FOLDS), whether it is in that fold (`folds_of`). judged: shape (N,), whether figures are about it.
            plain: whether it was played without the map of subjects.
    """

    talks: list[Talk]
    seen: NDArray[np.float32]
    room: NDArray[np.float32]
    read: Bools
    off: Bools
    place: NDArray[np.int64]
    count: NDArray[np.int64]
    folds: Bools
    judged: Bools
    plain: Bools


def noted(parts: Sequence[tuple[Sequence[Talk], Space]], names: Sequence[str]) -> Noted:
    made = [talk for group, _ in parts for talk in group]
    shape = (len(made), max(len(talk.off) for talk in made))
    seen = np.full((*shape, len(FEATURES)), np.nan, dtype=np.float32)
    room, read, off = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    place, count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    rows: list[tuple[Floats, float]] = []
    plain = np.random.default_rng(2).random(len(made)) < PLAIN

    def note(last: tuple[Seen, ...], cosines: Any, readings: Any, yardstick: float) -> tuple[float, Seen]:
        rows.append(
            (
                window.features(last, cosines, readings, yardstick),
                window.room([one._replace(evidence=-9.0) for one in last], cosines),
            )
        )
        return last[0].odds, last[0]

    index = 0
    with patch("topicality.core.drift_change.joint", note):
        for group, space in parts:
            bare = replace(space, landmarks=space.plain)
            for talk in group:
                rows.clear()
                followed(talk, "heard", Settings(), bare if plain[index] else space)
                heard = [at for at, one in enumerate(talk.fed["heard"]) if one is not None]
                read[index, : len(heard)], place[index, : len(heard)] = True, heard
                off[index, : len(heard)] = np.array(talk.off)[heard]
                count[index, : len(heard)] = np.cumsum(talk.off)[heard]
                for at, (found, free) in enumerate(rows):
                    seen[index, at], room[index, at] = found, free
                index += 1
    folds = folds_of(made, names)
    judged = np.array([talk.policy in {0, 10} and (talk.kind in KINDS[-2:] or "+" not in talk.file) for talk in made])
    return Noted(made, seen, room, read, off, place, count, folds, judged, plain)


def folds_of(made: Sequence[Talk], names: Sequence[str]) -> Bools:
    """Shape (N, FOLDS). Conversations on four files' topics would be in all: they are taken by turns."""
    number = {name: at % FOLDS for at, name in enumerate(names)}
    mine = [
        {index % FOLDS} if talk.kind in STAYS else {number[name] for name in talk.file.split("+")}
        for index, talk in enumerate(made)
    ]
    return np.array([[fold in one for fold in range(FOLDS)] for one in mine])


class Learner:
    """A network of one layer, fitted by Adam."""

    def __init__(self, size: int, hidden: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        first = rng.normal(size=(size, hidden)) / np.sqrt(size)
        second = rng.normal(size=hidden) / np.sqrt(hidden)
        parts = (first, np.zeros(hidden), second, np.full(1, -3.0))
        self.parts = [part.astype(np.float32) for part in parts]
        self.first, self.second = ([np.zeros_like(part) for part in self.parts] for _ in range(2))
        self.steps = 0

    def inner(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(np.tanh(x @ self.parts[0] + self.parts[1]))

    def log_odds(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(self.inner(x) @ self.parts[2] + self.parts[3])

    def learn(self, x: NDArray[np.float32], slope: NDArray[np.float32], rate: float) -> None:
        """One step down, given the loss's slope by each row's log-odds."""
        inner = self.inner(x)
        back = slope[:, None] * self.parts[2] * (1 - inner * inner)
        slopes = (x.T @ back, back.sum(axis=0), inner.T @ slope, slope.sum(keepdims=True))
        self.steps += 1
        for at, part in enumerate(self.parts):
            change = slopes[at] + (2e-4 * part if at in {0, 2} else 0)
            self.first[at] = 0.9 * self.first[at] + 0.1 * change
            self.second[at] = 0.99 * self.second[at] + 0.01 * change * change
            mean, square = self.first[at] / (1 - 0.9**self.steps), self.second[at] / (1 - 0.99**self.steps)
            self.parts[at] = part - np.float32(rate) * mean / (np.sqrt(square) + 1e-8)


def fitted(
    learn: Callable[[NDArray[np.float32], int], Learner], seen: NDArray[np.float32], used: Bools, seeds: int
) -> Network:
    """Networks of several seeds, as a wide one that is their mean."""
    mean, scale = np.nanmean(seen[used], axis=0), np.nanstd(seen[used], axis=0) + 1e-6
    scaled = standard(seen, mean, scale).astype(np.float32)
    found = [learn(scaled, seed).parts for seed in range(seeds)]
    inner, inner_bias, outer = (np.concatenate([one[at] for one in found], axis=-1) for at in range(3))
    bias = float(np.mean([one[3][0] for one in found]))
    return Network(mean, scale, inner, inner_bias, outer / seeds, bias)


def evidence(data: Noted, seen: NDArray[np.float32], use: Bools) -> Network:
    """The first network: is a message off-topic?"""
    used = data.read & use[:, None]
    wanted = data.off[used].astype(np.float32)

    def learn(scaled: NDArray[np.float32], seed: int, epochs: int = 6, batch: int = 1000) -> Learner:
        learner, rng, x = Learner(len(OF_ONE), 8, seed), np.random.default_rng(seed), scaled[used]
        steps = epochs * (len(x) // batch)
        for step in range(steps):
            if step % (len(x) // batch) == 0:
                order = rng.permutation(len(x))
            pick = order[step * batch % (len(x) - batch + 1) :][:batch]
            slope = (chance(learner.log_odds(x[pick])) - wanted[pick]) / batch
            learner.learn(x[pick], slope, 4e-3 * cooling(step, steps))
        return learner

    return fitted(learn, seen[..., list(OF_ONE)], used, 1)


def together(data: Noted, seen: NDArray[np.float32], use: Bools, seeds: int = SEEDS) -> Network:
    """The second network."""
    kinds = np.array([talk.kind for talk in data.talks])
    turned, slow, quiet = (
        np.isin(kinds, ("abrupt", "subject")),
        kinds == "gradual",
        ~np.isin(kinds, ("abrupt", "subject", "gradual", "pair")),
    )
    soon = [(turned[:, None] & (data.count <= 3)) | (slow[:, None] & data.off & (data.count <= 5))]
    soon += [(turned[:, None] & (data.count <= 5)) | (slow[:, None] & data.off & (data.count <= 8))]
    never = data.read & ((data.count == 0) | quiet[:, None])
    sets = [(data.read & (data.count >= 2) & one, cost) for one, cost in zip(soon, (-1.0, -0.3), strict=True)]
    worth = QUIET * np.array([WEIGHTS.get(kind, 0.5) for kind in kinds])
    likes = np.where(kinds == "subject", 0.6, 1.0)
    messages = never | sets[1][0]  # a little, each message by itself
    wanted = sets[1][0] & (data.count <= np.where(slow, 8, 5)[:, None])

    def learn(scaled: NDArray[np.float32], seed: int, batch: int = 128) -> Learner:
        learner, rng, rows = Learner(len(FEATURES), HIDDEN, seed), np.random.default_rng(seed), np.flatnonzero(use)
        each = len(rows) // batch
        for step in range(EPOCHS * each):
            if step % each == 0:
                rng.shuffle(rows)
            pick = rows[step % each * batch :][:batch]
            read = data.read[pick]
            x = scaled[pick][read]
            odds = np.full(read.shape, -1e9, dtype=np.float32)
            odds[read] = learner.log_odds(x)
            slope = 0.02 * np.where(messages[pick], chance(odds) - wanted[pick], 0)
            top, share = highest(odds, never[pick])
            slope += (worth[pick] * chance(top))[:, None] * share
            for one, cost in sets:
                top, share = highest(odds, one[pick])
                slope += (cost * likes[pick] * chance(-top))[:, None] * share
            learner.learn(x, (slope[read] / batch).astype(np.float32), 4e-3 * cooling(step, EPOCHS * each))
        return learner

    return fitted(learn, seen, data.read & use[:, None], seeds)


def highest(odds: NDArray[np.float32], among: Bools) -> tuple[Floats, Floats]:
    """The soft maximum of each row, and its slope; 0 and no slope where there is none."""
    shown = np.where(among, odds, -np.inf)
    top = np.maximum(shown.max(axis=1, keepdims=True), -1e9)
    grown = np.where(among, np.exp(np.minimum(shown - top, 0)), 0)
    total = grown.sum(axis=1, keepdims=True)
    return np.where(total > 0, top + np.log(np.maximum(total, 1e-9)), 0)[:, 0], grown / np.maximum(total, 1e-9)


def chance(odds: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))))


def cooling(step: int, steps: int) -> float:
    return 0.52 + 0.5 * math.cos(math.pi * step / steps)


def hidden(data: Noted) -> NDArray[np.float32]:
    """What is read, with the readings of some conversations left out."""
    seen = data.seen.copy()
    some = np.random.default_rng(1).random(len(seen)) < UNHEARD
    seen[np.ix_(some, np.arange(seen.shape[1]), READINGS)] = np.nan
    return seen


def fill(data: Noted, seen: NDArray[np.float32], said: Floats) -> None:
    """Tell the second network what the first said, shape (N, T), and their sum."""
    left = np.zeros(said.shape)
    for index, row in enumerate(said):
        before = window.START
        for at in np.flatnonzero(data.read[index]):
            before = left[index, at] = window.summed(before, float(row[at]))
    bounded = np.clip(said, -window.SURE, window.SURE)
    for values, first, most in ((bounded, EVIDENCE, KEPT), (left, LEFT, LAST + 1)):
        for age in range(most):
            seen[:, age:, first + age] = values[:, : values.shape[1] - age]


def held_out(data: Noted, fit: Callable[[Bools], Network], seen: NDArray[np.float32]) -> Floats:
    """Log-odds of each message by networks that were fitted on none of its conversation's files, or on few of them."""
    total, times = np.zeros(data.read.shape), np.zeros((len(data.talks), 1))
    for fold in range(FOLDS):
        mine = data.folds[:, fold]
        total[mine] += fit(~mine).log_odds(seen[mine])
        times[mine] += 1
    return total / times


def levels(data: Noted, odds: Floats, said: Floats, shift: float) -> Floats:
    """The log-odds that are told, shape (N, T)."""
    suspect = np.where(data.read & (said >= window.SUSPECT), 1, 0)
    for age in range(1, LAST):
        suspect[:, age:] += (data.read & (said >= window.SUSPECT))[:, :-age]
    free = np.where(suspect > 1, window.BEGUN, data.room)
    told = np.minimum(odds + shift, data.seen[..., ODDS] + free)
    early = data.seen[..., KNOWN] < math.log1p(window.FIRST - 0.5)
    return np.where(data.read, np.where(early, np.maximum(told, data.seen[..., ODDS]), told), -99.0)


def shifted(data: Noted, odds: Floats, said: Floats) -> float:
    """What to add to the log-odds so that no more than `LIMITS` are alarmed."""
    kinds = np.array([talk.kind for talk in data.talks])
    judged = data.judged & ~data.plain
    low, high = -8.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        told = levels(data, odds, said, middle)
        rates = {kind: (told[(kinds == kind) & judged] >= LEVEL).any(axis=1).mean() for kind in LIMITS}
        low, high = (low, middle) if any(rates[kind] > most for kind, most in LIMITS.items()) else (middle, high)
    return low


def figures(data: Noted, told: Floats) -> str:
    lines = []
    for policy, plain in ((0, False), (10, False), (0, True), (10, True)):
        found = []
        for index, talk in enumerate(data.talks):
            if talk.policy == policy and data.judged[index] and data.plain[index] == plain:
                line = [0.0] * len(talk.off)
                for at, value in zip(data.place[index][data.read[index]], told[index][data.read[index]], strict=True):
                    line[at] = float(chance(np.array(value)))
                found.append((talk, line))
        rates = measured(found, Settings().level)
        speed = {kind: rates[kind][f"within_{n}"] for kind, n in (("abrupt", 3), ("gradual", 5), ("subject", 3))}
        speed |= {kind: rates[kind]["alarmed"] for kind in rates if "alarmed" in rates[kind]}
        told_as = f"policy{policy}{' without a map' if plain else ''}: "
        lines.append(told_as + " ".join(f"{kind} {value:.3f}" for kind, value in speed.items()))
    return "\n".join(lines)


_HEAD = '''"""Weights of `core.drift_window`, written by tools/fit_drift_window.py; not to be edited by hand."""

from __future__ import annotations

from topicality.core.drift_network import Network, table
'''


def text_of(networks: dict[str, Network]) -> str:
    parts = [_HEAD]
    for name, network in networks.items():
        inner = f"table({_numbers(network.inner, 3)}).reshape({len(network.mean)}, {len(network.outer)})"
        rows = [
            f"table({_numbers(numbers, 4)})"
            for numbers in (network.mean, network.scale, network.inner_bias, network.outer)
        ]
        arguments = (*rows[:2], inner, *rows[2:], f"{network.bias:.4g}")
        parts.append(f"\n{name} = Network(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")\n")
    return "".join(parts)


def _numbers(numbers: NDArray[Any], digits: int) -> str:
    said = textwrap.fill(" ".join(f"{value:.{digits}g}" for value in numbers.ravel()), 116)
    return f'"""\n{said}\n"""'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--each", type=int, default=20, help="conversations of a kind for each file")
    asked = parser.parse_args()
    names = sorted(path.stem for path in asked.data.glob("*.jsonl"))[::2]
    few = max(1, asked.each // 2)
    parts = [
        talks(asked.data, names, (0, 10), asked.each, KINDS, mixed=few),
        talks(asked.data, names, (-1, 3), few, MIXED),
    ]
    data = noted(parts, names)
    print(f"{len(data.talks)} conversations", flush=True)
    networks, told = fit(data)
    print(told)
    asked.into.write_text(text_of(networks), "utf-8")


def fit(data: Noted) -> tuple[dict[str, Network], str]:
    """Both networks, and the figures of such as were fitted on other files."""
    every = np.ones(len(data.talks), dtype=bool)
    seen = hidden(data)
    first = evidence(data, seen, every)
    said = held_out(data, lambda use: evidence(data, seen, use), seen[..., list(OF_ONE)])
    fill(data, seen, said)
    odds = held_out(data, lambda use: together(data, seen, use), seen)
    shift = shifted(data, odds, said)
    second = together(data, seen, every)
    told = figures(data, levels(data, odds, said, shift))
    return {"EVIDENCE": first, "JOINT": second._replace(bias=second.bias + shift)}, told


if __name__ == "__main__":
    main()
