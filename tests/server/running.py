"""A server of its own process, started as the command would, for what only a process can show."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.server.upstream import PATIENCE

START = 6 * PATIENCE  # loading the encoder on a busy machine
CODE = """
import json, os, sys
from topicality.doors.server.serving import serve
from topicality.doors.server.settings import load_settings
if __name__ == "__main__":
    sys.exit(serve(load_settings(None, os.environ)))
"""


class Running:
    """A started server.

    Attributes:
        root: its address. log: the file with its lines.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.root = ""

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, as far as it is JSON."""
        return [
            json.loads(line)
            for line in self.log.read_text().splitlines()
            if line.startswith("{") and line.endswith("}")
        ]

    def until_listening(self) -> None:
        """Wait for its address."""
        self.until(lambda: bool(re.search("listening on http", self.log.read_text())), START)
        found = re.search(r"listening on (http://[^ \"]+)", self.log.read_text())
        assert found is not None
        self.root = found[1]

    def until(self, wanted: Any, patience: float = PATIENCE) -> None:
        """Wait for something while it runs."""
        end = time.monotonic() + patience
        while not wanted():
            assert self.process.poll() is None, f"it ended ({self.process.returncode}): {self.log.read_text()}"
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """Ask once, on a connection of its own."""
        with httpx2.Client(timeout=PATIENCE, trust_env=False) as client:
            return client.get(self.root + path, headers=headers)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(START)


@contextmanager
def started(directory: Path, **environment: str) -> Iterator[Running]:
    """Start one: `started(tmp_path, TOPICALITY_WORKERS="2")`. It listens on a free port unless told otherwise."""
    log = directory / "server.log"
    told = {"TOPICALITY_PORT": "0", "TOPICALITY_LOG": "json", "OMP_NUM_THREADS": "1", **environment}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICALITY_", "PROMETHEUS_"))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], env={**kept, **told}, stdout=out, stderr=out, cwd=directory
        )
    try:
        yield Running(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE)
