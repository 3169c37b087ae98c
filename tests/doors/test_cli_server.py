"""`topicality serve`: what it says, what it refuses, and that nothing of it is loaded before it is used."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topicality.doors import cli

PATIENCE = 120.0  # seconds; loading the encoder on a busy machine


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Instead of serving, note the settings."""
    found: list[Any] = []

    def run(settings: Any) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("topicality.doors.server.serving.serve", run)
    for name in [name for name in os.environ if name.startswith("TOPICALITY_")]:
        monkeypatch.delenv(name)
    return found


def test_options_go_before_the_environment_and_that_before_the_file(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "localhost"\nstore = "file.db"\n[upstream]\nurl = "http://file/v1"\nidle = 5\n')
    monkeypatch.setenv("TOPICALITY_PORT", "2")
    monkeypatch.setenv("TOPICALITY_UPSTREAM__KEY", "their-key")
    code = cli.main(
        ["serve", "--config", str(file), "--upstream", "http://option/v1", "--workers", "2", "--log", "json"]
    )
    assert code == 0
    (settings,) = served
    assert (settings.port, settings.host, settings.store, settings.workers) == (2, "localhost", "file.db", 2)
    assert (settings.upstream.url, settings.upstream.idle) == ("http://option/v1", 5)
    assert settings.upstream.key.get_secret_value() == "their-key"


def test_it_says_what_it_serves_and_no_secret(served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *("serve", "--policy", "customer_support", "--store", "postgresql://me:SECRET1@db/chat"),
        *("--upstream", "http://u:SECRET2@models/v1", "--key", "SECRET3-long", "--key", "SECRET4-long"),
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    told = capsys.readouterr().err
    for part in ("customer_support", "postgresql://me:***@db/chat", "http://u:***@models/v1", "key-1, key-2"):
        assert part in told
    assert "SECRET" not in told
    assert cli.main(["serve", "--log", "json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "needs keys"),  # noqa: S104 - refused
        (["--upstream", "ftp://x"], "http://"),
        (["--port", "70000"], "port"),
        (["--workers", "2"], "several workers need a store"),
        (["--key", "short"], "at least 8"),
        (["--log", "loud"], "log"),
        (["--config", "nowhere.toml"], "cannot be read"),
    ],
)
def test_what_cannot_be_served_is_refused(
    served: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.main(["serve", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not served


def test_a_port_that_is_taken_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port), "--log", "off"]) in (2, 3)
    told = capsys.readouterr().err
    assert str(port) in told
    assert "Traceback" not in told


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("uvicorn", "topicality.doors.server.serving"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve"]) == 2
    assert "pip install 'topicality[server]'" in capsys.readouterr().err


def test_the_help_loads_no_server() -> None:
    heavy = ("fastapi", "starlette", "uvicorn", "httpx2", "mcp", "prometheus_client")
    code = (
        "import sys; from topicality.doors.cli import main; main(['--help']); main(['serve', '--help']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_it_serves_until_interrupted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "topicality", "serve", "--port", "0", "--store", str(tmp_path / "a.db")]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file)
    try:
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", int(found[1]))) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            assert b" 200 " in b"".join(iter(lambda: raw.recv(4096), b""))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, 130)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
