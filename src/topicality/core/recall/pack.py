"""Choose passages by value for their cost under a token budget, and write them down. No store, no encoder."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topicality.core.meter import Meter, TokenCounter
from topicality.core.recall import render
from topicality.core.recall.pool import Ints, Pool
from topicality.core.recall.window import SIZE, best_window
from topicality.vectors import Floats

ALPHA = 0.75  # how much the logarithm of the cost counts against the log-odds: 0 is best first, 1 most chance a token
FULL = 60  # words up to which a message is given whole
_FULL_CHARACTERS = 600  # the same for a text without spaces, or of very long words
_WINDOW_CHARACTERS = 1200  # most of a window
_TOKEN_CHARACTERS = 4.2  # of a token, on average; for choosing only, what is sent is counted
_LINE_TOKENS, _HEADER_TOKENS = 3, 7
_MISSES = 5  # long messages in a row of which not even the window fits
PLAUSIBLE = 3.0  # log-odds below the best candidate down to which one is missed when it is left out
_LEAST = 8  # tokens of a line that is worth looking for

Topic = Callable[[str, int], str | None]  # conversation and sequence to the label of the topic


@dataclass(frozen=True, slots=True)
class Said:
    """What a passage is of: the text of its whole message, and who spoke."""

    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Characters [start, end) of the message of a row of the pool, and how good they are (log-odds)."""

    row: int
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class Style:
    """How evidence is written.

    Attributes:
        note: first line, if anything is shown. topic: names the topic of an exchange, for the headers.
        several: headers name the conversation.
    """

    note: str = ""
    topic: Topic | None = None
    several: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """Evidence that fits.

    Attributes:
        text: what to send; "" when nothing fits. tokens: of it, at most the budget.
        chosen: in the order of the text. omitted: candidates that had no room though not much worse than the best.
    """

    text: str
    tokens: int
    chosen: tuple[Chosen, ...]
    omitted: int


def guessed(pool: Pool, rows: Ints) -> NDArray[np.float64]:
    """About what each candidate costs in tokens: whole if it is short, else its window."""
    characters = np.array([pool.passages[row].end - pool.passages[row].start for row in rows], np.float64)
    whole = pool.words[rows] <= FULL
    return np.where(whole, characters, (SIZE + 4) * 5.7) / _TOKEN_CHARACTERS + _LINE_TOKENS


def shortlist(pool: Pool, rows: Ints, scores: Floats, budget: int) -> Ints:
    """Rows whose texts are worth reading: the best for their cost, about twice as many as the budget has room for."""
    cost = guessed(pool, rows)
    order = np.argsort(-(scores - ALPHA * np.log(cost)), kind="stable")
    room = np.searchsorted(np.cumsum(cost[order]), 2 * budget + 200)
    return rows[order[: int(room) + 8]]


def pack(
    pool: Pool,
    rows: Ints,
    scores: Floats,
    said: Mapping[int, Said],
    budget: int,
    count: TokenCounter,
    style: Style | None = None,
) -> Packed:
    """Greedy: the most score for the logarithm of its cost; who opens a day pays for its header.

    Args:
        rows: candidates. scores: log-odds, up to a constant, that each is wanted.
        said: texts by row; a candidate without one is not chosen.
        budget: tokens. count: tokens of a text.
    Returns:
        A text of at most `budget` tokens, whatever the counter. No message is in it twice, in whole or in part.
    Cost: O(candidates) a pick; each line is counted once, and the text about once.
    """
    style = style or Style()
    work = _Packing(pool, rows, scores, said, Meter(count), style)
    note = style.note
    reserve = work.meter.text(render.left_out(999) + "\n") + (work.meter.text(note + "\n") if note else 0)
    work.fill(budget - reserve)
    drop = 1
    while work.chosen:
        text = work.text()
        tokens = work.meter.text(text)
        if tokens <= budget:
            shown = sorted(work.chosen, key=lambda c: work.place(c.row))
            return Packed(text, tokens, tuple(shown), work.omitted())
        del work.chosen[-drop:]
        drop *= 2
    return Packed("", 0, (), work.omitted())


