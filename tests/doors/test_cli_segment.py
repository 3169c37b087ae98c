"""The commands about topics, as a user runs them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from topicality.doors.cli import main

TALK = [
    ("user", "Hi, I need to cancel my flight to Lisbon next Friday."),
    ("assistant", "I can cancel the flight to Lisbon. Do you have your booking code?"),
    ("user", "Yes, the booking code of the flight is QX81."),
    ("assistant", "Your flight to Lisbon is cancelled and the refund takes five days."),
    ("user", "Another thing: how long should I boil pasta so that the spaghetti stays firm?"),
    ("assistant", "Boil spaghetti for about nine minutes in salted water, then taste the pasta."),
    ("user", "Back to my cancelled flight to Lisbon: when does the refund for booking QX81 arrive?"),
    ("assistant", "The refund for your cancelled Lisbon flight arrives within five days. [bold]\x1b[31m"),
]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.json"
    path.write_text(
        json.dumps([{"role": role, "content": text, "id": str(9 - k)} for k, (role, text) in enumerate(TALK)])
    )
    return path


def feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
    monkeypatch.setattr("sys.stdin", stream)


def test_segment_prints_json(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["segment", str(chat), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topics"] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert found["messages"] == 8
    assert found["method"] == "learned"
    assert {"segments", "boundaries", "decisions", "labels", "fallback", "notes"} <= set(found)
    assert found["decisions"][6]["kind"] == "return"
    assert "flight" in " ".join(found["labels"]["0"]).lower()


def test_segment_prints_bands_and_no_terminal_escapes(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["segment", str(chat)]) == 0
    text = capsys.readouterr().out
    assert "8 messages" in text
    assert "2 topics" in text
    assert "(returns)" in text
    assert "\x1b" not in text
    assert "[bold]" in text


def test_segment_takes_knobs_and_refuses_wrong_ones(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for rate in ("0.15", "0.6"):
        assert main(["segment", str(chat), "--json", "--expected-rate", rate]) == 0
        counts.append(len(json.loads(capsys.readouterr().out)["boundaries"]))
    assert counts[0] < counts[1]
    for wrong in (["--granularity", "x"], ["--expected-rate", "7"], ["--talk", "x"]):
        assert main(["segment", str(chat), *wrong]) == 2
        assert "accepted" in capsys.readouterr().err
    assert main(["segment", str(chat) + ".missing"]) == 2


def test_segment_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, "".join(json.dumps({"role": role, "content": text}) + "\n" for role, text in TALK))
    assert main(["segment", "-", "--json", "--granularity", "coarse"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 8


def test_watch_prints_a_line_for_each_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = tmp_path / "p.json"
    policy.write_text(json.dumps({"allowed": [{"name": "flights", "description": "flights, bookings and refunds"}]}))
    lines = "".join(json.dumps({"role": role, "content": text}) + "\n" for role, text in TALK)
    feed(monkeypatch, lines)
    assert main(["watch", "--policy", str(policy), "--json"]) == 0
    *turns, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(turns) == 8
    assert turns[0]["verdict"]["action"] == "allow"
    assert turns[0]["drift"]["messages"] == 1
    assert turns[6]["decision"]["topic"] == 0
    assert last["confirmed"][0]["index"] == 7
    feed(monkeypatch, "I need to cancel my flight to Lisbon.\n\nok\n")
    assert main(["watch", "--policy", str(policy)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert len(text) == 2
    assert "ALLOW" in text[0]
    assert "topic 1" in text[1]


@pytest.mark.parametrize("line", ["{", '{"role": "user"}', '{"text": 5}', '{"text": "x", "role": 5}'])
def test_watch_names_a_malformed_line(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, f"hello there\n{line}\n")
    assert main(["watch"]) == 2
    assert "line 2" in capsys.readouterr().err


def test_eval_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.jsonl"
    row = {"id": "a", "turns": [{"role": r, "text": t} for r, t in TALK], "boundaries": [0, 0, 0, 0, 1, 0, 1, 0]}
    path.write_text(json.dumps(row) + "\n")
    assert main(["eval", "segment", "--data", str(path), "--mode", "offline", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["dialogues"] == 1
    assert report["score"] > 0.5
    assert report["topic_one_to_one"] is None
    other = tmp_path / "e.jsonl"
    other.write_text(path.read_text())
    assert main(["eval", "segment", "--data", str(path), "--data", str(other), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["dialogues"] == 2
    assert both["mode"] == "online"
    assert set(both["mean"]) >= {"pk", "window_diff", "f1", "score", "boundary_rate"}
    assert main(["eval", "segment", "--data", str(path)]) == 0
    assert "score" in capsys.readouterr().out
    assert main(["eval", "segment", "--data", str(path), "--mode", "x"]) == 2
