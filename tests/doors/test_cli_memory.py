"""The commands about memory, as a user runs them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from topicality.doors.cli import main

SAMPLES = Path(__file__).resolve().parent.parent / "transcripts"
FILES = sorted(path for path in SAMPLES.iterdir() if path.is_file() and path.name != "names.txt")
TALK = [
    ("user", "Which credit card should I take for travelling?"),
    ("assistant", "The blue card has no fee abroad, the gold card has insurance."),
    ("user", "We reject the gold card, its annual fee is too high. [bold]\x1b[31m"),
    ("assistant", "Then the blue card it is; the gold card is rejected."),
    ("user", "How long should I boil spaghetti?"),
    ("assistant", "Boil spaghetti for about nine minutes."),
]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "cards.json"
    path.write_text(json.dumps([{"role": role, "content": text} for role, text in TALK]))
    return path


@pytest.fixture
def store(tmp_path: Path, chat: Path, capsys: pytest.CaptureFixture[str]) -> str:
    url = str(tmp_path / "chat.db")
    assert main(["import", str(chat), "--store", url]) == 0
    capsys.readouterr()
    return url


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_format_is_imported_and_again_changes_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    assert main(["import", str(path), "--store", url, "--json"]) == 0
    first = json.loads(out(capsys))
    assert first["new"] >= 1
    assert main(["export", "--store", url]) == 0
    before = out(capsys)
    assert main(["import", str(path), "--store", url, "--json"]) == 0
    again = json.loads(out(capsys))
    assert (again["new"], again["known"], again["other"]) == (0, first["new"], 0)
    assert main(["export", "--store", url]) == 0
    assert out(capsys) == before
    assert main(["topics", "--store", url]) == 0
    assert "topic" in out(capsys)


def test_topics_say_labels_terms_spans_when_and_status(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "--store", store, "--json"]) == 0
    found = json.loads(out(capsys))
    assert found["conversation"] == "cards"
    assert sum(topic["exchanges"] for topic in found["topics"]) == 3
    for topic in found["topics"]:
        assert set(topic) >= {"id", "number", "status", "labels", "terms", "spans", "started_at", "ended_at"}
    assert main(["topics", "--store", store, "--conversation", "cards"]) == 0
    text = out(capsys)
    assert "cards" in text
    assert "T1" in text
    assert "\x1b" not in text


def test_recall_finds_the_passage_within_the_budget(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = "which card did we reject?"
    assert main(["recall", question, "--store", store, "--budget", "60", "--json"]) == 0
    found = json.loads(out(capsys))
    assert found["tokens"] <= 60
    assert any("gold card" in passage["text"] for passage in found["passages"])
    assert main(["recall", question, "--store", store, "--conversation", "cards"]) == 0
    text = out(capsys)
    assert "gold card" in text
    assert "\x1b" not in text
    assert main(["recall", question, "--store", store, "--owner", "nobody"]) == 0
    assert "Nothing found" in out(capsys)


def test_context_gives_the_messages_to_send(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["context", "which card did we reject?", "--store", store, "--conversation", "cards", "--budget", "200"]
    assert main([*arguments, "--system", "Be kind.", "--json"]) == 0
    found = json.loads(out(capsys))
    assert found["tokens"] <= 200
    assert found["messages"][0] == {"role": "system", "content": "Be kind."}
    assert found["messages"][-1] == {"role": "user", "content": "which card did we reject?"}
    assert main(arguments) == 0
    assert "tokens" in out(capsys)
    assert main([*arguments[:-1], "3"]) == 2
    assert "budget" in capsys.readouterr().err


def test_export_and_erase(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "all.jsonl"
    assert main(["export", "--store", store, "-o", str(target)]) == 0
    assert "gold card" in target.read_text("utf-8")
    assert not target.with_name("all.jsonl.new").exists()
    assert main(["export", "--store", store, "-o", str(tmp_path / "no" / "where.jsonl")]) == 2
    assert main(["erase", "--store", store, "--owner", "default"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["erase", "--store", store, "--owner", "default", "--yes"]) == 0
    assert "3 exchanges" in capsys.readouterr().err
    assert main(["topics", "--store", store]) == 0
    assert "no conversations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topics", "--store", "{tmp}/none.db"], 2, "there is no store"),
        (["recall", "x", "--store", "sqlite:///{tmp}/none.db"], 2, "there is no store"),
        (["export", "--store", "{tmp}/none.db"], 2, "there is no store"),
        (["erase", "--store", "{tmp}/none.db", "--owner", "x", "--yes"], 2, "there is no store"),
        (["import", "{tmp}/none.json", "--store", "{tmp}/new.db"], 2, "none.json"),
        (["import", "{chat}", "--store", "mysql://x"], 2, "store"),
        (["import", "{chat}", "--store", "{tmp}/no/where/chat.db"], 3, "folder"),
        (["import", "{chat}", "{chat}", "--store", "{tmp}/new.db", "--conversation", "x"], 2, "--conversation"),
        (["topics", "--store", "{store}", "--conversation", "nope"], 2, "nope"),
        (["recall", "x", "--store", "{store}", "--budget", "0"], 2, "--budget"),
        (["context", "x", "--store", "{store}", "--conversation", "nope"], 2, "nope"),
        (["context", " ", "--store", "{store}", "--conversation", "cards"], 2, "blank"),
        (["topics", "--store", "{chat}"], 3, "not an SQLite database"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_input_is_told_with_the_right_code(
    arguments: list[str],
    code: int,
    said: str,
    store: str,
    chat: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [part.format(tmp=tmp_path, chat=chat, store=store) for part in arguments]
    assert main(filled) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_a_file_of_several_conversations_cannot_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.jsonl"
    lines = [{"id": name, "messages": [{"role": "user", "content": "hello there"}]} for name in ("a", "b")]
    path.write_text("\n".join(map(json.dumps, lines)))
    url = str(tmp_path / "chat.db")
    assert main(["import", str(path), "--store", url, "--conversation", "x"]) == 2
    assert "several conversations" in capsys.readouterr().err
    assert main(["export", "--store", url]) == 0
    assert '"exchange"' not in out(capsys)
    assert main(["import", str(path), "--store", url]) == 0
    assert "2 conversations: 2 exchanges" in out(capsys)


def test_malformed_records_are_named_and_passed_over_if_wished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(
        '{"role": "user", "content": "fine"}\n{"role": "user", "content": 7}\n{"role": "user", "content": "ok"}\n'
    )
    url = str(tmp_path / "chat.db")
    assert main(["import", str(path), "--store", url]) == 2
    assert "line 2" in capsys.readouterr().err
    assert main(["import", str(path), "--store", url, "--keep-going", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["new"] == 2
    assert "line 2" in shown.err


def test_standard_input_is_a_transcript_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"User: hello\nAssistant: good morning\n"), "utf-8"))
    assert main(["import", "-", "--store", str(tmp_path / "chat.db"), "--owner", "ann", "--json"]) == 0
    assert json.loads(out(capsys))["conversations"][0]["conversation"] == "stdin"
