"""Sets of exchange sequences as spans: ascending, apart, both ends inclusive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Span = tuple[int, int]
Spans = tuple[Span, ...]


def holds(spans: Spans, sequence: int) -> bool:
    """Whether a sequence is in the spans: a test of membership, not "after the last end". Cost: O(log len(spans))."""
    place = bisect_right(spans, (sequence, float("inf"))) - 1
    return place >= 0 and spans[place][1] >= sequence


def added(spans: Spans, sequence: int) -> Spans:
    """Spans with one more sequence; the same ones if it is there already."""
    place = bisect_right(spans, (sequence, float("inf")))
    first = last = sequence
    before, after = place, place
    if place and spans[place - 1][1] >= sequence - 1:
        if spans[place - 1][1] >= sequence:
            return spans
        before, first = place - 1, spans[place - 1][0]
    if place < len(spans) and spans[place][0] == sequence + 1:
        after, last = place + 1, spans[place][1]
    return (*spans[:before], (first, last), *spans[after:])


def removed(spans: Spans, sequence: int) -> Spans:
    """Spans without a sequence; the same ones if it is not there."""
    place = bisect_right(spans, (sequence, float("inf"))) - 1
    if place < 0 or spans[place][1] < sequence:
        return spans
    first, last = spans[place]
    halves = [(first, sequence - 1)] if first < sequence else []
    if sequence < last:
        halves.append((sequence + 1, last))
    return (*spans[:place], *halves, *spans[place + 1 :])


def joined(*groups: Spans) -> Spans:
    """All sequences of several groups of spans, in whatever order."""
    out: list[list[int]] = []
    for first, last in sorted(span for group in groups for span in group):
        if out and first <= out[-1][1] + 1:
            out[-1][1] = max(out[-1][1], last)
        else:
            out.append([first, last])
    return tuple((first, last) for first, last in out)


def apart(spans: Spans, others: Spans) -> Spans:
    """The sequences of the first that are not in the second. Cost: O(len(spans) + len(others))."""
    out: list[Span] = []
    place = 0
    for first, last in spans:
        start = first
        while place < len(others) and others[place][1] < start:
            place += 1
        look = place
        while start <= last and look < len(others) and others[look][0] <= last:
            if others[look][0] > start:
                out.append((start, others[look][0] - 1))
            start = max(start, others[look][1] + 1)
            look += 1
        if start <= last:
            out.append((start, last))
    return tuple(out)


def size(spans: Spans) -> int:
    """How many sequences the spans have."""
    return sum(last - first + 1 for first, last in spans)


def of(sequences: Iterable[int]) -> Spans:
    """Spans of some sequences, in any order, possibly repeated."""
    return joined(tuple((sequence, sequence) for sequence in set(sequences)))


def shown(spans: Spans, most: int = 6) -> str:
    """Spans for people and models: "3-7, 12"; the latest ones when there are many, with a count of the others."""
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in spans[-most:]]
    return ", ".join([*([f"{len(spans) - most} earlier"] if len(spans) > most else []), *parts])
