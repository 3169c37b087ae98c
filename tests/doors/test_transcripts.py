"""Every format, with its traps."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pytest

from topicality.doors.transcripts import FORMATS, Conversation, detect, read, write_jsonl
from topicality.errors import InputError
from topicality.types import Message

SAMPLES = Path(__file__).parent.parent / "transcripts"
NINE = 1770109200.0  # 2026-02-03T09:00:00Z


def _m(
    role: str,
    text: str,
    at: float | None = None,
    key: str | None = None,
    name: str | None = None,
    calls: tuple[str, ...] = (),
    call: str | None = None,
) -> Message:
    return Message(role, text, at, key, name, calls, call)


def _zip(members: dict[str, str | bytes], **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def _slack() -> io.BytesIO:
    root = SAMPLES / "slack"
    return _zip({str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.json"))})


def _read(text: str | bytes, **options: Any) -> list[Conversation]:
    return list(read(io.BytesIO(text.encode() if isinstance(text, str) else text), **options))


def _texts(text: str | bytes, **options: Any) -> list[str]:
    return [message.text for conversation in _read(text, **options) for message in conversation.messages]


FERN = [
    _m("system", "You sell plants."),
    _m("user", "What is this?"),
    _m("assistant", 'identify({"n": 1})', calls=("c9",)),
    _m("tool", "fern", call="c9"),
    _m("assistant", "A fern.", key="m5"),
    _m("user", "[image]", name="Kim"),
]
TELEGRAM = [
    _m("user", "When do I cut it?", NINE, "1", "Ana"),
    _m("user", "See https://example.org.", NINE + 60, "2", "user6"),
    _m("user", "[photo]", NINE + 180, "4", "Ana"),
]

# file, format, and for each conversation: id, title, messages
CASES: list[tuple[str, str, list[tuple[str, str | None, list[Message]]]]] = [
    ("openai_messages.json", "openai", [("1", None, FERN)]),
    (
        "openai_document.json",
        "openai",
        [("chat-7", "Ferns", [_m("user", "How much light?", 1770091506.0), _m("assistant", "Little.")])],
    ),
    (
        "openai_conversations.jsonl",
        "openai",
        [
            ("k-1", None, [_m("user", "Does it flower?"), _m("assistant", "Ferns do not.")]),
            (
                "2",
                None,
                [
                    _m("user", "Water?"),
                    _m("assistant", "soil({})", calls=("call-1",)),
                    _m("tool", "dry", name="soil", call="call-1"),
                ],
            ),
        ],
    ),
    (
        "openai_events.jsonl",
        "openai",
        [
            ("a", None, [_m("user", "first of a", NINE), _m("assistant", "second of a", NINE + 5)]),
            ("b", None, [_m("user", "Hello from b", NINE + 3600), _m("assistant", "Hello to b", NINE + 3602)]),
        ],
    ),
    (
        "responses.json",
        "responses",
        [
            (
                "1",
                None,
                [
                    _m("user", "Repot now?"),
                    _m("assistant", "season({})", calls=("f1",)),
                    _m("tool", "spring", call="f1"),
                    _m("assistant", "Yes.", key="r1"),
                ],
            )
        ],
    ),
    (
        "sharegpt.json",
        "sharegpt",
        [
            (
                "g1",
                None,
                [
                    _m("system", "Be short."),
                    _m("user", "Moss?"),
                    _m("assistant", "lookup(moss)", calls=("call-1",)),
                    _m("tool", "grows on stones", call="call-1"),
                    _m("assistant", "On stones."),
                ],
            ),
            ("2", None, [_m("user", "Hi"), _m("assistant", "Hello")]),
        ],
    ),
    (
        "chatgpt.json",
        "chatgpt",
        [
            (
                "cg-1",
                "Oak",
                [
                    _m("user", "Which leaf is this?", 1770000000.5, "u1"),
                    _m("assistant", "An oak leaf.", 1770000005.0, "a1"),
                    _m("user", "How old can it get?", 1770000020.0, "u2b"),
                    _m("assistant", "age('oak')", None, "c", calls=("c",)),
                    _m("tool", "1000", None, "r", "python", call="c"),
                    _m("assistant", "A thousand years.", None, "a3"),
                    _m("user", "Thanks", None, "v"),
                ],
            )
        ],
    ),
    (
        "claude.json",
        "claude",
        [
            (
                "cl-1",
                "Beech",
                [
                    _m("user", "Read this.\n[attachment: paste.txt]\nbeech facts", NINE, "m1"),
                    _m("assistant", "Looking.", NINE + 5, "m3", calls=("tu",)),
                    _m("tool", "found", NINE + 5, "m3#2", call="tu"),
                    _m("assistant", "It is a beech.", NINE + 5, "m3#3"),
                    _m("user", "[file: leaf.png]", NINE + 9, "m4"),
                ],
            )
        ],
    ),
    (
        "langchain.json",
        "langchain",
        [
            (
                "1",
                None,
                [
                    _m("system", "Be kind."),
                    _m("user", "Pine?", key="h1"),
                    _m("assistant", 'find({"q": "pine"})', key="a1", calls=("c1",)),
                    _m("tool", "needles", name="find", call="c1"),
                    _m("assistant", "It has needles."),
                ],
            )
        ],
    ),
    (
        "langchain_dumpd.json",
        "langchain",
        [("1", None, [_m("system", "Be kind."), _m("user", "Pine?", key="h1"), _m("assistant", "Needles.")])],
    ),
    (
        "pydantic_ai.json",
        "pydantic-ai",
        [
            (
                "p1",
                None,
                [
                    _m("system", "Be brief.", NINE),
                    _m("user", "Look", NINE + 1),
                    _m("assistant", "Checking.", NINE + 2, calls=("t1",)),
                    _m("tool", '{"seen": "ivy"}', NINE + 3, name="look", call="t1"),
                ],
            )
        ],
    ),
    (
        "anthropic.json",
        "anthropic",
        [
            (
                "1",
                None,
                [
                    _m("system", "Be exact."),
                    _m("user", "Is it ivy?"),
                    _m("assistant", 'look({"a": 1})', calls=("tu1",)),
                    _m("tool", "ivy", call="tu1"),
                    _m("user", "And?"),
                    _m("assistant", "It is ivy."),
                ],
            )
        ],
    ),
    (
        "claude_code.jsonl",
        "claude-code",
        [
            (
                "s1",
                "Parser",
                [
                    _m("user", "Fix the parser", NINE, "u1"),
                    _m("assistant", "Reading.", NINE + 5, "u2", calls=("t1",)),
                    _m("tool", "code", NINE + 6, "u3", call="t1"),
                ],
            )
        ],
    ),
    (
        "discord.json",
        "discord",
        [
            (
                "22",
                "help",
                [
                    _m("user", "My rose is ill.", NINE, "10", "Ana"),
                    _m("user", "Which spots?", NINE + 60, "11", "ben"),
                    _m("user", "[attachment: rose.jpg]", NINE + 120, "12", "Ana"),
                    _m("assistant", "Roses\nBlack spot is a fungus.", NINE + 180, "13", "Helper"),
                    _m("system", "Pinned a message.", NINE + 240, "14", "Ben"),
                ],
            )
        ],
    ),
    ("telegram.json", "telegram", [("9", "Garden", TELEGRAM)]),
    ("telegram_full.json", "telegram", [("9", "Garden", TELEGRAM), ("10", "Other", TELEGRAM[:1])]),
    (
        "whatsapp_android.txt",
        "whatsapp",
        [
            (
                "1",
                None,
                [
                    _m("system", "Messages and calls are end-to-end encrypted. Tap to learn more.", NINE),
                    _m("user", "Is this a weed?\nIt has: three leaves.", NINE, name="Ana Example"),
                    _m("user", "[media]", NINE + 11 * 86400 + 60, name="Ben"),
                    _m("user", "Clover!", NINE + 11 * 86400 + 180, name="Ben"),
                ],
            )
        ],
    ),
    (
        "whatsapp_us.txt",
        "whatsapp",
        [
            (
                "1",
                None,
                [
                    _m("user", "Morning", NINE, name="Ana"),
                    _m("user", "Noon", NINE + 3 * 3600 + 300, name="Ben"),
                    _m("user", "Night", NINE + 15 * 3600 + 600, name="Ana"),
                ],
            )
        ],
    ),
    (
        "whatsapp_german.txt",
        "whatsapp",
        [
            (
                "1",
                None,
                [
                    _m("user", "Guten Morgen", NINE, name="Ana"),
                    _m("user", "Gute Nacht", NINE + 86400 + 12.5 * 3600, name="Ben"),
                ],
            )
        ],
    ),
    ("whatsapp_finnish.txt", "whatsapp", [("1", None, [_m("user", "Huomenta", NINE, name="Ana")])]),
    (
        "whatsapp_ios.txt",
        "whatsapp",
        [
            (
                "1",
                None,
                [
                    _m("system", "Messages and calls are end-to-end encrypted.", NINE),
                    _m("user", "Is it edible?\nI hope so.", NINE + 10, name="Ana"),
                    _m("user", "[attachment: 0001-PHOTO.jpg]", NINE + 10 * 86400 + 60, name="Ben"),
                    _m("user", "[media]", NINE + 10 * 86400 + 90, name="Ben"),
                    _m("user", "Thanks!", NINE + 10 * 86400 + 120, name="Ana"),
                ],
            )
        ],
    ),
    (
        "table.csv",
        "csv",
        [
            ("x", None, [_m("user", "Two\nlines", NINE), _m("assistant", 'Hello; how can I "help"?', NINE + 5)]),
            ("y", None, [_m("user", "Hola", NINE, name="Maria")]),
        ],
    ),
    (
        "meeting.vtt",
        "webvtt",
        [
            (
                "1",
                None,
                [
                    _m("user", "The roses need water & light.", name="Ana"),
                    _m("user", "Which ones?", name="Ben"),
                    _m("user", "no name here"),
                ],
            )
        ],
    ),
    (
        "plain.txt",
        "plain",
        [
            (
                "1",
                None,
                [
                    _m("user", "How do I prune?\n  First the dead wood?\nNote: it is a pear."),
                    _m("assistant", "Like this:\n\n    step 1"),
                    _m("user", "Thanks"),
                ],
            )
        ],
    ),
    (
        "names.txt",
        "plain",
        [
            (
                "1",
                None,
                [
                    _m("user", "Hello", name="Ana"),
                    _m("user", "Hi\nhttps://example.org is nice", name="Ben Miller"),
                    _m("user", "Bye", name="Ana"),
                ],
            )
        ],
    ),
    ("openai_stream.txt", "openai-stream", [("1", None, [_m("assistant", "Water it.", NINE, "s1", calls=("c1",))])]),
    ("anthropic_stream.txt", "anthropic-stream", [("1", None, [_m("assistant", "Water.", None, "as1")])]),
]
SLACK: list[tuple[str, str | None, list[Message]]] = [
    ("D1", "D1", [_m("user", "psst", 1770190001.0, "1770190001.000000", "ana")]),
    (
        "C1",
        "help",
        [
            _m("system", "@ana has joined the channel", 1770109190.0001, "1770109190.000100", "ana"),
            _m("assistant", "build ok", 1770109300.0004, "1770109300.000400", "ci"),
            _m("user", "[file: a.png]", 1770109302.0, "1770109302.000000", "Ben"),
        ],
    ),
    (
        "C1/1770109200.000200",
        "help",
        [
            _m("user", "My rose isn't well, @Ben & #help: photo @here", 1770109200.0002, "1770109200.000200", "ana"),
            _m("user", "Which spots?", 1770190000.0003, "1770190000.000300", "Ben"),
        ],
    ),
]


def _expected(name: str, conversations: list[tuple[str, str | None, list[Message]]]) -> list[Conversation]:
    return [Conversation(key, title, tuple(messages), name) for key, title, messages in conversations]


@pytest.mark.parametrize(("file", "name", "conversations"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("keep_going", [False, True])
def test_a_sample_of_each_format(
    file: str, name: str, conversations: list[tuple[str, str | None, list[Message]]], keep_going: bool
) -> None:
    assert detect((SAMPLES / file).read_bytes()) == name
    assert list(read(SAMPLES / file, keep_going=keep_going)) == _expected(name, conversations)


def test_slack_archive() -> None:
    assert list(read(_slack())) == _expected("slack", SLACK)


def test_one_day_of_slack_by_itself_is_read_with_ids_for_names() -> None:
    found = list(read(SAMPLES / "slack" / "D1" / "2026-02-04.json"))
    assert [(c.source, c.messages[0].text, c.messages[0].name) for c in found] == [("slack", "psst", "U1")]


def test_every_format_has_a_sample() -> None:
    assert {case[1] for case in CASES} | {"slack"} == set(FORMATS)


@pytest.mark.parametrize("extension", [".csv", ".json", ".zip", ""])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_name_of_a_file_decides_nothing(
    tmp_path: Path, extension: str, case: tuple[str, str, list[tuple[str, str | None, list[Message]]]]
) -> None:
    file = tmp_path / f"chat{extension}"
    file.write_bytes((SAMPLES / case[0]).read_bytes())
    assert list(read(file)) == _expected(case[1], case[2])


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_any_kind_of_source_and_encoding_gives_the_same(
    case: tuple[str, str, list[tuple[str, str | None, list[Message]]]],
) -> None:
    data = (SAMPLES / case[0]).read_bytes()
    text = data.decode()
    expected = _expected(case[1], case[2])

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self._inner = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._inner.readinto(buffer)

    offset = io.BytesIO(b"junk" + data)
    offset.seek(4)
    sources: list[TextIO | BinaryIO] = [
        io.BytesIO(data),
        io.StringIO(text, newline=""),
        io.BufferedReader(Pipe()),
        offset,
        io.BytesIO(b"\xef\xbb\xbf" + data),
        io.BytesIO(text.encode("utf-16")),
        io.BytesIO(text.encode("utf-16-le")),
        io.BytesIO(text.encode("utf-16-be")),
        io.BytesIO(text.encode("utf-32")),
        io.BytesIO(text.replace("\r\n", "\n").replace("\n", "\r\n").encode()),
    ]
    for source in sources:
        assert list(read(source)) == expected
        assert not source.closed


def test_the_same_in_an_archive_beside_other_files() -> None:
    chat = (SAMPLES / "chatgpt.json").read_text()
    other = chat.replace("cg-1", "cg-2")
    archive = _zip(
        {
            "conversations-010.json": other,
            "conversations-009.json": chat,
            "conversations-011.json": "[]",
            "export_manifest.json": '{"files": 3}',
            "shared_conversations.json": '[{"id": "1", "title": "x"}]',
            "chat.html": "<html>user: hello</html>",
            "README.txt": "user: this is no transcript",
            "image.png": b"\x89PNG",
        }
    )
    assert [(c.id, c.source, len(c.messages)) for c in read(archive)] == [
        ("cg-1", "chatgpt", 7),
        ("cg-2", "chatgpt", 7),
    ]
    phone = _zip({"_chat.txt": (SAMPLES / "whatsapp_ios.txt").read_bytes(), "0001-PHOTO.jpg": b"\xff\xd8"})
    assert [c.source for c in read(phone)] == ["whatsapp"]


# traps


def test_chatgpt_without_a_current_node_takes_the_last_leaf_and_survives_circles() -> None:
    (row,) = json.loads((SAMPLES / "chatgpt.json").read_text())
    row["current_node"] = None
    assert _texts(json.dumps([row]))[-1] == "Thanks"
    row["mapping"]["root"]["parent"] = "v"
    row["current_node"] = "v"
    with pytest.raises(InputError, match=r"\[0\]\.mapping: .*circle"):
        _read(json.dumps([row]))
    (found,) = _read(json.dumps([row]), keep_going=True)
    assert (len(found.messages), len(found.problems)) == (7, 1)


def test_chatgpt_follows_the_current_node_and_hides_what_is_hidden() -> None:
    (row,) = json.loads((SAMPLES / "chatgpt.json").read_text())
    row["current_node"] = "a2"
    assert _texts(json.dumps([row]))[2:] == ["abandoned question", "abandoned answer"]
    row["mapping"]["u2"]["message"]["weight"] = 0.0
    row["mapping"]["a2"]["message"]["metadata"] = {"is_visually_hidden_from_conversation": True}
    assert len(_texts(json.dumps([row]))) == 2


def test_a_single_chatgpt_conversation_not_in_an_array() -> None:
    (row,) = json.loads((SAMPLES / "chatgpt.json").read_text())
    assert [c.id for c in _read(json.dumps(row, indent=1))] == ["cg-1"]


@pytest.mark.parametrize(
    ("lines", "days"),
    [
        (["13/02/26, 09:00 - A: x"], [44]),  # no 13th month
        (["02/13/26, 09:00 - A: x"], [44]),
        (["01/02/26, 09:00 - A: x", "13/02/26, 09:00 - A: y"], [32, 44]),  # decided by a later line
        (["02/01/26, 09:00 - A: x", "01/02/26, 09:00 - A: y"], [2, 32]),  # time does not run backwards
        (["01/02/26, 09:00 - A: x", "02/01/26, 09:00 - A: y"], [2, 32]),
        (["03/02/26, 09:00 - A: x", "04/02/26, 09:00 - A: y"], [34, 35]),  # two days, not two months
        (["02/03/26, 09:00 - A: x", "02/04/26, 09:00 - A: y"], [34, 35]),
        (["2/3/26, 9:00 AM - A: x"], [34]),  # 12 hours: month first
        (["2/3/26, 09:00 - A: x"], [61]),  # 24 hours: day first
        (["2026-02-03, 09:00 - A: x"], [34]),
        (["[2026/02/03, 09:00:00] A: x"], [34]),
        (["03.02.2026, 09:00 - A: x"], [34]),
        (["3/2/2026 9:00 a. m. - A: x"], [61]),
    ],
)
def test_day_and_month_are_told_apart_over_the_whole_file(lines: list[str], days: list[int]) -> None:
    (found,) = _read("\n".join(lines))
    new_year = 1767225600.0
    assert [round((m.at or 0.0) - new_year - 9 * 3600) / 86400 + 1 for m in found.messages] == days


def test_whatsapp_names_and_system_lines() -> None:
    text = (
        "03/02/26, 09:00 - Ana changed the subject from “a: b” to “c”\n"
        "03/02/26, 09:00 - +49 170 000: hi\n"
        "13/02/26, 09:00 - Ana:\nonly on the next line\n"
        "13/02/26, 09:00 - Ana: <div>\n"
    )
    (found,) = _read(text)
    assert [(m.role, m.name, m.text) for m in found.messages] == [
        ("system", None, "Ana changed the subject from “a: b” to “c”"),
        ("user", "+49 170 000", "hi"),
        ("user", "Ana", "only on the next line"),
        ("user", "Ana", "<div>"),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    ("header", "roles"),
    [
        (["role", "content"], [("user", None), ("assistant", None)]),
        (["Sender", "Message Text"], [("user", None), ("assistant", None)]),
        (["SPEAKER", "Utterance"], [("user", None), ("assistant", None)]),
    ],
)
def test_csv_headers_and_delimiters(delimiter: str, header: list[str], roles: list[tuple[str, str | None]]) -> None:
    rows = [header, ["Human", "a; b, c"], ["AI", "x | y\tz"]]
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    (found,) = _read(text)
    assert [(m.role, m.name) for m in found.messages] == roles
    assert [m.text for m in found.messages] == ["a; b, c", "x | y\tz"]


def test_csv_of_excel_with_a_separator_line_and_a_long_cell() -> None:
    long = "long " * 60_000
    assert _texts(f"sep=;\r\nrole;content\r\nuser;{long}\r\n") == [long]


def test_content_in_all_its_shapes() -> None:
    rows = [
        {"role": "user", "content": "text"},
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "audio": {"id": "x", "transcript": "spoken"}},
        {"role": "user", "content": [{"type": "input_file", "filename": "a.pdf"}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": " \n"},
        {"role": "Moderator", "content": "someone else"},
        {"role": "tool", "tool_call_id": "z", "content": ""},
        {"role": "user", "content": {"type": "text", "text": "one part"}},
    ]
    (found,) = _read(json.dumps(rows))
    assert [(m.role, m.text, m.name, m.call) for m in found.messages] == [
        ("user", "text", None, None),
        ("user", "a\nb", None, None),
        ("assistant", "No.", None, None),
        ("assistant", "spoken", None, None),
        ("user", "[file: a.pdf]", None, None),
        ("user", "someone else", "Moderator", None),
        ("tool", "", None, "z"),
        ("user", "one part", None, None),
    ]


def test_characters_that_cannot_be_stored_are_mended() -> None:
    row = '{"role": "user", "content": "a\\u0000b \\ud83d\\ude00 \\ud800 c"}'
    (text,) = _texts(f"[{row}]")
    assert text == "ab 😀 � c"
    text.encode()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        (1770109200, NINE),
        (1770109200123, NINE + 0.123),
        ("1770109200", NINE),
        ("2026-02-03T09:00:00Z", NINE),
        ("2026-02-03T11:00:00+02:00", NINE),
        ("2026-02-03T09:00:00", NINE),
        ("2026-02-03 09:00:00 UTC", NINE),
        ("2026/02/03 09:00", NINE),
        ("", None),
        (None, None),
    ],
)
def test_times(given: object, seconds: float | None) -> None:
    (found,) = _read(json.dumps([{"role": "user", "content": "x", "created_at": given}]))
    at = found.messages[0].at
    assert at == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("time", ["yesterday", True, {"a": 1}, 1e300, "9" * 70])
def test_a_time_that_is_none_is_named_and_the_message_kept(time: object) -> None:
    text = json.dumps([{"role": "user", "content": "x", "created_at": time}])
    with pytest.raises(InputError, match=r"^\[0\]: the time"):
        _read(text)
    (found,) = _read(text, keep_going=True)
    assert found.messages == (Message("user", "x"),)
    assert [problem.position for problem in found.problems] == ["[0]"]


def test_times_without_a_zone_are_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        (found,) = _read('{"role": "user", "content": "x", "created_at": "2026-02-03T09:00:00"}')
        (phone,) = _read("03.02.2026, 09:00 - A: x")
    time.tzset()
    assert (found.messages[0].at, phone.messages[0].at) == (NINE, NINE)


def test_ids_stay_unique() -> None:
    rows = [{"role": "user", "content": text, "id": "same"} for text in "ab"]
    (found,) = _read(json.dumps(rows))
    assert [m.id for m in found.messages] == ["same", "same#2"]


def test_sessions_of_claude_code_in_one_file_stay_apart() -> None:
    text = (SAMPLES / "claude_code.jsonl").read_text()
    both = text + text.replace('"s1"', '"s2"').replace("Parser", "Other")
    assert [(c.id, c.title, len(c.messages)) for c in _read(both)] == [("s1", "Parser", 3), ("s2", "Other", 3)]


def test_a_document_of_one_message_a_line_is_no_json_lines() -> None:
    text = '{"messages": [\n{"role": "user", "content": "a"},\n{"role": "user", "content": "b"}\n]}'
    assert _texts(text) == ["a", "b"]
    assert _texts('[{"role": "user", "content": "a"},\n{"role": "user", "content": "b"}]') == ["a", "b"]
    lines = '[{"role": "user", "content": "a"}]\n[{"role": "user", "content": "b"}]'
    assert [c.id for c in _read(lines)] == ["1", "2"]


def test_a_response_object_with_its_input() -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A."}]}]
    row = {"object": "response", "id": "resp", "instructions": "S.", "input": "Q?", "output": output}
    (found,) = _read(json.dumps(row))
    assert [(m.role, m.text) for m in found.messages] == [("system", "S."), ("user", "Q?"), ("assistant", "A.")]


def test_a_function_call_output_with_a_list_is_an_item_and_no_conversation() -> None:
    row = {"type": "function_call_output", "call_id": "f", "output": [{"type": "input_text", "text": "out"}]}
    assert _texts(json.dumps([row])) == ["out"]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_every_sample_survives_writing(case: tuple[str, str, list[tuple[str, str | None, list[Message]]]]) -> None:
    stream = io.StringIO()
    write_jsonl(_expected(case[1], case[2]), stream)
    assert list(read(io.StringIO(stream.getvalue()))) == _expected("openai", case[2])
