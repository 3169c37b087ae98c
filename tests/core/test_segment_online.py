"""Online segmentation: parity with what the ancestors' faults ask for, bounds, errors, snapshots."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.segment_talk import BACK, FLIGHT, HEADS, PASTA, SPACE, embed, talk

from topicality.core.segment import Decision, Segmenter
from topicality.core.segment.state import VERSION, pack, unpack
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import Message, Space
from topicality.vectors import Array


def run(segmenter: Segmenter, messages: list[Message], vectors: Array) -> tuple[list[Decision], list[Decision]]:
    """Decisions at once, and the final ones, in order."""
    once: list[Decision] = []
    final: list[Decision] = []
    for message, vector in zip(messages, vectors, strict=True):
        decision = segmenter.receive(message, vector)
        once.append(decision)
        final += decision.previous
        if decision.confirmed:
            final.append(decision)
    return once, sorted([*final, *segmenter.finish()], key=lambda each: each.index)


def test_a_b_a_returns_to_the_topic_of_a() -> None:
    messages, vectors = embed(FLIGHT + PASTA + BACK)
    _, final = run(Segmenter(HEADS), messages, vectors)
    topics = [decision.topic for decision in final]
    assert topics == [0] * 4 + [1] * 4 + [0] * 2
    assert [decision.kind for decision in final][4] == "new"
    assert [decision.kind for decision in final][8] == "return"
    assert final[8].boundary
    assert final[8].runners_up[0].topic == 0


@pytest.mark.parametrize("text", ["ok", "Yes, thanks!", "sure", "Great", "no", "Okay cool", "thank you"])
def test_an_acknowledgement_inherits(text: str) -> None:
    messages, vectors = embed([*FLIGHT, ("user", text)])
    vectors[-1] = -vectors[0]  # as unlike everything before as can be
    once, final = run(Segmenter(HEADS), messages, vectors)
    for decision in (once[-1], final[-1]):
        assert decision.kind == "continue"
        assert decision.topic == 0
        assert not decision.boundary


def test_a_tool_exchange_stays_with_its_call_also_when_the_call_is_revised_or_the_result_is_late() -> None:
    messages, vectors = embed(FLIGHT + PASTA)
    segmenter = Segmenter(HEADS)
    run(segmenter, messages, vectors)
    call = segmenter.receive(Message("assistant", "timer(minutes=9)", calls=("t1",)))
    answer = segmenter.receive(Message("tool", "set", call="t1"))
    assert call.topic == answer.topic == 1
    assert call.kind == answer.kind == "continue"
    assert not call.boundary
    assert not answer.boundary
    more, rows = embed(BACK)
    for message, row in zip(more, rows, strict=True):
        segmenter.receive(message, row)
    late = segmenter.receive(Message("tool", "rang", call="t1"))
    assert late.topic == 1
    assert segmenter.receive(Message("tool", "?", call="unknown")).topic == 0


def test_tool_messages_between_a_message_and_its_confirmation_go_where_it_goes() -> None:
    for seed in range(200):
        messages, vectors = talk(seed, 40)
        segmenter = Segmenter(HEADS)
        for message, vector in zip(messages, vectors, strict=True):
            decision = segmenter.receive(message, vector)
            if decision.previous and decision.previous[0].revised and len(decision.previous) > 1:
                topics = {each.topic for each in decision.previous}
                if decision.previous[0].kind == "continue" or len(topics) == 1:
                    return
    pytest.fail("no revision with a tool message behind it in 200 conversations")


def test_what_is_confirmed_was_told_once_before_and_is_never_told_again() -> None:
    for seed in range(20):
        messages, vectors = talk(seed, 60)
        segmenter = Segmenter(HEADS)
        told: dict[int, Decision] = {}
        confirmed: dict[int, Decision] = {}
        for message, vector in zip(messages, vectors, strict=True):
            decision = segmenter.receive(message, vector)
            told[decision.index] = decision
            for final in (*decision.previous, *([decision] if decision.confirmed else [])):
                assert final.index not in confirmed
                assert final.confirmed
                before = told[final.index]
                same = (final.kind, final.topic, final.boundary) == (before.kind, before.topic, before.boundary)
                assert final.revised == (not same)
                confirmed[final.index] = final
        for final in segmenter.finish():
            assert final.index not in confirmed
            confirmed[final.index] = final
        assert sorted(confirmed) == list(range(len(messages)))
        assert segmenter.finish() == ()


def test_a_withdrawn_number_is_not_used_again() -> None:
    for seed in range(40):
        messages, vectors = talk(seed, 60)
        once, final = run(Segmenter(HEADS), messages, vectors)
        withdrawn = {a.topic for a, b in zip(once, final, strict=True) if a.kind == "new" and b.topic != a.topic}
        assert not withdrawn & {decision.topic for decision in final}


def test_new_and_return_start_a_segment_and_name_topics_that_exist() -> None:
    for seed in range(20):
        messages, vectors = talk(seed, 60)
        _, final = run(Segmenter(HEADS), messages, vectors)
        known: set[int] = set()
        for decision in final:
            assert decision.boundary or decision.kind == "continue" or decision.topic == 0
            assert (decision.topic in known) == (decision.kind != "new") or decision.topic == 0
            known.add(decision.topic)
            assert 0.0 <= decision.score <= 1.0


def test_live_topics_are_bounded_and_a_forgotten_one_comes_back_when_its_successor_is_withdrawn() -> None:
    rng = np.random.default_rng(3)
    segmenter = Segmenter(HEADS, limit=4, granularity="fine")
    kinds = set()
    pair = segmenter._pair
    assert pair is not None
    restored = 0
    for place in range(400):
        vector = rng.normal(size=SPACE.dimension).astype(np.float32)
        vector /= np.linalg.norm(vector)
        held = sorted(pair.topics.number.tolist())
        before = pair.pending
        text = f"I also need help with another thing: subject{place} and matter{place}"
        decision = segmenter.receive(Message(("user", "assistant")[place % 2], text), vector)
        kinds.add(decision.kind)
        assert len(pair.topics) <= 4
        if place % 50 == 49:
            again = Segmenter.restore(HEADS, segmenter.snapshot())._pair
            assert again is not None
            assert again.topics.next_number == pair.topics.next_number > 4
        if before is not None and before.placed.evicted is not None and decision.previous[0].revised:
            restored += before.placed.evicted.number in pair.topics.number.tolist() or len(held) > 0
    assert "new" in kinds
    words = {slot for at in pair.topics.words.values() for slot in at}
    assert words <= set(range(4))


def test_undo_of_an_eviction_restores_everything() -> None:
    from topicality.core.segment.cues import read_cues
    from topicality.core.segment.features import Said
    from topicality.core.segment.topics import Topics

    def said(row: np.ndarray, text: str) -> Said:
        return Said(row, row[:4], *read_cues(text), (0.0, 0.0))

    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 16)).astype(np.float32)
    topics = Topics(16, 3)
    texts = ["the red boat", "a green tree", "some blue sky", "the boat again", "tree house", "stormy sky"]
    for place, text in enumerate(texts):
        topics.place(None if place < 3 else place % 3, said(rows[place], text), place)

    def state() -> tuple[object, ...]:
        arrays = (topics.prototypes, topics.total, topics.norm, topics.filled, topics.size, topics.said, topics.last,
                  topics.number)  # fmt: skip
        words = {word: dict(at) for word, at in topics.words.items()}
        return (*(array.tobytes() for array in arrays), words, [dict(own) for own in topics.own], topics.current,
                topics.top, topics.next_number, list(topics.tail))  # fmt: skip

    before = state()
    for slot in (None, 0, 1):
        placed = topics.place(slot, said(rows[7], "an unheard of violin, a boat"), 6)
        assert (placed.evicted is not None) == (slot is None)
        assert state() != before
        topics.undo(placed)
        assert state() == before


@pytest.mark.parametrize(
    ("message", "vector", "space", "error"),
    [
        (Message("user", "hello there", id="9"), np.ones(3, np.float32), None, SpaceMismatchError),
        (Message("user", "hello there", id="9"), np.ones(384, np.float32), Space("other", 384), SpaceMismatchError),
        (Message("user", "hello there", id="9"), np.full(384, np.nan, np.float32), None, InputError),
        (Message("user", "hello there", id="9"), np.full(384, np.inf, np.float32), None, InputError),
        (Message("user", "hello there", id="9"), np.zeros(384, np.float32), None, InputError),
        (Message("user", "hello there", id="9"), np.ones((2, 384), np.float32), None, InputError),
        (Message("user", "hello there", id="9"), None, None, InputError),
        (Message("user", "hello there", id="9"), ["x"], None, InputError),
        (Message("user", "hello there", id="5"), np.ones(384, np.float32), None, InputError),  # was there
        (Message("user", "hello there", id="4"), np.ones(384, np.float32), None, InputError),  # comes too late
        (Message("tool", "late", id="5"), None, None, InputError),
        (Message("user", 5, id="9"), np.ones(384, np.float32), None, InputError),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_a_message_that_is_refused_changes_nothing(
    message: Message, vector: Array | None, space: Space | None, error: type[Exception]
) -> None:
    messages, vectors = talk(1, 6)
    segmenter = Segmenter(HEADS)
    for known, row in zip(messages, vectors, strict=True):
        segmenter.receive(known, row)
    before = segmenter.snapshot()
    with pytest.raises(error):
        segmenter.receive(message, vector, space=space)
    assert segmenter.snapshot() == before


@pytest.mark.parametrize(
    "settings_",
    [
        {"granularity": "huge"},
        {"expected_rate": 0.0},
        {"expected_rate": 1.0},
        {"expected_rate": float("nan")},
        {"limit": 1},
        {"talk": "party"},
    ],
)
def test_settings_out_of_range_are_refused(settings_: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Segmenter(HEADS, **settings_)  # type: ignore[arg-type]  # on purpose


def test_heads_of_another_space_are_refused() -> None:
    with pytest.raises(SpaceMismatchError):
        Segmenter(HEADS, space=Space("minilm", 384, "another"))
    with pytest.raises(ConfigError):
        Segmenter(None)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), cuts=st.sets(st.integers(0, 39), max_size=4), crowded=st.booleans())
def test_resuming_from_a_snapshot_gives_the_same_decisions(seed: int, cuts: set[int], crowded: bool) -> None:
    messages, vectors = talk(seed, 40)
    if crowded:
        names = ("anna", "bert", "cleo")
        messages = [
            Message("user", f"{names[(k + 1) % 3]}: {m.text} you", id=m.id, name=names[k % 3])
            for k, m in enumerate(messages)
        ]
    settings_ = {"limit": 3, "granularity": ("coarse", "balanced", "fine")[seed % 3]}
    straight = Segmenter(HEADS, **settings_)  # type: ignore[arg-type]  # plain values
    broken = Segmenter(HEADS, **settings_)  # type: ignore[arg-type]  # plain values
    for place, (message, vector) in enumerate(zip(messages, vectors, strict=True)):
        if place in cuts:
            broken = Segmenter.restore(HEADS, broken.snapshot())
        assert straight.receive(message, vector) == broken.receive(message, vector)
    assert straight.snapshot() == broken.snapshot()
    assert straight.finish() == broken.finish()


@pytest.mark.slow
def test_resuming_in_a_new_process_gives_the_same_decisions() -> None:
    """String hashes, and with them the order of sets, differ from process to process."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1])\n"
        "from tests.core.segment_talk import HEADS, talk\n"
        "from topicality.core.segment import Segmenter\n"
        "messages, vectors = talk(7, 60)\n"
        "segmenter = Segmenter.restore(HEADS, sys.stdin.buffer.read())\n"
        "pairs = list(zip(messages, vectors))[30:]\n"
        "print(json.dumps([segmenter.receive(m, v).to_dict() for m, v in pairs]))\n"
    )
    import json
    from pathlib import Path

    messages, vectors = talk(7, 60)
    segmenter = Segmenter(HEADS, granularity="fine")
    pairs = list(zip(messages, vectors, strict=True))
    for message, vector in pairs[:30]:
        segmenter.receive(message, vector)
    answer = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[2])],
        input=segmenter.snapshot(),
        capture_output=True,
        check=True,
    )
    here = [segmenter.receive(message, vector).to_dict() for message, vector in pairs[30:]]
    assert json.loads(answer.stdout) == json.loads(json.dumps(here))


