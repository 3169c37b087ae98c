# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality[store]", "scipy", "scikit-learn"]
# ///
"""Learn the weights of recall and write embed/data/recall.json. Deterministic; about ten minutes on one quiet core.

    python tools/train_recall.py DATA_DIR          # held-out figures, then fit on everything and write
    python tools/train_recall.py DATA_DIR --dry    # only the figures

DATA_DIR has locomo*.jsonl and beam*.jsonl as docs/recall.md describes them. The weights of a passage are fitted by a
softmax over each question's candidates whose target the evidence shares, on the two sets and on a copy of LoCoMo made
messy (bursts of fragments, lower case, typing errors, gaps of minutes to hours), so that they do not depend on tidy
messages. Whether the store has an answer is fitted on questions asked of other conversations' stores, with and without
their people's names, small and large. Every figure printed is of conversations left out of the fit, measured on the text
that recall gives. Nothing of the data is kept but the weights.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from topicality.core.recall.features import matrix
from topicality.core.recall.head import SIGNALS, Heads, Linear, scores, signals
from topicality.embed import load
from topicality.layer.evaluate_recall import (
    BUDGETS,
    AskedQuestion,
    LabelledConversation,
    evaluate_recall,
    exchanges_of,
    keep,
    read_conversations,
)
from topicality.layer.recall import gather
from topicality.records import Scope
from topicality.store import open_store
from topicality.types import Message

TARGET = Path(__file__).parent.parent / "src" / "topicality" / "embed" / "data" / "recall.json"
L2 = 40.0
WEIGHTS = {"locomo": 1.0, "beam": 3.0, "messy": 0.3}  # of a question, by set
ALARMS = 0.06  # share of answerable questions that may be called unanswerable when fitting
EMBEDDER: Any = load("minilm", cache=200_000)
LAUGHS = ["haha", "lol", "yeah", "omg", "nice!", "ok", "\N{FACE WITH TEARS OF JOY}", "hmm"]


@dataclass
class Talk:
    """A conversation of a set; `number` says which are copies of one another and are left out together."""

    family: str
    number: int
    conversation: LabelledConversation


@dataclass
class Example:
    family: str
    number: int
    x: np.ndarray
    y: np.ndarray


def now_of(conversation: LabelledConversation) -> float:
    return max((message.at for message in conversation.messages if message.at is not None), default=0.0)


def spoiled(rng: random.Random, text: str, typing_errors: float = 0.03) -> str:
    if rng.random() < 0.8:
        text = text.lower()
    if rng.random() < 0.7:
        text = re.sub(r"[.,;:!'’]", "", text)
    spoken = []
    for word in text.split():
        if len(word) > 4 and rng.random() < typing_errors:
            n = rng.randrange(1, len(word) - 2)
            word = word[:n] + word[n + 1] + word[n] + word[n + 2 :]  # noqa: PLW2901 - two letters changed places
        spoken.append(word)
    return " ".join(spoken)


def messy(conversation: LabelledConversation, rng: random.Random) -> tuple[list[Message], dict[str, list[str]]]:
    """Every message as a burst of fragments, roles changed over; and which fragments each message became."""
    said: list[Message] = []
    became: dict[str, list[str]] = {}
    for message in conversation.messages:
        parts: list[str] = []
        for part in re.split(r"(?<=[.!?])\s+|\s+(?=\[shares)", message.text):
            short = bool(parts) and (len(parts[-1].split()) < 5 or rng.random() < 0.35)
            if part.strip() and short and not part.startswith("[shares"):
                parts[-1] += " " + part
            elif part.strip():
                parts.append(part)
        role = "user" if message.role == "assistant" else "assistant"
        names = became[str(message.id)] = []
        for part in parts:
            shared = part.startswith("[shares")
            if len(part.split()) >= 4 and not shared:
                names.append(f"x{len(said)}")
            said.append(replace(message, id=f"x{len(said)}", role=role, text=part if shared else spoiled(rng, part)))
        if rng.random() < 0.08:
            said.append(replace(message, id=f"x{len(said)}", role=role, text=rng.choice(LAUGHS)))
    return said, became


def messy_copies(conversations: Sequence[LabelledConversation], seed: int) -> list[LabelledConversation]:
    rng, clock = random.Random(seed), random.Random(5 + seed)
    copies = []
    for conversation in conversations:
        said, became = messy(conversation, rng)
        moment = datetime.fromtimestamp(said[0].at or 0.0, UTC)
        timed = []
        for message in said:
            pause = clock.choice([1, 1, 2, 3, 5, 30, 120, 240, 300]) if clock.random() < 0.6 else 1
            moment += timedelta(minutes=pause)
            if moment.hour < 8:
                moment = moment.replace(hour=9, minute=clock.randrange(60))
            timed.append(replace(message, at=moment.timestamp()))
        asked = [
            replace(q, evidence=tuple(dict.fromkeys(x for name in q.evidence for x in became.get(name, ()))))
            for q in conversation.questions
        ]
        copies.append(LabelledConversation(conversation.id, tuple(timed), tuple(asked)))
    return copies


def examples(store: Any, talk: Talk) -> Iterator[Example]:
    conversation = talk.conversation
    owner = f"{talk.family}-{talk.number}"
    keep(store, EMBEDDER, conversation, owner)
    places = {}
    for sequence, pair in enumerate(exchanges_of(conversation.messages), 1):
        for side, message in zip(("user", "assistant"), pair, strict=True):
            if message is not None:
                places[message.id] = sequence, side
    vectors = EMBEDDER.embed([question.text for question in conversation.questions])
    for question, vector in zip(conversation.questions, vectors, strict=True):
        gold = {places[name] for name in question.evidence if name in places}
        scope = Scope(owner, conversation.id)
        case = gather(store, EMBEDDER, scope, question.text, now_of(conversation), vector)
        if case is not None and gold:
            at = [case.pool.passages[row] for row in case.rows]
            y = np.array([(passage.sequence, passage.side) in gold for passage in at])
            yield Example(talk.family, talk.number, matrix(case.found)[0], y)


def fit(data: Sequence[Example], names: tuple[str, ...]) -> Linear:
    """A softmax over each question's candidates by L-BFGS. One with much evidence weighs a little more."""
    data = [example for example in data if example.y.any()]
    x = np.concatenate([example.x for example in data])
    y = np.concatenate([example.y for example in data]).astype(np.float64)
    sizes = np.array([len(example.y) for example in data])
    group, starts = np.repeat(np.arange(len(data)), sizes), np.r_[0, np.cumsum(sizes)[:-1]]
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = np.clip((x - mean) / std, -4, 4).astype(np.float64)
    positive = np.add.reduceat(y, starts)
    weight = np.array([WEIGHTS[example.family] for example in data]) * positive**0.5
    weight *= len(data) / weight.sum()
    target = y / positive[group]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        s = z @ w
        top = np.maximum.reduceat(s, starts)
        odds = np.exp(s - top[group])
        total = np.add.reduceat(odds, starts)
        value = -(weight[group] * target * (s - (top + np.log(total))[group])).sum() + 0.5 * L2 * float(w @ w)
        return value, z.T @ (weight[group] * (odds / total[group] - target)) + L2 * w

    found = minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    return Linear(names, mean.astype(np.float32), std.astype(np.float32), found.astype(np.float32))


