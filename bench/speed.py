"""What the guard costs beyond its encoder, in one run: milliseconds of CPU time, and the ratios that have targets.

    python bench/speed.py
    python bench/speed.py --json --repeats 5

CPU time, one thread, medians, the things compared taken in turns: a busy machine changes the milliseconds more than the
ratios. Fresh processes are measured with `resource` (Linux, macOS). Messages are made of the background's own utterances.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from topicality.config import Policy
from topicality.embed import CachedEmbedder, MiniLmEmbedder, load_background
from topicality.embed.background import read_corpus
from topicality.layer.guard import Guard
from topicality.types import Space
from topicality.vectors import Array, unit

SEED = 7
MB = 1e6


@dataclass(frozen=True)
class Figure:
    """One line of the report. `target` is met when value <= target, or >= with `least`."""

    name: str
    value: float
    unit: str
    target: float | None = None
    least: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target


class Table:
    """An encoder that only looks vectors up: what is left of a check is the engine."""

    languages: frozenset[str] | None = frozenset({"en"})

    def __init__(self, space: Space, rows: Mapping[str, Array]) -> None:
        self.space = space
        self._rows = rows

    def embed(self, texts: Sequence[str]) -> Array:
        return np.stack([self._rows[text] for text in texts])

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def cpu(work: Callable[[], object]) -> float:
    """CPU milliseconds, of all threads."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def spoken(least: int, most: int) -> list[str]:
    """Utterances of that many words, in a fixed shuffled order."""
    found = [text for text in read_corpus().utterances if least <= len(text.split()) <= most]
    order = np.random.default_rng(SEED).permutation(len(found))
    return [found[index] for index in order]


def presets() -> Policy:
    return Policy.load("customer_support").with_rules_of(Policy.load("common_unsafe"))


