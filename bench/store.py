"""What the store costs as a conversation grows: writing, searching, opening, importing; tables of medians and ratios.

    python bench/store.py --exchanges 1000 10000 100000
    python bench/store.py --exchanges 100000 --url postgresql://user@host/an_empty_database
    python bench/store.py --exchanges 1000000 --conversations 100

Text and vectors are made here: a Zipf vocabulary, 20 words a question and 50 a reply, and topic-clustered unit vectors of
384 dimensions, one passage a message. Encoding is not in it. One thread (set OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from topicality.ports import Store
from topicality.records import SIDES, Begin, Change, Complete, Exchange, Operation, Passage, Scope
from topicality.store import open_store, rules, transfer
from topicality.types import Message, Space
from topicality.vectors import Array, unit

SPACE = Space("bench", 384)
OWNER = "owner"
RNG = np.random.default_rng(7)
CENTRES = RNG.standard_normal((400, 384)).astype(np.float32)
RANKS = 1.0 / (np.arange(30_000) + 50.0)  # without stop words: the commonest word is in one reply of seven
WORDS = np.array([f"w{n}" for n in range(30_000)])
CUMULATIVE = np.cumsum(RANKS / RANKS.sum())


def vectors(count: int) -> Array:
    made = CENTRES[RNG.integers(0, len(CENTRES), count)] + 0.9 * RNG.standard_normal((count, 384)).astype(np.float32)
    return unit(made)


def terms(count: int) -> list[str]:
    return list(WORDS[np.searchsorted(CUMULATIVE, RNG.random(count)).clip(max=29_999)])


def export(exchanges: int, conversations: int) -> Iterator[str]:
    """An archive as import lines."""
    yield transfer.header(SPACE)
    each = exchanges // conversations
    for talk in range(conversations):
        bundle = transfer.Bundle(OWNER, f"c{talk:04}")
        for start in range(0, each, 1000):
            many = min(1000, each - start)
            pool = vectors(2 * many)
            for n in range(many):
                sequence = start + n + 1
                question, reply = terms(20), terms(50)
                user, reply_ = [
                    Message("user", " ".join(question), sequence * 60.0),
                    Message("assistant", " ".join(reply), sequence * 60.0),
                ]
                bundle.exchanges.append(
                    Exchange(OWNER, bundle.conversation, sequence, f"e{sequence}", "completed", user, reply_)
                )
                for place, said in enumerate((question, reply)):
                    blob = rules.encode(pool[2 * n + place], SPACE)
                    text = " ".join(said)
                    bundle.passages.append(transfer.Kept(sequence, SIDES[place], 0, 0, len(text), text, blob))
        yield from bundle.lines()


def timed(row: dict[str, float], name: str, repeat: int, call: Callable[[int], object]) -> None:
    """Milliseconds of each call: wall p50 and p95, and the CPU p50 of this process (other work does not count)."""
    wall, cpu = [], []
    for n in range(repeat):
        started, used = time.perf_counter(), time.process_time()
        call(n)
        wall.append((time.perf_counter() - started) * 1000.0)
        cpu.append((time.process_time() - used) * 1000.0)
    row[f"{name} p50 ms"], row[f"{name} p95 ms"] = statistics.median(wall), float(np.percentile(wall, 95))
    row[f"{name} CPU p50 ms"] = statistics.median(cpu)


def passage(said: list[str], vector: Array) -> tuple[Passage, ...]:
    return (Passage(0, len(" ".join(said)), tuple(said), vector),)


def exchange(key: str) -> tuple[Begin, Complete]:
    question, reply = terms(20), terms(50)
    one, two = vectors(2)
    return Begin(key, " ".join(question), passage(question, one), 1.0), Complete(
        key, " ".join(reply), passage(reply, two), 2.0
    )


def measure(store: Store, url: str, count: int, conversations: int, repeat: int) -> dict[str, float]:
    row: dict[str, float] = {"exchanges": count}
    started = time.perf_counter()
    store.load(export(count, conversations))
    row["import us each"] = (time.perf_counter() - started) * 1e6 / count
    talk = f"c{0:04}"
    pairs = [exchange(f"new{n}") for n in range(repeat)]

    def write(n: int) -> None:
        begin, complete = pairs[n]
        store.apply(Change(f"b{n}", OWNER, talk, (begin,)))
        store.apply(Change(f"c{n}", OWNER, talk, (complete,)))

    timed(row, "begin + complete", repeat, write)
    batch: list[Operation] = []
    for n in range(100):
        batch += exchange(f"batch{n}")
    used = time.process_time()
    store.apply(Change("batch", OWNER, talk, tuple(batch)))
    row["each in a change of 100, CPU ms"] = (time.process_time() - used) * 10.0
    store.close()
    started = time.perf_counter()
    store = open_store(url)
    row["open ms"] = (time.perf_counter() - started) * 1000.0
    scope = Scope(OWNER, talk if conversations == 1 else None)
    queries, asked = vectors(repeat), [terms(8) for _ in range(repeat)]
    started = time.perf_counter()
    store.search_vectors(scope, queries[0], 100)
    row["first search ms"] = (time.perf_counter() - started) * 1000.0
    timed(row, "vectors", repeat, lambda n: store.search_vectors(scope, queries[n], 100))
    timed(row, "words", repeat, lambda n: store.search_words(scope, asked[n], 100))
    recent = Scope(OWNER, talk)
    timed(row, "read 20", repeat, lambda _: store.exchanges(recent, newest=20))
    row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    store.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--url", default="", help="an empty PostgreSQL database; without it, an SQLite file of its own")
    options = parser.parse_args()
    table = []
    for count in options.exchanges:
        with tempfile.TemporaryDirectory() as place:
            url = options.url or f"{place}/bench.db"
            store = open_store(url)
            store.erase(OWNER)
            row = measure(store, url, count, options.conversations, options.repeat)
            files = list(Path(place).iterdir())
            row["bytes each"] = sum(file.stat().st_size for file in files) / count
            table.append(row)
            print(" · ".join(f"{name} {value:,.1f}" for name, value in row.items()), flush=True)
    print("\n| | " + " | ".join(f"{row['exchanges']:,.0f}" for row in table) + " | ratio |")
    print("|---|" + "---|" * (len(table) + 1))
    for name in table[0]:
        if name != "exchanges":
            values = [row[name] for row in table]
            print(
                f"| {name} | "
                + " | ".join(f"{value:,.2f}" for value in values)
                + f" | {values[-1] / max(values[0], 1e-9):.2f} |"
            )


if __name__ == "__main__":
    main()
