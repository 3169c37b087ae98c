"""What holds for any transcript: only typed errors, what is written is read back, memory stays bounded."""

from __future__ import annotations

import contextlib
import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topicality.doors.transcripts import Conversation, detect, read, write_jsonl
from topicality.errors import InputError
from topicality.types import Message

SAMPLES = Path(__file__).parent.parent / "transcripts"
FILES = sorted(path for path in SAMPLES.iterdir() if path.is_file())


def _slack() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((SAMPLES / "slack").rglob("*.json")):
            archive.write(path, str(path.relative_to(SAMPLES / "slack")))
    return buffer.getvalue()


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1).filter(str.strip)
IDS = st.text("abc-123", min_size=1, max_size=8)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system"]),
    text=TEXT,
    at=st.none() | st.floats(-1e9, 1e10),
    name=st.none() | IDS,
    calls=st.just(()) | st.lists(IDS, max_size=2, unique=True).map(tuple),
)
CONVERSATIONS = st.lists(
    st.builds(
        Conversation,
        id=IDS,
        title=st.none() | IDS,
        messages=st.lists(MESSAGES, min_size=1, max_size=5).map(tuple),
        source=st.just("openai"),
    ),
    max_size=4,
)


@given(CONVERSATIONS)
def test_what_is_written_is_read_back(conversations: list[Conversation]) -> None:
    stream = io.StringIO()
    assert write_jsonl(conversations, stream) == len(conversations)
    assert list(read(io.StringIO(stream.getvalue()))) == conversations


def _only_input_errors(data: bytes) -> None:
    for keep_going in (False, True):
        with contextlib.suppress(InputError):
            for conversation in read(io.BytesIO(data), keep_going=keep_going):
                for message in conversation.messages:
                    message.text.encode()
                    assert "\x00" not in message.text
                    assert message.role in ("user", "assistant", "system", "tool")
    for head in (data, data.decode("utf-8", "replace")):
        with contextlib.suppress(InputError):
            detect(head)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    _only_input_errors(data)
    for start in (b"[", b"{", b"PK\x03\x04", b"WEBVTT\n\n", b"user: ", b"role,content\n", b"\xff\xfe", b"data: {"):
        _only_input_errors(start + data)


def _sample_bytes() -> list[bytes]:
    return [*(path.read_bytes() for path in FILES), _slack()]


@given(st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_damaged_samples_raise_nothing_else(data: st.DataObject) -> None:
    sample = bytearray(data.draw(st.sampled_from(_sample_bytes())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sample) - 1))
        length = data.draw(st.integers(0, 8))
        sample[at : at + length] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"null", b"1e999", b'"', b"[", b"}"])
        )
        if not sample:
            break
    _only_input_errors(bytes(sample))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "message"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def _replaced(value: Any, path: list[int], new: Any) -> Any:
    """The value with one place in it changed: any place, at any depth."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy = value.copy()
    copy[key] = _replaced(value[key], path[1:], new)
    return copy


@given(
    st.sampled_from([path.name for path in FILES if path.suffix in (".json", ".jsonl")]),
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    JSON,
)
@settings(max_examples=800, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_value_of_any_other_kind_anywhere_raises_nothing_else(file: str, path: list[int], new: Any) -> None:
    text = (SAMPLES / file).read_text()
    if file.endswith("l"):
        rows = [json.loads(line) for line in text.splitlines()]
        changed = "\n".join(json.dumps(row) for row in _replaced(rows, [*path, 0, 0], new) or [])
    else:
        changed = json.dumps(_replaced(json.loads(text), path, new))
    _only_input_errors(changed.encode())


# cost


HOSTILE = [
    '[{"role": "user", "content": "x"}, ' + '"\\"' * 100_000,
    "[" + '{"a" 1},' * 20_000 + "]",
    "[" * 300_000,
    "{" * 300_000,
    '{"role": "user", "content": "x"}\n' + "[" * 2_000_000,
    "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<" * 300_000,
    "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<v " * 100_000,
    "03/02/26, 09:00 - A: " + " " * 300_000 + "x",
    "03/02/26, 09:00 - A: \u200e" + "<" * 300_000,
    "user: x\n" + "a" * 300_000 + ":",
    "role,content\nuser," + '"' * 300_001,
    '[{"type": "message", "user": "U", "ts": "1", "text": "' + "<a|" * 100_000 + '"}]',
    '[{"mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"text": "'
    + "\ue200" * 300_000
    + '"}}}}}]',
    json.dumps({"chats": {"list": []}})[:-3] + '{"chats": {"list": [' * 50_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.timeout(10)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    _only_input_errors(text.encode())


def _peak(path: Path, **options: Any) -> tuple[int, int]:
    tracemalloc.start()
    count = sum(len(conversation.messages) for conversation in read(path, **options))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return count, peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conversations", "events", "array", "chatgpt", "csv"])
def test_fifty_megabytes_are_read_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "large"
    words = "word " * 900
    message = {"role": "user", "content": words}
    (chat,) = json.loads((SAMPLES / "chatgpt.json").read_text())
    chat["mapping"]["u1"]["message"]["content"]["parts"] = [words * 4]
    with path.open("w") as stream:
        if kind == "conversations":
            for _ in range(1_100):
                stream.write(json.dumps({"messages": [message] * 11}) + "\n")
        elif kind == "events":  # two conversations at a time are interleaved
            for number in range(12_000):
                stream.write(json.dumps({"conversation_id": f"c{number // 40}-{number % 2}", **message}) + "\n")
        elif kind == "csv":
            stream.write("conversation_id,role,content\n")
            for number in range(12_000):
                stream.write(f"c{number // 40}-{number % 2},user,{words}\n")
        else:
            row = json.dumps({"messages": [message] * 11} if kind == "array" else chat)
            stream.write("[" + ",\n".join([row] * ((50 << 20) // len(row))) + "]")
    assert path.stat().st_size > 50_000_000
    count, peak = _peak(path)
    assert count > 10_000
    assert peak < 16 << 20
