# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality", "scikit-learn"]
# ///
"""Fit the network of `core.drift_window`, which reads a conversation's last messages together.

    python tools/fit_drift_window.py DATA src/topicality/core/drift_weights.py

It is fitted on the conversations of tools/fit_drift.py, with the constants that are in `core.drift_change`. At the default
alarm level it is to give no more false alarms there than the rule alone: on-topic, with one tangent, and with hops.
"""

from __future__ import annotations

import argparse
import textwrap
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fit_drift import Floats, Played, played, usable
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from topicality.core.drift import Settings
from topicality.core.drift_change import Detector
from topicality.core.drift_window import ALONE, BEGUN, FEATURES, LAST


@dataclass(frozen=True)
class Network:
    """What `core.drift_weights` has."""

    mean: Floats
    scale: Floats
    inner: Floats
    inner_bias: Floats
    outer: Floats
    bias: float

    def log_odds(self, seen: Floats) -> Floats:
        standard = np.nan_to_num(np.clip((seen - self.mean) / self.scale, -4, 4))
        return np.asarray(np.tanh(standard @ self.inner + self.inner_bias) @ self.outer + self.bias)

    def text(self) -> str:
        tables = {"MEAN": self.mean, "SCALE": self.scale, "INNER_BIAS": self.inner_bias, "OUTER": self.outer}
        parts = [f"{name} = _table({_numbers(table)})" for name, table in tables.items()]
        shape = f"{len(self.inner)}, {len(self.outer)}"
        parts += [f"INNER = _table({_numbers(self.inner)}).reshape({shape})", f"BIAS = {self.bias:.4g}"]
        return _HEAD + "\n".join(parts) + "\n"


_HEAD = '''"""Constants of `core.drift_window`, written by tools/fit_drift_window.py; not to be edited by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _table(text: str) -> NDArray[np.float64]:
    return np.array(text.split(), dtype=np.float64)


'''


def _numbers(table: Floats) -> str:
    said = textwrap.fill(" ".join(f"{value:.4g}" for value in table.ravel()), 116)
    return f'"""\n{said}\n"""'


def network(data: Played, detector: Detector, hidden: int = 12) -> Network:
    """Fit the network, and move its bias to no more false alarms than the rule alone has on the same conversations."""
    seen = np.full((*data.x.shape, len(FEATURES)), np.nan)
    levels_alone = played(data, detector, seen)
    wanted, weight = aims(data)
    used = weight > 0
    used &= wanted | (np.random.default_rng(0).random(used.shape) < 0.6)
    mean, scale = np.nanmean(seen[used], axis=0), np.nanstd(seen[used], axis=0)
    standard = np.nan_to_num(np.clip((seen[used] - mean) / scale, -4, 4))
    model = MLPClassifier(
        (hidden,), activation="tanh", alpha=1.0, batch_size=1000, learning_rate_init=4e-3, max_iter=20, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped early on purpose
        model.fit(standard, wanted[used], sample_weight=np.where(wanted, weight, weight / 0.6)[used])
    (inner, outer), (inner_bias, bias) = model.coefs_, model.intercepts_
    found = Network(mean, scale, inner, inner_bias, outer[:, 0], float(bias[0]))
    return replace(found, bias=found.bias - _shift(data, found, seen, levels_alone))


def aims(data: Played) -> tuple[NDArray[np.bool_], Floats]:
    """Which messages are to alarm, and what each counts; the first off-topic one of a turn is not asked about."""
    wanted, weight = np.zeros(data.read.shape, dtype=bool), data.read.astype(np.float64)
    for index, talk in enumerate(data.talks):
        heard = data.place[index][data.read[index]]
        off = np.array(talk.off)[heard]
        count, row = np.cumsum(talk.off)[heard], slice(0, len(heard))
        if talk.kind in {"abrupt", "subject"}:
            wanted[index, row] = count >= 2
            weight[index, row][count == 1] = 0
            weight[index, row][count > 5] = 0.05
            weight[index, row][count >= 2] *= 0.4 if talk.kind == "subject" else 1.0
        elif talk.kind == "gradual":
            wanted[index, row] = off & (count >= 3)
            weight[index, row][(count > 0) & ~wanted[index, row]] = 0
            weight[index, row][(count > 7) & off] = 0.05
        elif talk.kind in {"hops", "moves"}:
            weight[index, row] *= 2
        elif talk.kind == "tangent":
            weight[index, row][count > 0] *= 2
    return wanted, weight


def _shift(data: Played, found: Network, seen: Floats, levels_alone: Floats) -> float:
    kinds = np.array([talk.kind for talk in data.talks])
    limits = {kind: _alarmed(levels_alone[kinds == kind]) for kind in ("on", "tangent", "hops")}
    low, high = -6.0, 6.0
    for _ in range(30):
        middle = (low + high) / 2
        moved = felt(data, replace(found, bias=found.bias - middle), seen)
        beyond = any(_alarmed(moved[kinds == kind]) > limit for kind, limit in limits.items())
        low, high = (middle, high) if beyond else (low, middle)
    return high


def _alarmed(values: Floats) -> float:
    return float((values >= Settings().level).any(axis=1).mean())


def felt(data: Played, found: Network, seen: Floats) -> Floats:
    """The level after each message that was read, shape (N, T), by the network; 0 elsewhere."""
    near = seen[..., 4 * LAST : 4 * LAST + 2] + seen[..., 2 * LAST : 2 * LAST + 2]  # to what was said before
    with np.errstate(invalid="ignore"):
        begun = seen[..., 5 * LAST + 1] > near.max(axis=-1)
    odds = np.minimum(found.log_odds(seen), seen[..., LAST] + np.where(begun, BEGUN, ALONE))
    return np.where(data.read, 1 / (1 + np.exp(-odds)), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--each", type=int, default=40, help="conversations of a kind for each file")
    asked = parser.parse_args()
    every = sorted(path.stem for path in asked.data.glob("*.jsonl"))
    data = usable(every[::2], asked.data, asked.each)
    asked.into.write_text(network(data, Detector()).text(), "utf-8")


if __name__ == "__main__":
    main()
