"""What somebody tries first: a plain change of subject is seen, the subject is found again, and follow-ups stay."""

from __future__ import annotations

from tests.core.segment_everyday import EVERYDAY, Told
from tests.core.segment_talk import HEADS

from topicality.core.segment import Segmenter
from topicality.embed import load
from topicality.types import Message


def decided(told: Told) -> tuple[list[int], list[int]]:
    """Topics at once and confirmed."""
    texts = [text for _, text in told]
    segmenter = Segmenter(HEADS)
    once, final = [], []
    for index, (text, vector) in enumerate(zip(texts, load("minilm").embed(texts), strict=True)):
        decision = segmenter.receive(Message("assistant" if index % 2 else "user", text), vector)
        once.append(decision.topic)
        final += [earlier.topic for earlier in decision.previous]
    final += [decision.topic for decision in segmenter.finish()]
    return once, final


def counted(moment: int) -> dict[str, float]:
    """Shares of new subjects seen, of subjects found again, and of other messages that stay."""
    right: dict[str, list[bool]] = {"new": [], "back": [], "stay": []}
    for told in EVERYDAY.values():
        gold, topics = [topic for topic, _ in told], decided(told)[moment]
        for index in range(1, len(told)):
            before = topics[:index]
            if gold[index] == gold[index - 1]:
                right["stay"].append(topics[index] == before[-1])
            elif gold[index] not in gold[:index]:
                right["new"].append(topics[index] not in before)
            else:
                own = [before[place] for place in range(index) if gold[place] == gold[index]]
                home = max(sorted(set(own)), key=own.count)
                right["back"].append(topics[index] == home != before[-1])
    return {kind: sum(found) / len(found) for kind, found in right.items()}


def test_every_message_is_confirmed_once() -> None:
    for told in EVERYDAY.values():
        once, final = decided(told)
        assert len(once) == len(final) == len(told)


def test_at_once() -> None:
    shares = counted(0)
    assert shares["new"] >= 0.75
    assert shares["back"] >= 0.6
    assert shares["stay"] >= 0.88


def test_confirmed() -> None:
    shares = counted(1)
    assert shares["new"] >= 0.9
    assert shares["back"] >= 0.5
    assert shares["stay"] >= 0.92