def test_a_snapshot_is_not_pickle_and_damage_is_told() -> None:
    messages, vectors = talk(5, 12)
    segmenter = Segmenter(HEADS)
    for message, vector in zip(messages, vectors, strict=True):
        segmenter.receive(message, vector)
    data = segmenter.snapshot()
    assert data[:4] == b"TSEG"
    for damaged in (
        b"",
        b"\x80\x04.",
        data[:-3],
        data[:40],
        data + b"x",
        b"TSEG\xff\xff" + data[6:],
        data[:30] + b"!" + data[31:],
    ):
        with pytest.raises(InputError):
            Segmenter.restore(HEADS, damaged)
    for version in (1, VERSION + 1):  # the first read vectors only
        with pytest.raises(InputError, match=f"version {version}, this release reads {VERSION}"):
            Segmenter.restore(HEADS, data[:4] + version.to_bytes(2, "little") + data[6:])
    with pytest.raises((InputError, SpaceMismatchError)):
        Segmenter.restore(None, data)


def test_a_snapshot_whose_topics_lack_their_last_messages_is_damaged() -> None:
    messages, vectors = talk(5, 12)
    segmenter = Segmenter(HEADS)
    for message, vector in zip(messages, vectors, strict=True):
        segmenter.receive(message, vector)
    values, arrays = unpack(segmenter.snapshot())
    fewer = {**arrays, "tails": arrays["tails"][:-1]}
    with pytest.raises(InputError, match="damaged"):
        Segmenter.restore(HEADS, pack(values, fewer))
    values["inner"]["tails"].pop()
    with pytest.raises(InputError, match="damaged"):
        Segmenter.restore(HEADS, pack(values, arrays))


