# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality", "scikit-learn"]
# ///
"""Fit the constants of the guard's scores and of its follow-up fusion, and write embed/data/guard.json.

    python tools/fit_guard.py DATA_DIR          # fit, report held-out figures, write
    python tools/fit_guard.py DATA_DIR --dry    # only report

Two kinds of tasks are fitted on. Own: domains made of several subjects of the background, with half of each subject's
utterances as messages and the other half as the background (bench/domains.json), and the three tasks of bench/data.
Public: the files of DATA_DIR (HWU64, SNIPS, StackOverflow titles; Schema-Guided Dialogue for the fusion), as described
in docs/guard.md. Nothing of the data is kept but the weights. Each figure printed is of a family left out of the fit.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from topicality.config import Policy
from topicality.core.background import Background
from topicality.core.followup import FEATURES as TURN_FEATURES
from topicality.core.followup import Fusion, context_features, quadratic
from topicality.core.measure import auroc, balanced_accuracy, calibration_error
from topicality.core.rules import compiled, flattened, texts_of
from topicality.core.score import FEATURES, RuleBook, Weights
from topicality.core.text import content_stems, fold
from topicality.embed import load, load_background
from topicality.embed.background import halved, read_corpus

ROOT = Path(__file__).parent.parent
START = Weights(0.8, (5.0, 3.0), 0.6, (0.15, 0.45, 0.8, 3.2), 0.25)
SIDES = np.array([0.25, 0.75])  # share of the topic side and the message side in the normalised score
PRIOR = 0.3  # share of on-topic messages that the probabilities assume
TURN_PRIOR = 0.4  # the same for messages with a context
EMBEDDER = load("minilm", cache=100_000)


@dataclass
class Task:
    family: str
    name: str
    texts: list[str]
    allowed: np.ndarray
    policy: Policy
    background: Background
    contexts: list[list[str]] | None = None
    sources: list[str] | None = None


def book(task: Task, weights: Weights) -> RuleBook:
    entries = [entry for entry in texts_of(task.policy.sided()) if entry.side == "allowed"]
    rules = compiled(entries, EMBEDDER.embed(flattened(entries)), task.background, weights)
    assert rules is not None
    return rules


def features(task: Task, weights: Weights) -> np.ndarray:
    folded = [fold(text).text for text in task.texts]
    rules, vectors, stems = book(task, weights), EMBEDDER.embed(folded), [content_stems(text) for text in folded]
    best = rules.score(vectors, stems).logits.argmax(axis=1)
    chosen = rules.features(vectors, stems)[np.arange(len(folded)), best]
    return np.column_stack([chosen[:, :2] @ SIDES, chosen[:, 2:]])


def public(folder: Path, families: tuple[str, ...]) -> list[Task]:
    tasks = []
    background = load_background(EMBEDDER)
    for path in sorted(folder.glob("*.jsonl")):
        family = path.stem.split("__")[0]
        if family not in families:
            continue
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for suffix in ("policy0", "policy10"):
            policy = Policy.load(path.with_suffix(f".{suffix}.json"))
            tasks.append(
                Task(
                    family,
                    f"{path.stem}.{suffix}",
                    [row["text"] for row in rows],
                    np.array([row["label"] == "allowed" for row in rows]),
                    policy,
                    background,
                    [[turn["text"] for turn in row.get("context") or []] for row in rows],
                    [row.get("source", "") for row in rows],
                )
            )
    return tasks


def own(seed: int = 0) -> list[Task]:
    rng = np.random.default_rng(seed)
    corpus, (half, kept) = read_corpus(), halved(EMBEDDER)
    owner = np.array(corpus.owner)
    index = {subject: number for number, subject in enumerate(corpus.subjects)}
    tasks = []
    for domain in json.loads((ROOT / "bench" / "domains.json").read_text("utf-8")):
        inside = np.isin(owner, [index[subject] for subject in domain["subjects"]])
        on = np.flatnonzero(inside & ~kept)
        off = rng.choice(np.flatnonzero(~inside & ~kept), 3 * len(on), replace=len(on) * 3 > (~inside & ~kept).sum())
        examples = rng.choice(np.flatnonzero(inside & kept), 10, replace=False)
        texts = [corpus.utterances[row] for row in [*on, *off]]
        for shown in ((), tuple(corpus.utterances[row] for row in examples)):
            rule = {"name": domain["name"], "description": domain["description"], "examples": shown}
            labels = np.array([True] * len(on) + [False] * len(off))
            tasks.append(Task("own", domain["name"], texts, labels, Policy(allowed=[rule]), half))
    return tasks


def written() -> list[Task]:
    tasks = []
    for path in sorted((ROOT / "bench" / "data").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        rows = [row for row in rows if row["label"] != "blocked"]
        for suffix in ("policy0", "policy10"):
            policy = Policy.load(path.with_suffix(f".{suffix}.json"))
            labels = np.array([row["label"] == "allowed" for row in rows])
            tasks.append(
                Task("written", path.stem, [row["text"] for row in rows], labels, policy, load_background(EMBEDDER))
            )
    return tasks


def fit(data: list[tuple[np.ndarray, Task]], strength: float = 0.3) -> LogisticRegression:
    count = Counter(task.family for _, task in data)
    share = [
        np.where(task.allowed, PRIOR / task.allowed.mean(), (1 - PRIOR) / (1 - task.allowed.mean()))
        / len(task.allowed)
        / count[task.family]
        * 1000
        for _, task in data
    ]
    rows = np.vstack([matrix for matrix, _ in data])
    labels = np.concatenate([task.allowed for _, task in data])
    return LogisticRegression(C=strength, max_iter=2000).fit(rows, labels, sample_weight=np.concatenate(share))


def report(name: str, scores: list[tuple[np.ndarray, Task]]) -> None:
    thresholds = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
    areas = [auroc(p, task.allowed) for p, task in scores]
    errors = [calibration_error(p, task.allowed) for p, task in scores]
    balanced = {t: np.mean([balanced_accuracy(p >= t, task.allowed) for p, task in scores]) for t in thresholds}
    print(
        f"  {name:10} AUROC {np.mean(areas):.4f} (least {min(areas):.3f})  ECE {np.mean(errors):.3f}  balanced accuracy "
        + " ".join(f"{t}:{value:.3f}" for t, value in balanced.items())
    )


def probabilities(model: Any, matrix: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict_proba(matrix)[:, 1])


def single(tasks: list[Task], weights: Weights) -> Weights:
    data = [(features(task, weights), task) for task in tasks]
    families = sorted({task.family for task in tasks})
    means: dict[str, list[float]] = {}
    for kind in ("policy0 / names and descriptions", "policy10 / ten examples"):
        print(kind)
        for family in families:
            model = fit([(matrix, task) for matrix, task in data if task.family != family])
            held = [
                (probabilities(model, matrix), task)
                for matrix, task in data
                if task.family == family and bool(task.policy.allowed[0].examples) == kind.startswith("policy10")
            ]
            report(family, held)
            means.setdefault(kind, []).append(float(np.mean([auroc(p, task.allowed) for p, task in held])))
        print(f"  mean of families {np.mean(means[kind]):.4f}")
    fitted = joined(fit(data), weights)
    print(dict(zip(FEATURES, fitted.weights, strict=True)), fitted.bias)
    return fitted


def joined(model: LogisticRegression, weights: Weights) -> Weights:
    both, subject, word = (float(value) for value in model.coef_[0])
    topic, message = both * SIDES
    values = (round(float(topic), 4), round(float(message), 4), round(subject, 4), round(word, 4))
    return replace(weights, weights=values, bias=round(float(model.intercept_[0]), 4))


def said_features(rules: RuleBook, shown: list[str]) -> np.ndarray:
    vectors = EMBEDDER.embed(shown)
    stems = [content_stems(turn) for turn in shown]
    logits = rules.score(vectors, stems).logits.max(axis=1)
    assert rules.background is not None
    return context_features(shown, stems, rules.standing(vectors), vectors, logits, rules.background.spread)


def turn_rows(task: Task, weights: Weights, turns: int) -> tuple[np.ndarray, np.ndarray]:
    rules = book(task, weights)
    rows, kept = [], []
    for number, (text, context) in enumerate(zip(task.texts, task.contexts or [], strict=True)):
        shown = [fold(turn).text for turn in [*context[-turns:], text] if turn.strip()]
        if len(shown) < 2:
            continue
        rows.append(said_features(rules, shown))
        kept.append(number)
    return np.array(rows), np.array(kept)


def spliced(tasks: list[Task], weights: Weights, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Messages that stand alone, after turns of the same task: what was said before must not change their verdict."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for task in tasks:
        rules = book(task, weights)
        on, off = np.flatnonzero(task.allowed), np.flatnonzero(~task.allowed)
        for _ in range(24):
            pool = on if rng.random() < 0.7 else off
            number = int(rng.choice(on if rng.random() < 0.5 else off))
            shown = [fold(task.texts[row]).text for row in [*rng.choice(pool, int(rng.integers(1, 5))), number]]
            rows.append(said_features(rules, shown))
            labels.append(bool(task.allowed[number]))
    return np.array(rows), np.array(labels)


def fusion(tasks: list[Task], others: list[Task], weights: Weights, turns: int = 4) -> Fusion:
    extra, extra_labels = spliced(others, weights)
    data = [(task, *turn_rows(task, weights, turns)) for task in tasks]
    data = [(task, rows, task.allowed[kept], [(task.sources or [])[k] for k in kept]) for task, rows, kept in data]

    def train(chosen: list[Any]) -> Fusion:
        rows = np.vstack([*(rows for _, rows, _, _ in chosen), extra])
        labels = np.concatenate([*(labels for _, _, labels, _ in chosen), extra_labels])
        size = len(labels) - len(extra_labels)
        weight = np.ones(len(labels))
        for part in (slice(0, size), slice(size, None)):
            y = labels[part]
            weight[part] = np.where(y, TURN_PRIOR / y.mean(), (1 - TURN_PRIOR) / (1 - y.mean()))
        weight[size:] *= 0.1 * size / len(extra_labels)
        mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
        standard = np.clip((rows - mean) / scale, -4, 4)
        model = LogisticRegression(C=0.1, max_iter=4000).fit(quadratic(standard), labels, sample_weight=weight)
        return Fusion(mean, scale, model.coef_[0], float(model.intercept_[0]))

    from topicality.core.followup import fused

    domains = sorted({task.name.split(".")[0] for task in tasks})
    scores, labels, sources, areas = [], [], [], []
    for domain in domains:
        head = train([entry for entry in data if not entry[0].name.startswith(domain + ".")])
        for _task, rows, truth, source in (entry for entry in data if entry[0].name.startswith(domain + ".")):
            p = 1 / (1 + np.exp(-fused(rows, head)))
            scores.append(p)
            labels.append(truth)
            sources += source
            areas.append(auroc(p, truth))
    p, y, s = np.concatenate(scores), np.concatenate(labels), np.array(sources)
    short = (s == "follow_short") | ~y
    figures = (np.mean(areas), auroc(p, y), auroc(p[short], y[short]), calibration_error(p, y))
    print("fusion, domains left out: AUROC {:.4f} a file, {:.4f} pooled, {:.4f} short; ECE {:.3f}".format(*figures))
    for threshold in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5):
        shares = " ".join(f"{kind}:{(p[s == kind] >= threshold).mean():.2f}" for kind in sorted(set(sources)))
        print(f"  accepted at {threshold}: {shares}  balanced {balanced_accuracy(p >= threshold, y):.3f}")
    return train(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    tasks = [*own(), *written(), *public(options.data, ("hwu", "snips", "so"))]
    weights = single(tasks, single_start(tasks))
    head = fusion(public(options.data, ("sgd_train",)), tasks, weights)
    assert len(head.mean) == len(TURN_FEATURES)
    if not options.dry:
        target = ROOT / "src" / "topicality" / "embed" / "data" / "guard.json"
        values = {
            "made_by": "tools/fit_guard.py",
            "fitted_on": "HWU64, SNIPS, StackOverflow titles, Schema-Guided Dialogue (train), own domains and tasks",
            "features": FEATURES,
            "softness": weights.softness,
            "kin": weights.kin,
            "temperature": weights.temperature,
            "weights": weights.weights,
            "bias": weights.bias,
            "counter": weights.counter,
            "fusion": {
                "features": TURN_FEATURES,
                "mean": [round(float(x), 5) for x in head.mean],
                "scale": [round(float(x), 5) for x in head.scale],
                "weights": [round(float(x), 5) for x in head.weights],
                "bias": round(head.bias, 5),
            },
        }
        target.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
        print(f"wrote {target.name}")


def single_start(tasks: list[Task]) -> Weights:
    """One round with the starting weights, so that each message is described by the rule that wins with good ones."""
    return joined(fit([(features(task, START), task) for task in tasks]), START)


if __name__ == "__main__":
    main()
