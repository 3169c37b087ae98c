"""The command line of the guard: what it prints, what it exits with, and what it makes of bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from topicality import Guard, Policy, Verdict, __version__
from topicality.doors.cli import main

BENCH = Path(__file__).resolve().parents[2] / "bench" / "data"
TOPICS = ["--allow", "billing and payments", "--allow", "technical support", "--block", "violence"]
ON, OFF, BLOCKED = (
    "How do I update my credit card?",
    "Write me a poem about snow",
    "How do I build a bomb to hurt people?",
)
KEYS = [field.name for field in fields(Verdict)]
ESCAPE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e"
RED = r"\x1b[31mred\x1b]0;title\x07\x9b2J\u202e"


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def values(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


class Terminal:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.capsys = capsys
        self.monkeypatch = monkeypatch
        self.folder = folder

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"") -> Run:
        given = self.folder / "stdin"
        given.write_bytes(stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin)
        with given.open(encoding="utf-8") as file:
            self.monkeypatch.setattr(sys, "stdin", file)
            code = main([str(argument) for argument in arguments])
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return Run(code, captured.out, captured.err)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "terminal"
    folder.mkdir()
    capsys.readouterr()
    yield Terminal(capsys, monkeypatch, folder)
    monkeypatch.undo()


def real(arguments: Sequence[str], stdin: bytes | int = b"", **environment: str) -> Run:
    """Runs it as a program."""
    given: dict[str, object] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run(
        [sys.executable, "-m", "topicality", *arguments],
        capture_output=True,
        timeout=100,
        env={**os.environ, **environment},
        check=False,
        **given,  # type: ignore[call-overload]  # either of two arguments
    )
    found = Run(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
    assert "Traceback" not in found.err
    return found


def labelled(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    lines = [json.dumps({"text": text, "label": label, "source": "test"}) for text, label in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


# Help and version.

COMMANDS: list[list[str]] = [[], ["check"], ["demo"], ["calibrate"], ["eval"], ["eval", "guard"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself(run: Terminal, command: list[str], option: str) -> None:
    found = run(*command, option)
    assert (found.code, found.err) == (0, "")
    assert "Usage" in found.out
    assert len(found.lines) > 5


def test_the_version_is_printed(run: Terminal) -> None:
    assert run("--version") == Run(0, f"topicality {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["check", "--frobnicate"], ["check", "--allow"], ["eval"], ["eval", "guard"], ["calibrate"], []],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_with_help(run: Terminal, arguments: list[str]) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert "Usage" in found.out + found.err or found.err.startswith("Error: Option '--allow' requires")


# check.


@pytest.mark.parametrize(
    ("texts", "code"),
    [([ON], 0), ([OFF], 1), ([BLOCKED], 1), ([ON, "thanks"], 0), ([ON, OFF], 1), ([OFF, ON], 1), ([""], 0)],
)
def test_the_exit_code_says_whether_all_messages_may_pass(run: Terminal, texts: list[str], code: int) -> None:
    assert run("check", *TOPICS, *texts).code == code
    assert run("check", *TOPICS, "--json", *texts).code == code


def test_a_verdict_for_people_says_what_why_and_how_close(run: Terminal) -> None:
    found = run("check", *TOPICS, ON, BLOCKED)
    assert f"ALLOW    {ON}" in found.out
    assert f"BLOCK    {BLOCKED}" in found.out
    assert "BLOCKED_TOPIC" in found.out
    assert "threshold" in found.out
    assert "█" in found.out
    assert found.err == ""


def test_json_is_one_line_a_message_with_the_keys_of_a_verdict(run: Terminal) -> None:
    texts = [ON, OFF, BLOCKED, "", "yes", "Как отменить подписку?", "zwei\nZeilen"]
    found = run("check", *TOPICS, "--json", *texts)
    assert len(found.lines) == len(texts)
    guard = Guard(Policy(allowed=["billing and payments", "technical support"], blocked=["violence"]))
    for value, verdict in zip(found.values, guard.check_many(texts), strict=True):
        assert list(value) == KEYS
        assert value == json.loads(json.dumps(verdict.to_dict()))


def test_messages_come_from_standard_input_as_text_or_json_with_context(run: Terminal) -> None:
    before = [{"role": "assistant", "text": "I see the double charge on your credit card. Shall I refund it?"}]
    lines = [
        ON,
        json.dumps({"text": "How long will that take?", "context": before}),
        "",
        '  {"text": "' + OFF + '"}',
        "How long will that take?",
    ]
    found = run("check", *TOPICS, "--json", stdin="\ufeff" + "\r\n".join(lines))
    assert [value["reason_code"] for value in found.values][2:] == ["NOT_CHECKED", "OFF_TOPIC", "OFF_TOPIC"]
    assert [value["action"] for value in found.values] == ["allow", "allow", "allow", "flag", "flag"]
    assert found.code == 1


def test_context_on_the_command_line_comes_before_that_of_a_line(run: Terminal) -> None:
    said = "I see the double charge on your credit card. Shall I refund it?"
    assert run("check", *TOPICS, "How long will that take?").code == 1
    assert run("check", *TOPICS, "-c", said, "How long will that take?").code == 0
    assert run("check", *TOPICS, "-c", said, stdin="How long will that take?\n").code == 0


@pytest.mark.parametrize("stdin", [b"", b"\xef\xbb\xbf"])
def test_empty_standard_input_is_no_message(run: Terminal, stdin: bytes) -> None:
    found = run("check", *TOPICS, stdin=stdin)
    assert (found.code, found.err) == (0, "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "JSON"),
        ('{"text": 5}', "text"),
        ('{"message": "x"}', "text"),
        ('{"text": "x", "context": "y"}', "context"),
        ('{"text": "x", "context": [5]}', "context"),
        ('{"text": "x", "context": [{"role": "user"}]}', "context"),
        ('{"a":' * 50_000, "JSON"),
    ],
)
def test_a_malformed_line_is_named(run: Terminal, line: str, says: str) -> None:
    found = run("check", *TOPICS, stdin=f"{ON}\n\n{line}\n{ON}\n")
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert "line 3" in found.err
    assert says in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    "line", [b"caf\xe9 \xff\xfe", b'{"text": "\\ud800 half a pair"}', b"\x00\x01\x02", b"[1, 2]", b"null"]
)
def test_any_bytes_on_standard_input_get_a_verdict(run: Terminal, line: bytes) -> None:
    for option in ([], ["--json"]):
        found = run("check", *TOPICS, *option, stdin=line)
        assert found.code in (0, 1)
        assert found.out


def test_the_side_that_speaks_is_an_option(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "input only.toml"
    path.write_text('direction = "input"\nallowed = ["billing"]\n', "utf-8")
    assert run("check", "-p", path, OFF).code == 1
    assert run("check", "-p", path, "--role", "assistant", OFF).code == 0
    assert run("check", "-p", path, "--role", "robot", OFF).code == 2


def test_a_policy_file_and_topics_of_the_command_line_add_up(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(
        '\ufeff{"allowed": ["billing and payments"], "off_topic_action": "redirect", "replies": {"off_topic": "Hm."}}',
        "utf-8",
    )
    found = run("check", "-p", path, "--block", "violence", "--json", ON, OFF, BLOCKED)
    assert [value["action"] for value in found.values] == ["allow", "redirect", "block"]
    assert found.values[1]["reply"] == "Hm."
    assert "reply: Hm." in run("check", "-p", path, OFF).out


@pytest.mark.parametrize("preset", ["customer_support", "coding_assistant", "common_unsafe"])
def test_presets_are_there_by_name(run: Terminal, preset: str) -> None:
    assert run("check", "-p", preset, "--json", "hello").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "customer-support"], "customer_support"),
        (["-p", r"C:\policies\support.toml"], r"C:\policies\support.toml"),
        (["-p", r"C:\policies\support.ini"], ".toml"),
        (["-p", "missing.yaml"], "cannot be read"),
        (["-p", "/"], "format"),
        (["-p", ""], "no topics"),
        ([], "no topics"),
        (["--allow", ""], "blank"),
        (["--allow", "a", "--allow", "A"], "twice"),
        (["--allow", "a", "--block", "a"], "twice"),
        (["--allow", "a", "--encoder", "word2vec"], "encoder"),
        (["--allow", "a", "--encoder", "openai:"], "encoder"),
        (["--allow", "a", "--allow", ESCAPE, "--allow", ESCAPE], "twice"),
    ],
)
def test_a_policy_that_cannot_be_used_is_exit_code_2_and_one_line_on_what_to_do(
    run: Terminal, arguments: list[str], says: str
) -> None:
    found = run("check", *arguments, "x")
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert len(found.err.splitlines()) == 1
    assert says in found.err
    assert "\x1b" not in found.err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "allowed = [", "line 1"),
        ("a.json", '{"allowed":\n ["x",]}', "line 2"),
        ("a.yaml", "allowed: [x\nblocked: {", "line 2"),
        ("a.toml", 'alowed = ["x"]', "alowed"),
        ("a.json", '{"allowed": ["x"], "allowed_threshold": 2}', "allowed_threshold"),
        ("a.json", '{"allowed": ["x"], "allowed_threshold": NaN}', "allowed_threshold"),
        ("a.json", '{"allowed": [{"name": "x", "exmples": []}]}', "exmples"),
        ("a.json", "[1]", "table"),
        ("a.yaml", "", "table"),
    ],
)
def test_a_malformed_policy_file_is_named_with_the_place(
    run: Terminal, tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    found = run("check", "-p", path, "x")
    assert found.code == 2
    assert name in found.err
    assert says in found.err


def test_a_message_may_hold_a_windows_path_or_markup(run: Terminal) -> None:
    text = r"[bold]C:\Users\me\[/x] invoice.pdf :smile: does not open, the app shows an error[/]"
    assert text in run("check", *TOPICS, text).out


def test_terminal_escapes_of_a_message_are_shown_not_sent(run: Terminal) -> None:
    found = run("check", *TOPICS, f"{ESCAPE} {OFF}", stdin="")
    assert RED in found.out
    assert "\x1b" not in found.out
    assert "\x9b" not in found.out
    assert "\u202e" not in found.out
    strict = run("check", "--allow", f"billing {ESCAPE}", OFF)
    assert "\x1b" not in strict.out + strict.err
    usage = run("check", f"--{ESCAPE}")
    assert usage.code == 2
    assert "\x1b" not in usage.out + usage.err


def test_a_long_message_is_shown_shortened(run: Terminal) -> None:
    found = run("check", *TOPICS, "invoice " * 5000)
    assert len(found.out) < 2000
    assert "…" in found.out


def test_a_second_run_prints_the_same(run: Terminal) -> None:
    first = run("check", *TOPICS, ON, OFF, BLOCKED)
    assert run("check", *TOPICS, ON, OFF, BLOCKED) == first


# demo.


def test_the_demo_shows_a_conversation_with_verdicts_bars_and_reasons(run: Terminal) -> None:
    found = run("demo")
    assert found.code == 0
    for shown in ("ALLOW", "BLOCK", "OFF_TOPIC", "FOLLOW_UP", "SMALL_TALK", "BLOCKED_TOPIC", "█", "assistant", "user"):
        assert shown in found.out
    assert run("demo") == found


def test_the_demo_as_json_has_the_message_and_its_verdict(run: Terminal) -> None:
    found = run("demo", "--json")
    assert all(list(value) == ["text", *KEYS] for value in found.values)
    assert {"allow", "block"} <= {value["action"] for value in found.values}
    assert run("demo", "--policy", "coding_assistant", "--json").code == 0


# calibrate.

ROWS = [json.loads(line) for line in (BENCH / "shop.jsonl").read_text("utf-8").splitlines()][::4]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return labelled(tmp_path / "labelled.jsonl", [(row["text"], row["label"]) for row in ROWS])


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".toml"])
def test_the_fitted_policy_is_written_in_the_format_of_its_name_and_loads_back(
    run: Terminal, data: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"fitted{suffix}"
    found = run("calibrate", BENCH / "shop.policy0.json", data, "-o", out, "--json")
    assert found.code == 0
    (report,) = found.values
    assert report["written"] == str(out)
    policy = Policy.load(out)
    assert policy.fitted is not None
    assert policy.fitted.rows == report["rows"]
    assert policy.unfitted() == Policy.load(BENCH / "shop.policy0.json")
    assert run("check", "-p", out, "Where is my parcel?").code == 0
    again = tmp_path / f"again{suffix}"
    run("calibrate", BENCH / "shop.policy0.json", data, "-o", again)
    assert again.read_text("utf-8") == out.read_text("utf-8")


def test_the_report_for_people_has_figures_histogram_and_wrong_rows(run: Terminal, tmp_path: Path) -> None:
    rows = [(row["text"], row["label"]) for row in ROWS] + [
        (f"{ESCAPE} {OFF}", label)
        for label in ("allowed", "off_topic") * 2  # half of them are wrong in any case
    ]
    found = run(
        "calibrate", BENCH / "shop.policy0.json", labelled(tmp_path / "l.jsonl", rows), "--dry-run", "--wrong", "50"
    )
    assert found.code == 0
    for shown in ("AUROC", "balanced accuracy", "threshold", "─ threshold", "█", "nothing written", "wrong: "):
        assert shown in found.out
    assert RED in found.out
    assert "\x1b" not in found.out
    assert not list(tmp_path.glob("*.fitted.*"))


def test_the_default_is_a_file_beside_the_policy_and_a_target_can_be_stated(
    run: Terminal, data: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "shop.json"
    policy.write_text((BENCH / "shop.policy0.json").read_text("utf-8"), "utf-8")
    found = run("calibrate", policy, data, "--max-flagged", "0.02")
    assert found.code == 0
    assert "at most 2.0% of on-topic messages flagged" in found.out
    assert Policy.load(tmp_path / "shop.fitted.json").fitted is not None


def test_what_cannot_be_calibrated_is_exit_code_2(run: Terminal, data: Path, tmp_path: Path) -> None:
    few = labelled(tmp_path / "few.jsonl", [("a", "allowed")] * 5)
    cases: list[tuple[list[str | Path], str]] = [
        ([few], "at least 10"),
        ([tmp_path / "missing.jsonl"], "cannot be read"),
        ([data, "--max-flagged", "0.1", "--max-passed", "0.1"], "one target"),
        ([data, "--max-flagged", "2"], "rate"),
        ([data, "-o", tmp_path / "fitted.txt"], ".toml"),
        ([data, "-o", tmp_path / "no" / "folder.json"], "cannot be written"),
        ([data, "--encoder", "nothing"], "encoder"),
    ]
    for arguments, says in cases:
        found = run("calibrate", BENCH / "shop.policy0.json", *arguments)
        assert (found.code, len(found.err.splitlines())) == (2, 1)
        assert says in found.err


# eval guard.

FIGURES = ["auroc_off_topic", "auroc_blocked", "fpr_at_95_tpr", "balanced_accuracy", "calibration_error"]


def test_one_data_file_gives_its_figures(run: Terminal, data: Path) -> None:
    found = run("eval", "guard", "-p", BENCH / "shop.policy0.json", "-d", data, "--json")
    (report,) = found.values
    assert (found.code, found.err) == (0, "")
    assert {"n", *FIGURES, "confusion", "by_source", "ms_per_message", "encoder"} <= set(report)
    assert (report["n"], report["encoder"]) == (len(ROWS), "minilm")


def test_several_data_files_give_each_and_the_mean(run: Terminal, data: Path, tmp_path: Path) -> None:
    other = labelled(tmp_path / "other.jsonl", [(ON, "allowed"), (OFF, "off_topic"), ("where is my parcel", "allowed")])
    policies: list[str | Path] = ["-p", BENCH / "shop.policy0.json", "-p", "customer_support"]
    found = run("eval", "guard", *policies, "-d", data, "-d", other, "--json")
    (report,) = found.values
    files = report["files"]
    mean = report["mean"]
    assert isinstance(files, dict)
    assert isinstance(mean, dict)
    assert report["n"] == len(ROWS) + 3
    assert list(files) == [str(data), str(other)]
    for name in FIGURES:
        values = [part[name] for part in files.values() if part[name] is not None]
        assert mean[name] == pytest.approx(sum(values) / len(values), abs=1e-4)
    shown = run("eval", "guard", *policies, "-d", data, "-d", other).out
    assert "mean" in shown
    assert "AUROC" in shown


def test_the_table_for_people_shows_what_happened_to_each_label_and_source(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"text": ON, "label": "allowed", "source": ESCAPE})
        + "\n"
        + json.dumps({"text": OFF, "label": "off_topic"}),
        "utf-8",
    )
    found = run("eval", "guard", "-p", "customer_support", "-d", path)
    assert "allowed    allow 1" in found.out
    assert RED[:20] in found.out
    assert "\x1b" not in found.out


def test_what_cannot_be_measured_is_exit_code_2(run: Terminal, data: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(f'{json.dumps({"text": ON, "label": "allowed"})}\n{{"text": "x", "label": "good"}}\n', "utf-8")
    (tmp_path / "empty.jsonl").write_text("", "utf-8")
    cases: list[tuple[list[str | Path], str]] = [
        (["-p", "customer_support", "-d", bad], "line 2"),
        (["-p", "customer_support", "-d", tmp_path / "empty.jsonl"], "no rows"),
        (["-p", "customer_support", "-d", tmp_path], "cannot be read"),
        (["-p", "nothing", "-d", data], "customer_support"),
        (
            ["-p", "customer_support", "-p", "common_unsafe", "-p", "coding_assistant", "-d", data, "-d", data],
            "pair up",
        ),
    ]
    for arguments, says in cases:
        found = run("eval", "guard", *arguments)
        assert (found.code, len(found.err.splitlines())) == (2, 1)
        assert says in found.err


def test_a_backend_that_is_down_is_exit_code_3(run: Terminal, data: Path) -> None:
    pytest.importorskip("openai")
    down = ["--encoder", "openai:model@http://127.0.0.1:9/v1"]
    found = run("eval", "guard", "-p", "customer_support", "-d", data, *down)
    assert found.code == 3
    assert "openai:model" in found.err
    checked = run("check", *TOPICS, "--json", "quantum physics", *down)
    assert (checked.code, checked.values[0]["status"], checked.values[0]["action"]) == (1, "unavailable", "block")


# As a program.


def test_the_program_answers_without_colour_when_nobody_looks() -> None:
    found = real(["check", *TOPICS, ON, OFF], TERM="xterm-256color", COLORTERM="truecolor")
    assert found.code == 1
    assert found.err == ""
    assert "\x1b" not in found.out
    assert "ALLOW" in found.out


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_leaves_is_no_error(option: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "topicality", "check", *TOPICS, *option],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(f"{ON}\n".encode())
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    threading.Thread(target=feed, args=(process,), daemon=True).start()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def feed(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        for _ in range(2000):
            process.stdin.write(f"{ON}\n".encode())
        process.stdin.close()
    except BrokenPipeError:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_pipe_gets_each_answer_at_once_and_an_interrupt_is_exit_code_130() -> None:
    # A job in the background inherits "interrupts are ignored", and so would its children: say what is meant.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _asked_and_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def _asked_and_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "topicality", "check", *TOPICS, "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for text, action in ((ON, "allow"), (BLOCKED, "block")):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["action"] == action
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() in (b"", b"interrupted\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_encoding_of_the_terminal_will_do_and_json_stays_json(encoding: str) -> None:
    arguments = ["check", "--allow", "Rechnungen für Café 咖啡", "咖啡 für mich, please: é 🙂"]
    assert "ALLOW" in real(arguments, PYTHONIOENCODING=encoding).out
    done = real([*arguments, "--json"], PYTHONIOENCODING=encoding)
    assert done.values[0]["rule"] == "Rechnungen für Café 咖啡"


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are bytes on POSIX only")
def test_arguments_that_are_no_text_are_no_traceback() -> None:
    for arguments in (
        ["--allow", "billing", os.fsdecode(b"x\xff")],
        ["--allow", os.fsdecode(b"x\xff"), "billing", "--json"],
    ):
        assert real(["check", *arguments]).code in (0, 1, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="uses a POSIX shell")
def test_a_closed_standard_input_is_no_message() -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m topicality check --allow billing 0<&-"],  # noqa: S607 - the system's own
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