def sized(rules: int, examples: int) -> Policy:
    """Rules with as many examples each; one in five is blocked."""
    texts = list(read_corpus().utterances)
    made = [
        {
            "name": f"subject {index}",
            "description": "",
            "examples": [f"{texts[(index * examples + n) % len(texts)]} {index}-{n}" for n in range(examples)],
        }
        for index in range(rules)
    ]
    split = max(1, rules // 5)
    return Policy(allowed=made[split:], blocked=made[:split])


def members(guard: Guard) -> int:
    reader = guard._reader.rules  # noqa: SLF001 - the count has no public reading
    return sum(len(rule.texts) for book in (reader.allowed, reader.blocked) if book for rule in book.rules)


def engine(
    policy: Policy, messages: Sequence[str], encoder: MiniLmEmbedder, turns: int = 0
) -> tuple[int, float, float]:
    """(rule members, p50 ms, p95 ms) of `check` with an encoder that costs nothing."""
    rng = np.random.default_rng(SEED)
    pool = load_background(encoder).utterances

    class Learning(Table):
        """Gives rule texts vectors like real ones: a background utterance's, moved a little."""

        def embed(self, texts: Sequence[str]) -> Array:
            fresh = [text for text in texts if text not in rows]
            if fresh:
                drawn = pool[rng.integers(0, len(pool), len(fresh))]
                moved = unit(drawn + 0.03 * rng.standard_normal(drawn.shape).astype(np.float32))
                rows.update(zip(fresh, moved, strict=True))
            return np.stack([rows[text] for text in texts])

    rows: dict[str, Array] = dict(zip(messages, encoder.embed(messages), strict=True))
    guard = Guard(policy, Learning(encoder.space, rows))
    count = members(guard)
    guard.check_many([*read_corpus().utterances[::2], *messages[:1]])  # as in a service that has run for a while
    spent = []
    for index, message in enumerate(messages):
        context = [messages[index - 1 - turn] for turn in range(turns)]
        spent.append(cpu(lambda text=message, said=context: guard.check(text, said)))  # type: ignore[misc]  # lambda defaults
    spent = spent[10:]  # the first ones fill caches
    return count, float(np.percentile(spent, 50)), float(np.percentile(spent, 95))


def end_to_end(policy: Policy, encoder: MiniLmEmbedder, messages: Sequence[str]) -> tuple[float, float]:
    """(ms of `check`, ms of the bare onnxruntime call on the same tokens), medians, in turns; no vector is cached."""
    tokenizer, session = encoder._loaded()  # noqa: SLF001 - the bare call is what is compared with
    guard = Guard(policy, CachedEmbedder(encoder, 0))
    guard.check_many(read_corpus().utterances[::4])  # as in a service that has run for a while: most words are known
    whole, bare = [], []
    for message in messages:
        ids = np.array([tokenizer.encode(message).ids], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        bare.append(cpu(lambda given=inputs: session.run(None, given)))  # type: ignore[misc]  # lambda defaults
        whole.append(cpu(lambda text=message: guard.check(text)))  # type: ignore[misc]  # lambda defaults
    return median(whole[10:]), median(bare[10:])


def batched(encoder: MiniLmEmbedder, messages: Sequence[str], repeats: int) -> tuple[float, float]:
    """(ms a message one by one, ms a message in one call), medians of turns; nothing is cached."""
    guard = Guard(presets(), CachedEmbedder(encoder, 0))
    guard.warm_up()
    single, together = [], []
    for _ in range(repeats + 1):
        single.append(cpu(lambda: [guard.check(text) for text in messages]) / len(messages))
        together.append(cpu(lambda: guard.check_many(messages)) / len(messages))
    return median(single[1:]), median(together[1:])


def child(code: str) -> dict[str, Any]:
    """Run code in a fresh process; it prints one JSON object."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)  # noqa: S603 - own code
    return dict(json.loads(done.stdout.splitlines()[-1]))


IMPORTS = """
import json, sys, time
start = time.process_time(); import numpy; middle = time.process_time(); import topicality; end = time.process_time()
names = [name for name in ("onnxruntime", "tokenizers", "pydantic", "rich", "typer") if name in sys.modules]
print(json.dumps({"numpy": (middle - start) * 1e3, "topicality": (end - middle) * 1e3, "loaded": names}))
"""

USED = """
import json, sys, time
import numpy
start = time.process_time(); from topicality import Guard, Policy; end = time.process_time()
print(json.dumps({"ms": (end - start) * 1e3, "onnxruntime": "onnxruntime" in sys.modules}))
"""

LOADS = """
import json, time
from topicality.embed import MiniLmEmbedder, load_background
from topicality import Guard, Policy
import onnxruntime, tokenizers
encoder = MiniLmEmbedder()
a = time.process_time(); encoder.embed(["hello"]); b = time.process_time(); load_background(encoder); c = time.process_time()
guard = Guard(Policy.load("customer_support"), encoder); d = time.process_time(); guard.warm_up(); e = time.process_time()
print(json.dumps({"encoder": (b - a) * 1e3, "background": (c - b) * 1e3, "rules": (e - d) * 1e3}))
"""


def memory() -> tuple[float, float]:
    """(peak MB, CPU seconds) of `topicality check` on one message, in a process of its own."""
    code = (
        "import json, resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'topicality', 'check', '--policy', 'customer_support',"
        " 'How do I cancel my order?'], stdout=subprocess.DEVNULL, check=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps({'rss': used.ru_maxrss, 'cpu': used.ru_utime + used.ru_stime}))\n"
    )
    found = child(code)
    return found["rss"] * (1 if sys.platform == "darwin" else 1024) / MB, found["cpu"]


def large(encoder: MiniLmEmbedder) -> tuple[float, float]:
    """(CPU seconds, growth of the peak in MB) of one message of 1 MB."""
    texts = list(read_corpus().utterances)
    parts: list[str] = []
    size = 0
    while size < MB:
        parts.append(texts[len(parts) % len(texts)] + ("" if len(parts) < len(texts) else f" {len(parts)}"))
        size += len(parts[-1]) + 2
    message = ". ".join(parts)[: int(MB)]
    guard = Guard(presets(), CachedEmbedder(encoder, 4096))
    guard.warm_up()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = cpu(lambda: guard.check(message)) / 1e3
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return spent, grown * (1 if sys.platform == "darwin" else 1024) / MB


def figures(repeats: int, *, with_large: bool) -> list[Figure]:
    encoder = MiniLmEmbedder()
    found = one_megabyte(encoder) if with_large else []  # first, while the peak of this process is low
    messages = spoken(9, 15)[:310]
    small, p50, p95 = engine(sized(10, 9), messages, encoder)
    found += [
        Figure(f"engine, {small} rule members, p50", p50, "ms", 0.3),
        Figure(f"engine, {small} rule members, p95", p95, "ms"),
    ]
    _, p50, _ = engine(sized(10, 9), messages, encoder, turns=4)
    found.append(Figure(f"engine, {small} rule members and 4 turns of context, p50", p50, "ms"))
    count, p50, p95 = engine(sized(20, 499), messages, encoder)
    found += [
        Figure(f"engine, {count} rule members, p50", p50, "ms", 3.0),
        Figure(f"engine, {count} rule members, p95", p95, "ms"),
    ]
    for name, policy in ((f"{small} rule members", sized(10, 9)), ("two presets", presets())):
        whole, bare = end_to_end(policy, encoder, spoken(12, 12)[:160])
        found += [
            Figure(f"12 words, {name}: bare onnxruntime call", bare, "ms"),
            Figure(f"12 words, {name}: check, end to end", whole, "ms"),
            Figure(f"12 words, {name}: end to end / bare call", whole / bare, "x", 1.25),
        ]
    for name, least, most, target in (
        ("64 messages of 2 to 6 words", 2, 6, 2.0),
        ("64 messages of 12 words", 12, 12, None),
    ):
        single, together = batched(encoder, spoken(least, most)[:64], repeats)
        found += [
            Figure(f"{name}: one by one", single, "ms"),
            Figure(f"{name}: in one call", together, "ms"),
            Figure(f"{name}: rate in one call / one by one", single / together, "x", target, least=True),
        ]
    return found + processes(repeats)


def processes(repeats: int) -> list[Figure]:
    imports = [child(IMPORTS) for _ in range(repeats)]
    loaded = {name for entry in imports for name in entry["loaded"]}
    used = [child(USED) for _ in range(repeats)]
    loads = [child(LOADS) for _ in range(repeats)]
    peak = [memory() for _ in range(repeats)]
    return [
        Figure("import numpy", median(entry["numpy"] for entry in imports), "ms"),
        Figure("import topicality, beyond numpy", median(entry["topicality"] for entry in imports), "ms", 100.0),
        Figure("heavy libraries loaded by import topicality", len(loaded), "", 0),
        Figure("from topicality import Guard, Policy, beyond numpy", median(e["ms"] for e in used), "ms"),
        Figure("... with onnxruntime", sum(entry["onnxruntime"] for entry in used), "", 0),
        Figure("load the encoder (first message)", median(entry["encoder"] for entry in loads), "ms"),
        Figure("load the background", median(entry["background"] for entry in loads), "ms"),
        Figure("embed and compile a preset's rules", median(entry["rules"] for entry in loads), "ms"),
        Figure("topicality check on one message: peak memory", max(rss for rss, _ in peak), "MB", 300.0),
        Figure("topicality check on one message: CPU", median(seconds for _, seconds in peak), "s"),
    ]


def one_megabyte(encoder: MiniLmEmbedder) -> list[Figure]:
    spent, grown = large(encoder)
    return [Figure("message of 1 MB: CPU", spent, "s"), Figure("message of 1 MB: growth of the peak", grown, "MB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=5, help="turns of the batches, and fresh processes")
    parser.add_argument("--large", action="store_true", help="also a message of 1 MB (half a minute)")
    options = parser.parse_args()
    found = figures(max(1, options.repeats), with_large=options.large)
    if options.json:
        rows = [
            {"name": f.name, "value": round(f.value, 4), "unit": f.unit, "target": f.target, "met": f.met}
            for f in found
        ]
        print(json.dumps({"figures": rows, "met": all(figure.met is not False for figure in found)}, indent=1))
        return
    for figure in found:
        sign = ">=" if figure.least else "<="
        wanted = "" if figure.target is None else f"  {sign} {figure.target:g}: {'met' if figure.met else 'MISSED'}"
        print(f"{figure.name:58} {figure.value:9.3f} {figure.unit:3}{wanted}")


if __name__ == "__main__":
    main()
