"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "topicality"
MODULES = sorted(SOURCE.rglob("*.py"))
PURE = [*sorted((SOURCE / "core").rglob("*.py")), *(SOURCE / f"{name}.py" for name in ("vectors", "types", "ports"))]

WORLD = {"open", "print", "input", "exec", "eval"}  # functions that reach outside
CHANCE = {
    "now",
    "today",
    "utcnow",
    "default_rng",
    "RandomState",
    "open",
    "read_text",
    "read_bytes",
}  # the same, as methods


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", PURE, ids=named)
def test_the_core_opens_nothing_prints_nothing_and_asks_neither_clock_nor_dice(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in WORLD, f"{named(path)}:{node.lineno} calls {node.func.id}()"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in CHANCE, f"{named(path)}:{node.lineno} calls .{node.func.attr}()"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("np", "random"), f"{named(path)}:{node.lineno} uses np.random"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_says_what_it_is_and_stays_small(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.count("\n")
    assert lines <= 450, f"{named(path)} has {lines} lines; split it by reason"
    assert path.stem not in {"utils", "helpers", "manager", "base", "common"}
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{named(path)} has no docstring"


def test_every_suppression_carries_a_code_and_a_reason() -> None:
    """The form is `noqa: S310 - reason` or `type: ignore[arg-type]  # reason`."""
    code = r"\[[\w, -]+\]|:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*"
    bare = re.compile(rf"#\s*(?:type:\s*ignore|noqa)\b(?!(?:{code})\s*(?:#|-|\()\s*\w)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in (SOURCE, ROOT / "tools", ROOT / "bench")
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if bare.search(line)
    ]
    assert not found, f"give a code and a reason: {found}"
