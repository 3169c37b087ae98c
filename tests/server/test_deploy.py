"""The container files name what exists: extras, settings, paths and the command. They are not built here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from topicality.doors.server.operations.health import PATHS
from topicality.doors.server.settings import Settings, load_settings
from topicality.errors import ConfigError

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text("utf-8"))
GIVEN = {
    "POSTGRES_PASSWORD": "p4ss",
    "TOPICALITY_KEYS": '[{"name": "app", "key": "0123456789", "scopes": ["chat"]}]',
    "UPSTREAM_URL": "https://models.example/v1",
}


def of_image() -> dict[str, str]:
    lines = DOCKERFILE.replace("\\\n", " ")
    return dict(re.findall(r"(TOPICALITY_\w+)=(\S+)", lines))


def filled(text: str) -> str:
    """A value of the compose file as compose would read it with the variables of `GIVEN`."""

    def value(found: re.Match[str]) -> str:
        name, _, rest = found[1].partition(":")
        if name in GIVEN:
            return GIVEN[name]
        assert not rest.startswith("?"), f"{name} has to be given"
        return rest.removeprefix("-")

    return re.sub(r"\$\{([^}]+)\}", value, str(text))


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (named,) = re.findall(r"\.whl\)\[([^\]]+)\]", DOCKERFILE)
    assert set(named.split(",")) <= set(project["optional-dependencies"])
    assert "server" in named


def test_the_image_copies_what_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (copied,) = re.findall(r"^COPY (pyproject.+) \./$", DOCKERFILE, re.MULTILINE)
    assert {project["readme"], *project["license-files"]} <= set(copied.split())
    for name in (*copied.split(), "src"):
        assert (ROOT / name).exists()


def test_the_image_wants_keys_and_starts_with_them() -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        load_settings(None, of_image())
    settings = load_settings(None, {**of_image(), "TOPICALITY_KEYS": GIVEN["TOPICALITY_KEYS"]})
    assert (settings.port, settings.store) == (8000, "sqlite:////data/chat.db")
    assert f"EXPOSE {settings.port}" in DOCKERFILE


def test_the_image_is_not_run_by_root_and_its_health_is_a_path_that_exists() -> None:
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE) == ["topicality"]
    (path,) = re.findall(r"\+ '(/\w+)'", last)
    assert path in PATHS


def test_compose_sets_what_exists_and_fits_together() -> None:
    service, database = COMPOSE["services"]["topicality"], COMPOSE["services"]["db"]
    told = {name: filled(value) for name, value in service["environment"].items()}
    settings = load_settings(None, {**of_image(), **told})
    owner = {name: filled(value) for name, value in database["environment"].items()}
    wanted = f"postgresql://{owner['POSTGRES_USER']}:{owner['POSTGRES_PASSWORD']}@db:5432/{owner['POSTGRES_DB']}"
    assert settings.store == wanted
    assert settings.upstream.url == GIVEN["UPSTREAM_URL"]
    assert settings.workers == 2
    assert settings.policy == "customer_support"
    assert (ROOT / "src" / "topicality" / "presets" / f"{settings.policy}.toml").exists()
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert int(service["stop_grace_period"].removesuffix("s")) > settings.limits.shutdown + 10
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert set(service["depends_on"]) <= set(COMPOSE["services"])


def test_the_command_of_the_image_exists() -> None:
    from topicality.doors.cli import app

    assert 'ENTRYPOINT ["topicality"]' in DOCKERFILE
    (command,) = re.findall(r'^CMD \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)
    names = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    assert command in names


def test_the_operations_page_lists_every_setting() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z_0-9.]+)`", page))
    wanted: set[str] = set()
    for name, field in Settings.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        wanted |= {name} if inner is None else {f"{name}.{one}" for one in inner}
    assert not wanted - named, "settings that docs/operations.md does not name"
