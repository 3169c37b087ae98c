"""The command `mcp`: an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

import typer

from topicality.doors.cli_memory import OwnerOption, StoreOption
from topicality.doors.options import EncoderOption


def register(app: typer.Typer) -> None:
    """Put the command on the app of the command line."""
    app.command("mcp")(mcp)


def mcp(
    store: StoreOption,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="Policy file or preset; without one, check_topic judges nothing."),
    ] = None,
    owner: OwnerOption = "default",
    encoder: EncoderOption = "minilm",
) -> None:
    """Serve MCP over standard input and output: check_topic, recall, topics, remember. For editors and assistants."""
    from topicality.doors.mcp import over_stdio
    from topicality.doors.server.bridge import Bridge
    from topicality.layer.memory import open_layer
    from topicality.records import Scope

    Scope(owner)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    with open_layer(store, policy, encoder) as layer:
        bridge = Bridge(threads=2, waiting=100)
        try:
            asyncio.run(over_stdio(layer, bridge, owner))
        finally:
            bridge.close()
