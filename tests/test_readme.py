"""The README and the docs do what they say: their code runs, their links lead somewhere.

Python blocks run each in a namespace of its own. Shell blocks run line by line, in order, in one directory per page;
lines that install, build or serve are left out. A block becomes a file of that directory when its opening fence names
one (```toml policy.toml); files of tests/data/readme lie there from the start. A block after
`<!-- not run: reason -->` is skipped, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SUPPLIED = ROOT / "tests" / "data" / "readme"

FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+)?^```(?P<kind>\w+)[ \t]*(?P<info>[^\n]*)\n(?P<body>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
SHELL = {"sh", "bash", "shell", "console"}
LEFT_OUT = re.compile(r"topicality (?:serve|mcp)\b")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    info: str
    body: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    if not page.exists():
        return []
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("kind")) + 1,
            match["kind"].lower(),
            match["info"].strip(),
            match["body"],
            match["reason"],
        )
        for match in FENCE.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.kind in {"python", "py"}]
WITH_SHELL = [page for page in PAGES if any(block.kind in SHELL for block in blocks_of(page))]


def commands(block: Block) -> list[str]:
    """The `topicality` commands of a shell block; continued lines are one command."""
    text = re.sub(r"\\\n\s*", "", block.body)
    lines = [line.strip() for line in text.splitlines()]
    if block.kind == "console" or any(line.startswith("$ ") for line in lines):
        lines = [line[2:].strip() for line in lines if line.startswith("$ ")]
    return [line for line in lines if re.search(r"(?:^|\|\s*)topicality\b", line) and not LEFT_OUT.search(line)]


def environment() -> dict[str, str]:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": programs, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


def laid_out(page: Path, place: Path) -> None:
    """Put the files that a page shows, and those supplied for it, into a directory."""
    if SUPPLIED.is_dir():
        shutil.copytree(SUPPLIED, place, dirs_exist_ok=True)
    for block in blocks_of(page):
        if re.fullmatch(r"[\w-]+\.\w+", block.info):
            place.joinpath(block.info).write_text(block.body, "utf-8")


@pytest.mark.skipif(not README.exists(), reason="there is no README.md yet")
def test_the_readme_is_short_and_starts_with_the_two_commands() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 120
    made = re.findall(r"^\s*(?:\$ )?make (\S+)", text, re.MULTILINE)
    assert made[:2] == ["demo", "test"], "the first command sets up and runs the main job, the second passes the tests"
    assert any(block.page == README for block in PYTHON), "ten lines of Python stand in the README"


def test_every_make_target_that_is_told_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        if page.exists():
            told = set(re.findall(r"(?:^(?:    )?(?:\$ )?|`)make ([a-z-]+)\b", page.read_text("utf-8"), re.MULTILINE))
            assert told <= targets, f"{page.name}: no such target: {sorted(told - targets)}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text)
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists()
    ]
    assert not missing, f"{page.name}: {missing}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_in_the_docs_runs(block: Block, tmp_path: Path) -> None:
    if block.reason is not None:
        pytest.skip(f"marked in the page: {block.reason}")
    laid_out(block.page, tmp_path)
    script = tmp_path / "block.py"
    script.write_text(block.body, "utf-8")
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert answer.returncode == 0, f"{block}\n{answer.stdout}\n{answer.stderr}"


@pytest.mark.parametrize("page", WITH_SHELL, ids=lambda page: page.name)
def test_commands_in_the_docs_run(page: Path, tmp_path: Path) -> None:
    """Exit code 1 is an answer (off topic, blocked, below target), as long as it is not a crash."""
    if shutil.which("topicality", path=environment()["PATH"]) is None:
        pytest.skip("the command `topicality` is not installed here; run `make test`")
    laid_out(page, tmp_path)
    for block in blocks_of(page):
        if block.kind in SHELL and block.reason is None:
            for command in commands(block):
                answer = subprocess.run(
                    ["/bin/sh", "-c", command],
                    cwd=tmp_path,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=100,
                )
                told = f"{block}: {command}\n{answer.stdout}\n{answer.stderr}"
                assert answer.returncode in (0, 1), told
                assert "Traceback" not in answer.stderr, told
