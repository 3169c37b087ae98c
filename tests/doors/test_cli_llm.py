"""Language models on the command line, against a server on loopback that says what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from topicality import Policy
from topicality.doors.cli import main

pytest.importorskip("openai")

OFF = "Write me a poem about snow"
ALLOWS = {"verdict": "allowed", "rule": "billing", "confidence": 0.8, "reason": "fine by me"}
EXPANDS = {"includes": ["refunds", "invoices"], "near_misses": ["a bill in parliament"]}
TOML = '# mine\nallowed = ["billing"]\njudge = "always"\n'


class Server:
    """Answers every question with `reply`, a value or a function of the question; None is HTTP 500."""

    def __init__(self) -> None:
        self.reply: Any = ALLOWS
        self.asked: list[Any] = []
        self.systems: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send({"object": "list", "data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                lines = [json.loads(line) for line in body["messages"][1]["content"].splitlines()]
                outer.asked.append(lines[0] if len(lines) == 1 else lines)
                outer.systems.append(body["messages"][0]["content"])
                reply = outer.reply(outer.asked[-1]) if callable(outer.reply) else outer.reply
                message = {"role": "assistant", "content": json.dumps(reply)}
                usage = {"prompt_tokens": 100, "completion_tokens": 9}
                answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
                self.send(answer, 401 if reply is None else 200)

            def send(self, value: Any, status: int = 200) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(TOML, "utf-8")
    return path


def test_check_asks_the_model_and_says_what_that_cost(server: Server, run: Any, policy: Path) -> None:
    code, out, err = run("check", "-p", policy, OFF, "--llm-url", server.url)
    assert code == 0
    assert "ALLOW" in out
    assert "fine by me" in out
    assert "language model: asked 1 times, 1 calls, 100 + 9 tokens" in err
    assert server.asked[0]["message"] == OFF


def test_check_as_json_has_the_cost_in_it(server: Server, run: Any, policy: Path) -> None:
    code, out, err = run("check", "-p", policy, OFF, "--llm", f"openai:tiny@{server.url}", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["method"], answer["llm"]["calls"], answer["llm"]["input_tokens"]) == ("judge", 1, 100)


def test_the_option_says_when_the_model_is_asked(server: Server, run: Any, policy: Path) -> None:
    code, _, err = run("check", "-p", policy, OFF, "--llm-url", server.url, "--judge", "never")
    assert (code, err, server.asked) == (1, "", [])
    code, _, _ = run("check", "-a", "billing", OFF, "--llm-url", server.url, "--judge", "always")
    assert (code, len(server.asked)) == (0, 1)
    code, _, err = run("check", "-a", "billing", OFF, "--judge", "sometimes")
    assert code == 2
    assert "borderline, always, never" in err


def test_a_model_that_fails_leaves_the_local_verdict(server: Server, run: Any, policy: Path) -> None:
    server.reply = None
    code, out, _ = run("check", "-p", policy, OFF, "--llm-url", server.url)
    assert code == 1
    assert "status degraded" in out
    assert "HTTP 401; is the key right?" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--llm", "gpt-4"], "openai:MODEL"),
        (["--llm", "openai:m"], "OPENAI_API_KEY"),
        (["--llm-url", "localhost:1"], "http://"),
        (["--prompts", "."], "give --llm"),
        (["--llm-url", "http://127.0.0.1:9", "--prompts", "nowhere"], "folder"),
    ],
)
def test_options_that_cannot_work(server: Server, run: Any, policy: Path, arguments: list[str], why: str) -> None:
    code, out, err = run("check", "-p", policy, OFF, *arguments)
    assert (code, out) == (2, "")
    assert why in err


def test_prompts_of_your_own(server: Server, run: Any, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "judge.txt").write_text("be kind")
    run("check", "-p", policy, OFF, "--llm-url", server.url, "--prompts", tmp_path)
    assert server.systems == ["be kind"]


def test_eval_guard_tells_what_the_judge_changed(server: Server, run: Any, policy: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [("How do I pay my bill?", "allowed"), (OFF, "off_topic"), ("Tell me a joke", "off_topic")]
    data.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    code, out, _ = run("eval", "guard", "-p", policy, "-d", data, "--llm-url", server.url)
    assert code == 0
    assert "judge: asked about 3 of 3 rows, 0 times in vain" in out
    assert "2 worse" in out
    assert "cost: 3 calls, 300 + 27 tokens" in out
    assert f"flag → allow (off_topic)  {OFF}" in out
    _, out, _ = run("eval", "guard", "-p", policy, "-d", data, "--llm-url", server.url, "--json")
    report = json.loads(out)
    assert (report["llm_calls"], report["judge"]["worse"]) == (3, 2)
    _, out, _ = run("eval", "guard", "-p", policy, "-d", data, "--json")
    assert json.loads(out)["llm_calls"] == 0


def test_expand_writes_suggestions_into_the_file(server: Server, run: Any, policy: Path) -> None:
    server.reply = EXPANDS
    code, out, err = run("policy", "expand", policy, "--llm-url", server.url)
    assert code == 0
    assert "+ refunds" in out
    assert "- a bill in parliament" in out
    assert "read the suggestions before" in err
    text = policy.read_text("utf-8")
    assert text.startswith("# mine\n")
    assert Policy.load(policy).allowed[0].examples == ("refunds", "invoices")
    assert Policy.load(policy).judge == "always"
    assert list(policy.parent.iterdir()) == [policy]


def test_expand_can_only_show_or_write_elsewhere(server: Server, run: Any, policy: Path, tmp_path: Path) -> None:
    server.reply = EXPANDS
    code, out, _ = run("policy", "expand", policy, "--llm-url", server.url, "--dry-run", "--json")
    report = json.loads(out)
    assert (code, report["written"], report["llm_calls"]) == (0, None, 1)
    wanted = {"side": "allowed", "rule": "billing", "examples": EXPANDS["includes"], "error": None}
    assert report["rules"] == [{**wanted, "counterexamples": EXPANDS["near_misses"]}]
    assert policy.read_text() == TOML
    for name in ("other.toml", "other.json", "other.yaml"):
        code, _, _ = run("policy", "expand", policy, "--llm-url", server.url, "-o", tmp_path / name)
        assert code == 0
        assert Policy.load(tmp_path / name).allowed[0].counterexamples == ("a bill in parliament",)
    assert policy.read_text() == TOML


def test_expand_says_when_a_fit_is_out_of_date(server: Server, run: Any, tmp_path: Path) -> None:
    server.reply = EXPANDS
    fitted = {"space": "x", "target": "t", "rows": {}, "on": "2026-01-01"}
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"allowed": ["billing"], "fitted": fitted}))
    code, _, err = run("policy", "expand", path, "--llm-url", server.url)
    assert code == 0
    assert "calibrate it again" in err
    assert Policy.load(path).allowed[0].examples == ("refunds", "invoices")


def test_expand_refuses_what_it_cannot_do(server: Server, run: Any, policy: Path, tmp_path: Path) -> None:
    yaml, empty = tmp_path / "p.yaml", tmp_path / "empty.toml"
    yaml.write_text("allowed: [billing] # money\n")
    empty.write_text('name = "x"\n')
    for arguments, why in (
        ([policy], "give --llm"),
        ([yaml, "--llm-url", server.url], "lose its comments"),
        (["customer_support", "--llm-url", server.url], "preset"),
        ([empty, "--llm-url", server.url], "no rules"),
        ([tmp_path / "none.toml", "--llm-url", server.url], "cannot be read"),
    ):
        code, _, err = run("policy", "expand", *arguments)
        assert code == 2
        assert why in err
    assert server.asked == []


def test_expand_without_any_answer_leaves_the_file_and_says_so(server: Server, run: Any, policy: Path) -> None:
    server.reply = {"nothing": 1}
    code, _, err = run("policy", "expand", policy, "--llm-url", server.url)
    assert code == 3
    assert "no usable answer" in err
    assert policy.read_text() == TOML


def test_topics_are_named_again_by_the_model(server: Server, run: Any, tmp_path: Path) -> None:
    chat = [
        ("user", "Where is the invoice for the blue kayak?"),
        ("assistant", "The kayak invoice went out on Monday."),
        ("user", "And when does the kayak arrive?"),
        ("assistant", "The blue kayak arrives on Friday."),
    ]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": role, "content": text} for role, text in chat]), "utf-8")
    store = tmp_path / "chat.db"
    assert run("import", tmp_path / "chat.json", "--store", store, "--conversation", "c1")[0] == 0

    def named(lines: Any) -> Any:
        known = next(line["topic"] for line in lines if "topic" in line)
        numbers = [line["exchange"] for line in lines if "exchange" in line]
        labels, terms = ["kayak delivery", "kayak invoice"], ["kayak", "invoice", "Friday"]
        spans = [{"first": numbers[0], "last": numbers[-1]}]
        topic = {"status": "open", "labels": labels, "terms": terms, "spans": spans, "continues": known}
        return {"topics": [topic]}

    server.reply = named
    code, out, told = run("topics", "--store", store, "--relabel", "--llm-url", server.url, "--json")
    assert code == 0, told
    assert "1 batches relabelled" in told
    assert len(server.asked) >= 1
    assert json.loads(out.splitlines()[0])["topics"][0]["labels"] == ["kayak delivery", "kayak invoice"]

    code, _, told = run("topics", "--store", store, "--relabel")
    assert code == 2
    assert "--llm" in told


PICKS = {"needs_memory": True, "topics": ["T1"], "needs_time": False}


@pytest.fixture
def store(run: Any, tmp_path: Path) -> Path:
    chat = [
        ("user", "Which credit card should I take for travelling?"),
        ("assistant", "The blue card has no fee abroad, the gold card has insurance."),
    ]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": role, "content": text} for role, text in chat]), "utf-8")
    assert run("import", tmp_path / "chat.json", "--store", tmp_path / "chat.db", "--conversation", "c1")[0] == 0
    return tmp_path / "chat.db"


def test_recall_lets_the_model_pick_topics_and_says_what_that_cost(server: Server, run: Any, store: Path) -> None:
    server.reply = PICKS
    question = ("recall", "which card?", "--store", store, "--conversation", "c1")
    code, out, err = run(*question, "--llm-url", server.url)
    assert code == 0
    assert "gold card" in out
    assert "topics that the language model reopened: 1" in out
    assert "language model: asked 1 times, 1 calls, 100 + 9 tokens" in err
    assert [topic["topic"] for topic in server.asked[0]["directory"]] == ["T1"]
    code, out, err = run(*question, "--llm", server.url, "--json")
    selected = json.loads(out)["selected"]
    assert (code, err, selected["strategy"], selected["llm"]["calls"]) == (0, "", "llm", 1)
    code, out, _ = run(*question, "--json")
    assert (json.loads(out)["selected"], len(server.asked)) == (None, 2)
    code, out, _ = run(*question, "--llm-url", server.url, "--select", "0", "--json")
    assert (json.loads(out)["selected"], len(server.asked)) == (None, 2)


def test_context_lets_the_model_pick_topics(server: Server, run: Any, store: Path) -> None:
    question = ("context", "which card?", "--store", store, "--conversation", "c1")
    server.reply = PICKS
    code, out, _ = run(*question, "--llm-url", server.url, "--json")
    found = json.loads(out)
    assert (code, found["llm"]["role"], found["llm"]["calls"]) == (0, "selector", 1)
    assert "topics that the language model reopened: 1" in found["notes"]
    server.reply = None
    code, out, err = run(*question, "--llm-url", server.url)
    assert code == 0
    assert "the local ranking stands" in out
    assert "language model: asked 1 times" in err
    assert json.loads(run(*question, "--json")[1])["llm"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["recall", "x", "--llm-url", "{url}"], "--conversation"),
        (["recall", "x", "--conversation", "c1", "--llm-url", "{url}", "--select", "-1"], "select"),
        (["context", "x", "--conversation", "c1", "--prompts", "."], "--llm"),
        (["context", "x", "--conversation", "c1", "--llm", "gpt-4"], "openai:MODEL"),
    ],
)
def test_picking_topics_refuses_what_it_cannot_do(
    server: Server, run: Any, store: Path, arguments: list[str], why: str
) -> None:
    code, _, err = run(*(part.replace("{url}", server.url) for part in arguments), "--store", store)
    assert code == 2
    assert why in err
    assert server.asked == []
