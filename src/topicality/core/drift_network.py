"""A small network as drift reads it: one hidden layer, and what is not known is as usual. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Network(NamedTuple):
    """One hidden layer: what is read, in standard deviations from its mean, to log-odds.

    Attributes:
        mean, scale: shape (F,). inner: shape (F, H). inner_bias, outer: shape (H,). bias: log-odds.
    """

    mean: Floats
    scale: Floats
    inner: Floats
    inner_bias: Floats
    outer: Floats
    bias: float

    def log_odds(self, seen: NDArray[Any]) -> Floats:
        """Shape (...), of what is read, shape (..., F); NaN is what is not known."""
        hidden = np.tanh(standard(seen, self.mean, self.scale) @ self.inner + self.inner_bias)
        return np.asarray(hidden @ self.outer + self.bias)


def standard(seen: NDArray[Any], mean: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    """In standard deviations from the mean, at most four; 0 for NaN."""
    found: NDArray[Any] = np.minimum(np.maximum((seen - mean) / scale, -4.0), 4.0)
    found[np.isnan(found)] = 0.0
    return found


def table(text: str) -> Floats:
    """Numbers with space between them."""
    return np.array(text.split(), dtype=np.float64)
