"""Several people talking at once: every message replies to one earlier message, or starts a thread.

Mentions and speakers come first, then recency, words and vectors. A ranker scores the last messages and "starts a thread";
the best one wins, and the message joins its thread.

Source: Kummerfeld et al. 2019 (disentanglement as linking); features and head are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, log1p

import numpy as np

from topicality.core.segment.company import mentions
from topicality.core.segment.cues import Cues, Words, overlap, read_cues
from topicality.core.segment.heads import Net
from topicality.vectors import Array

REACH = 48  # earlier messages that may be replied to
_SPEAKERS = 4096  # people remembered; those silent for longest are forgotten
_NEVER = -(10**6)
_MINUTES = (60.0, 30.0)  # longest distance and longest pause that still make a difference

LINK = (
    "starts", "distance", "log_distance", "log_minutes", "no_time", "same_speaker", "own_last", "own_since",
    "addresses_it", "names_it", "it_addresses", "it_names", "addresses", "last_of_addressed", "addressed_recent",
    "same_named", "partner", "last_of_partner", "last_to_speaker", "addressed_lately", "it_has_address",
    "it_addresses_other", "addresses_other", "has_reply", "it_asks", "asks", "assent", "log_words", "it_log_words",
    "cosine", "cosine_rank", "cosine_best", "overlap", "overlap_rank", "pause", "own_pause", "first_time", "adjacent",
    "it_log_messages", "log_messages", "greeting", "asking", "anaphor", "thread_of_own_last", "thread_of_addressed",
    "log_thread", "thread_latest", "in_thread", "same_address", "it_closes", "thanks", "notice",
)  # fmt: skip
_AT = {name: place for place, name in enumerate(LINK)}
_OF_MESSAGE = (
    "addresses", "addressed_recent", "addressed_lately", "asks", "assent", "log_words", "cosine_best", "pause",
    "own_pause", "first_time", "log_messages", "greeting", "asking", "anaphor", "thanks",
)  # fmt: skip


@dataclass(slots=True)
class Said:
    """One message of the crowd. `at` in minutes; `link` is the index replied to, its own for the start of a thread."""

    index: int
    speaker: str
    addressed: str | None
    named: list[str]
    at: float | None
    vector: Array
    words: Words
    cues: Cues
    link: int = -1
    thread: int = -1


@dataclass(slots=True)
class Thread:
    """Messages, index of the latest one, and who took part."""

    size: int
    latest: int
    people: set[str] = field(default_factory=set)


class Crowd:
    """The last `REACH` messages, their threads, and for each speaker the last message and partner. Bounded."""

    def __init__(self) -> None:
        self.items: list[Said] = []  # oldest first
        self.last: dict[str, int] = {}  # speaker -> index of the last message; the least recent first
        self.messages: dict[str, int] = {}
        self.partner: dict[str, str] = {}
        self.to_speaker: dict[str, int] = {}  # speaker -> index of the last message that addressed them
        self.threads: dict[int, Thread] = {}

    def read(self, index: int, text: str, speaker: str, vector: Array, at: float | None) -> Said:
        """A message as the crowd understands it; changes nothing.

        Args:
            index: position in the conversation. speaker: in lower case; "" for a notice of the system. at: seconds.
        """
        cues, words = read_cues(text, "")
        addressed, named = mentions(text, self.last)
        named = [name for name in named if name != speaker]
        minutes = None if at is None else at / 60.0
        return Said(index, speaker, None if addressed == speaker else addressed, named, minutes, vector, words, cues)

    def place(self, said: Said, head: Net, bias: float = 0.0) -> tuple[int, int, float]:
        """Link a message, and record it.

        Args:
            bias: added to the log-odds of starting a thread.
        Returns:
            The index it replies to (its own: it starts a thread); its thread, which is the index of the thread's first
            message; and the probability that it is not in the thread of the message before.
        Cost: O(REACH * D); about 0.4 ms.
        """
        link, away = said.index, 1.0
        if said.speaker and self.items:
            chances = np.clip(head(self.features(said)).astype(np.float64), 1e-6, 1 - 1e-6)
            scores = np.log(chances / (1 - chances))
            scores[-1] += bias
            best = int(scores.argmax())
            link = said.index if best == len(self.items) else self.items[-1 - best].index
            before = self.items[-1].thread
            here = [item.thread == before for item in reversed(self.items)]
            away = 1.0 - float(chances[:-1][here].sum() / chances.sum())
        return link, self.record(said, link), away

    def record(self, said: Said, link: int) -> int:
        """Record a message that replies to `link`; gives its thread."""
        speaker = said.speaker
        source = next((item for item in self.items if item.index == link), None)
        said.link = link
        said.thread = said.index if source is None else source.thread
        thread = self.threads.setdefault(said.thread, Thread(0, said.index))
        thread.size += 1
        thread.latest = said.index
        thread.people.add(speaker)
        self.items.append(said)
        if len(self.items) > REACH:
            gone = self.items.pop(0).thread
            if all(item.thread != gone for item in self.items):
                del self.threads[gone]
        other = said.addressed or (source.speaker if source is not None and source.speaker != speaker else None)
        if other:
            self.partner[speaker] = other
        if said.addressed:
            self.to_speaker[said.addressed] = said.index
        for name in said.named:
            self.to_speaker.setdefault(name, said.index)
        self.last.pop(speaker, None)
        self.last[speaker] = said.index
        self.messages[speaker] = self.messages.get(speaker, 0) + 1
        if len(self.last) > _SPEAKERS:
            self._forget(next(iter(self.last)))
        return said.thread

    def _forget(self, speaker: str) -> None:
        for known in (self.last, self.messages, self.partner, self.to_speaker):
            known.pop(speaker, None)

    def features(self, said: Said) -> Array:
        """A row of `LINK` for each candidate, newest first, and a last one for "starts a thread". Shape (M + 1, L)."""
        items = self.items[::-1]
        count = len(items)
        if not count:
            return np.zeros((1, len(LINK)), np.float32)
        now, speaker, addressed = said.index, said.speaker, said.addressed
        own_last = self.last.get(speaker, _NEVER)
        partner = self.partner.get(speaker)
        to_speaker = self.to_speaker.get(speaker, _NEVER)
        addressed_last = self.last.get(addressed, _NEVER) if addressed else _NEVER
        own_thread = next((item.thread for item in items if item.index == own_last), None)
        addressed_thread = next((item.thread for item in items if item.index == addressed_last), None)
        cosine = np.array([item.vector for item in items]) @ said.vector
        shared = np.array([overlap(said.words, item.words) for item in items])
        cues, timed, before = said.cues, said.at, items[0].at
        pause = 0.0 if timed is None or before is None else min(_MINUTES[1], max(0.0, timed - before))
        about = {
            "addresses": float(addressed is not None),
            "addressed_recent": float(addressed is not None and addressed_last >= now - REACH),
            "addressed_lately": float(to_speaker > own_last and to_speaker >= now - REACH),
            "asks": cues.question,
            "assent": cues.assent,
            "log_words": cues.log_words,
            "cosine_best": float(cosine.max()),
            "pause": pause,
            "own_pause": log1p(min(now - own_last, 500)),
            "first_time": float(own_last < 0),
            "log_messages": log1p(self.messages.get(speaker, 0)),
            "greeting": cues.greeting,
            "asking": cues.asking,
            "anaphor": cues.anaphor,
            "thanks": cues.thanks,
        }
        partner_last = self.last.get(partner) if partner is not None else None
        replied = {item.link for item in self.items if item.link != item.index}
        named = set(said.named)
        own_since = False
        lines = []
        for item in items:
            index, other, theirs = item.index, item.speaker, item.addressed
            away = now - index
            minutes = 0.0 if timed is None or item.at is None else min(_MINUTES[0], max(0.0, timed - item.at))
            thread = self.threads[item.thread]
            lines.append((
                away, log(away), log1p(minutes), timed is None or item.at is None, other == speaker,
                index == own_last, own_since, addressed is not None and addressed == other, other in named,
                theirs is not None and theirs == speaker, speaker in item.named, index == addressed_last,
                not named.isdisjoint(item.named), partner is not None and other == partner, index == partner_last,
                index == to_speaker, theirs is not None, theirs is not None and theirs != speaker,
                addressed is not None and addressed != other, index in replied, item.cues.question,
                item.cues.log_words, away == 1, log1p(self.messages.get(other, 0)), item.thread == own_thread,
                item.thread == addressed_thread, log1p(thread.size), thread.latest == index, speaker in thread.people,
                theirs is not None and theirs == addressed, item.cues.closing + item.cues.thanks, other == "",
            ))  # fmt: skip
            own_since = own_since or other == speaker
        rows = np.zeros((count + 1, len(LINK)), np.float32)
        rows[:count, _PER_CANDIDATE] = lines
        rows[:count, _AT["cosine"]] = cosine
        rows[:count, _AT["cosine_rank"]] = np.minimum(np.argsort(np.argsort(-cosine)), 10)
        rows[:count, _AT["overlap"]] = shared
        rows[:count, _AT["overlap_rank"]] = np.minimum(
            np.argsort(np.argsort(-shared, kind="stable"), kind="stable"), 10
        )
        rows[:, [_AT[name] for name in _OF_MESSAGE]] = [about[name] for name in _OF_MESSAGE]
        start = rows[count]
        start[_AT["starts"]] = 1.0
        start[_AT["overlap"]] = shared.max()
        start[_AT["partner"]] = partner is not None
        start[_AT["own_last"]] = own_last >= now - REACH
        start[_AT["names_it"]] = bool(said.named)
        return rows


_PER_CANDIDATE = [_AT[name] for name in (
    "distance", "log_distance", "log_minutes", "no_time", "same_speaker", "own_last", "own_since", "addresses_it",
    "names_it", "it_addresses", "it_names", "last_of_addressed", "same_named", "partner", "last_of_partner",
    "last_to_speaker", "it_has_address", "it_addresses_other", "addresses_other", "has_reply", "it_asks",
    "it_log_words", "adjacent", "it_log_messages", "thread_of_own_last", "thread_of_addressed", "log_thread",
    "thread_latest", "in_thread", "same_address", "it_closes", "notice",
)]  # fmt: skip
