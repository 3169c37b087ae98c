"""What the server is told: by a file (TOML, YAML, JSON), by `TOPICALITY_*` in the environment, by options; the last wins."""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from topicality.errors import ConfigError

Scope = Literal["chat", "read", "write", "erase", "override", "metrics"]
SCOPES: tuple[Scope, ...] = ("chat", "read", "write", "erase", "override", "metrics")
PREFIX = "TOPICALITY_"
_NESTED = "__"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


_URLS = frozenset(("store", "url", "llm_url"))  # may carry a password


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __repr_args__(self) -> Any:
        """What `repr` shows: no key (`SecretStr`), no hash of one, no password in an address."""
        for name, value in super().__repr_args__():
            yield name, shown(value) if name in _URLS and isinstance(value, str) else value


class KeySettings(_Section):
    """One bearer key.

    Attributes:
        name: how the key is called in logs and metrics; it is no secret.
        key, sha256: the key, or the hash of it in hex, so that a file need not hold keys. One of the two.
        owner: whose data it opens. None is a key for a trusted back end: each request may name its owner.
        scopes: chat (the proxy), read, write and erase (REST and MCP), override (a request may switch the guard off),
            metrics (/metrics, which is open when the server listens on loopback only).
    """

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    key: SecretStr | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(None, repr=False)
    owner: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    scopes: tuple[Scope, ...] = ("chat", "read", "write")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256")
        key = "" if self.key is None else self.key.get_secret_value()
        if self.key is not None and not (len(key) >= 8 and key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("a key is at least 8 printable ASCII characters without spaces: it travels in a header")
        if self.owner is not None and not (self.owner.strip() and self.owner.isprintable()):
            raise ValueError("an owner is printable and not blank")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the key, in hex."""
        return self.sha256 or sha256((self.key or SecretStr("")).get_secret_value().encode()).hexdigest()


class UpstreamSettings(_Section):
    """The model server behind the proxy.

    Attributes:
        url: with its path, such as "https://api.example.com/v1"; None serves no proxy.
        key: sent instead of the client's own. Without one, the client's `Authorization` goes through, unless this server has
            keys of its own.
        connect, idle: most seconds for a connection, and between two pieces of an answer.
        connections: most at a time.
    """

    url: str | None = None
    key: SecretStr | None = None
    connect: Seconds = 10.0
    idle: Seconds = 120.0
    connections: Annotated[int, Field(ge=1, le=10_000)] = 200

    @model_validator(mode="after")
    def _web(self) -> Self:
        if self.url is None:
            return self
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or parts.query or parts.fragment or not self.url.isprintable() or " " in self.url:
            raise ValueError("upstream.url must be http:// or https:// with a host and a path, such as https://host/v1")
        return self


class MemorySettings(_Section):
    """What the proxy remembers and sends.

    Attributes:
        enabled: keep exchanges and recall from them. budget: most tokens of all messages sent upstream (by the encoder's
            tokenizer); a history within it goes through as it is. recall: most tokens of recalled passages.
        everywhere: recall from all conversations of the owner, not from this one alone.
        pending: seconds after which an exchange that nobody ended is failed.
    """

    enabled: bool = True
    budget: Annotated[int, Field(ge=64)] = 8000
    recall: Annotated[int, Field(ge=0)] = 1000
    everywhere: bool = False
    pending: Seconds = 600.0


class GuardSettings(_Section):
    """What the proxy checks.

    Attributes:
        enabled: check messages. window: words of a streamed reply that are held back while they are checked, where the policy
            checks output.
    """

    enabled: bool = True
    window: Annotated[int, Field(ge=10, le=200)] = 40


class LimitSettings(_Section):
    """What one server takes on.

    Attributes:
        body: most bytes of a request. concurrent: most requests at a time; more are told to come again (503).
        threads: workers of the engine's pool. waiting: most calls that wait for one; more are told to come again.
        shutdown: seconds that open requests are given when the server stops; then their exchanges are failed.
        drain: seconds between being told to stop and stopping to listen, in which /readyz says 503: time for a load balancer.
    """

    body: Annotated[int, Field(ge=1024)] = 10_000_000
    concurrent: Annotated[int, Field(ge=1)] = 500
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    waiting: Annotated[int, Field(ge=1)] = 1000
    shutdown: Seconds = 20.0
    drain: Annotated[float, Field(ge=0, le=600)] = 0.0


class Settings(_Section):
    """Everything `topicality serve` and `topicality mcp` can be told.

    Attributes:
        host, port: where to listen. Without keys only loopback is accepted.
        policy: a file or a preset; None judges nothing. store: as for `topicality.open`. encoder: as for `load_embedder`.
        llm, llm_url: a language model for judge, labeller and selector; None asks none.
        keys: bearer keys. Without any, everyone who reaches the server is trusted, and each `Authorization` is an owner of
            its own. cors: origins that browsers may call from; none by default.
        workers: processes over one store.
        log: what is logged: "json", "text" or "off"; never the text of a message.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    policy: str | None = None
    store: str = "memory://"
    encoder: str = "minilm"
    llm: str | None = None
    llm_url: str | None = None
    upstream: UpstreamSettings = UpstreamSettings()
    keys: tuple[KeySettings, ...] = ()
    guard: GuardSettings = GuardSettings()
    memory: MemorySettings = MemorySettings()
    limits: LimitSettings = LimitSettings()
    cors: tuple[str, ...] = ()
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    log: Literal["json", "text", "off"] = "text"

    @model_validator(mode="after")
    def _together(self) -> Self:
        if not self.keys and not is_loopback(self.host):
            raise ValueError(f"listening on {self.host} needs keys: anyone who reaches the port could read everything")
        names = [key.name for key in self.keys]
        if len(set(names)) != len(names) or len({key.digest for key in self.keys}) != len(names):
            raise ValueError("two keys share a name or are the same")
        scheme = self.store.partition("://")[0].lower()
        if "@" in self.store and "://" in self.store and scheme not in ("postgresql", "postgres", "sqlite", "memory"):
            raise ValueError("store must be postgresql://, sqlite:///, a path or memory://")  # before an error shows it
        if self.workers > 1 and scheme == "memory":
            raise ValueError("several workers need a store they can share: give sqlite:/// or postgresql://")
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def shown(url: str) -> str:
    """An address without its password."""
    return re.sub(r"(?<=://)([^/@:]*):[^@]*@", r"\1:***@", url)


def load_settings(
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from a file, below the environment, below options.

    Args:
        file: TOML, YAML or JSON. environment: `TOPICALITY_PORT=9000`, `TOPICALITY_UPSTREAM__KEY=…`; a value that is JSON
            (a list, an object, a quoted text) is read as such, an empty one is "not said". options: by dotted name
            ("upstream.url"); None is "not said".
    Raises:
        ConfigError: names the key, what is wrong and what is accepted; never shows a value, which may be a secret.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values = _read(Path(file))
    for name, value in (environment or {}).items():
        if name.startswith(PREFIX) and value:
            path = name.removeprefix(PREFIX).lower().split(_NESTED)
            if path[0] not in Settings.model_fields:
                raise ConfigError("unknown name in the environment", key=name, got=name, accepted=_names(PREFIX))
            _put(values, path, _plain(value))
    for name, value in (options or {}).items():
        if value is not None:
            _put(values, name.split("."), value)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        told = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            told = f"unknown name; there are: {_names_in(first['loc'][:-1])}"
        raise ConfigError(told, key=f"settings: {key}" if key else "settings") from None


def _names(prefix: str) -> str:
    return ", ".join(f"{prefix}{name.upper()}" for name in Settings.model_fields)


def _names_in(path: tuple[int | str, ...]) -> str:
    """The names that a section has."""
    section: Any = Settings
    for part in path:
        if part == "keys":
            section = KeySettings
        elif isinstance(part, str) and part in section.model_fields:
            section = section.model_fields[part].annotation
    return ", ".join(section.model_fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
        kind = path.suffix.lower()
        if kind == ".json":
            found: Any = json.loads(text)
        elif kind in (".yaml", ".yml"):
            import yaml

            found = yaml.safe_load(text) or {}
        else:
            found = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    except Exception as error:  # noqa: BLE001 - three libraries, each with its own
        at = re.search(r"\bline \d+", str(error))
        what = f"{type(error).__name__}{', ' + at.group() if at else ''}"
        raise ConfigError(f"{path}: not a valid settings file ({what})") from None  # its own words quote the file
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{path}: a settings file holds names and values")
    return found


def _plain(text: str) -> Any:
    if not text.lstrip().startswith(("[", "{", '"')):
        return text  # numbers and true/false are read from text by the types
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = values.get(part)
        values[part] = dict(inner) if isinstance(inner, dict) else {}
        values = values[part]
    values[path[-1]] = value
