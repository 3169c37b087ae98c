"""The learned weights of recall, for the encoder they were learned with."""

from __future__ import annotations

import json
import threading
from importlib.resources import files

from topicality.core.recall.head import Heads, unpacked
from topicality.errors import InputError
from topicality.ports import Embedder
from topicality.types import Space

_DATA = files("topicality").joinpath("embed", "data")
_loaded: dict[str, tuple[Heads, str]] = {}
_lock = threading.Lock()


def load_recall(encoder: Embedder | Space) -> tuple[Heads | None, Heads | None]:
    """The weights to rank with (None for an encoder that none were learned for), and those there are at all.

    The second ones are for what does not depend on the encoder: whether the store has an answer, told by words alone.

    Raises:
        InputError: the data file is damaged.
    Cost: a millisecond once a process.
    """
    space = encoder if isinstance(encoder, Space) else encoder.space
    with _lock:
        if not _loaded:
            try:
                card = json.loads(_DATA.joinpath("recall.json").read_text("utf-8"))
                _loaded["heads"] = unpacked(card), str(card["space"])
            except FileNotFoundError:
                return None, None
            except (OSError, ValueError, KeyError) as error:
                raise InputError(f"recall.json is damaged ({type(error).__name__}); reinstall topicality") from error
    heads, known = _loaded["heads"]
    return (heads if known == str(space) else None), heads
