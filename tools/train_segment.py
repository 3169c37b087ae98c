# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality", "scikit-learn"]
# ///
"""Learn the segmenter's heads and write embed/data/segment.npz and segment.json.

    python tools/train_segment.py DATA_DIR            # learn on everything, write
    python tools/train_segment.py DATA_DIR --dry      # learn four times without a quarter of it, report on that quarter
    python tools/train_segment.py DATA_DIR --dry --folds 1 --cache vectors.npz   # the second quarter
    python tools/train_segment.py DATA_DIR --dry --returns     # learn without some given returns, report on those

Learned on: TIAGE (train, val), SuperDialseg (val), joined task dialogues of Schema-Guided Dialogue (train), questions to an
assistant written for this project (`segment_chats.txt`), and for talk of several people the Ubuntu IRC disentanglement
set (dev). Held out together: near-duplicate dialogues of SuperDialseg, whole services of Schema-Guided Dialogue. Only
weights are kept. Deterministic; fifteen minutes on one core, four of them encoding (kept in --cache).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from segment_data import (
    DOMAINS,
    Dialogue,
    clusters,
    everyday,
    given_returns,
    gold,
    lines,
    segments,
    spliced,
    task_splices,
    tasks,
    with_returns,
)  # fmt: skip
from segment_fit import fit_link, fit_phrases, fit_probes, train_net
from segment_subjects import fit_subjects
from segment_topics import Read, learn_topics

from topicality.core.segment.features import AHEAD, CAUSAL, STYLE
from topicality.core.segment.heads import GRANULARITIES, MOMENTS, Heads, Net, Settings, packed
from topicality.core.segment.offline import read_rows
from topicality.embed.minilm import MiniLmEmbedder
from topicality.layer.evaluate_segment import MODES, LabelledDialogue, evaluate_dialogues
from topicality.types import Message
from topicality.vectors import unit

ROOT = Path(__file__).parent.parent
FOLDS = 4
SUBJECT_SHARES = (0.17, 0.42, 0.25, 0.16)  # of chats, documents, tasks and everyday questions in what a subject is
ASPECT_SHARES = (0.4, 0.4, 0.1, 0.1)  # and in what is said of it
PARTS = 4  # probes are fitted on three quarters and read on the fourth, so that heads learn what they are worth
MIX = {
    "balanced": {"chat": 1.0, "help": 1.0, "task": 1.0},
    "coarse": {"chat coarse": 0.7, "help coarse": 0.7, "task": 1.0},
    "fine": {"chat": 1.0, "help": 1.0, "chat joined": 0.3, "help joined": 0.3},
}
SETTINGS = Settings(
    boundary={"coarse": 0.44, "balanced": 0.4, "fine": 0.38},
    switch={
        "coarse": {"once": 0.6, "confirmed": 0.6},
        "balanced": {"once": 0.5, "confirmed": 0.5},
        "fine": {"once": 0.4, "confirmed": 0.4},
    },
    returning={"once": 0.6, "confirmed": 0.65},
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


@dataclass
class Data:
    chat: list[Dialogue]  # TIAGE
    help: list[Dialogue]  # SuperDialseg
    domains: list[str]
    asked: list[Dialogue]  # everyday questions


def readings(
    chat: list[Dialogue],
    helping: list[Dialogue],
    own: list[Dialogue],
    asked: list[Dialogue],
    seed: int,
    encode: Encoder,
) -> Heads:
    """Heads with the linear readings learned, and without the networks."""
    joined = spliced(chat, 150, seed + 20) + spliced(helping, 150, seed + 21) + spliced(asked, 150, seed + 22)
    styles = [chat, helping, task_splices(own, 300, seed), joined]
    return Heads(
        encode.model.space,
        fit_probes(styles, encode),
        fit_phrases(styles),
        fit_subjects([chat, helping, own, asked], encode, SUBJECT_SHARES),
        fit_subjects([segments(chat), segments(helping), own, asked], encode, ASPECT_SHARES),
        {}, {}, {}, None, SETTINGS,  # type: ignore[arg-type]  # filled in below
    )  # fmt: skip


def read(dialogue: Dialogue, heads: Heads, encode: Encoder) -> Read:
    vectors = unit(encode(dialogue.texts))
    said = [Message(role, text) for role, text in zip(dialogue.roles, dialogue.texts, strict=True)]
    rows, known, whole = read_rows(said, vectors, heads)
    middle = len(CAUSAL) + len(AHEAD)
    once = np.concatenate([known[:, : len(CAUSAL)], known[:, middle : middle + STYLE]], axis=1)
    return Read(dialogue, rows, {"once": once, "confirmed": known, "offline": whole})


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
    returning: list[tuple[int, Read]] = []
    for number in range(PARTS):
        own, others = (tasks(folder, part(data.domains, number, inside)) for inside in (True, False))
        chat, helping, asked = (part(of, number, True) for of in (data.chat, data.help, data.asked))
        seed = 1000 * number + 7
        rest = [part(of, number, False) for of in (data.chat, data.help)]
        heads = readings(*rest, others, part(data.asked, number, False), seed, encode)
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
        groups = [
            with_returns(helping, 300, seed + 8)
            + with_returns(helping, 150, seed + 9, longest=(3, 14), anywhere=True, cued=0.2),
            with_returns(own, 90, seed + 10)
            + with_returns(own, 90, seed + 11, longest=(2, 14), anywhere=True, cued=0.3),
            with_returns(chat, 55, seed + 12)
            + with_returns(chat, 55, seed + 13, longest=(2, 14), anywhere=True, cued=0.3),
            with_returns(asked, 120, seed + 14, pieces=(2, 3, 3, 4, 5), longest=(2, 10), cued=0.15)
            + with_returns(asked, 40, seed + 15, pieces=(1, 2), longest=(3, 10), cued=0.3),
        ]
        encode.learn([text for made in groups for each in made for text in each.texts])
        for group, made in enumerate(groups):
            returning += [(group, read(each, heads, encode)) for each in made]
        if log:
            print(f"  read part {number + 1} of {PARTS} ({time.monotonic() - begun:.0f} s)", flush=True)
    boundary = fit_boundaries(rows, marks)
    if log:
        print(f"  boundaries ({time.monotonic() - begun:.0f} s)", flush=True)
    switch, back = {}, {}
    for moment in MOMENTS[:2]:
        switch[moment], back[moment] = learn_topics(returning, moment)
    if log:
        print(f"  topics ({time.monotonic() - begun:.0f} s)", flush=True)
    link = fit_link(lines(folder / "segment" / "irc_ubuntu.dev.jsonl"), encode)
    heads = readings(data.chat, data.help, tasks(folder, data.domains), data.asked, 3, encode)
    return replace(heads, boundary=boundary, switch=switch, returning=back, link=link)


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
            data.asked,
        )
        heads = train(kept, folder, encode)
        helping = [each for place, each in enumerate(data.help) if of_help[place] == fold]
        own = tasks(folder, [name for place, name in enumerate(data.domains) if place % FOLDS == fold])
        sets = {
            "TIAGE": [each for place, each in enumerate(data.chat) if place % FOLDS == fold],
            "SuperDialseg": helping,
            "SGD joined": task_splices(own, 80, 7 + 10 * fold),
            "returns": with_returns(helping, 120, 400 + fold, longest=(10, 10)),
        }
        measure(sets, heads, encode, figures)
        print(f"quarter {fold}", flush=True)
        show({key: reports[-1:] for key, reports in figures.items()})
    print("mean of folds")
    show(figures)


def held_out_returns(data: Data, folder: Path, encode: Encoder) -> None:
    """Learn without what some of the given returns were made from; measure on those, and on more made of what is left."""
    given, without = given_returns(folder, data.help, encode)
    kept = replace(data, help=[each for place, each in enumerate(data.help) if place not in without])
    left = [each for place, each in enumerate(data.help) if place in without]
    print(f"learned from {len(kept.help)} of {len(data.help)} dialogues of SuperDialseg", flush=True)
    figures: dict[tuple[str, str], list[dict]] = {}
    sets = {"given": given, "made alike": with_returns(left, 400, 77, longest=(10, 10))}
    measure(sets, train(kept, folder, encode), encode, figures)
    show(figures)


def measure(
    sets: dict[str, list[Dialogue]], heads: Heads, encode: Encoder, into: dict[tuple[str, str], list[dict]]
) -> None:
    for name, dialogues in sets.items():
        for mode in MODES:
            into.setdefault((name, mode), []).append(evaluate_dialogues(labelled(dialogues), encode, heads, mode=mode))


def show(figures: dict[tuple[str, str], list[dict]]) -> None:
    names = ("score", "pk", "window_diff", "f1", "topic_one_to_one", "return_precision", "return_recall")
    for (name, mode), reports in figures.items():
        means = [f"{k} {np.mean([r[k] for r in reports]):.3f}" for k in names if reports[0].get(k) is not None]
        print(f"  {name:13} {mode:10}", "  ".join(means), flush=True)


def held_out_links(folder: Path, encode: Encoder, heads: Heads) -> None:
    """Talk of several people: learn on eight files, measure on two, five times."""
    from topicality.layer.evaluate_segment import read_dialogues

    path = folder / "segment" / "irc_ubuntu.dev.jsonl"
    talks, known = lines(path), read_dialogues(path)
    reports = []
    for fold in range(5):
        test = {2 * fold, 2 * fold + 1}
        link = fit_link([talk for place, talk in enumerate(talks) if place not in test], encode)
        mine = [each for place, each in enumerate(known) if place in test]
        reports.append(evaluate_dialogues(mine, encode, replace(heads, link=link), mode="online"))
    means = {key: np.mean([report[key] for report in reports]) for key in ("link_f", "topic_one_to_one", "topic_b3_f1")}
    print("  Ubuntu IRC    online     ", "  ".join(f"{key} {value:.3f}" for key, value in means.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dry", action="store_true", help="report held-out figures instead of writing")
    parser.add_argument("--returns", action="store_true", help="with --dry: hold out some of the given returns instead")
    parser.add_argument(
        "--folds", type=int, nargs="+", default=range(FOLDS), help="quarters to hold out in turn, from 0"
    )
    parser.add_argument("--cache", type=Path, help="keep vectors here (.npz)")
    options = parser.parse_args()
    folder, encode = options.data, Encoder(options.cache)
    data = Data(
        gold(folder, "tiage.train") + gold(folder, "tiage.val"), gold(folder, "superseg.val"), list(DOMAINS), everyday()
    )
    talks = lines(folder / "segment" / "irc_ubuntu.dev.jsonl")
    encode.learn(
        [text for each in [*data.chat, *data.help, *data.asked, *tasks(folder, DOMAINS)] for text in each.texts]
        + [turn["text"] for talk in talks for turn in talk["turns"]]
    )
    if options.dry:
        if options.returns:
            held_out_returns(data, folder, encode)
        else:
            held_out(data, folder, encode, options.folds)
        return
    heads = train(data, folder, encode)
    write(heads)
    held_out_links(folder, encode, heads)


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
            "everyday questions": "written for this project; 71 short dialogues",
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
