"""Talk of several people: names, threads, links; what kind of company it is."""

from __future__ import annotations

import numpy as np
import pytest

from topicality.core.segment import Heads, Segmenter, segment
from topicality.core.segment.company import Company, mentions
from topicality.core.segment.crowd import LINK, REACH, Crowd
from topicality.embed import load
from topicality.embed.segment import load_heads
from topicality.types import Message

_FOUND = load_heads(load("minilm"))
assert _FOUND is not None
HEADS: Heads = _FOUND

CHAT = [
    ("anna", "how do I mount an ntfs partition at boot?"),
    ("bert", "does anybody know a good irc client for gnome?"),
    ("cleo", "anna: add a line for the partition to /etc/fstab"),
    ("dora", "bert: try xchat, it is a fine irc client"),
    ("anna", "cleo: which options does the fstab line need for ntfs?"),
    ("bert", "dora: is xchat in the repository?"),
    ("cleo", "anna: umask=0222 lets all users read the partition"),
    ("dora", "bert: yes, xchat is in main"),
    ("anna", "cleo: that works, thanks"),
    ("bert", "dora: great, installing xchat now"),
]


def messages() -> list[Message]:
    return [Message("user", text, at=60.0 * place, name=name) for place, (name, text) in enumerate(CHAT)]


@pytest.mark.parametrize(
    ("text", "addressed", "named"),
    [
        ("anna: look here", "anna", ["anna"]),
        ("Anna, look here", "anna", ["anna"]),
        ("@bert what do you think", "bert", ["bert"]),
        ("I agree with bert on this", None, ["bert"]),
        ("bert and anna are right", "bert", ["bert", "anna"]),
        ("it is late", None, []),
        ("it: late", "it", ["it"]),
        ("zed: hello", None, []),
        ("", None, []),
    ],
)
def test_mentions(text: str, addressed: str | None, named: list[str]) -> None:
    assert mentions(text, {"anna", "bert", "it"}) == (addressed, named)


def test_interleaved_threads_are_told_apart() -> None:
    vectors = load("minilm").embed([text for _, text in CHAT])
    found = segment(messages(), vectors, HEADS)
    assert found.method == "crowd"
    assert found.topics == tuple(place % 2 for place in range(10))
    links = [decision.link for decision in found.decisions]
    assert links[0] is None
    assert links[1] is None
    assert links[2] == 0
    assert links[3] == 1
    assert all(link is not None and link < place for place, link in enumerate(links) if place > 1)


def test_online_a_crowd_is_found_out_and_topics_keep_their_numbers() -> None:
    vectors = load("minilm").embed([text for _, text in CHAT])
    segmenter = Segmenter(HEADS)
    decisions = [
        segmenter.receive(message, vector) for message, vector in zip(messages() * 3, [*vectors] * 3, strict=True)
    ]
    assert segmenter.method == "crowd"
    assert all(decision.confirmed for decision in decisions[-20:])
    assert {decision.topic for decision in decisions[10:] if decision.index % 2} != {
        decision.topic for decision in decisions[10:] if decision.index % 2 == 0
    }


def test_notices_of_a_crowd_are_threads_of_their_own() -> None:
    vectors = load("minilm").embed([text for _, text in CHAT])
    told = [*messages(), Message("system", "zed has joined"), Message("user", "anna: hello again", name="cleo")]
    rows = np.concatenate([vectors, np.zeros((1, 384), np.float32), vectors[:1]])
    found = segment(told, rows, HEADS, talk="crowd")
    assert found.topics[10] not in found.topics[:10]
    assert found.topics[11] in found.topics[:10]


def test_what_a_crowd_remembers_is_bounded() -> None:
    rng = np.random.default_rng(0)
    crowd = Crowd()
    for place in range(500):
        vector = rng.normal(size=8).astype(np.float32)
        said = crowd.read(place, f"hello number{place}", f"nick{place % 300}", vector, None)
        crowd.record(said, place if place % 3 else max(0, place - 2))
    assert len(crowd.items) == REACH
    assert len(crowd.threads) <= REACH
    for key, thread in crowd.threads.items():
        assert thread.latest == max(item.index for item in crowd.items if item.thread == key)
    following = crowd.read(500, "hello", "nick7", said.vector, None)
    assert crowd.features(following).shape == (REACH + 1, len(LINK))


def kind_after(*messages: Message) -> str:
    company = Company()
    for message in messages:
        company.hear(message)
    return company.kind


def test_company() -> None:
    anna, bert, cleo = (Message("user", "hi", name=name) for name in ("anna", "bert", "cleo"))
    named = Message("user", "anna: hi", name="cleo")
    assert kind_after() == "pair"
    assert kind_after(*[anna] * 19) == "unknown"
    assert kind_after(*[anna] * 19, bert) == "pair"
    assert kind_after(anna, bert, cleo) == "meeting"
    assert kind_after(anna, bert, cleo, named) == "meeting"
    assert kind_after(anna, bert, cleo, named, named) == "crowd"
    assert kind_after(*[anna, bert, cleo] * 20, named, named) == "meeting"
    assert kind_after(*[Message("user", "assistant: hi"), Message("assistant", "hi")] * 30) == "pair"
    assert kind_after(*(Message(name, "hi") for name in ("Chair", "Ms. Roy", "Mr. Lund"))) == "meeting"
