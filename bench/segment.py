"""Time and memory of segmentation, without the encoder: python bench/segment.py [--json]

Online: one decision in a conversation with 200 live topics. Offline: 10,000 messages at once. Texts are made up; vectors
are random around a few hundred directions, so that all branches are taken. Times are also given relative to a fixed piece
of work (hashing 4 MiB), which tells a slow machine from a slow program.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import time

import numpy as np

from topicality.core.segment import Segmenter, segment
from topicality.core.segment.features import Trail
from topicality.embed import load
from topicality.embed.segment import load_heads
from topicality.types import Message

OPENINGS = ("I also need", "How do I get", "What about", "Please tell me about", "We talked about", "Thanks, it was")
NOUNS = (
    "train ticket", "red bicycle", "garden fence", "tax form", "rent contract", "pasta sauce", "phone battery",
    "passport photo", "piano lesson", "coffee machine", "winter coat", "summer job", "dog food", "mail server",
)  # fmt: skip


def talk(count: int, dimension: int, topics: int = 300) -> tuple[list[Message], np.ndarray]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(topics, dimension)).astype(np.float32)
    messages, rows, topic = [], np.empty((count, dimension), np.float32), 0
    for place in range(count):
        if rng.random() < 0.15:
            topic = int(rng.integers(topics))
        noun = NOUNS[topic % len(NOUNS)]
        words = " ".join(f"word{int(w)}" for w in rng.integers(0, 3000, int(rng.integers(1, 12))))
        opening = OPENINGS[int(rng.integers(len(OPENINGS)))]
        messages.append(Message(("user", "assistant")[place % 2], f"{opening} the {noun} number {topic}, {words}?"))
        rows[place] = centres[topic] + rng.normal(scale=1.2, size=dimension)
    return messages, rows / np.linalg.norm(rows, axis=1, keepdims=True)


def yardstick() -> float:
    """Seconds of the fixed piece of work, the best of five."""
    block = bytes(4 << 20)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        hashlib.sha256(block).digest()
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    heads = load_heads(load("minilm"))
    assert heads is not None
    messages, vectors = talk(10_000, heads.space.dimension)
    unit = yardstick()

    segmenter = Segmenter(heads)
    for message, vector in zip(messages[:50], vectors, strict=False):
        segmenter.receive(message, vector)
    segmenter.finish()
    pair = segmenter._pair  # noqa: SLF001 - filling 200 topics by talking would take most of the time
    assert pair is not None
    place, filler = 100, Trail(heads)
    while len(pair.topics) < 200:  # fill the places with eight messages each
        for number in range(8):
            row = filler.read(messages[place].text, messages[place].role, vectors[place])
            pair.topics.place(None if number == 0 else pair.topics.current, row.said, 50)
            place += 1
    spent = []
    for message, vector in zip(messages[2000:4000], vectors[2000:4000], strict=True):
        started = time.perf_counter()
        segmenter.receive(message, vector)
        spent.append(time.perf_counter() - started)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    offline = []
    for _ in range(3):
        started = time.process_time()
        found = segment(messages, vectors, heads)
        offline.append(time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    result = {
        "online_ms_p50": round(float(np.median(spent)) * 1000, 3),
        "online_ms_p95": round(float(np.quantile(spent, 0.95)) * 1000, 3),
        "online_p50_in_yardsticks": round(float(np.median(spent)) / unit, 4),
        "live_topics": len(pair.topics),
        "offline_10000_cpu_s": round(min(offline), 2),
        "offline_in_yardsticks": round(min(offline) / unit, 1),
        "offline_memory_mb": round(grown),
        "offline_segments": len(found.segments),
        "snapshot_kb": round(len(segmenter.snapshot()) / 1000),
        "yardstick_ms": round(unit * 1000, 2),
    }
    print(json.dumps(result) if options.json else "\n".join(f"{name:26} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
