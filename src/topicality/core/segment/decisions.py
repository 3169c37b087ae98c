"""What the segmenter answers: a decision a message, and the segments and topics of a whole transcript."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["continue", "new", "return"]
Method = Literal["learned", "crowd", "meeting", "cosine", "none"]
Talk = Literal["auto", "pair", "crowd", "meeting"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier topic that a message may be a return to, with its probability, [0, 1]."""

    topic: int
    score: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Where one message belongs.

    Attributes:
        index: position of the message in the conversation, from 0. id: the host's own id of it, if it has one.
        kind: "continue" the current topic, a "new" one, or a "return" to an earlier one.
        topic: number of its topic, from 0. A number that was withdrawn by a revision is never used again.
        boundary: whether a segment starts here. Segments are finer than topics: each "new" and each "return" starts one,
            and so may a "continue", where the talk turns to another side of its topic. False for the first message.
        score: probability of a boundary, [0, 1]. With the method "cosine": 1 less the cosine looked at, [0, 2].
        runners_up: earlier topics that were weighed, best first.
        confirmed: final; otherwise it may be revised once, when the next message is there.
        revised: this confirmed decision differs from the one given at once.
        previous: decisions on earlier messages that this message confirmed: the one before, and tool messages with it.
        link: index of the message that this one replies to, where several people talk; None for none.
    """

    index: int
    kind: Kind
    topic: int
    boundary: bool
    score: float
    runners_up: tuple[Candidate, ...] = ()
    confirmed: bool = False
    revised: bool = False
    previous: tuple[Decision, ...] = ()
    link: int | None = None
    id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of the attributes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Decision:
        """Read what `to_dict` gave, also after a way through JSON."""
        known = dict(values)
        known["runners_up"] = tuple(Candidate(**each) for each in known["runners_up"])
        known["previous"] = tuple(cls.from_dict(each) for each in known["previous"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of messages on one topic, from index `first` to `last`, both inclusive."""

    first: int
    last: int
    topic: int


@dataclass(frozen=True, slots=True)
class Segmentation:
    """A whole transcript, cut.

    Attributes:
        segments: in order, together all messages; empty for an empty transcript.
        boundaries: indices of the messages that start a segment, the first message left out.
        topics: number of each message's topic. decisions: one for each message, all confirmed.
        method: "learned" (two people, or a person and a model), "crowd" (several people, by who replies to whom),
            "meeting" (long talk of several people: no boundaries), "cosine" (the fallback), "none" (nothing to cut).
        fallback: why the learned heads could not be used; None when they were.
        notes: what else a reader should know.
    """

    segments: tuple[Segment, ...] = ()
    boundaries: tuple[int, ...] = ()
    topics: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()
    method: Method = "none"
    fallback: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of the attributes."""
        return asdict(self)


def assembled(
    decisions: list[Decision], method: Method, fallback: str | None = None, notes: tuple[str, ...] = ()
) -> Segmentation:
    """The segmentation that decisions, one for each message in order, amount to."""
    if not decisions:
        return Segmentation(method="none", fallback=fallback, notes=notes)
    starts = [0, *(decision.index for decision in decisions[1:] if decision.boundary)]
    ends = [*(start - 1 for start in starts[1:]), len(decisions) - 1]
    topics = tuple(decision.topic for decision in decisions)
    segments = tuple(Segment(first, last, topics[first]) for first, last in zip(starts, ends, strict=True))
    return Segmentation(segments, tuple(starts[1:]), topics, tuple(decisions), method, fallback, notes)