def none_absent() -> Linear:
    size = len(SIGNALS)
    return Linear(SIGNALS, *(np.full(size, v, np.float32) for v in (0.0, 1.0, 0.0)), -99.0)


def held_out(talks: Sequence[Talk], heads: dict[int, Linear], absents: dict[int, tuple[Linear, float]]) -> None:
    for family in dict.fromkeys(talk.family for talk in talks):
        reports = []
        for talk in (talk for talk in talks if talk.family == family):
            absent, threshold = absents.get(talk.number, (none_absent(), 0.0))
            learned = Heads(heads[talk.number], absent, threshold)
            asked = talk.conversation.questions[:: 3 if family == "messy" else 1]
            conversation = replace(talk.conversation, questions=asked)
            reports.append(evaluate_recall([conversation], EMBEDDER, learned=(learned, learned)))
        counts = np.array([report["questions"] for report in reports])
        figures = [
            float(counts @ [report["budgets"][str(b)]["evidence_recall"] for report in reports] / counts.sum())
            for b in BUDGETS
        ]
        silent = float(counts @ [report["nothing_found"] for report in reports] / counts.sum())
        line = " / ".join(f"{100 * figure:.1f}" for figure in figures)
        print(f"{family:8} {counts.sum():4} questions   {line}   wrongly nothing found {silent:.3f}", flush=True)


