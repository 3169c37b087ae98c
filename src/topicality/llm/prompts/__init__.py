"""The prompts, one text file a role, for people to read; a folder of theirs may replace any of them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from topicality.errors import ConfigError

ROLES = ("judge", "labeller", "selector", "expander")


def read_prompts(folder: str | Path | None = None) -> dict[str, str]:
    """The prompt of every role.

    Args:
        folder: whose `ROLE.txt` files replace the shipped ones.
    Raises:
        ConfigError: it is no folder, has a text file of no role, or one that is blank or not UTF-8.
    """
    shipped = files("topicality").joinpath("llm", "prompts")
    found = {role: shipped.joinpath(f"{role}.txt").read_text("utf-8") for role in ROLES}
    if folder is None:
        return found
    place = Path(folder)
    if not place.is_dir():
        raise ConfigError("folder of prompts", key="prompts", got=str(folder), accepted="a folder")
    for path in sorted(place.glob("*.txt")):
        if path.stem not in ROLES:
            accepted = ", ".join(f"{role}.txt" for role in ROLES)
            raise ConfigError("a prompt of no role", key="prompts", got=path.name, accepted=accepted)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path.name}: the prompt cannot be read ({type(error).__name__})") from error
        if not text.strip():
            raise ConfigError(f"{path.name}: the prompt is blank")
        found[path.stem] = text
    return found
