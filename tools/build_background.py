# /// script
# requires-python = ">=3.11"
# dependencies = ["topicality"]
# ///
"""Build the background's derived files from `background.jsonl`: vectors for the bundled encoder and stem frequencies.

    python tools/build_background.py            # writes, next to background.jsonl, the .npz and the .stems.json

The corpus was written for this project. Run this again after a change to the corpus or to the encoder; then refit the
guard's weights with `tools/fit_guard.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from topicality.core.text import content_stems
from topicality.embed.background import quantise, read_corpus
from topicality.embed.minilm import MiniLmEmbedder

DATA = Path(__file__).parent.parent / "src" / "topicality" / "embed" / "data"


def main() -> None:
    corpus = read_corpus()
    embedder = MiniLmEmbedder(threads=1)
    arrays = {
        "names": quantise(embedder.embed(corpus.subjects)),
        "descriptions": quantise(embedder.embed(corpus.descriptions)),
        "utterances": quantise(embedder.embed(corpus.utterances)),
    }
    np.savez_compressed(DATA / "background.minilm.npz", space=np.array(str(embedder.space)), **arrays)
    counts: Counter[str] = Counter()
    for text in corpus.utterances:
        counts.update(set(content_stems(text)))
    stems = {"utterances": len(corpus.utterances), "stems": dict(sorted(counts.items()))}
    (DATA / "background.stems.json").write_text(json.dumps(stems, ensure_ascii=False, separators=(",", ":")), "utf-8")
    print(f"{len(corpus.subjects)} subjects, {len(corpus.utterances)} utterances, {len(counts)} stems")


if __name__ == "__main__":
    main()
