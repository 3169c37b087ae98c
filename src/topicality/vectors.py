"""The only vector arithmetic: unit length and cosine similarity. Scores are in [-1, 1], higher is closer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.errors import InputError, SpaceMismatchError

Array = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
_ROUNDED = 1e-6  # how far the squared length of a unit vector in float32 may be from 1


def unit(vectors: ArrayLike) -> Array:
    """Scale one vector, or each row of a matrix, to length one.

    Divides by the largest magnitude first, so that huge and tiny values neither overflow nor vanish. What is float32 and of
    length one already is given back as it is, in a copy.

    Args:
        vectors: shape (D,) or (N, D), any real dtype, D >= 1.
    Returns:
        float32 of the same shape, each row of length 1. A row of zeros stays zeros: it has no direction, and its
        similarity to anything is undefined (see `similarity`).
    Raises:
        InputError: empty, not numeric, ragged, more than two dimensions, or NaN or infinity inside.
    Cost: O(N·D).
    """
    if isinstance(vectors, np.ndarray) and vectors.dtype == np.float32 and vectors.ndim == 1:
        square = float(vectors @ vectors)
        if abs(square - 1.0) <= _ROUNDED:
            return vectors.copy()
    try:
        array = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a vector must be a rectangular array of numbers ({error})") from error
    if array.ndim not in (1, 2) or array.shape[-1] == 0:
        raise InputError(f"a vector must have shape (D,) or (N, D) with D >= 1, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.float32)
    peak = np.abs(array).max(axis=-1, keepdims=True)
    if not np.isfinite(peak).all():  # NaN and infinity are the largest of their row
        raise InputError("a vector must be finite, got NaN or infinity inside; check the encoder that made it")
    peak[peak == 0] = 1.0
    scaled = array / peak
    length = np.sqrt((scaled * scaled).sum(axis=-1, keepdims=True))
    length[length == 0] = 1.0
    found: Array = (scaled / length).astype(np.float32)
    return found


def similarity(a: ArrayLike, b: ArrayLike) -> float | None:
    """Cosine similarity of two vectors, in float64.

    Args:
        a: shape (D,). b: shape (D,). Need not be of unit length.
    Returns:
        A number in [-1, 1], or None when either vector is all zeros (no direction, so no similarity: not "0").
    Raises:
        InputError: a vector is empty or not finite.
        SpaceMismatchError: the dimensions differ.
    Cost: O(D).
    """
    left, right = _checked(a), _checked(b)
    if left.shape != right.shape:
        raise SpaceMismatchError(f"dimension {left.shape[0]}", f"dimension {right.shape[0]}")
    left, right = _scaled(left), _scaled(right)
    norms = float(left @ left) * float(right @ right)
    if norms == 0.0:
        return None
    return float(min(1.0, max(-1.0, (left @ right) / np.sqrt(norms))))


def _scaled(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    peak = np.abs(vector).max()
    return vector if peak == 0 else vector / peak


def _checked(vector: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a vector must be an array of numbers ({error})") from error
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"a vector must have shape (D,) with D >= 1, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError("a vector must be finite, got NaN or infinity inside; check the encoder that made it")
    return array
