"""The part of a long text that answers a question best."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice

from topicality.core.recall.analysis import stems

SIZE, SLACK = 40, 8  # words of a window, and how many more to end with its sentence
_PROSE = 2.0  # how much of the question's words twice the usual length may cost
_TRIES = 8
_SURE = 200  # characters that a window is sure to have
_SPAN = 280  # characters of about SIZE words of prose
_TOKEN = re.compile(r"\S+")
_BREAK = re.compile(r"[.!?:]['\")*]*\s+|\n\s*")


def best_window(
    text: str,
    weights: Mapping[str, float],
    start: int = 0,
    end: int | None = None,
    *,
    size: int = SIZE,
    slack: int = SLACK,
) -> tuple[int, int]:
    """Character range of `size` to `size + slack` words of a text that match a question best; the earliest of equals.

    It starts where a sentence or line starts, and ends with one if that is within `slack` words. Of the best starts the one
    is taken whose words are not unusually long (prose before code).

    Args:
        weights: weight of each stem of the question.
        start, end: only this part of the text is looked at; a part with fewer words comes back whole.
    Cost: a few regular-expression passes.
    """
    offset, text = start, text[start : len(text) if end is None else end]
    hits = _hits(text, weights)
    ranked: list[tuple[float, int]] = [(0.0, 0)]
    for begin in (0, *(m.end() for m in _BREAK.finditer(text))) if hits else ():
        mass = _mass(hits, begin, begin + _SURE, weights)
        if mass:
            ranked.append((-mass, begin))
    ranked.sort()
    whole = sum(weights.values()) or 1.0
    best, best_value = (0, len(text)), float("-inf")
    for _, begin in ranked[:_TRIES]:
        first, last = _extended(text, begin, size, slack)
        worth = _mass(hits, first, last, weights) / whole - _PROSE * max(0.0, (last - first) / _SPAN - 1)
        if worth > best_value + 1e-9:
            best, best_value = (first, last), worth
    return best[0] + offset, best[1] + offset


def _mass(hits: Sequence[tuple[int, str]], begin: int, end: int, weights: Mapping[str, float]) -> float:
    """Weight of the stems between two characters; repetitions count a little."""
    seen: dict[str, int] = {}
    for at, stem in islice(hits, bisect_left(hits, (begin, "")), None):
        if at >= end:
            break
        seen[stem] = seen.get(stem, 0) + 1
    return sum(weights[stem] * (1 + 0.15 * min(3, count - 1)) for stem, count in seen.items())


def _extended(text: str, start: int, size: int, slack: int) -> tuple[int, int]:
    found = [m.span() for m in islice(_TOKEN.finditer(text, start), size + slack)]
    if len(found) < size:  # too near the end: take words before it
        before = [m.span() for m in _TOKEN.finditer(text, max(0, start - 40 * size), start)]
        chosen = before[len(found) - size :] or found
        return (chosen[0][0] if chosen else 0), len(text)
    for k in range(size, len(found)):
        _, b = found[k - 1]
        if text[b - 1] in ".!?:" or "\n" in text[b : found[k][0]]:
            return found[0][0], b
    return found[0][0], found[size - 1][1] if len(found) == size + slack else len(text)


def _hits(text: str, weights: Mapping[str, float]) -> list[tuple[int, str]]:
    """Places of the words whose stem is wanted. A pattern of prefixes finds the few words worth stemming."""
    if not weights:
        return []
    pattern = _prefixes(tuple(sorted(weights)))
    return [(m.start(), stem) for m in pattern.finditer(text) for stem in stems(m.group()) if stem in weights]


@lru_cache(maxsize=256)
def _prefixes(wanted: tuple[str, ...]) -> re.Pattern[str]:
    heads = {re.escape(s[:-1] if len(s) > 3 else s) for s in wanted}
    return re.compile(r"(?<![^\W_])(?:" + "|".join(sorted(heads)) + r")[^\W_]*", re.IGNORECASE)
