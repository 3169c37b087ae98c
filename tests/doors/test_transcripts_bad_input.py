"""What bad transcripts get: a typed error that names the place, or everything but the broken record."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from topicality.doors.transcripts import Conversation, Problem, detect, read
from topicality.errors import InputError

SAMPLES = Path(__file__).parent.parent / "transcripts"


def _zip(members: dict[str, str | bytes], **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def _read(text: str | bytes, **options: Any) -> list[Conversation]:
    return list(read(io.BytesIO(text.encode() if isinstance(text, str) else text), **options))


EMPTY = ["", " \n\t", "\ufeff", "[]", "[ ]\n"]


@pytest.mark.parametrize("text", EMPTY)
def test_empty_gives_nothing(text: str) -> None:
    assert _read(text) == []
    assert detect(text) == "empty"


def test_conversations_without_messages_are_left_out() -> None:
    assert _read('{"messages": []}') == []
    assert _read(_zip({"conversations.json": "[]"}).getvalue()) == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("just a few words\nand more", "text that is none"),
        ('{"foo": 1, "bar": [2]}', "JSON with the keys foo, bar"),
        ("{}", "text that is none"),
        ("a,b,c\n1,2,3", "text that is none"),
        ("\x1f\x8b\x08".encode("latin-1"), "gzip"),
        (b"\x00\x01\x02\x03\xff" * 40, "binary"),
        (b"%PDF-1.7", "PDF"),
        ("https://example.org: x", "text that is none"),
    ],
)
@pytest.mark.parametrize("keep_going", [False, True])
def test_unknown_content_says_what_was_seen_and_what_is_accepted(
    text: str | bytes, seen: str, keep_going: bool
) -> None:
    with pytest.raises(InputError, match=f"got {seen}.*accepted: Slack.*ChatGPT"):
        _read(text, keep_going=keep_going)


def test_an_error_names_the_file_but_not_what_was_said(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"role": "user", "content": "secret"}\n{"role": "user", "content": "secret"\n')
    with pytest.raises(InputError) as caught:
        list(read(file))
    assert str(caught.value).startswith("line 2: not valid JSON")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda path: path / "none.json", lambda path: path, lambda _: Path("a\0b")])
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Any) -> None:
    with pytest.raises(InputError):
        list(read(make(tmp_path)))


GOOD = '{"role": "user", "content": "good"}'
BAD: list[tuple[str, str, str]] = [
    # text, position of the problem, and what it is about; all hold one good message
    (f"{GOOD}\n{{broken\n", "line 2", "not valid JSON"),
    (f'{GOOD}\n"text"\n', "line 2", "expected an object"),
    (f'{GOOD}\n{{"role": "user"}}\n', "line 2", "content is missing"),
    (f'{GOOD}\n{{"content": "x"}}\n', "line 2", "role is missing"),
    (f'{GOOD}\n{{"role": 5, "content": "x"}}\n', "line 2", "role is not a string"),
    (f'{GOOD}\n{{"role": "user", "content": 5}}\n', "line 2", "content is a number"),
    (f'{GOOD}\n{{"role": "user", "content": [5]}}\n', "line 2", r"content\[0\] is a number"),
    (f'{GOOD}\n{{"role": "user", "content": {"9" * 5000}}}\n', "line 2", "too many digits"),
    (f"{GOOD}\n{'[' * 200_000}\n", "line 2", "nested too deeply"),
    (f"{GOOD}\n{GOOD} {GOOD}\n".replace(f"{GOOD} {GOOD}", '{"role": "x"} 7'), "line 2", "more text after"),
    (f'{{"messages": [{GOOD}, {{"role": "user"}}]}}\n', "line 1: messages[1]", "content is missing"),
    (f'[{GOOD}, {{"role" "user", "x": [1, "]"]}}]', "[1]", "not valid JSON"),
    (f'[{{"a" 1, "b": "}},]"}}, {GOOD}]', "[0]", "not valid JSON"),
    (f"[{GOOD}, {'[' * 100_000}{']' * 100_000}]", "[1]", "nested too deeply"),
    (f'[{GOOD}, {{"role": "user", "content": "cut o', "[1]", "the file ends inside"),
    (f"[{GOOD}", "[1]", "the file ends here"),
    (f"[{GOOD}] and more", "the end of the document", "more text"),
    (f'[{GOOD}, {{"role": "user", "content": {"9" * 5000}}}]', "[1]", "too many digits"),
    ("03/02/26, 09:00 - A: good\n45/45/26, 09:00 - A: x\n", "line 2", "no such date"),
    ("stray\n03/02/26, 09:00 - A: good\n", "line 1", "text before"),
    ("role,content\nuser,good\nuser\n", "line 3", "1 columns where the header has 2"),
    ('role,content\nuser,good\nuser,"x"y\n', "line 3", "not valid CSV"),
    ("role,content\nuser,good\n,x\n", "line 3", "role is missing"),
    ("WEBVTT\n\n00:01.000 --> 00:02.000\ngood\n\nstray words\n", "line 6", "without its times"),
    (
        '{"guild": {}, "channel": {}, "messages": [{"content": "good", "author": {"name": "A"}}, 5]}',
        "messages[1]",
        "expected an object",
    ),
    (
        '{"name": "n", "messages": [{"type": "message", "from_id": "u", "text": "good"}, {"type": "message"}]}',
        "messages[1]",
        "sender is missing",
    ),
    (
        '[{"mapping": 5}, {"mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"text": "good"}}}}}]',
        "[0]",
        "mapping is missing",
    ),
    (
        '[{"chat_messages": [{"sender": "human", "text": "good"}, {"text": "x"}]}]',
        "[0].chat_messages[1]",
        "role is missing",
    ),
    ('[{"type": "human", "data": {"content": "good"}}, {"type": "human"}]', "[1]", "neither a type with data"),
    (
        '[{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "good"}]}, {"kind": "x"}]',
        "[1]",
        "the kind",
    ),
    (
        '[{"type": "message", "user": "U", "text": "good", "ts": "1.0"}, {"type": "message", "ts": "2.0"}]',
        "[1]",
        "user is",
    ),
    ('data: {"choices": [{"delta": {"content": "good"}}]}\n\ndata: {x\n', "line 3", "not valid JSON"),
]


@pytest.mark.parametrize(("text", "position", "what"), BAD, ids=[f"{position} {what}" for _, position, what in BAD])
def test_a_malformed_record_is_named_and_costs_everything_or_itself(text: str, position: str, what: str) -> None:
    seen: list[Conversation] = []
    with pytest.raises(InputError, match=what) as caught:
        seen.extend(read(io.BytesIO(text.encode())))
    assert str(caught.value).startswith(f"{position}: ")
    assert seen == []
    found = _read(text, keep_going=True)
    assert [m.text for c in found for m in c.messages] == ["good"]
    problems = [problem for c in found for problem in c.problems]
    assert problems[0].position == position
    assert str(problems[0]) == str(caught.value)


def test_nothing_is_given_when_the_last_of_many_is_malformed() -> None:
    text = f'{{"messages": [{GOOD}]}}\n' * 500 + "{\n"
    conversations = read(io.BytesIO(text.encode()))
    with pytest.raises(InputError, match="line 501"):
        next(conversations)


def test_problems_belong_to_the_conversation_after_them_or_else_to_the_last() -> None:
    line = f'{{"messages": [{GOOD}]}}\n'
    found = _read(line + "{\n" + line + "}\n", keep_going=True)
    assert [[p.position for p in c.problems] for c in found] == [[], ["line 2", "line 4"]]
    (only,) = _read('[{"role": "user"}, {"content": "text"}]', keep_going=True)
    assert only.messages == ()
    assert [p.position for p in only.problems] == ["[0]", "[1]"]


def test_many_problems_are_counted_and_not_kept() -> None:
    (found,) = _read(f"{GOOD}\n" + "{\n" * 5000, keep_going=True)
    assert len(found.problems) == 1001
    assert found.problems[-1] == Problem("the document", "4000 more problems")


def test_bytes_that_are_not_text() -> None:
    data = '[{"role": "user", "content": "caf\xe9"}]'.encode("latin-1")
    with pytest.raises(InputError, match="not utf-8"):
        _read(data)
    (found,) = _read(data, keep_going=True)
    assert found.messages[0].text == "caf�"
    assert len(found.problems) == 1
    with pytest.raises(InputError, match="not utf-16"):
        _read('[{"role": "user", "content": "x"}]'.encode("utf-16") + b"\x00")


def test_a_position_in_an_archive_names_the_member() -> None:
    archive = _zip({"a/2026-02-03.json": '[{"type": "message", "user": "U", "text": "x", "ts": "1"}, 5]'})
    with pytest.raises(InputError, match=r"^a/2026-02-03\.json: \[1\]: expected an object"):
        list(read(archive))


def test_archives_that_are_bombs_damaged_encrypted_or_empty_of_transcripts() -> None:
    row = b'[{"role": "user", "content": "' + b"a" * (40 << 20) + b'"}]'
    for keep_going in (False, True):
        with pytest.raises(InputError, match="more than 200 to 1"):
            list(read(_zip({"x.json": row}), keep_going=keep_going))
    with pytest.raises(InputError, match="no transcript among its 1 text members"):
        list(read(_zip({"x.json": '{"foo": 1}', "y.bin": "user: x"})))
    whole = _zip({"x.txt": "user: " + "".join(map(chr, range(65, 120))) * 50}).getvalue()
    with pytest.raises(InputError, match="not a usable zip"):
        _read(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"x\.txt"):
        _read(whole[:60] + b"\xff\xff\xff\xff" + whole[64:])
    flagged = bytearray(whole)
    flagged[6] |= 1
    flagged[whole.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InputError, match="encrypted"):
        _read(bytes(flagged))


def test_what_an_archive_unpacks_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topicality.doors.transcripts.archive.MAX_BYTES", 10)
    with pytest.raises(InputError, match="unpacks to 12 bytes; at most 10"):
        list(read(_zip({"x.txt": "user: x\nai:y"})))


def test_a_record_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topicality.doors.transcripts.cursor.MAX_RECORD", 1 << 20)
    monkeypatch.setattr("topicality.doors.transcripts.source.MAX_RECORD", 1 << 20)
    endless = '{"role": "user", "content": "' + "a" * (4 << 20)
    for text in (endless, f"[{GOOD},\n{endless}"):
        with pytest.raises(InputError, match="1048576 characters"):
            _read(text)


def test_progress_reaches_its_total() -> None:
    data = (SAMPLES / "openai_events.jsonl").read_bytes()
    for keep_going, passes in ((False, 2), (True, 1)):
        calls: list[tuple[int, int | None]] = []
        list(read(io.BytesIO(data), keep_going=keep_going, progress=lambda *now, calls=calls: calls.append(now)))
        assert calls[-1] == (len(data) * passes, len(data) * passes)
    calls = []
    archive = _zip({"_chat.txt": (SAMPLES / "whatsapp_ios.txt").read_bytes(), "other.json": "{}"})
    list(read(archive, progress=lambda *now: calls.append(now)))
    size = (SAMPLES / "whatsapp_ios.txt").stat().st_size
    assert calls[-1] == (2 * size, 2 * size)
