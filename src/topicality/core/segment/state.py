"""A segmenter's state as bytes: a version, plain values as JSON, and arrays as they lie in memory. Never pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topicality.errors import InputError

VERSION = 3
_MAGIC = b"TSEG"
_KINDS = ("<f4", "<i8")
_HEAD = struct.Struct("<4sHI")


def pack(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Plain values and arrays (float32 or integers) as bytes; `unpack` gives the same back, bit by bit."""
    listed, raw = [], []
    for name, array in arrays.items():
        kind = "<f4" if array.dtype.kind == "f" else "<i8"
        listed.append([name, kind, list(array.shape)])
        raw.append(np.ascontiguousarray(array, dtype=kind).tobytes())
    head = json.dumps({"values": values, "arrays": listed}, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(_MAGIC, VERSION, len(head)) + head + b"".join(raw)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `pack` wrote.

    Raises:
        InputError: the bytes are something else, damaged, or of another version.
    """
    try:
        magic, version, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise InputError("this is not the state of a segmenter")
        if version != VERSION:
            raise InputError(f"the segmenter's state has version {version}, this release reads {VERSION}; start anew")
        at = _HEAD.size + length
        head = json.loads(data[_HEAD.size : at])
        arrays = {}
        for name, kind, shape in head["arrays"]:
            if kind not in _KINDS:
                raise InputError(f"the segmenter's state has an array of unknown kind {kind!r}")
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
            arrays[str(name)] = np.frombuffer(data[at : at + size], dtype=kind).reshape(shape).copy()
            at += size
        if at != len(data):
            raise InputError("the segmenter's state is damaged: its length is wrong")
        return dict(head["values"]), arrays
    except (struct.error, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the segmenter's state is damaged ({type(error).__name__}); start anew") from error
