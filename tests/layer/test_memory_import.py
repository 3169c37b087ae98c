"""Memory: transcripts into a store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from topicality.layer.importing import BATCH, Taken, conversation_key, import_messages, pairs_of
from topicality.types import Message

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.layer.memory_talks import FLIGHT, PASTA, layer_on, sound


def messages(times: int, start: int = 0) -> list[Message]:
    out = []
    for number in range(start, start + times):
        question, answer = [*FLIGHT, *PASTA][number % 6]
        at = 1_600_000_000.0 + 600 * number
        out += [Message("user", f"{question} {number}", at), Message("assistant", f"{answer} {number}", at + 30)]
    return out


def test_importing_twice_changes_nothing_and_a_grown_transcript_goes_on() -> None:
    layer = layer_on("memory://")
    size = BATCH + 10
    assert import_messages(layer, "c", messages(size)) == Taken(new=size)
    before = list(layer.export())
    assert import_messages(layer, "c", messages(size)) == Taken(known=size)
    assert list(layer.export()) == before
    assert import_messages(layer, "c", messages(size + 5)) == Taken(new=5, known=size)
    sound(layer)


def test_an_import_gives_the_topics_that_holding_the_conversation_gives() -> None:
    one, two = layer_on("memory://"), layer_on("memory://")
    said = messages(40)
    import_messages(one, "c", said)
    chat = two.conversation("c")
    for question, answer in zip(said[::2], said[1::2], strict=True):
        chat.receive(question.text, at=question.at)
        chat.reply(answer.text, at=answer.at)
    here, there = one.conversation("c").topics(), chat.topics()
    assert [(t.spans, t.status, t.started_at, t.ended_at) for t in here] == [
        (t.spans, t.status, t.started_at, t.ended_at) for t in there
    ]
    assert [t.labels for t in here if t.status == "open"] == [t.labels for t in there if t.status == "open"]
    turn = one.conversation("c").receive("And the pasta?")
    assert turn.sequence == 41
    assert turn.notes == ()


def test_a_reply_that_came_later_is_added_and_another_text_is_left_alone() -> None:
    layer = layer_on("memory://")
    said = messages(2)
    assert import_messages(layer, "c", said[:3]) == Taken(new=2)
    assert import_messages(layer, "c", said) == Taken(known=1, answered=1)
    assert layer.conversation("c").exchanges()[1].reply is not None
    assert import_messages(layer, "c", [Message("user", "other"), *said[1:]]) == Taken(known=1, other=1)
    layer.conversation("c").delete(layer.conversation("c").exchanges()[0].id)
    assert import_messages(layer, "c", said) == Taken(known=1, other=1)
    sound(layer)


def test_messages_become_exchanges() -> None:
    said = [
        Message("system", "rules"),
        Message("assistant", "Welcome", 1.0),
        Message("user", "one", 2.0, id="u1", name="Ann"),
        Message("user", "two", 3.0, id="u2", name="Bob"),
        Message("assistant", "step", 4.0, calls=("c",)),
        Message("tool", "result", 5.0, call="c"),
        Message("assistant", "done", 6.0),
        Message("user", " ", 7.0),
        Message("user", "three", 8.0, id="u1"),
    ]
    pairs = pairs_of(said)
    assert [(p.user.text, p.reply.text) for p in pairs] == [
        ("", "Welcome"),
        ("one", ""),
        ("two", "step\n\ndone"),
        ("three", ""),
    ]
    assert [p.id for p in pairs] == ["message 2", "u1", "u2", "u1, message 9"]
    assert pairs[1].user.name == "Ann"
    assert pairs_of([]) == []


def test_ids_that_no_store_takes_are_cut_and_told_apart() -> None:
    long = [Message("user", "x", id="k" * 300 + end) for end in "ab"]
    keys = [pair.id for pair in pairs_of(long)]
    assert len(set(keys)) == 2
    assert all(len(key) <= 200 for key in keys)


@pytest.mark.parametrize(
    ("given", "ordinal", "key"), [("abc", 1, "abc"), ("1", 1, "chat"), ("2", 2, "chat-2"), ("7", 2, "7")]
)
def test_a_conversation_without_an_id_is_called_after_the_file(given: str, ordinal: int, key: str) -> None:
    assert conversation_key(given, ordinal, "chat") == key


def test_several_speakers_and_an_empty_transcript() -> None:
    layer = layer_on("memory://")
    assert import_messages(layer, "empty", []) == Taken()
    said = [
        Message("user", f"{text}", 60.0 * n, name=("Ann", "Bob")[n % 2])
        for n, (text, _) in enumerate([*FLIGHT, *PASTA])
    ]
    done: list[int] = []
    assert import_messages(layer, "c", said, progress=done.append).new == 6
    assert done[-1] == 6
    before = list(layer.export())
    assert import_messages(layer, "c", said) == Taken(known=6)
    assert list(layer.export()) == before
    sound(layer)
    assert layer.conversations()[0].id == "c"
