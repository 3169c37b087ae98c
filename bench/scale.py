"""What memory costs as a conversation grows: a message, recall, a context, the prompt's memory part, importing.

    python bench/scale.py                               # 1,000, 10,000 and 100,000 exchanges in one conversation
    python bench/scale.py --full                        # and 1,000,000 exchanges of one owner in 100 conversations
    python bench/scale.py --sizes --import-messages 2000   # only the speed of importing, with the bundled encoder
    python bench/scale.py --sizes --compare             # only against a directory of all topics, at 5,000 exchanges
    python bench/scale.py --keep /tmp/archives          # keeps the archives it makes there, and uses those that are there
    python bench/scale.py --save docs                   # writes docs/scale.md, and docs/scale.png if matplotlib is there

The archive is made up and always the same: topics of about eight exchanges, a fifth of them returns to an earlier one,
20 words a question and 60 a reply from a Zipf vocabulary, vectors around a centre for each of 512 themes. Each exchange has a
word of its own, which recall is asked for together with its theme. Encoding is not in the times. One thread (set
OMP_NUM_THREADS=1); wall and CPU time.

`--compare` puts the memory part of a context beside what a host without recall would send: a card for every topic (labels,
terms, times, status), and the three topics that a selector picks by reading all cards, whole. The selector here is a perfect
reader: it picks the topics whose cards share most words with the question, the later one among equals. Half of the questions
name two of the topic's terms and the word that is looked for, the others that word only.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from archive import OWNER, Archive, Encoder, export, own_word

from topicality.core.topics import Topic
from topicality.embed import load
from topicality.embed.background import read_corpus
from topicality.layer.importing import import_messages
from topicality.layer.memory import Layer
from topicality.layer.recall import token_counter
from topicality.records import Scope
from topicality.store import open_store
from topicality.types import Message


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


def archived(place: str, count: int, conversations: int, keep: Path | None) -> float:
    """Make `bench.db` there, or take the one that was kept; seconds an import took, 0 for one that was there."""
    target = Path(place) / "bench.db"
    kept = None if keep is None else keep / f"{count}-{conversations}.db"
    seconds = 0.0
    if kept is None or not kept.exists():
        made = target if kept is None else kept.with_suffix(".new")
        started = time.perf_counter()
        store = open_store(str(made))
        store.load(export(count, conversations))
        store.close()
        seconds = time.perf_counter() - started
        if kept is not None:
            made.rename(kept)
    if kept is not None:
        shutil.copy(kept, target)
    return seconds


def card(topic: Topic) -> str:
    """A topic as a directory of all of them lists it."""
    times = [datetime.fromtimestamp(at or 0, UTC).isoformat() for at in (topic.started_at, topic.ended_at)]
    lines = [topic.id, f"keywords: {' | '.join(topic.labels)}", f"includes: {', '.join(topic.terms)}"]
    return "\n".join([*lines, f"started: {times[0]}", f"ended: {times[1]}", f"status: {topic.status}"])


def compare(place: str, repeat: int, keep: Path | None, count: int = 5000) -> dict[str, float]:
    """The memory part of a context against a directory of all topics with whole topics reopened: see above."""
    archived(place, count, 1, keep)
    encoder = Encoder()
    with Layer(open_store(f"{place}/bench.db"), None, encoder, clock=lambda: count * 60.0) as layer:
        chat = layer.conversation("c0000", OWNER)
        counter = token_counter(layer.embedder)
        topics = chat.topics()
        words = [{*topic.labels, *topic.terms} for topic in topics]
        said = {exchange.sequence: exchange for exchange in chat.exchanges()}
        homes = {n: t for t, topic in enumerate(topics) for a, b in topic.spans for n in range(a, b + 1)}
        rng = random.Random(6)
        ours, theirs, sizes, opened = [], [], [], []
        for number in range(2 * repeat):
            asked = rng.randint(1, count - 40)  # the last 40 are sent as they are
            topic = topics[homes[asked]]
            names = rng.sample(topic.terms, 2) if number % 2 else []
            theme = said[asked].user.text.split(" ", 1)[0]
            question = " ".join([*([theme] if names else []), *names, "what was said about", own_word(asked)])
            heads = ("Recalled from", "Other topics")
            memory = [m.text for m in chat.context(4000, question=question).messages if m.text.startswith(heads)]
            sizes.append(sum(map(counter, memory)))
            ours.append(any(own_word(asked) in text for text in memory))
            shared = [len(own.intersection(question.split())) for own in words]
            picked = sorted(range(len(topics)), key=lambda t: (-shared[t], -topics[t].last))[:3]
            picked = [t for t in picked if shared[t]]
            inside = [said[n] for t in picked for a, b in topics[t].spans for n in range(a, b + 1)]
            opened.append(sum(counter(m.text) for e in inside for m in (e.user, e.reply) if m is not None))
            theirs.append(asked in {e.sequence for e in inside})
        return {
            "exchanges": count,
            "topics": len(topics),
            "memory part of a context, tokens most": max(sizes),
            "evidence in it": statistics.mean(ours),
            "evidence in it, topic not named": statistics.mean(ours[::2]),
            "directory of all topics, tokens": sum(counter(card(topic)) for topic in topics),
            "three topics reopened, tokens p50": statistics.median(opened[1::2]),
            "evidence in those": statistics.mean(theirs),
            "evidence in those, topic not named": statistics.mean(theirs[::2]),
        }


def measure(place: str, count: int, conversations: int, repeat: int, keep: Path | None) -> dict[str, float]:
    row: dict[str, float] = {"exchanges": count}
    row["load, s"] = archived(place, count, conversations, keep)
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
        row["directory of all topics, tokens"] = sum(counter(card(topic)) for topic in chat.topics())
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
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    sizes = [row["exchanges"] for row in rows]
    for name in ("receive + reply, CPU ms p50", "recall, CPU ms p50", "context of 4,000, CPU ms p50"):
        left.plot(sizes, [row[name] for row in rows], marker="o", label=name.removesuffix(", CPU ms p50"))
    left.set(xscale="log", ylabel="ms of CPU", title="Cost of a message, a recall, a context")
    left.set_ylim(bottom=0)
    for name in ("memory part of the prompt, tokens most", "directory of all topics, tokens"):
        right.plot(sizes, [row[name] for row in rows], marker="o", label=name.split(",")[0])
    right.set(xscale="log", yscale="log", ylabel="tokens", title="What memory takes of the prompt")
    for axes in (left, right):
        axes.set_xlabel("exchanges in one conversation")
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--full", action="store_true", help="also 1,000,000 exchanges of one owner, 100 conversations")
    parser.add_argument("--import-messages", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--compare", action="store_true", help="also against a directory of all topics")
    parser.add_argument("--keep", type=Path, help="folder for the archives")
    parser.add_argument("--save", type=Path, help="folder for scale.md and scale.png")
    options = parser.parse_args()
    rows, large = [], []
    for count, conversations in [*((n, 1) for n in options.sizes), *([(1_000_000, 100)] if options.full else [])]:
        with tempfile.TemporaryDirectory() as place:
            row = measure(place, count, conversations, options.repeat, options.keep)
        (rows if conversations == 1 else large).append(row)
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
    parts = []
    if rows:
        parts.append("One conversation:\n\n" + table(rows))
    if large:
        parts.append("One owner, 100 conversations:\n\n" + table(large))
    if options.compare:
        with tempfile.TemporaryDirectory() as place:
            found = compare(place, options.repeat, options.keep)
        print(json.dumps({name: round(value, 3) for name, value in found.items()}), flush=True)
        parts.append("Against a directory of all topics:\n\n" + table([found]))
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
