"""What memory costs as a conversation grows: a message, recall, a context, the prompt's memory part, importing.

    python bench/scale.py                               # 1,000, 10,000 and 100,000 exchanges in one conversation
    python bench/scale.py --full                        # and 1,000,000 exchanges of one owner in 100 conversations
    python bench/scale.py --sizes --import-messages 2000   # only the speed of importing, with the bundled encoder
    python bench/scale.py --save docs                   # writes docs/scale.md, and docs/scale.png if matplotlib is there

The archive is made up and always the same: topics of about eight exchanges, a fifth of them returns to an earlier one,
20 words a question and 60 a reply from a Zipf vocabulary, vectors around a centre for each of 512 themes. Each exchange has a
word of its own, which recall is asked for together with its theme. Encoding is not in the times. One thread (set
OMP_NUM_THREADS=1); wall and CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topicality.core.recall.analysis import terms
from topicality.embed import load
from topicality.embed.background import read_corpus
from topicality.layer.importing import import_messages
from topicality.layer.memory import Layer
from topicality.layer.recall import token_counter
from topicality.records import SIDES, Exchange, Scope, TopicRecord
from topicality.store import open_store, rules, transfer
from topicality.types import Message
from topicality.vectors import Array, unit

OWNER = "owner"
SPACE = load("minilm").space
CENTRES = np.random.default_rng(7).standard_normal((512, SPACE.dimension)).astype(np.float32)
THEMES = 512
POOL = 4096  # message bodies that are made once and used again


def spoken(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))


VOCABULARY = [spoken(random.Random(n)) for n in range(20_000)]
WEIGHTS = np.cumsum(1.0 / (np.arange(len(VOCABULARY)) + 50.0))


class Encoder:
    """Stands in for the bundled one: a message's first word names its theme. `seconds` is what it took."""

    space = SPACE
    languages = None

    def __init__(self) -> None:
        self.seconds = 0.0

    def embed(self, texts: Sequence[str]) -> Array:
        started = time.perf_counter()
        rows = [vector_of(text) for text in texts]
        found = unit(np.array(rows)) if rows else np.zeros((0, SPACE.dimension), np.float32)
        self.seconds += time.perf_counter() - started
        return found

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def vector_of(text: str) -> Array:
    first = text.split(" ", 1)[0]
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    theme = int(first[5:]) if first.startswith("theme") and first[5:].isdigit() else seed
    noise = np.random.default_rng(seed).standard_normal(SPACE.dimension).astype(np.float32)
    found: Array = CENTRES[theme % THEMES] + 0.9 * noise
    return found


@dataclass(frozen=True)
class Body:
    text: str
    terms: str
    blob: bytes


