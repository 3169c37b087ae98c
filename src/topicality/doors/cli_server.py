"""The command `serve`: the proxy, REST, MCP over HTTP and metrics on one port."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicality.doors.cli_llm import LlmOption, UrlOption
from topicality.errors import MissingExtraError

if TYPE_CHECKING:
    from topicality.doors.server.settings import Settings


def register(app: typer.Typer) -> None:
    """Put the command on the app of the command line."""
    app.command("serve")(serve)


def serve(
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Policy file or preset; without one nothing is judged.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", "-s", help="chat.db, sqlite:///chat.db, or postgresql://…; default: in memory, until it stops."
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", "-u", help="The model server, such as https://api.example.com/v1; none: no proxy."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings as TOML, YAML or JSON. TOPICALITY_* and options go before."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; default 127.0.0.1. Others need keys.")] = None,
    port: Annotated[int | None, typer.Option(help="Default 8000; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes over one store; default 1.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help="A bearer key for a back end; may be repeated. Better in TOPICALITY_KEYS or a file."
        ),
    ] = None,
    encoder: Annotated[str | None, typer.Option("--encoder", help="As for the other commands; default minilm.")] = None,
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    log: Annotated[str | None, typer.Option("--log", help="text, json or off; never the text of a message.")] = None,
) -> None:
    """Serve an OpenAI-compatible proxy that guards and remembers, a REST API, MCP and metrics.

    Point any OpenAI client at it by its base_url. The model server's key: TOPICALITY_UPSTREAM__KEY.
    """
    try:
        from topicality.doors.server.serving import serve as run
        from topicality.doors.server.settings import load_settings
    except ImportError as error:
        raise MissingExtraError("serve", "server") from error
    options: dict[str, Any] = {
        "policy": policy,
        "store": store,
        "upstream.url": upstream,
        "host": host,
        "port": port,
        "workers": workers,
        "keys": [{"name": f"key-{n}", "key": one} for n, one in enumerate(key, 1)] if key else None,
        "encoder": encoder,
        "llm": llm,
        "llm_url": llm_url,
        "log": log,
    }
    settings = load_settings(config, os.environ, options)
    if settings.log != "json":
        _told(settings)
    code = run(settings)
    if code:
        raise typer.Exit(code)


def _told(settings: Settings) -> None:
    """What is being started, for people. No secret: not the key of the model server, not the password of a store."""
    kept = "in memory, until the server stops" if settings.store == "memory://" else _plain(settings.store)
    if settings.keys:
        keys = ", ".join(one.name for one in settings.keys)
    else:
        keys = "none: whoever reaches the port is trusted, and each bearer token is an owner of its own"
    lines = {
        "policy": _plain(settings.policy) if settings.policy else "none: nothing is judged",
        "store": kept,
        "upstream": _plain(settings.upstream.url) if settings.upstream.url else "none: no proxy under /v1",
        "keys": keys,
    }
    for name, value in lines.items():
        sys.stderr.write(f"{name:9} {value}\n")
    sys.stderr.flush()


def _plain(text: str) -> str:
    from topicality.doors.server.settings import shown

    return "".join(one if one.isprintable() else " " for one in shown(text))
