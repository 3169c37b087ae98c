"""What the commands share: the options that several of them take, and a line on standard output."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
EncoderOption = Annotated[
    str, typer.Option("--encoder", help="minilm (bundled), openai:MODEL[@BASE_URL], or st:PATH_OR_NAME.")
]


def print_line(line: str) -> None:
    """One line, at once: whoever reads the pipe may be waiting for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
