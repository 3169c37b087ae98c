"""The segmenter's learned heads, for the encoder they were learned with."""

from __future__ import annotations

import json
import threading
from importlib.resources import as_file, files

import numpy as np

from topicality.core.segment.heads import Heads, Settings, unpacked
from topicality.errors import InputError
from topicality.ports import Embedder
from topicality.types import Space

_DATA = files("topicality").joinpath("embed", "data")
_loaded: dict[Space, Heads | None] = {}
_lock = threading.Lock()


def load_heads(encoder: Embedder | Space) -> Heads | None:
    """The heads for an encoder; None if there are none, and the segmenter falls back to a method without them.

    Raises:
        InputError: the data file is damaged.
    Cost: 10 ms once a process.
    """
    space = encoder if isinstance(encoder, Space) else encoder.space
    with _lock:
        if space not in _loaded:
            _loaded[space] = _read(space)
        return _loaded[space]


def _read(space: Space) -> Heads | None:
    try:
        card = json.loads(_DATA.joinpath("segment.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    if card["space"] != str(space):
        return None
    with as_file(_DATA.joinpath("segment.npz")) as path:
        try:
            with np.load(path) as arrays:
                return unpacked(arrays, space, Settings(**card["settings"]), card)
        except (OSError, ValueError) as error:
            raise InputError(f"segment.npz is damaged ({type(error).__name__}); reinstall topicality") from error
