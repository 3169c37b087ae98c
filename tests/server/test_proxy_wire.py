"""Bodies, streams and headers as values: nothing is lost, nothing gets through, however they are cut."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.proxy_world import MALFORMED, chunks, finish, judging, said, user
from tests.server.upstream import DONE, event

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy import wire
from topicality.doors.server.proxy.guarding import Filter
from topicality.doors.server.proxy.identity import conversation_of, escaped, exchange_of, told
from topicality.doors.server.proxy.sse import LARGEST, LONGEST, Cutter, Heard
from topicality.layer.hosted import Sent, Taken
from topicality.types import Verdict

TEXT = st.text(max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "User", "x"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES | PLAIN, "content": TEXT | PLAIN}, optional={"name": PLAIN, "tool_calls": PLAIN}
    ),
    min_size=1,
    max_size=6,
)
BODIES = st.builds(
    lambda before, messages, after: {**before, "messages": messages, **after},
    st.dictionaries(TEXT.filter(lambda name: name != "messages"), PLAIN, max_size=3),
    MESSAGES,
    st.fixed_dictionaries(
        {}, optional={"stream": PLAIN, "n": PLAIN, "user": PLAIN, "model": PLAIN, "stream_options": PLAIN}
    ),
)


def read(*messages: Any, **body: Any) -> wire.ChatRequest:
    return wire.read_request(json.dumps({"messages": list(messages), **body}).encode())


@given(BODIES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_a_body_is_read_as_any_reader_would_and_stays_what_it_was(body: Any, indent: Any, ascii_only: bool) -> None:
    try:
        raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only escapes can write
        raw = json.dumps(body, indent=indent).encode()
    found = wire.read_request(raw)
    assert found.body == json.loads(raw)
    assert len(found.turns) == len(body["messages"])
    assert found.with_messages(None, "") == raw
    assert 1 <= found.choices <= wire.MOST_CHOICES
    assert isinstance(found.model, str)
    assert (found.start is None) == all(turn.message.role != "user" for turn in found.turns)
    wire.dump([wire.refusal(found, "no", "x", 1), wire.refusal_chunks(found, "no", "x", 1)])
    for turn in found.turns:
        turn.message.text.encode()
    conversation, _ = conversation_of(found, None)
    assert conversation.isprintable()
    assert 0 < len(conversation) <= 200
    if found.start is not None:
        assert exchange_of(found, conversation) == exchange_of(
            wire.read_request(json.dumps(body).encode()), conversation
        )


@given(BODIES, st.data())
def test_replaced_messages_change_nothing_else(body: Any, data: st.DataObject) -> None:
    found = wire.read_request(json.dumps(body, indent=1).encode())
    start = found.start or 0
    kept = sorted(data.draw(st.sets(st.integers(0, start - 1)))) if start else []
    evidence = data.draw(TEXT.filter(bool))
    changed = json.loads(found.with_messages(kept, evidence))
    given_ones = json.loads(json.dumps(body["messages"]))
    expected = [*(given_ones[n] for n in kept), user(evidence), *given_ones[start:]]
    assert changed == {**found.body, "messages": expected}
    assert list(changed) == list(found.body)


def test_what_is_kept_is_kept_to_the_byte() -> None:
    raw = b'{ "a":1.50, "messages" :[ {"content":"x" ,"role":"assistant"},{"role":"user","content":"\\u0041"}] , "b" : 1e2}'
    found = wire.read_request(raw)
    expected = raw.replace(b'[ {"content":"x" ,"role":"assistant"},', b'[{"role": "user", "content": "E"},')
    assert found.with_messages([], "E") == expected


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies_are_refused_without_their_text(body: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        wire.read_request(body)
    assert caught.value.status == 400
    assert not any(word in caught.value.detail for word in ("fine", "bad", "hello"))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(RefusedError):
        wire.read_request(raw)


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc"])))
def test_a_storable_text_is_one_and_a_good_text_stays(text: str) -> None:
    stored = wire.storable(text)
    stored.encode()
    assert "\0" not in stored
    try:
        good = "\0" not in text and bool(text.encode() or True)
    except UnicodeEncodeError:
        good = False
    if good:
        assert stored == text


def test_the_message_to_answer_is_all_that_the_user_said_last() -> None:
    system, said_before = {"role": "system", "content": "s"}, [user("a"), {"role": "assistant", "content": "b"}]
    assert (read(user("a")).start, read(user("a")).text) == (0, "a")
    found = read(system, *said_before, user("c"), system, user("d"))
    assert (found.start, found.text) == (3, "c\n\nd")
    found = read(
        *said_before, user("c"), {"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "t"}
    )
    assert (found.start, found.text) == (2, "c")
    assert read(system).start is None


def test_an_exchange_is_known_again_whatever_the_system_text_says_and_only_then() -> None:
    def key(*messages: Any) -> str:
        return exchange_of(read(*messages), "c")

    first = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    assert key(*first) == key({"role": "system", "content": "it is noon"}, *first)
    assert key(*first) == key(
        *first, {"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "t"}
    )
    others = [
        key(user("c")),
        key(user("a"), {"role": "assistant", "content": "B"}, user("c")),
        key(user("a"), {"role": "assistant", "content": "b", "tool_calls": [1]}, user("c")),
        key(*first[:2], user([{"type": "text", "text": "c"}])),
        exchange_of(read(*first), "d"),
    ]
    assert len({key(*first), *others}) == 6


def test_a_conversation_is_named_by_header_user_or_opening() -> None:
    opening = [{"role": "system", "content": "s"}, user("a")]
    found = read(*opening, user="u1")
    assert conversation_of(found, "named") == ("named", False)
    assert conversation_of(found, None) == ("u1", False)
    auto, shared = conversation_of(read(*opening), None)
    assert shared
    assert conversation_of(read(*opening, {"role": "assistant", "content": "x"}, user("b"), user=" "), None) == (
        auto,
        True,
    )
    assert conversation_of(read(user("a")), None)[0] != auto
    for odd in ("a\nb", "x" * 201):
        name, shared = conversation_of(read(*opening, user=odd), None)
        assert name.startswith("user-")
        assert not shared


@given(st.text())
def test_a_header_value_is_printable_ascii_whatever_it_says(value: str) -> None:
    shown = escaped(value)
    assert shown.isascii()
    assert not shown or shown.isprintable()
    assert "\r" not in shown
    assert "\n" not in shown


def test_headers_tell_what_was_found_and_leave_out_what_was_not() -> None:
    verdict = Verdict("block", "BLOCKED_TOPIC", "why", "a\r\nrule", probability=0.5)
    found = dict(told("c", Taken(verdict, exchange="x1", sent=Sent(tokens=3))))
    assert found[b"x-topicality-rule"] == b"a%0D%0Arule"
    assert found[b"x-topicality-probability"] == b"0.5000"
    assert found[b"x-topicality-recalled"] == b"3"
    assert b"x-topicality-topic" not in found
    assert dict(told("c", Taken()))[b"x-topicality-action"] == b"none"


@given(st.data())
def test_a_stream_is_cut_into_the_same_events_however_it_comes(data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = data.draw(
        st.lists(
            st.lists(
                st.sampled_from(["data: x", "data:", "data: é", ": comment", "event: e", "id: 1"]),
                min_size=1,
                max_size=3,
            ),
            max_size=5,
        )
    )
    raw = "".join("".join(line + end for line in one) + end for one in events).encode()
    cutter, found = Cutter(), []
    places = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    for first, last in zip([0, *places], [*places, len(raw)], strict=True):
        found += cutter.feed(raw[first:last])
    found += cutter.finish()
    assert b"".join(one.raw for one in found) == raw
    expected = []
    for one in events:
        lines = [line[5:].removeprefix(" ") for line in one if line.startswith("data:")]
        expected.append("\n".join(lines) if lines else None)
    assert [one.data for one in found] == expected


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    cutter = Cutter()
    cutter.feed(b"x" * (LARGEST - 1))
    with pytest.raises(ValueError, match="too long"):
        cutter.feed(b"xx")


def heard(*events: bytes) -> Heard:
    found, cutter = Heard(), Cutter()
    for one in cutter.feed(b"".join(events)):
        found.take(one)
    return found


def test_a_stream_is_whole_when_the_first_choice_ended() -> None:
    one, other = event({"content": "a"}), event({"content": "z"}, index=1)
    assert not heard(one, other, event({}, index=1, finish="stop")).whole
    done = heard(one, other, event({"content": "b"}), event({}, finish="length"))
    assert (done.whole, done.reply.text, done.reply.calls) == (True, "ab", False)
    assert heard(one, DONE).whole
    assert not heard(one, b'data: {"error": {"message": "x"}}\n\n', DONE).whole
    assert heard(event({"tool_calls": [{"index": 0}]}), DONE).reply.calls
    odd = [
        b"data: nope\n\n",
        b"data: [1]\n\n",
        b'data: {"choices": [1, {"delta": 3}, {"index": "x", "delta": {}}]}\n\n',
    ]
    assert heard(*odd, one, DONE).reply.text == "a"


def test_what_is_kept_of_a_reply_has_a_bound() -> None:
    found = heard(*[event({"content": "x" * 300_000})] * 5, event({}, finish="stop"))
    assert (len(found.reply.text), found.whole) == (LONGEST, True)
    assert sum(len(part) for part in found.reply.parts) < 2 * LONGEST


@given(st.integers(0, 80), st.integers(0, 1), st.randoms(use_true_random=False))
def test_nothing_of_a_blocked_window_leaves_a_stream_and_the_other_choice_goes_on(
    place: int, index: int, dice: Any
) -> None:
    guard = judging().guard
    assert guard is not None
    words = [f"word{n}" for n in range(90)]
    texts = {index: " ".join([*words[:place], "bad", *words[place:]]), 1 - index: " ".join(words)}
    events: list[bytes] = []
    left = {n: list(text) for n, text in texts.items()}
    while any(left.values()):
        n = dice.choice([n for n in left if left[n]])
        size = dice.randint(1, 40)
        piece, left[n] = "".join(left[n][:size]), left[n][size:]
        events.append(event({"content": piece}, index=n, finish=None if left[n] else "stop"))
    events += [event(None, usage={"total_tokens": 3}), DONE]
    follow, cutter, out = Heard(), Cutter(), b""
    work = Filter(guard, (), 12, follow, 2)
    for one in events:
        out += work.take(cutter.feed(one))
    out += work.finish()
    found = chunks(out.decode())
    assert said(found, 1 - index) == texts[1 - index]
    assert finish(found, 1 - index) == "stop"
    shown, no = said(found, index), "That is not for here."
    assert finish(found, index) == "content_filter"
    assert shown.endswith(no)
    assert texts[index].startswith(shown.removesuffix(no).removesuffix("\n\n"))
    assert "bad" not in shown.split()
    assert work.first_stopped == (index == 0)
    assert any(chunk.get("usage") for chunk in found)


def test_a_guarded_stream_keeps_roles_tools_and_unknown_fields_and_drops_what_spells_the_text() -> None:
    guard = judging().guard
    assert guard is not None
    events = [
        event({"role": "assistant", "content": ""}, x_new=1),
        event({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "bad"}}]}),
        b": ping\n\n",
        event({"content": "fine"}),
        b"data: unreadable bad\n\n",
        event({"content": " things"}, finish="tool_calls").replace(b'"delta"', b'"logprobs": {"content": [1]}, "delta"'),
        DONE,
    ]  # fmt: skip
    work, cutter = Filter(guard, (), 12, Heard(), 1), Cutter()
    out = work.take(cutter.feed(b"".join(events))) + work.finish()
    assert b": ping\n\n" in out
    found = chunks(out.decode().replace(": ping\n\n", ""))
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found[0]["x_new"] == 1
    assert [
        c["delta"]["tool_calls"][0]["function"]["arguments"]
        for x in found
        for c in x["choices"]
        if c["delta"].get("tool_calls")
    ] == ["bad"]
    assert said(found) == "fine things"
    assert b"unreadable" not in out
    assert b"logprobs" not in out
    assert finish(found) == "tool_calls"