class _Packing:
    def __init__(
        self,
        pool: Pool,
        rows: Ints,
        scores: Floats,
        said: Mapping[int, Said],
        meter: Meter,
        style: Style,
    ) -> None:
        self.pool, self.rows, self.said, self.meter = pool, rows, said, meter
        self.style = style
        self.scores = np.asarray(scores, np.float64)
        self.weights = dict(zip(pool.stems, pool.idf.tolist(), strict=False))
        self.chosen: list[Chosen] = []
        self._seen: set[str] = set()
        self._opened: dict[int, list[int]] = {}  # day -> its chosen rows, ascending
        self._days: list[int] = pool.day.tolist()
        self._bodies: dict[tuple[int, int, int], str] = {}
        self._names: dict[int, str] = {}
        self._headers: dict[int, str] = {}
        self._started = _starts(pool) if style.several else None

    def place(self, row: int) -> tuple[float, int]:
        """Sort key of a row: as it was said; days of several conversations by the time they began."""
        return (0.0 if self._started is None else float(self._started[row]), row)

    def fill(self, left: float) -> None:
        """Take candidates until the room is used up."""
        pool, rows = self.pool, self.rows
        cost, day = guessed(pool, rows), pool.day[rows]
        rank = self.scores - ALPHA * np.log(cost + _HEADER_TOKENS)
        opened = self.scores - ALPHA * np.log(cost)
        numbers = rows.tolist()
        rank[[row not in self.said for row in numbers]] = -np.inf
        misses = 0
        while left > _LEAST and misses <= 4 * _MISSES and len(rank):
            k = int(rank.argmax())
            if rank[k] == -np.inf:
                break
            rank[k] = -np.inf
            if cost[k] * 0.6 > left:
                continue
            new = self._days[numbers[k]] not in self._opened
            taken = self._take(numbers[k], float(self.scores[k]), left, misses)
            if taken == 0:
                continue
            if taken > left:
                misses += 1
                continue
            left -= taken
            if new:
                same = (day == day[k]) & (rank > -np.inf)
                rank[same] = opened[same]

    def _take(self, row: int, score: float, left: float, misses: int) -> float:
        """Choose a row if it fits; what it costs, 0 if it is not to be had at all."""
        passage, said = self.pool.passages[row], self.said[row]
        start, end = passage.start, min(passage.end, len(said.text))
        key = " ".join(said.text[start:end].split()).casefold()
        if not key or key in self._seen:
            return 0
        if _is_long(said.text, start, end):
            if misses > _MISSES:
                return 0
            start, end = best_window(said.text, self.weights, start, end)
            end = min(end, start + _WINDOW_CHARACTERS)
        line = self._body(row, start, end)
        needed = self.meter.text(f"{render.SAME}{line}\n") + self._speakers(row)
        if self._days[row] not in self._opened:
            needed += self.meter.text(self._header(row) + "\n")
        if needed > left:
            return needed
        self.chosen.append(Chosen(row, start, end, score))
        self._seen.add(key)
        insort(self._opened.setdefault(self._days[row], []), row)
        return max(needed, 1)

    def _speakers(self, row: int) -> int:
        """Tokens of speakers that a row adds, the one it saves its follower taken off."""
        own, beside = self._name(row), self._opened.get(self._days[row], [])
        at = bisect_left(beside, row)
        before = self._name(beside[at - 1]) if at else ""
        after = self._name(beside[at]) if at < len(beside) else ""
        added = self._mark(own) if own != before else 0
        return added + ((after != own) - (after != before)) * self._mark(after) if after else added

    def _mark(self, name: str) -> int:
        return self.meter.text(f"{name}: ")

    def _name(self, row: int) -> str:
        if row not in self._names:
            self._names[row] = render.speaker(self.said[row].name, self.pool.passages[row].side)
        return self._names[row]

    def _body(self, row: int, start: int, end: int) -> str:
        place = (row, start, end)
        if place not in self._bodies:
            self._bodies[place] = render.body(self.said[row].text, start, end)
        return self._bodies[place]

    def _header(self, row: int) -> str:
        if row not in self._headers:
            passage = self.pool.passages[row]
            label = self.style.topic(passage.conversation, passage.sequence) if self.style.topic else None
            home = passage.conversation if self.style.several else None
            self._headers[row] = render.header(passage.sequence, passage.at, home, label)
        return self._headers[row]

    def text(self) -> str:
        """All of it, chronologically."""
        lines = [self.style.note] if self.style.note else []
        day, last = -1, ""
        for chosen in sorted(self.chosen, key=lambda c: self.place(c.row)):
            if self._days[chosen.row] != day:
                day, last = self._days[chosen.row], ""
                lines.append(self._header(chosen.row))
            name = self._name(chosen.row)
            line = self._body(chosen.row, chosen.start, chosen.end)
            lines.append((render.SAME if name == last else f"{name}: ") + line)
            last = name
        rest = render.left_out(self.omitted())
        return "\n".join([*lines, *([rest] if rest else [])])

    def omitted(self) -> int:
        """Candidates that are not shown though not much worse than the best one."""
        shown = {chosen.row for chosen in self.chosen}
        good = self.scores >= self.scores.max() - PLAUSIBLE
        return sum(row not in shown for row in self.rows[good].tolist())


def _is_long(text: str, start: int, end: int) -> bool:
    return end - start > FULL * 4 and (end - start > _FULL_CHARACTERS or len(text[start:end].split()) > FULL)


def _starts(pool: Pool) -> NDArray[np.float64]:
    """When the day of each row began; never earlier than what was said before it in its conversation."""
    found = np.full(len(pool), -np.inf)
    for row, passage in enumerate(pool.passages):
        at = -np.inf if np.isnan(pool.at[row]) else float(pool.at[row])
        if row and pool.passages[row - 1].conversation == passage.conversation:
            at = found[row - 1] if pool.day[row] == pool.day[row - 1] else max(at, float(found[row - 1]))
        found[row] = at
    return found