def test_the_state_does_not_grow_with_the_conversation() -> None:
    messages, vectors = talk(2, 100)
    segmenter = Segmenter(HEADS, limit=5)
    sizes = []
    for turn in range(12):
        for message, vector in zip(messages, vectors, strict=True):
            segmenter.receive(Message(message.role, message.text), vector)
        if turn >= 6:
            sizes.append(len(segmenter.snapshot()))
    assert max(sizes) < 1.1 * min(sizes)


def cut_rate(granularity: str, rate: float | None, seeds: Callable[[], range] = lambda: range(6)) -> float:
    cuts, total = 0, 0
    for seed in seeds():
        messages, vectors = talk(seed, 200)
        _, final = run(Segmenter(HEADS, granularity=granularity, expected_rate=rate), messages, vectors)
        cuts += sum(decision.boundary for decision in final)
        total += len(final)
    return cuts / total


def test_the_granularity_knob_is_monotone() -> None:
    rates = [cut_rate(granularity, None) for granularity in ("coarse", "balanced", "fine")]
    assert rates[0] < rates[1] < rates[2]


def test_the_expected_rate_is_a_monotone_quantile_knob() -> None:
    rates = [cut_rate("balanced", rate) for rate in (0.05, 0.15, 0.3)]
    assert rates[0] < rates[1] < rates[2]
    assert rates[0] < 0.12


