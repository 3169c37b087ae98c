"""What is installed: version, command, data files; and what must not stand in the repository's files."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import topicality

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "topicality"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def files_of_the_repository() -> list[Path]:
    """What git tracks or would track; without git, everything that is not a cache or a build."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout.decode()
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skipped = {"build", "dist", "venv", "__pycache__"}
        hidden = {".git", ".venv", ".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
        paths = [path for path in ROOT.rglob("*") if not (skipped | hidden) & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def test_the_version_is_the_installed_one() -> None:
    try:
        installed = metadata.version("topicality")
    except metadata.PackageNotFoundError:
        pytest.skip("topicality is not installed here; it runs from the source tree")
    assert installed == topicality.__version__, "installed before the version changed? reinstall: make clean test"


def test_the_command_resolves() -> None:
    module, _, function = project()["project"]["scripts"]["topicality"].partition(":")
    assert callable(metadata.EntryPoint("topicality", f"{module}:{function}", "console_scripts").load())


def test_python_m_topicality_is_the_command() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "topicality", "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    assert topicality.__version__ in answer.stdout


def test_a_missing_extra_is_one_that_exists() -> None:
    """Every extra that an error message tells people to install is declared."""
    extras = set(project()["project"]["optional-dependencies"])
    told = {
        extra
        for path in SOURCE.rglob("*.py")
        for extra in re.findall(r"MissingExtraError\([^)]*?,\s*\"(\w+)\"\)", path.read_text("utf-8"))
    }
    assert told
    assert told <= extras


@pytest.mark.slow
def test_wheel_and_sdist_carry_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        check=True,
        timeout=110,
    )
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    wanted = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in files_of_the_repository()
        if path.is_relative_to(SOURCE) and path.suffix != ".pyc"
    }
    assert {"topicality/py.typed", "topicality/embed/data/minilm.onnx"} <= wanted
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted - names == set()
    assert not [name for name in names if not name.startswith(("topicality/", f"topicality-{topicality.__version__}."))]
    assert [name for name in names if name.endswith("/NOTICE")]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in wanted} - inside == set()


def test_no_file_names_a_machine_path_or_a_registry_host() -> None:
    # put together here, so that this file does not find itself
    paths = ["/wor" + "k/", "/tm" + "p/lab", "/opt/" + "wheels", "/opt/" + "pypi", "/ro" + "ot/", "/ho" + "me/"]
    options = ["--index" + "-url", "--extra-index" + "-url", "--find" + "-links", "trusted" + "-host"]
    forbidden = re.compile(
        "|".join(re.escape(text) for text in paths + options)
        + r"|https?://(?!pypi\.org/project/)[\w.-]*(?:pypi|pythonhosted|npmjs|registry|mirror)[\w.-]*"
    )
    found = []
    for path in files_of_the_repository():
        if path.suffix in {".onnx", ".npz", ".png"}:
            continue
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            if match := forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert not found, "\n".join(found[:20])
