"""Cost of one more exchange for the topics of a conversation, and of its directory, as it grows.

    python bench/topics.py [--most 100000]

A made-up conversation: topics of about eight exchanges, a fifth of them returns to one of the last or to any earlier topic,
near the marks replies of 120 content words (the worst case) from a vocabulary that keeps growing. Measured is CPU time of
`book.record` (segment decision in, labels and terms out; no encoder, no store), of what a store would be given to keep
(`book.dump`), and of the directory of all topics.
"""

from __future__ import annotations

import argparse
import random
import resource
from statistics import median, quantiles
from time import process_time

from topicality.core.book import Book, Reading, dump, record
from topicality.core.directory import directory
from topicality.core.label import Words
from topicality.core.topics import Assigned, Decision, Topic, missing
from topicality.embed.background import load_background
from topicality.embed.load import load
from topicality.records import Exchange
from topicality.types import Message


def word(rng: random.Random, size: int) -> str:
    """Zipf-like, over a vocabulary that grows with the conversation."""
    rank = int(min(2000 + size, 60_000) ** rng.random())
    return "".join(chr(97 + (rank * 7 + place * 11 + rank // (place + 1)) % 26) for place in range(4 + rank % 4))


def said(rng: random.Random, topic: int, size: int, words: int) -> str:
    theme = random.Random(topic)
    own = ["".join(theme.choice("bcdfgklmnprst") + theme.choice("aeiou") for _ in range(3)) for _ in range(12)]
    return " ".join(rng.choice(own) if rng.random() < 0.15 else word(rng, size) for _ in range(words)) + "."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=100_000)
    most = parser.parse_args().most
    marks = sorted({mark for mark in (1_000, 10_000, 100_000) if mark < most} | {most})
    rng = random.Random(1)
    reading = Reading(everyday=load_background(load("minilm")).rarity)
    book, topics, words = Book(), dict[str, Topic](), dict[str, bytes]()
    current, serial = 0, 0
    times: list[float] = []
    print("exchanges  topics  ms/exchange p50   p95   dump kB  dump ms  directory ms  tokens  spans p50/max  RSS MB")
    for n in range(1, most + 1):
        decision: Decision = "continue"
        if n == 1 or rng.random() < 1 / 8:
            if n > 1 and rng.random() < 0.2:
                current = rng.randint(max(1, serial - 10), serial) if rng.random() < 0.7 else rng.randint(1, serial)
                decision = "return"
            else:
                serial += 1
                current, decision = serial, "new"
        name = f"t{current}"
        near = any(mark - 600 < n <= mark for mark in marks)  # between the marks a few words, to get there in time
        user, reply = said(rng, current, n, 20 if near else 3), said(rng, current, n, 120 if near else 3)
        exchange = Exchange(
            "o", "c", n, f"x{n}", "completed", Message("user", user, n * 60.0), Message("assistant", reply, n * 60.0)
        )
        assigned = Assigned(n, name, decision)
        earlier = {old: (topics[old], Words.load(words[old])) for old in missing(book.state, assigned)}
        begin = process_time()
        done = record(book, assigned, exchange, now=float(n), reading=reading, earlier=earlier)
        times.append(process_time() - begin)
        for gone in book.words.keys() - done.book.words.keys():  # what a store would have by now
            words[gone] = book.words[gone].dump()
        book = done.book
        topics.update((topic.id, topic) for topic in done.topics)
        if n in marks:
            last = sorted(times[-500:])
            begin = process_time()
            values = dump(book)
            written = process_time() - begin
            begin = process_time()
            shown = directory(
                list(topics.values()), 1200, lambda text: -(-len(text) // 4), now=n * 60.0, scores={"t3": 1.0}
            )
            listed = process_time() - begin
            spans = sorted(len(topic.spans) for topic in topics.values())
            one = max(len(value) for name, value in values.items() if name.startswith("words:"))
            assert shown.tokens <= 1200
            print(
                f"{n:9,} {len(topics):7,} {1e3 * median(last):16.2f} {1e3 * quantiles(last, n=20)[-1]:5.2f} "
                f"{sum(map(len, values.values())) / 1e3:9.0f} {1e3 * written:8.1f} {1e3 * listed:13.1f} {shown.tokens:7} "
                f"{median(spans):7.0f} /{spans[-1]:4} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f}"
                f"   (words of a topic: {one / 1e3:.0f} kB)"
            )


if __name__ == "__main__":
    main()