def test_the_first_message_opens_topic_zero_and_is_no_boundary() -> None:
    messages, vectors = embed(FLIGHT)
    decision = Segmenter(HEADS).receive(messages[0], vectors[0])
    assert (decision.kind, decision.topic, decision.boundary, decision.confirmed) == ("new", 0, False, False)


def test_messages_before_anything_is_said_belong_to_the_first_topic() -> None:
    segmenter = Segmenter(HEADS)
    early = segmenter.receive(Message("system", "You are a helpful assistant."))
    blank = segmenter.receive(Message("user", "   "))
    messages, vectors = embed(FLIGHT)
    assert early.topic == blank.topic == segmenter.receive(messages[0], vectors[0]).topic == 0
    assert early.confirmed


def test_without_heads_the_fallback_says_so_and_resumes() -> None:
    space = Space("elsewhere", 384)
    messages, vectors = embed((FLIGHT + PASTA) * 3)
    segmenter = Segmenter(None, space=space)
    assert segmenter.fallback is not None
    assert "elsewhere" in segmenter.fallback
    assert segmenter.method == "cosine"
    for message, vector in zip(messages, vectors, strict=True):
        resumed = Segmenter.restore(None, segmenter.snapshot())
        decision = segmenter.receive(message, vector)
        assert decision == resumed.receive(message, vector)
        assert decision.confirmed
    assert decision.topic > 0


def test_a_foreign_language_falls_back_with_the_reason_given() -> None:
    segmenter = Segmenter(HEADS, fallback="the encoder does not cover de")
    assert segmenter.method == "cosine"
    assert segmenter.fallback == "the encoder does not cover de"
