"""Settings: which source wins, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from topicality.doors.server.settings import Settings, is_loopback, load_settings, shown
from topicality.errors import ConfigError

SECRET = "sk-very-secret-0123456789"  # noqa: S105 - of nobody
PASSWORD = "hunter2hunter2"  # noqa: S105 - of nobody


def failure(*args: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.toml", 'port = 1000\nlog = "json"\n[upstream]\nurl = "http://file/v1"\nconnect = 3\n'),
        ("s.yaml", "port: 1000\nlog: json\nupstream: {url: 'http://file/v1', connect: 3}\n"),
        ("s.json", '{"port": 1000, "log": "json", "upstream": {"url": "http://file/v1", "connect": 3}}'),
        ("bom.json", '\ufeff{"port": 1000, "log": "json", "upstream": {"url": "http://file/v1", "connect": 3}}'),
    ],
)
def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8")
    found = load_settings(
        file,
        {"TOPICALITY_PORT": "2000", "TOPICALITY_UPSTREAM__URL": "http://env/v1", "HOME": "/"},
        {"port": 3000, "upstream.idle": 7.0, "policy": None},
    )
    assert found.port == 3000
    assert found.upstream.url == "http://env/v1"
    assert (found.upstream.connect, found.upstream.idle) == (3, 7)
    assert (found.log, found.policy) == ("json", None)


def test_the_environment_reaches_into_sections_and_reads_json(tmp_path: Path) -> None:
    found = load_settings(
        None,
        {
            "TOPICALITY_KEYS": json.dumps([{"name": "app", "key": SECRET, "scopes": ["chat"]}]),
            "TOPICALITY_CORS": '["https://a.example", "https://b.example"]',
            "TOPICALITY_MEMORY__ENABLED": "false",
            "TOPICALITY_MEMORY__BUDGET": "500",
            "TOPICALITY_LIMITS": '{"body": 2048}',
            "TOPICALITY_LIMITS__THREADS": "3",
            "TOPICALITY_HOST": "0.0.0.0",  # noqa: S104 - with keys
            "TOPICALITY_POLICY": "",
        },
    )
    assert found.keys[0].scopes == ("chat",)
    assert found.cors == ("https://a.example", "https://b.example")
    assert (found.memory.enabled, found.memory.budget) == (False, 500)
    assert (found.limits.body, found.limits.threads) == (2048, 3)
    assert found.policy is None, "an empty variable says nothing"


def test_a_section_of_the_environment_leaves_the_rest_of_the_files_section(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[memory]\nbudget = 900\nrecall = 10\n")
    found = load_settings(file, {"TOPICALITY_MEMORY__RECALL": "20"}, {})
    assert (found.memory.budget, found.memory.recall) == (900, 20)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"TOPICALITY_UPSTEAM__URL": "http://x/v1"}, "TOPICALITY_UPSTREAM"),
        ({"TOPICALITY_UPSTREAM__ULR": "http://x/v1"}, "url, key, connect, idle, connections"),
        ({"TOPICALITY_KEYS": f'[{{"nmae": "x", "key": "{SECRET}"}}]'}, "name"),
        ({"TOPICALITY_PORT": "eighty"}, "settings: port"),
        ({"TOPICALITY_PORT": "70000"}, "65535"),
        ({"TOPICALITY_LOG": "loud"}, "'json', 'text' or 'off'"),
        ({"TOPICALITY_LIMITS__SHUTDOWN": "nan"}, "settings: limits.shutdown"),
        ({"TOPICALITY_PORT__X": "1"}, "settings: port"),
        ({"TOPICALITY_CORS": "[1"}, "settings: cors"),
    ],
)
def test_a_wrong_name_or_value_is_named_with_what_is_accepted(environment: dict[str, str], told: str) -> None:
    assert told in failure(None, environment)


def test_an_unknown_option_and_an_unknown_name_in_a_file_are_refused(tmp_path: Path) -> None:
    assert "settings: upsteam" in failure(None, {}, {"upsteam.url": "http://x/v1"})
    file = tmp_path / "s.toml"
    file.write_text("[guard]\nwindwo = 20\n")
    told = failure(file)
    assert "settings: guard.windwo" in told
    assert "enabled, window" in told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("s.toml", f'port = 1\nkey = "{SECRET}\n', "line 2"),
        ("s.yaml", f"port: 1\nkey: [{SECRET}\n", "line"),
        ("s.json", f'{{"port": 1,\n "key": "{SECRET}" "x"}}', "line 2"),
        ("s.json", f'["{SECRET}"]', "names and values"),
        ("s.yaml", f"1: {SECRET}\n", "names and values"),
        ("s.toml", "\udcff", "not a valid settings file"),
    ],
)
def test_a_damaged_file_is_named_with_the_line_but_never_quoted(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no.toml: cannot be read" in failure(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"keys": [{"name": "a b", "key": SECRET}]},
        {"keys": [{"name": "a", "key": SECRET, "sha256": "0" * 64}]},
        {"keys": [{"name": "a", "key": SECRET}, {"name": "b", "key": SECRET}]},
        {"keys": [{"name": SECRET + " ", "key": SECRET}]},
        {"keys": [{"name": "a", "key": SECRET, "scopes": [SECRET]}]},
        {"keys": [{"name": "a", "key": SECRET + "\n"}]},
        {"keys": [{"name": "a", "key": SECRET, "owner": " "}]},
        {"keys": [{"name": "a", "sha256": SECRET}]},
        {"keys": SECRET},
        {"upstream": {"key": [SECRET]}},
        {"upstream": {"url": f"ftp://u:{SECRET}@host"}},
        {"upstream": {"url": f"http://u:{SECRET}@"}},
        {"store": f"postgres+psycopg://me:{SECRET}@db/x"},
        {"workers": 2, "store": "memory://"},
        {"port": SECRET},
        {"log": SECRET},
    ],
)
def test_no_error_shows_a_secret(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, None, values)
    assert SECRET not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_no_repr_shows_a_secret() -> None:
    digest = "a" * 64
    found = load_settings(
        None,
        {},
        {
            "keys": [{"name": "a", "key": SECRET}, {"name": "b", "sha256": digest}],
            "upstream.key": SECRET,
            "upstream.url": f"https://me:{PASSWORD}@host/v1",
            "store": f"postgresql://me:{PASSWORD}@db/chat",
            "llm_url": f"http://:{PASSWORD}@llm/v1",
        },
    )
    for text in (repr(found), str(found), f"{found.upstream}", f"{found.keys}"):
        assert SECRET not in text
        assert PASSWORD not in text
        assert digest not in text
    assert "postgresql://me:***@db/chat" in repr(found)
    assert PASSWORD in found.store, "it is only hidden, not gone"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:p@ss/w:rd@db/chat", "postgresql://me:***@ss/w:rd@db/chat"),
        ("postgresql://db/chat", "postgresql://db/chat"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("chat.db", "chat.db"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, told: str) -> None:
    assert shown(url) == told


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https:///v1",
        "ws://host/v1",
        "http://host:99999/v1",
        "http://h/v1?x=1",
        "http://h /v1",
        "http://h/v1\n",
        "host/v1",
        "http://[::1/v1",
    ],
)
def test_an_upstream_without_a_usable_address_is_refused(url: str) -> None:
    assert "upstream.url" in failure(None, {}, {"upstream.url": url})


@pytest.mark.parametrize("url", ["http://localhost:8080/v1", "https://api.example.com/v1/", "http://[::1]:9/v1"])
def test_a_usable_upstream_is_kept_as_it_is(url: str) -> None:
    assert load_settings(None, {}, {"upstream.url": url}).upstream.url == url


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",  # noqa: S104 - what is tested
        "::",
        "[::]",
        "",
        "0",
        "192.168.1.5",
        "2001:db8::1",
        "example.com",
        "localhost.example.com",
        "::ffff:10.0.0.1",
    ],
)
def test_without_keys_only_loopback_is_listened_on(host: str) -> None:
    assert "needs keys" in failure(None, {}, {"host": host})
    assert load_settings(None, {}, {"host": host, "keys": [{"name": "a", "key": SECRET}]}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(load_settings(None, {}, {"host": host}).host)


def test_several_workers_need_a_store_they_share() -> None:
    assert "several workers" in failure(None, {}, {"workers": 2})
    assert "several workers" in failure(None, {}, {"workers": 2, "store": "MEMORY://"})
    assert load_settings(None, {}, {"workers": 2, "store": "sqlite:///x.db"}).workers == 2


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1