@dataclass
class Probe:
    """A question asked of a store that has its answer (own) or not."""

    kind: str
    family: str
    store: int
    source: int
    values: np.ndarray


def renamed(text: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    for one, other in zip(theirs, ours, strict=False):
        text = text.replace(one, other)
    return text


def some(talk: Talk, most: int, rng: np.random.Generator) -> list[AskedQuestion]:
    asked = talk.conversation.questions
    return [asked[n] for n in sorted(rng.permutation(len(asked))[:most])]


def probed(store: Any, talks: Sequence[Talk], at: Talk) -> Iterator[tuple[str, Scope, Talk, str]]:
    """What to ask the store of one conversation, and the store of all the others: kind, scope, whose question, its text."""
    rng = np.random.default_rng(at.number)
    people = {
        t.number: sorted({m.name for m in t.conversation.messages if m.name and m.name[0].isupper()}) for t in talks
    }
    scope, big = Scope(f"{at.family}-{at.number}", at.conversation.id), Scope(f"without-{at.number}")
    for source in talks:
        if source is not at:
            keep(store, EMBEDDER, replace(source.conversation, id=f"{source.number}"), big.owner)
    for source in talks:
        if source is at:
            yield from (("own", scope, at, question.text) for question in some(at, 100, rng))
            yield from (("big absent", big, at, question.text) for question in some(at, 30, rng))
            continue
        yield from (("big own", big, source, question.text) for question in some(source, 8, rng))
        akin = source.family == at.family
        for question in some(source, 40 if akin else 12, rng):
            yield "foreign" if akin else "cross", scope, source, question.text
            if people[at.number] and people[source.number]:
                yield "renamed", scope, source, renamed(question.text, people[source.number], people[at.number])


def probes(store: Any, talks: Sequence[Talk], heads: dict[int, Linear]) -> list[Probe]:
    found: list[Probe] = []
    for at in talks:
        head = Heads(heads[at.number], none_absent(), 0.0)
        for kind, scope, source, text in list(probed(store, talks, at)):
            case = gather(store, EMBEDDER, scope, text, now_of(at.conversation))
            if case is not None:
                values = signals(case.pool, case.asked, case.found, scores(head, case.found)[0], case.statistics)
                family = source.family if kind.startswith("big") else at.family
                found.append(Probe(kind, family, at.number, source.number, values))
        print(f"  asked of store {at.number}: {len(found)} questions so far", file=sys.stderr, flush=True)
    return found


def fit_absent(data: Sequence[Probe]) -> tuple[Linear, float]:
    x = np.array([probe.values for probe in data])
    here = np.array([probe.kind.endswith("own") for probe in data])
    kinds, families = [probe.kind for probe in data], [probe.family for probe in data]
    share = {key: kinds_families(kinds, families).count(key) for key in set(kinds_families(kinds, families))}
    weight = np.array(
        [(1.0 if own else 0.6) / share[kind, family] for own, kind, family in zip(here, kinds, families, strict=True)]
    )
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = np.clip((x - mean) / std, -4, 4)
    model = LogisticRegression(C=0.1, max_iter=1000).fit(z, ~here, sample_weight=weight / weight.mean())
    columns = (mean.astype(np.float32), std.astype(np.float32), model.coef_[0].astype(np.float32))
    head = Linear(SIGNALS, *columns, float(model.intercept_[0]))
    odds = model.decision_function(z)
    cut = [np.quantile(odds[here & (np.array(families) == family)], 1 - ALARMS) for family in dict.fromkeys(families)]
    return head, float(np.max(cut))


def kinds_families(kinds: Sequence[str], families: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(kinds, families, strict=True))


def absent_figures(data: Sequence[Probe], numbers: Sequence[int]) -> dict[int, tuple[Linear, float]]:
    fitted, odds = {}, np.zeros(len(data))
    for number in numbers:
        head, threshold = fitted[number] = fit_absent([p for p in data if number not in (p.store, p.source)])
        for n, probe in enumerate(data):
            if probe.store == number:
                odds[n] = head(probe.values[None])[0] - threshold
    kinds = np.array([probe.kind for probe in data])
    families = np.array([probe.family for probe in data])
    for family in dict.fromkeys(families):
        for mine, others in (("own", ("foreign", "renamed", "cross")), ("big own", ("big absent",))):
            own = odds[(kinds == mine) & (families == family)]
            line = f"{family} {mine}: wrong alarms {np.mean(own >= 0):.3f}"
            for kind in others:
                gone = odds[(kinds == kind) & (families == family)]
                if len(gone):
                    truth = np.r_[np.zeros(len(own)), np.ones(len(gone))]
                    area = roc_auc_score(truth, np.r_[own, gone])
                    line += f"; {kind} ({len(gone)}) detected {np.mean(gone >= 0):.2f}, AUROC {area:.3f}"
            print(line, flush=True)
    return fitted


def dumped(head: Linear) -> dict[str, Any]:
    return {
        "names": list(head.names),
        **{key: [round(float(v), 5) for v in getattr(head, key)] for key in ("mean", "std", "weights")},
        "bias": round(head.bias, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dry", action="store_true", help="only report")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    talks: list[Talk] = []
    for family in ("locomo", "beam"):
        found = [c for path in sorted(options.data.glob(f"{family}*.jsonl")) for c in read_conversations(path)]
        talks += [Talk(family, len(talks) + n, conversation) for n, conversation in enumerate(found)]
    tidy = [talk.conversation for talk in talks if talk.family == "locomo"]
    numbers = [talk.number for talk in talks]
    copies = [Talk("messy", n, copy) for n, copy in enumerate(messy_copies(tidy, 1))]
    others = [Talk("messy", n, copy) for n, copy in enumerate(messy_copies(tidy, 0))]
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"{folder}/train.db")
        data = [example for talk in [*talks, *copies] for example in examples(store, talk)]
        case = gather(store, EMBEDDER, Scope("locomo-0"), "When did it start?", 0.0)
        assert case is not None
        names = matrix(case.found)[1]
        heads = {n: fit([example for example in data if example.number != n], names) for n in numbers}
        asked = probes(store, talks, heads)
        absents = absent_figures(asked, numbers)
        held_out([*talks, *others], heads, absents)
        store.close()
    passage = fit(data, names)
    absent, threshold = fit_absent(asked)
    shown = sorted(zip(names, passage.weights.tolist(), strict=True), key=lambda pair: -abs(pair[1]))
    print({name: round(weight, 2) for name, weight in shown})
    print(dict(zip(SIGNALS, np.round(absent.weights, 2).tolist(), strict=True)), round(threshold, 3))
    if not options.dry:
        card = {
            "made_by": "tools/train_recall.py",
            "space": str(EMBEDDER.space),
            "data": {
                "LoCoMo": "three conversations with audited evidence; CC BY-NC 4.0; snap-research/locomo",
                "BEAM-100K": "four conversations; research data, its repository states no licence; mohammadtavakoli78/BEAM",
            },
            "kept": "weights only; no row, word or name of the data is in this file",
            "questions": {family: sum(e.family == family for e in data) for family in WEIGHTS},
            "passage": dumped(passage),
            "absent": {**dumped(absent), "threshold": round(threshold, 5)},
        }
        options.output.write_text(json.dumps(card, indent=1) + "\n", "utf-8")
        print(f"written: {options.output}")


if __name__ == "__main__":
    main()