class Archive:
    """Exchanges without end, the same every time."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._bodies: dict[tuple[int, int, int], Body] = {}
        self.topic, self.topics = 0, 0

    def step(self) -> bool:
        """Go on to the next exchange's topic; whether it is another one than before."""
        if self.topics and self._rng.random() >= 1 / 8:
            return False
        before = self.topic
        if self.topics > 2 and self._rng.random() < 0.2:
            self.topic = self._rng.randint(max(1, self.topics - 20), self.topics)
        else:
            self.topics += 1
            self.topic = self.topics
        return self.topic != before

    def body(self, words: int) -> Body:
        theme = self.topic % THEMES
        key = (theme, words, self._rng.randrange(POOL // THEMES))
        if key not in self._bodies:
            own = random.Random(f"{key}")
            names = [VOCABULARY[(theme * 37 + n * 11) % len(VOCABULARY)] for n in range(12)]
            drawn = np.searchsorted(WEIGHTS, [own.random() * WEIGHTS[-1] for _ in range(words)])
            said = [own.choice(names) if own.random() < 0.15 else VOCABULARY[n] for n in drawn]
            text = f"theme{theme} " + " ".join(said) + "."
            blob = rules.encode(unit(vector_of(text)), SPACE)
            self._bodies[key] = Body(text, " ".join(terms(text)), blob)
        return self._bodies[key]


def own_word(number: int) -> str:
    return f"zq{number}x"


def export(exchanges: int, conversations: int) -> Iterator[str]:
    """An archive as import lines."""
    yield transfer.header(SPACE)
    each = exchanges // conversations
    for talk in range(conversations):
        archive = Archive(talk + 1)
        bundle = transfer.Bundle(OWNER, f"c{talk:04}")
        spans: dict[int, list[list[int]]] = {}
        for sequence in range(1, each + 1):
            archive.step()
            mine = spans.setdefault(archive.topic, [])
            if mine and mine[-1][1] == sequence - 1:
                mine[-1][1] = sequence
            else:
                mine.append([sequence, sequence])
            question, reply = archive.body(20), archive.body(60)
            word = own_word(talk * each + sequence)
            messages = [
                Message("user", f"{question.text} {word}", sequence * 60.0),
                Message("assistant", reply.text, sequence * 60.0 + 30),
            ]
            bundle.exchanges.append(
                Exchange(OWNER, bundle.conversation, sequence, f"e{sequence}", "completed", *messages)
            )
            for side, message, words, blob in (
                (SIDES[0], messages[0], f"{word} {question.terms}", question.blob),
                (SIDES[1], messages[1], reply.terms, reply.blob),
            ):
                bundle.passages.append(transfer.Kept(sequence, side, 0, 0, len(message.text), words, blob))
        for number, topic in enumerate(spans, 1):
            names = tuple(VOCABULARY[(topic % THEMES * 37 + n * 11) % len(VOCABULARY)] for n in range(8))
            runs = tuple((a, b) for a, b in spans[topic])
            times = (runs[0][0] * 60.0, runs[-1][1] * 60.0)
            bundle.topics.append(TopicRecord(f"t{topic}", number, "finalized", names[:3], names, runs, *times, 1.0))
        bundle.topics_version = len(bundle.topics)
        yield from bundle.lines()


class Timing:
    """Milliseconds of calls, without the encoder's: wall and CPU."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __call__(self, call: Callable[[], object]) -> object:
        apart, used, started = self._encoder.seconds, time.process_time(), time.perf_counter()
        result = call()
        encoding = self._encoder.seconds - apart
        self.wall.append((time.perf_counter() - started - encoding) * 1000.0)
        self.cpu.append((time.process_time() - used - encoding) * 1000.0)
        return result

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"{name}, ms p50": statistics.median(self.wall),
            f"{name}, ms p95": float(np.percentile(self.wall, 95)),
            f"{name}, CPU ms p50": statistics.median(self.cpu),
        }


def measure(place: str, count: int, conversations: int, repeat: int) -> dict[str, float]:
    row: dict[str, float] = {"exchanges": count}
    started = time.perf_counter()
    store = open_store(f"{place}/bench.db")
    store.load(export(count, conversations))
    row["load, s"] = time.perf_counter() - started
    store.close()
    encoder = Encoder()
    with Layer(open_store(f"{place}/bench.db"), None, encoder, clock=lambda: count * 60.0) as layer:
        chat = layer.conversation("c0000", OWNER)
        archive = Archive(99)

        def exchange() -> None:
            chat.receive(question)
            chat.reply(reply)

        first, steady = Timing(encoder), Timing(encoder)
        for number in range(repeat + 40):
            archive.step()
            question, reply = f"{archive.body(20).text} {own_word(-number)}", archive.body(60).text
            (first if number == 0 else steady if number >= 40 else Timing(encoder))(exchange)
        row["first message of a process, ms"] = first.wall[0]
        row.update(steady.figures("receive + reply"))

        rng = random.Random(5)
        asked = [rng.randint(1, count // conversations) for _ in range(repeat)]
        kept = layer.store.exchanges(Scope(OWNER, "c0000", tuple((n, n) for n in asked)))
        themes = {exchange.sequence: exchange.user.text.split(" ", 1)[0] for exchange in kept}
        ask = layer.recall if conversations > 1 else chat.recall

        def recalled(number: int) -> bool:
            keywords = {"owner": OWNER} if conversations > 1 else {}
            text = f"{themes[number]} what was said about {own_word(number)}"
            return own_word(number) in ask(text, 1000, **keywords).text  # type: ignore[operator]  # one of two methods

        warm, steady = Timing(encoder), Timing(encoder)
        warm(lambda: recalled(asked[0]))
        row["first recall, ms"] = warm.wall[0]
        found = [steady(lambda number=number: recalled(number)) for number in asked]  # type: ignore[misc]  # bound now
        row.update(steady.figures("recall"))
        row["recall, share found"] = sum(map(bool, found)) / len(found)

        steady = Timing(encoder)
        sizes = []
        counter = token_counter(layer.embedder)
        for number in asked[: max(5, repeat // 5)]:
            question = f"{themes[number]} what was said about {own_word(number)}"
            context = steady(lambda: chat.context(4000, question=question))  # noqa: B023 - called at once
            heads = ("Recalled from", "Other topics")
            sizes.append(sum(counter(m.text) for m in context.messages if m.text.startswith(heads)))  # type: ignore[attr-defined]  # a Context
        row.update(steady.figures("context of 4,000"))
        row["memory part of the prompt, tokens p50"] = statistics.median(sizes)
        row["memory part of the prompt, tokens most"] = max(sizes)
        steady = Timing(encoder)
        listed = [steady(lambda: chat.directory(800)) for _ in range(3)]
        row.update(steady.figures("directory of 800"))
        row["directory, tokens"] = max(entry.tokens for entry in listed)  # type: ignore[attr-defined]  # a Directory
        row["topics"] = len(chat.topics())
    row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row["bytes an exchange"] = sum(file.stat().st_size for file in Path(place).iterdir()) / count
    return row


def import_speed(count: int) -> dict[str, float]:
    """Importing with the bundled encoder, against embedding the same texts in one call."""
    rng = random.Random(3)
    lines = read_corpus().utterances
    said = []
    for number in range(count):
        user = number % 2 == 0
        text = " ".join(rng.choice(lines) for _ in range(1 if user else rng.randint(3, 8)))
        said.append(Message("user" if user else "assistant", text, 60.0 * number))
    encoder = load("minilm").inner  # type: ignore[attr-defined]  # without the cache
    encoder.embed(["warm up"])
    alone, whole = [], []
    for _ in range(2):
        started = time.perf_counter()
        encoder.embed([message.text for message in said])
        alone.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as place, Layer(open_store(f"{place}/x.db"), None, encoder) as layer:
            _ = layer.reading
            started = time.perf_counter()
            import_messages(layer, "c", said)
            whole.append(time.perf_counter() - started)
    return {
        "messages": count,
        "encoder alone, messages/s": count / min(alone),
        "import, messages/s": count / min(whole),
        "share of the encoder's speed": min(alone) / min(whole),
    }


def table(rows: Sequence[dict[str, float]]) -> str:
    lines = ["| | " + " | ".join(f"{row['exchanges']:,.0f}" for row in rows) + " |", "|---|" + "---|" * len(rows)]
    for name in rows[0]:
        if name != "exchanges":
            shown = [f"{row[name]:,.2f}" if row[name] < 10 else f"{row[name]:,.0f}" for row in rows]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, float]], path: Path) -> bool:
    try:
        import matplotlib  # noqa: ICN001 - the backend is chosen before pyplot is loaded

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("receive + reply, ms p50", "recall, ms p50", "context of 4,000, ms p50"):
        axes.plot([row["exchanges"] for row in rows], [row[name] for row in rows], marker="o", label=name)
    axes.set(
        xscale="log", xlabel="exchanges in one conversation", ylabel="ms", title="Cost of memory, without the encoder"
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--full", action="store_true", help="also 1,000,000 exchanges of one owner, 100 conversations")
    parser.add_argument("--import-messages", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--save", type=Path, help="folder for scale.md and scale.png")
    options = parser.parse_args()
    rows, large = [], []
    for count, conversations in [*((n, 1) for n in options.sizes), *([(1_000_000, 100)] if options.full else [])]:
        with tempfile.TemporaryDirectory() as place:
            row = measure(place, count, conversations, options.repeat)
        (rows if conversations == 1 else large).append(row)
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
    parts = []
    if rows:
        parts.append("One conversation:\n\n" + table(rows))
    if large:
        parts.append("One owner, 100 conversations:\n\n" + table(large))
    if options.import_messages:
        speed = import_speed(options.import_messages)
        parts.append("Importing: " + ", ".join(f"{name} {value:,.2f}" for name, value in speed.items()))
    print("\n" + "\n\n".join(parts))
    if options.save:
        options.save.joinpath("scale.md").write_text("\n\n".join(parts) + "\n", "utf-8")
        if rows and not plot(rows, options.save / "scale.png"):
            print("no plot: matplotlib is not installed")


if __name__ == "__main__":
    main()
