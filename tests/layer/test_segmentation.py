"""Segmentation with an encoder: embeds once, falls back, resumes; and its measuring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from topicality.config import Policy
from topicality.embed import CachedEmbedder, load
from topicality.embed.segment import load_heads
from topicality.errors import ConfigError, EmbedError, InputError, SpaceMismatchError
from topicality.layer.evaluate_segment import evaluate_dialogues, mean_of_segmentations, read_dialogues
from topicality.layer.segmentation import TopicSegmenter, labels_of
from topicality.layer.watching import Watcher
from topicality.types import Message, Space
from topicality.vectors import Array

TALK = [
    Message("user", "Hi, I need to cancel my flight to Lisbon next Friday."),
    Message("assistant", "I can cancel the flight to Lisbon. Do you have your booking code?"),
    Message("user", "Yes, the booking code of the flight is QX81."),
    Message("assistant", "cancel(QX81)", calls=("c1",)),
    Message("tool", "done", call="c1"),
    Message("assistant", "Your flight to Lisbon is cancelled and the refund takes five days."),
    Message("user", "Another thing: how long should I boil pasta so that the spaghetti stays firm?"),
    Message("assistant", "Boil spaghetti for about nine minutes in salted water, then taste the pasta."),
    Message("user", "ok"),
    Message("user", "Back to my cancelled flight to Lisbon: when does the refund for booking QX81 arrive?"),
    Message("assistant", "The refund for your cancelled Lisbon flight arrives within five days."),
]


class Counting:
    """The bundled encoder, counting."""

    def __init__(self) -> None:
        self.inner = load("minilm")
        self.space: Space = self.inner.space
        self.languages = self.inner.languages
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Array:
        self.texts += texts
        return self.inner.embed(texts)

    def windows(self, text: str) -> list[tuple[int, int]]:
        return self.inner.windows(text)


def test_every_message_that_says_something_is_embedded_once() -> None:
    encoder = Counting()
    done: list[int] = []
    found = TopicSegmenter(encoder).segment(TALK, progress=done.append)
    assert sorted(encoder.texts) == sorted(m.text for m in TALK if not m.calls and m.role != "tool")
    assert done[-1] == len(TALK)
    assert found.topics == (0,) * 6 + (1,) * 3 + (0,) * 2


def test_given_vectors_are_used() -> None:
    encoder = Counting()
    vectors = load("minilm").embed([message.text for message in TALK])
    assert TopicSegmenter(encoder).segment(TALK, vectors) == TopicSegmenter().segment(TALK)
    assert encoder.texts == []


def test_live_decisions_are_the_same_in_any_split_and_after_a_resume() -> None:
    cutter = TopicSegmenter()
    straight, broken = cutter.live(), cutter.live()
    for message in TALK:
        broken = cutter.resume(broken.snapshot())
        assert straight.receive(message) == broken.receive(message)
    assert straight.finish() == broken.finish()
    assert straight.fallback is None


def test_a_language_that_the_encoder_does_not_know_falls_back_and_says_so() -> None:
    german = [
        "Ich möchte meinen Flug nach Lissabon stornieren, weil ich krank bin.",
        "Das ist kein Problem, aber ich brauche noch die Nummer der Buchung.",
        "Und wie lange muss ich die Nudeln kochen, damit sie noch fest sind?",
        "Die Nudeln sind nach neun Minuten fertig, wenn das Wasser kocht.",
    ]
    messages = [Message("user", text) for text in german * 3]
    found = TopicSegmenter().segment(messages)
    assert found.method == "cosine"
    assert found.fallback is not None
    assert "de" in found.fallback
    live = TopicSegmenter().live()
    live.receive(messages[0])
    assert live.fallback is not None


def test_another_encoder_works_without_heads() -> None:
    def encode(texts: list[str]) -> Array:
        return np.array([[len(text), text.count("a") + 1, text.count("e") + 1] for text in texts], np.float32)

    found = TopicSegmenter(encode).segment(TALK)
    assert found.method == "cosine"
    assert len(found.topics) == len(TALK)


def test_a_snapshot_of_another_encoder_is_refused() -> None:
    def encode(texts: list[str]) -> Array:
        return np.ones((len(texts), 3), np.float32)

    other = TopicSegmenter(encode).live()
    other.receive(TALK[0])
    with pytest.raises((SpaceMismatchError, InputError)):
        TopicSegmenter().resume(other.snapshot())


def test_a_failing_encoder_changes_nothing() -> None:
    encoder = Counting()
    live = TopicSegmenter(encoder).live()
    live.receive(TALK[0])
    before = live.snapshot()

    def fail(texts: Sequence[str]) -> Array:
        raise EmbedError("no")

    encoder.embed = fail  # type: ignore[method-assign]  # on purpose
    with pytest.raises(EmbedError):
        live.receive(TALK[1])
    assert live.snapshot() == before


def test_settings_and_input_are_checked() -> None:
    with pytest.raises(ConfigError):
        TopicSegmenter(granularity="x")
    with pytest.raises(InputError):
        TopicSegmenter().segment(["text"])  # type: ignore[list-item]  # on purpose


def test_labels_say_what_a_topic_is_about() -> None:
    found = TopicSegmenter().segment(TALK)
    labels = labels_of(found, TALK)
    assert "flight" in " ".join(labels[0]).lower()
    assert "pasta" in " ".join(labels[1]).lower() or "spaghetti" in " ".join(labels[1]).lower()


def test_a_watcher_tells_verdict_drift_and_topic_from_one_embedding() -> None:
    encoder = Counting()
    watcher = Watcher(Policy(allowed=["flights and bookings"]), CachedEmbedder(encoder))
    turns = [watcher.receive(message) for message in TALK]
    assert turns[0].verdict is not None
    assert turns[0].drift is not None
    assert turns[3].verdict is None
    assert encoder.texts.count(TALK[6].text) == 1
    assert json.loads(json.dumps(turns[-1].to_dict()))["decision"]["index"] == 10
    assert watcher.finish()
    assert Watcher(None).receive(TALK[0]).verdict is None


KEYS = ["dialogues", "mode", "pk", "window_diff", "f1", "score", "boundary_rate", "return_precision", "return_recall",
        "topic_one_to_one", "topic_b3_f1", "link_f", "ms_per_message"]  # fmt: skip


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("mode", ["online", "confirmed", "offline"])
def test_figures_have_the_promised_keys(tmp_path: Path, mode: str) -> None:
    spoken = [message for message in TALK if not message.calls and message.role != "tool"]
    turns = [{"role": message.role, "text": message.text} for message in spoken]
    row = {"id": "a", "turns": turns, "boundaries": [0, 0, 0, 0, 1, 0, 0, 1, 0], "topic": [0, 0, 0, 0, 1, 1, 1, 0, 0]}
    dialogues = read_dialogues(write(tmp_path / "a.jsonl", row, row))
    report = evaluate_dialogues(dialogues, load("minilm").embed, load_heads(load("minilm")), mode=mode)  # type: ignore[arg-type]  # one of three
    assert list(report) == KEYS
    assert report["dialogues"] == 2
    assert report["mode"] == mode
    assert report["boundary_rate"]["gold"] == pytest.approx(2 / 9, abs=1e-3)
    assert report["topic_one_to_one"] == 1.0 or mode == "online"
    assert report["link_f"] is None
    mean = mean_of_segmentations([report, report])
    assert mean["score"] == report["score"]
    assert mean["boundary_rate"] == report["boundary_rate"]


def test_only_scored_turns_of_a_crowd_count(tmp_path: Path) -> None:
    turns = [
        {"role": "anna", "text": "how do I mount an ntfs partition?", "t": 1},
        {"role": "bert", "text": "any good irc client?", "t": 1},
        {"role": "cleo", "text": "anna: add it to fstab", "t": 2},
        {"role": "", "text": "=== dora has joined", "t": None},
        {"role": "dora", "text": "bert: try xchat", "t": 3},
        {"role": "anna", "text": "cleo: thanks, fstab it is", "t": 3},
    ]
    links = [[0, 0], [1, 1], [0, 2], [3, 3], [1, 4], [2, 5]]
    row = {"turns": turns, "topic": [9, 8, 0, 3, 1, 0], "links": links, "scored": [2, 6]}
    (dialogue,) = read_dialogues(write(tmp_path / "irc.jsonl", row))
    assert dialogue.messages[0].name == "anna"
    assert dialogue.messages[3].role == "system"
    report = evaluate_dialogues([dialogue], load("minilm").embed, load_heads(load("minilm")), mode="offline")
    assert report["topic_one_to_one"] == 1.0
    assert report["link_f"] == 1.0


@pytest.mark.parametrize(
    "row",
    [
        [],
        {"turns": 3},
        {"turns": [{"role": "user"}]},
        {"turns": [{"role": 1, "text": "x"}]},
        {"turns": [{"role": "user", "text": "x"}], "boundaries": [0, 1]},
        {"turns": [{"role": "user", "text": "x"}], "links": [[0]]},
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: object) -> None:
    with pytest.raises(InputError, match="line 1"):
        read_dialogues(write(tmp_path / "bad.jsonl", row))


def test_measuring_needs_data_and_a_known_mode(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        evaluate_dialogues([], load("minilm").embed, None)
    with pytest.raises(InputError):
        read_dialogues(tmp_path / "missing.jsonl")
    dialogues = read_dialogues(write(tmp_path / "a.jsonl", {"turns": [{"role": "user", "text": "x"}]}))
    with pytest.raises(ConfigError):
        evaluate_dialogues(dialogues, load("minilm").embed, None, mode="later")  # type: ignore[arg-type]  # on purpose
