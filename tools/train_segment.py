# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality", "scikit-learn"]
# ///
"""Learn the segmenter's heads and write embed/data/segment.npz and segment.json.

    python tools/train_segment.py DATA_DIR            # learn on everything, write
    python tools/train_segment.py DATA_DIR --dry      # learn four times without a quarter of it, report on that quarter
    python tools/train_segment.py DATA_DIR --dry --folds 1 --cache vectors.npz   # the second quarter

Learned on: TIAGE (train, val), SuperDialseg (val), joined task dialogues of Schema-Guided Dialogue (train), and for talk
of several people the Ubuntu IRC disentanglement set (dev). Held out together: near-duplicate dialogues of SuperDialseg,
whole services of Schema-Guided Dialogue. Only weights are kept. Deterministic; about eight minutes on one core, four of
them encoding (kept in --cache).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from segment_data import (
    DOMAINS,
    Dialogue,
    clusters,
    gold,
    lines,
    spliced,
    task_splices,
    tasks,
    with_returns,
)  # fmt: skip
from sklearn.linear_model import LogisticRegression

from topicality.core.segment.assign import evidence, rows_for_heads
from topicality.core.segment.crowd import Crowd
from topicality.core.segment.features import Features, Row, Trail
from topicality.core.segment.heads import GRANULARITIES, MOMENTS, Heads, Net, Probes, Settings, Subjects, packed
from topicality.core.segment.offline import read_rows
from topicality.core.segment.topics import Topics
from topicality.embed.minilm import MiniLmEmbedder
from topicality.layer.evaluate_segment import LabelledDialogue, evaluate_dialogues
from topicality.types import Message
from topicality.vectors import unit

ROOT = Path(__file__).parent.parent
FOLDS = 4
PARTS = 4  # probes are fitted on three quarters and read on the fourth, so that heads learn what they are worth
STRENGTH = 4.0  # vectors are scaled by this in the probes' regularisation
SHARES = (0.2, 0.5, 0.3)  # of chats, of dialogues about documents, of tasks in what a subject is
RIDGE = 0.5  # added to the spread inside dialogues, in units of its mean
SUBJECTS = 96  # directions kept
SOURCES = ("topic start", "before it", "after it")
MIX = {
    "balanced": {"chat": 1.0, "help": 1.0, "task": 1.0},
    "coarse": {"chat coarse": 0.7, "help coarse": 0.7, "task": 1.0},
    "fine": {"chat": 1.0, "help": 1.0, "chat joined": 0.3, "help joined": 0.3},
}
SETTINGS = Settings(
    boundary={"coarse": 0.4, "balanced": 0.36, "fine": 0.34},
    switch={
        "coarse": {"once": 0.6, "confirmed": 0.65},
        "balanced": {"once": 0.5, "confirmed": 0.55},
        "fine": {"once": 0.4, "confirmed": 0.45},
    },
    returning={"once": 0.65, "confirmed": 0.65},
)


class Encoder:
    """Vectors by text, each encoded once; with a cache file, once for all runs."""

    def __init__(self, cache: Path | None) -> None:
        self.model = MiniLmEmbedder()
        self.cache = cache
        self.place: dict[str, int] = {}
        self.rows = np.zeros((0, self.model.space.dimension), np.float32)
        if cache is not None and cache.exists():
            with np.load(cache) as kept:
                if str(kept["space"]) == str(self.model.space):
                    texts = json.loads(str(kept["texts"]))
                    self.place = {text: place for place, text in enumerate(texts)}
                    self.rows = kept["rows"]

    def learn(self, texts: Sequence[str]) -> None:
        fresh = [text for text in dict.fromkeys(texts) if text not in self.place]
        if not fresh:
            return
        vectors = [self.model.embed(fresh[at : at + 1024]) for at in range(0, len(fresh), 1024)]
        self.place.update({text: len(self.place) + number for number, text in enumerate(fresh)})
        self.rows = np.concatenate([self.rows, *vectors])
        if self.cache is not None and len(fresh) > 5000:
            np.savez(self.cache, space=str(self.model.space), texts=json.dumps(list(self.place)), rows=self.rows)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self.rows[[self.place[text] for text in texts]]


@dataclass(frozen=True)
class Shape:
    """Of a head, and how it is learned."""

    hidden: int = 24
    bags: int = 5
    epochs: int = 25
    decay: float = 3e-2
    drop: float = 0.2
    batch: int = 256
    rate: float = 2e-3


@dataclass
class Data:
    chat: list[Dialogue]  # TIAGE
    help: list[Dialogue]  # SuperDialseg
    domains: list[str]


@dataclass
class Read:
    """A dialogue as the package reads it: rows, and the features of each moment."""

    dialogue: Dialogue
    rows: list[Row]
    features: dict[str, np.ndarray]


def train_net(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, shape: Shape = Shape()) -> Net:
    """Bagged networks by Adam: weighted log loss, feature dropout, decoupled decay, a cosine step; a bootstrap each."""
    rows = np.asarray(rows, np.float32)
    share = weights / weights.sum()
    mean = (share[:, None] * rows).sum(axis=0).astype(np.float32)
    deviation = np.sqrt((share[:, None] * (rows - mean) ** 2).sum(axis=0))
    scale = (1.0 / np.maximum(deviation, 1e-3)).astype(np.float32)
    standard = np.clip((rows - mean) * scale, -4.0, 4.0)
    count, size = standard.shape
    learned = []
    for bag in range(shape.bags):
        rng = np.random.default_rng(bag)
        drawn = rng.choice(count, count, p=share)
        base = labels[drawn].mean()
        net = [
            rng.normal(0, np.sqrt(1.0 / size), (size, shape.hidden)).astype(np.float32),
            np.zeros(shape.hidden, np.float32),
            rng.normal(0, 0.2, shape.hidden).astype(np.float32),
            np.full(1, np.log(base / (1 - base)), np.float32),
        ]
        first, second = [np.zeros_like(part) for part in net], [np.zeros_like(part) for part in net]
        step, steps = 0, shape.epochs * (count // shape.batch + 1)
        for _ in range(shape.epochs):
            order = rng.permutation(drawn)
            for at in range(0, count, shape.batch):
                chosen = order[at : at + shape.batch]
                seen = standard[chosen]
                seen = seen * ((rng.random(seen.shape, dtype=np.float32) > shape.drop) / np.float32(1 - shape.drop))
                inner = seen @ net[0] + net[1]
                active = np.maximum(inner, 0)
                logits = np.clip(active @ net[2] + net[3], -30, 30)
                error = ((1 / (1 + np.exp(-logits)) - labels[chosen]) / len(chosen)).astype(np.float32)
                back = error[:, None] * net[2] * (inner > 0)
                slopes = [seen.T @ back, back.sum(axis=0), active.T @ error, error.sum(keepdims=True)]
                step += 1
                pace = shape.rate * 0.5 * (1 + np.cos(np.pi * step / (steps + 1)))
                for k, slope in enumerate(slopes):
                    first[k] += 0.1 * (slope - first[k])
                    second[k] += 0.001 * (slope**2 - second[k])
                    net[k] -= pace * (first[k] / (1 - 0.9**step)) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
                    if k in (0, 2):
                        net[k] *= 1 - pace * shape.decay * 10
        learned.append(net)
    return Net(
        mean,
        scale,
        np.concatenate([net[0] for net in learned], axis=1),
        np.concatenate([net[1] for net in learned]),
        np.stack([net[2] for net in learned]),
        np.array([net[3][0] for net in learned], np.float32),
    )


def fit_probes(styles: Sequence[list[Dialogue]], encode: Encoder) -> Probes:
    """Logistic readings of a vector, pooled over the styles and for each alone."""
    read = [[(encode(each.texts), np.array(each.marks)) for each in style] for style in styles]
    weights, bias = [], []
    for source in range(len(SOURCES)):
        parts = []
        for style in read:
            if source == 0:
                rows = [vectors[1:] for vectors, _ in style]
            elif source == 1:
                rows = [vectors[:-1] for vectors, _ in style]
            else:
                rows = [np.concatenate([vectors[2:], np.zeros_like(vectors[:1])]) for vectors, _ in style]
            parts.append((np.concatenate(rows) * STRENGTH, np.concatenate([marks[1:] for _, marks in style])))
        for chosen in ([0, 1, 2], [0], [1], [2]):
            model = LogisticRegression(C=0.02, max_iter=150)
            share = np.concatenate([np.full(len(parts[k][1]), 1 / len(parts[k][1])) for k in chosen])
            model.fit(
                np.concatenate([parts[k][0] for k in chosen]),
                np.concatenate([parts[k][1] for k in chosen]),
                sample_weight=share / share.mean(),
            )
            weights.append(model.coef_[0] * STRENGTH)
            bias.append(model.intercept_[0])
    return Probes(np.stack(weights, axis=1), np.array(bias))


def fit_subjects(styles: Sequence[list[Dialogue]], encode: Encoder) -> Subjects:
    """Directions by how much dialogues differ against how much messages of one dialogue do; styles weigh as in `SHARES`."""
    inside = between = np.zeros((1, 1))
    mean = np.zeros(1)
    for share, style in zip(SHARES, styles, strict=True):
        read = [encode(each.texts).astype(np.float64) for each in style]
        means = np.array([vectors.mean(axis=0) for vectors in read])
        spread = np.concatenate([vectors - centre for vectors, centre in zip(read, means, strict=True)])
        inside = inside + share * spread.T @ spread / len(spread)
        between = between + share * np.cov(means.T, bias=True)
        mean = mean + share * means.mean(axis=0)
    inside += RIDGE * np.trace(inside) / len(inside) * np.eye(len(inside))
    values, directions = np.linalg.eigh(inside)
    whiten = directions / np.sqrt(values)
    _, order = np.linalg.eigh(whiten.T @ between @ whiten)
    weights = (whiten @ order)[:, ::-1][:, :SUBJECTS]
    return Subjects(mean.astype(np.float32), (weights / np.abs(weights).max()).astype(np.float32))


def empty_heads(probes: Probes, subjects: Subjects, encode: Encoder) -> Heads:
    return Heads(encode.model.space, probes, subjects, {}, {}, {}, None, SETTINGS)  # type: ignore[arg-type]  # filled in below


def read(dialogue: Dialogue, heads: Heads, encode: Encoder) -> Read:
    vectors = unit(encode(dialogue.texts))
    said = [Message(role, text) for role, text in zip(dialogue.roles, dialogue.texts, strict=True)]
    trail = Trail(heads.space.dimension, heads.probes, heads.subjects)
    once = np.array([trail.read(m.text, m.role, v).once for m, v in zip(said, vectors, strict=True)], np.float32)
    rows, known, whole = read_rows(said, vectors, heads)
    return Read(dialogue, rows, {"once": once, "confirmed": known, "offline": whole})


def topic_rows(
    each: Read, moment: str, run: tuple[Net, Net, float, float] | None
) -> tuple[list[Features], list[int], list[Features], list[int]]:
    """What the switch and the return head see along a dialogue, with what would be right.

    Without `run` the topics are the gold ones. With (switch head, return head, two thresholds) they are the segmenter's
    own, and right is read off what most of each topic is: a step of DAgger (Ross et al. 2011).
    """
    ahead = moment == "confirmed"
    features, rows, told = each.features[moment], each.rows, each.dialogue.topics
    topics = Topics(len(rows[0].subject), 64)
    content: dict[int, dict[int, int]] = {}
    switch: list[Features] = []
    leaves: list[int] = []
    returns: list[Features] = []
    right: list[int] = []

    def mostly(slot: int) -> int:
        return max(content[slot], key=lambda topic: content[slot][topic])

    for index, row in enumerate(rows):
        slot: int | None = None
        if index:
            following = rows[index + 1] if index + 1 < len(rows) else None
            found = evidence(topics, row, index)
            wide, narrow = rows_for_heads(topics, found, features[index].tolist(), following, ahead=ahead)
            slots = found.view.others[: len(narrow)].tolist()
            leaves.append(int(mostly(topics.current) != told[index]))
            switch.append(wide)
            if leaves[-1]:
                returns += narrow
                right += [int(mostly(candidate) == told[index]) for candidate in slots]
            if run is None:
                slot = next((s for s in content if mostly(s) == told[index]), None)
            else:
                leave, back, least, sure = run
                slot = topics.current
                if not row.cues.acknowledges and leave.one(wide) >= least:
                    scores = back(np.array(narrow, np.float32)) if narrow else np.zeros(1)
                    slot = slots[int(scores.argmax())] if scores.max() >= sure else None
        topics.place(slot, row.subject, row.cues, row.words, index)
        counts = content.setdefault(topics.current, {})
        counts[told[index]] = counts.get(told[index], 0) + 1
    return switch, leaves, returns, right


def fit_topics(
    found: list[tuple[list[Features], list[int], list[Features], list[int]]], epochs: int = 15
) -> tuple[Net, Net]:
    wide, leaves, narrow, right = ([value for part in found for value in part[k]] for k in range(4))
    one, two = np.ones(len(leaves)), np.ones(len(right))
    return (
        train_net(np.array(wide, np.float32), np.array(leaves), one, Shape(bags=4, epochs=epochs, batch=512)),
        train_net(np.array(narrow, np.float32), np.array(right), two, Shape(hidden=16, epochs=20, drop=0.1)),
    )


def fit_boundaries(
    rows: dict[str, dict[str, list[np.ndarray]]], marks: dict[str, list[np.ndarray]]
) -> dict[str, dict[str, Net]]:
    boundary: dict[str, dict[str, Net]] = {}
    for grain in GRANULARITIES:
        boundary[grain] = {}
        names = MIX[grain]
        labels = np.concatenate([np.concatenate(marks[name]) for name in names])
        weights = np.concatenate(
            [np.full(sum(map(len, marks[name])), share / sum(map(len, marks[name]))) for name, share in names.items()]
        )
        for moment in MOMENTS:
            stacked = np.concatenate([np.concatenate(rows[name][moment]) for name in names])
            boundary[grain][moment] = train_net(stacked, labels, weights)
    return boundary


def train(data: Data, folder: Path, encode: Encoder, log: bool = True) -> Heads:
    begun = time.monotonic()

    def part(of: Sequence, number: int, inside: bool) -> list:
        return [each for place, each in enumerate(of) if (place % PARTS == number) == inside]

    rows: dict[str, dict[str, list[np.ndarray]]] = {}
    marks: dict[str, list[np.ndarray]] = {}
    returning: list[Read] = []
    for number in range(PARTS):
        own, others = (tasks(folder, part(data.domains, number, inside)) for inside in (True, False))
        chat, helping = part(data.chat, number, True), part(data.help, number, True)
        seed = 1000 * number + 7
        rest = [part(data.chat, number, False), part(data.help, number, False), task_splices(others, 300, seed)]
        whole = [part(data.chat, number, False), part(data.help, number, False), others]
        heads = empty_heads(fit_probes(rest, encode), fit_subjects(whole, encode), encode)
        sets = {
            "chat": chat,
            "help": helping,
            "task": task_splices(own, 100, seed + 2),
            "chat coarse": spliced(chat, 70, seed + 4),
            "help coarse": spliced(helping, 70, seed + 5),
            "chat joined": spliced(chat, 70, seed + 6, inner=True),
            "help joined": spliced(helping, 70, seed + 7, inner=True),
        }
        for name, dialogues in sets.items():
            for each in dialogues:
                seen = read(each, heads, encode)
                for moment in MOMENTS:
                    rows.setdefault(name, {}).setdefault(moment, []).append(seen.features[moment][1:])
                marks.setdefault(name, []).append(np.array(each.marks[1:]))
        made = with_returns(helping, 110, seed + 8) + with_returns(own, 20, seed + 9, longest=14)
        made += with_returns(chat, 12, seed + 10) + with_returns(chat, 15, seed + 11, cut=True, cued=0.5)
        made += with_returns(helping, 45, seed + 12, cut=True, cued=0.5)
        made += with_returns(own, 45, seed + 13, cut=True, cued=0.5)
        encode.learn([text for each in made for text in each.texts])
        returning += [read(each, heads, encode) for each in made]
        if log:
            print(f"  read part {number + 1} of {PARTS} ({time.monotonic() - begun:.0f} s)", flush=True)
    styles = [data.chat, data.help, task_splices(tasks(folder, data.domains), 300, 3)]
    boundary = fit_boundaries(rows, marks)
    if log:
        print(f"  boundaries ({time.monotonic() - begun:.0f} s)", flush=True)
    switch, back = {}, {}
    for moment in MOMENTS[:2]:
        found = [topic_rows(each, moment, None) for each in returning]
        leave, turn = fit_topics(found, 10)
        rng = np.random.default_rng(5)
        for _ in range(2):
            found += [
                topic_rows(each, moment, (leave, turn, rng.uniform(0.35, 0.6), rng.uniform(0.45, 0.7)))
                for each in returning
            ]
            leave, turn = fit_topics(found)
        switch[moment], back[moment] = leave, turn
    if log:
        print(f"  topics ({time.monotonic() - begun:.0f} s)", flush=True)
    link = train_link(lines(folder / "segment" / "irc_ubuntu.dev.jsonl"), encode)
    subjects = fit_subjects([data.chat, data.help, tasks(folder, data.domains)], encode)
    return Heads(encode.model.space, fit_probes(styles, encode), subjects, boundary, switch, back, link, SETTINGS)


def train_link(talks: list[dict], encode: Encoder) -> Net:
    """The ranker of replies, along the true threads."""
    rows, right = [], []
    for talk in talks:
        crowd = Crowd()
        vectors = encode([turn["text"] for turn in talk["turns"]])
        replies: dict[int, set[int]] = {}
        for earlier, later in talk["links"]:
            replies.setdefault(later, set()).add(earlier)
        for index, turn in enumerate(talk["turns"]):
            at = None if turn.get("t") is None else turn["t"] * 60.0
            said = crowd.read(index, turn["text"], turn["role"].lower(), vectors[index], at)
            gold = replies.get(index, {index})
            known = [item.index for item in reversed(crowd.items)]
            if index >= talk["scored"][0] and said.speaker:
                rows.append(crowd.features(said))
                right.append(np.array([float(other in gold) for other in [*known, index]]))
            crowd.record(said, max(gold) if max(gold) in known else index)
    labels = np.concatenate(right)
    weights = np.where(labels > 0, 1.0, 0.15)
    return train_net(np.concatenate(rows), labels, weights, Shape(bags=3, drop=0.05, epochs=10, decay=1e-2, batch=512))


def labelled(dialogues: list[Dialogue]) -> list[LabelledDialogue]:
    return [
        LabelledDialogue(
            tuple(Message(role, text) for role, text in zip(each.roles, each.texts, strict=True)),
            tuple(each.marks),
            tuple(each.topics) or None,
        )
        for each in dialogues
    ]


def held_out(data: Data, folder: Path, encode: Encoder, folds: Sequence[int]) -> None:
    """Learn without a quarter, measure on it, for each quarter; print means."""
    of_help = clusters(data.help, encode, FOLDS)
    figures: dict[tuple[str, str], list[dict]] = {}
    for fold in folds:
        kept = Data(
            [each for place, each in enumerate(data.chat) if place % FOLDS != fold],
            [each for place, each in enumerate(data.help) if of_help[place] != fold],
            [name for place, name in enumerate(data.domains) if place % FOLDS != fold],
        )
        heads = train(kept, folder, encode)
        helping = [each for place, each in enumerate(data.help) if of_help[place] == fold]
        own = tasks(folder, [name for place, name in enumerate(data.domains) if place % FOLDS == fold])
        sets = {
            "TIAGE": [each for place, each in enumerate(data.chat) if place % FOLDS == fold],
            "SuperDialseg": helping,
            "SGD joined": task_splices(own, 80, 7 + 10 * fold),
            "returns": with_returns(helping, 120, 400 + fold, longest=16),
        }
        for name, dialogues in sets.items():
            for mode in ("online", "confirmed", "offline"):
                report = evaluate_dialogues(labelled(dialogues), encode, heads, mode=mode)
                figures.setdefault((name, mode), []).append(report)
        print(f"quarter {fold}", flush=True)
        show({key: reports[-1:] for key, reports in figures.items()})
    print("mean of folds")
    show(figures)


def show(figures: dict[tuple[str, str], list[dict]]) -> None:
    names = ("score", "pk", "window_diff", "f1", "topic_one_to_one", "return_precision", "return_recall")
    for (name, mode), reports in figures.items():
        means = [f"{k} {np.mean([r[k] for r in reports]):.3f}" for k in names if reports[0].get(k) is not None]
        print(f"  {name:13} {mode:10}", "  ".join(means), flush=True)


def held_out_links(folder: Path, encode: Encoder, heads: Heads) -> None:
    """Talk of several people: learn on eight files, measure on two, five times."""
    from dataclasses import replace

    from topicality.layer.evaluate_segment import read_dialogues

    path = folder / "segment" / "irc_ubuntu.dev.jsonl"
    talks, known = lines(path), read_dialogues(path)
    reports = []
    for fold in range(5):
        test = {2 * fold, 2 * fold + 1}
        link = train_link([talk for place, talk in enumerate(talks) if place not in test], encode)
        mine = [each for place, each in enumerate(known) if place in test]
        reports.append(evaluate_dialogues(mine, encode, replace(heads, link=link), mode="online"))
    means = {key: np.mean([report[key] for report in reports]) for key in ("link_f", "topic_one_to_one", "topic_b3_f1")}
    print("  Ubuntu IRC    online     ", "  ".join(f"{key} {value:.3f}" for key, value in means.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dry", action="store_true", help="report held-out figures instead of writing")
    parser.add_argument(
        "--folds", type=int, nargs="+", default=range(FOLDS), help="quarters to hold out in turn, from 0"
    )
    parser.add_argument("--cache", type=Path, help="keep vectors here (.npz)")
    options = parser.parse_args()
    folder, encode = options.data, Encoder(options.cache)
    data = Data(gold(folder, "tiage.train") + gold(folder, "tiage.val"), gold(folder, "superseg.val"), list(DOMAINS))
    talks = lines(folder / "segment" / "irc_ubuntu.dev.jsonl")
    encode.learn(
        [text for each in [*data.chat, *data.help, *tasks(folder, DOMAINS)] for text in each.texts]
        + [turn["text"] for talk in talks for turn in talk["turns"]]
    )
    if options.dry:
        held_out(data, folder, encode, options.folds)
        return
    heads = train(data, folder, encode)
    held_out_links(folder, encode, heads)
    write(heads)


def write(heads: Heads) -> None:
    target = ROOT / "src" / "topicality" / "embed" / "data" / "segment.npz"
    np.savez_compressed(target, **packed(heads))
    settings = heads.settings
    card = {
        "made_by": "tools/train_segment.py",
        "space": str(heads.space),
        "learned_on": {
            "TIAGE train and val": "MIT; 400 chats, labelled by people",
            "SuperDialseg val": "Apache-2.0; 1,322 dialogues about documents, without the last turn",
            "Schema-Guided Dialogue train": "CC BY-SA 4.0; task dialogues of 15 services, joined: boundaries for free",
            "Ubuntu IRC disentanglement dev": "CC BY 4.0; ten files, for talk of several people",
        },
        "settings": {
            "boundary": settings.boundary,
            "switch": settings.switch,
            "returning": settings.returning,
            "offline": settings.offline,
            "thread": settings.thread,
        },
    }
    target.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")
    print(f"wrote {target.name}, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
