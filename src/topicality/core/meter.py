"""Counting tokens once a text, and fitting lines into a number of tokens that is never exceeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

from topicality.errors import InputError

TokenCounter = Callable[[str], int]


class Meter:
    """A token counter that counts each text once and knows what a message costs besides its text.

    Not for sharing: one for each piece of work, since it keeps every text it has counted.
    """

    def __init__(self, count: TokenCounter, overhead: int = 0) -> None:
        self._count = count
        self._known: dict[str, int] = {}
        self.overhead = overhead

    def text(self, text: str) -> int:
        """Tokens of a text.

        Raises:
            InputError: the counter did not return a whole number from 0.
        """
        known = self._known.get(text)
        if known is None:
            counted = self._count(text)
            if isinstance(counted, bool) or not isinstance(counted, Integral) or counted < 0:
                raise InputError(f"the token counter must return a whole number from 0, got {counted!r}")
            known = self._known[text] = int(counted)
        return known

    def message(self, text: str, *more: str | None) -> int:
        """Tokens of a message: its text, and what else it has (name, payload), where there is any."""
        return self.overhead + self.text(text) + sum(self.text(part) for part in more if part)

    def lines(self, header: str, lines: Sequence[str]) -> int:
        """About what a message of a header and these lines costs, from its parts; 0 without lines."""
        return self.message(header + "\n") + sum(self.text(line + "\n") for line in lines) if lines else 0

    def claim(self, header: str, lines: Sequence[str], most: int) -> int:
        """Room to hold back for these lines: what they cost, at most `most`; 0 when that is too little for any."""
        least = self.lines(header, [min(lines, key=lambda line: self.text(line + "\n"))]) if lines else 0
        return min(most, self.lines(header, lines)) if least <= most else 0


def fit(
    meter: Meter,
    room: int,
    header: str,
    lines: Sequence[str],
    places: Sequence[float],
    rest: Callable[[Sequence[int]], str],
) -> tuple[list[int], str]:
    """Choose the lines of one message.

    Args:
        meter: what counts.
        room: tokens the message may cost.
        header: first line.
        lines: best first; one that does not fit is passed over, a later and smaller one may still be chosen.
        places: where each line stands in the text, ascending.
        rest: the last line, about what was not chosen, from the positions chosen; "" is no line.
    Returns:
        Positions chosen, best first, and the whole text. It costs at most `room` whatever the counter, since the text
        itself is counted in the end. Nothing is chosen, and the text is "", when not even one line fits.
    Cost: each line is counted once and the text about once; O(log len(lines)) times for a counter by which the whole
    costs more than its parts.
    """

    def joined() -> str:
        tail = rest(chosen)
        return "\n".join(
            [header, *(lines[n] for n in sorted(chosen, key=lambda n: (places[n], n))), *([tail] if tail else [])]
        )

    chosen = list(range(len(lines)))
    if meter.lines(header, lines) > room or rest(chosen):
        chosen = []
        tail = rest(chosen)
        spent = meter.message(header + "\n") + (meter.text(tail + "\n") if tail else 0)
        for n, line in enumerate(lines):
            cost = meter.text(line + "\n")
            if spent + cost <= room:
                chosen.append(n)
                spent += cost
    drop = 1
    while chosen:
        text = joined()
        if meter.message(text) <= room:
            return chosen, text
        del chosen[-drop:]
        drop *= 2
    return [], ""
