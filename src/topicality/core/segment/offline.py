"""`segment`: a whole transcript at once, better than online because both sides of every gap are seen."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from topicality.core.segment.assign import assign, evidence
from topicality.core.segment.company import Company, speaker_of
from topicality.core.segment.decisions import Candidate, Decision, Kind, Segmentation, Talk, assembled
from topicality.core.segment.entry import check_ids, check_settings, checked_matrix, is_silent
from topicality.core.segment.features import AHEAD, CAUSAL, Row, Trail, confirmed, known_of
from topicality.core.segment.heads import Heads
from topicality.core.segment.online import Segmenter, no_heads
from topicality.core.segment.pair import Choice, boundary_score
from topicality.core.segment.plain import cut_by_program, cut_meeting
from topicality.core.segment.topics import Topics
from topicality.core.segment.whole import two_sided
from topicality.errors import ConfigError, SpaceMismatchError
from topicality.types import Message, Space
from topicality.vectors import Array

LIVE_TOPICS = 200
_MEETING = 100  # messages of several people from which on their talk is a meeting
_BOUNDS = (0.2, 0.6)  # of a conversation's own threshold
_UNLIKELY = 0.12  # below this chance of a boundary a message is not tried against the topics
_MIX = 0.6  # weight of the two-sided head against the confirmed one

Progress = Callable[[int], None]


def segment(
    messages: Sequence[Message],
    vectors: ArrayLike | None,
    heads: Heads | None,
    *,
    space: Space | None = None,
    granularity: str = "balanced",
    expected_rate: float | None = None,
    talk: Talk = "auto",
    fallback: str | None = None,
) -> Segmentation:
    """Cut a transcript into segments and topics.

    Args:
        messages: in order. vectors: shape (N, D); rows of silent messages (see `Segmenter.receive`) may be anything.
        heads, space, granularity, expected_rate, talk, fallback: as for `Segmenter`.
    Returns:
        Segments that together are all messages; an empty segmentation for none.
    Raises:
        InputError: as for `Segmenter.receive`. SpaceMismatchError: vectors of another dimension. ConfigError.
    Cost: about 0.15 ms a message between two, 0.5 ms in a crowd; O(N * D) memory.
    """
    check_settings(granularity, expected_rate, LIVE_TOPICS, talk)
    known = space if space is not None else None if heads is None else heads.space
    if known is None:
        raise ConfigError("whose vectors are these?", key="space", got=None, accepted="a Space, or heads that have one")
    if heads is not None and heads.space != known:
        raise SpaceMismatchError(heads.space, known, hint="load the heads of this encoder, or give none")
    check_ids(messages, known)
    matrix = checked_matrix(vectors, messages, known)
    reason = fallback if fallback is not None or heads is not None else no_heads(known)
    spoken = [index for index, message in enumerate(messages) if not is_silent(message)]
    if not spoken:
        return assembled([Decision(index, "continue", 0, False, 0.0, confirmed=True, id=message.id)
                          for index, message in enumerate(messages)], "none", reason)  # fmt: skip
    said = [messages[index] for index in spoken]
    if heads is None or reason is not None:
        choices = _by_topic(cut_by_program(matrix[spoken], granularity), len(said))
        return assembled(_spread(messages, spoken, choices), "cosine", reason)
    kind = _kind(said) if talk == "auto" else talk
    if kind == "crowd":
        return _crowd(messages, matrix, heads)
    if kind == "meeting":
        return _meeting(messages, spoken, matrix[spoken], granularity)
    choices = _pair(said, matrix[spoken], heads, granularity, expected_rate)
    return assembled(_spread(messages, spoken, choices), "learned")


def _kind(said: Sequence[Message]) -> str:
    company = Company()
    for message in said:
        company.hear(message)
    if company.kind == "unknown" or (company.kind == "meeting" and len(said) < _MEETING):
        return "pair"
    return company.kind


def own_threshold(scores: Array, share: float) -> float:
    """A conversation's threshold: `share` of the best expected F1 of its own scores, within [0.2, 0.6].

    The cut that maximises expected F1 is half of it (Lipton et al. 2014); `share` is fitted to real scores.
    """
    if not len(scores):
        return _BOUNDS[1]
    ordered = np.sort(scores)[::-1].astype(np.float64)
    expected = 2.0 * np.cumsum(ordered) / (np.arange(1, len(ordered) + 1) + ordered.sum() + 0.3)
    return float(np.clip(share * expected.max(), *_BOUNDS))


def read_rows(said: Sequence[Message], vectors: Array, heads: Heads) -> tuple[list[Row], Array, Array]:
    """Rows of all messages and the features of the confirmed and of the two-sided head.

    Returns:
        Rows; confirmed features, shape (N, F); two-sided features, shape (N, G).
    """
    trail = Trail(heads)
    rows: list[Row] = []
    told = array("d")  # filled much faster than rows of a matrix
    for index, (message, found) in enumerate(zip(said, known_of(vectors, heads), strict=True)):
        rows.append(trail.read(message.text, message.role, vectors[index], speaker_of(message), found))
        if index:
            told.extend(confirmed(rows[index - 1], rows[index]))
            rows[index - 1].causal = rows[index - 1].style = []  # not needed any more
    told.extend(confirmed(rows[-1], None))
    known = np.frombuffer(told).reshape(len(said), -1).astype(np.float32)
    middle = len(CAUSAL) + len(AHEAD)
    sided = two_sided(rows, vectors, trail.sums)
    return rows, known, np.concatenate([known[:, :middle], sided, known[:, middle:]], axis=1)


def _pair(
    said: Sequence[Message], vectors: Array, heads: Heads, granularity: str, expected_rate: float | None
) -> list[Choice]:
    rows, known, whole = read_rows(said, vectors, heads)
    scores = _MIX * boundary_score(heads, granularity, "offline", whole)
    scores += (1.0 - _MIX) * boundary_score(heads, granularity, "confirmed", known)
    later = scores[1:]
    if expected_rate is None:
        balanced = heads.settings.boundary["balanced"]
        least = own_threshold(later, heads.settings.offline) * heads.settings.boundary[granularity] / balanced
    else:
        least = float(np.quantile(later, 1.0 - expected_rate)) if len(later) else 1.0
    topics = Topics(heads.subjects.dimension, LIVE_TOPICS)
    choices = []
    for index, row in enumerate(rows):
        score = float(scores[index])
        boundary = index > 0 and score >= least and not row.cues.acknowledges
        kind, slot, candidates = _assigned(topics, heads, rows, known, index, score, granularity)
        if expected_rate is not None and kind != "continue" and index and not boundary:
            kind, slot, candidates = "continue", topics.current, ()
        topics.place(slot, row.said, index)
        number = int(topics.number[topics.current])
        boundary = index > 0 and (boundary or kind != "continue")
        choices.append(Choice(kind, number, boundary, score if index else 0.0, candidates))
    return choices


def _assigned(
    topics: Topics, heads: Heads, rows: list[Row], known: Array, index: int, score: float, granularity: str
) -> tuple[Kind, int | None, tuple[Candidate, ...]]:
    if index == 0:
        return "new", None, ()
    row = rows[index]
    if score < _UNLIKELY or row.cues.acknowledges:
        return "continue", topics.current, ()
    following = rows[index + 1] if index + 1 < len(rows) else None
    features = known[index].tolist()
    found = evidence(topics, row, index)
    kind, slot, candidates = assign(topics, heads, found, features, following, ahead=True, granularity=granularity)
    return kind, slot, candidates


def _by_topic(starts: Sequence[int], count: int) -> list[Choice]:
    """Choices where every segment is a topic of its own."""
    cuts = set(starts)
    choices, topic = [], 0
    for index in range(count):
        new = index in cuts
        topic += new
        choices.append(Choice("new" if new or index == 0 else "continue", topic, new, float(new)))
    return choices


def _meeting(messages: Sequence[Message], spoken: list[int], vectors: Array, granularity: str) -> Segmentation:
    starts: list[int] = []
    note = (
        "long talk of several people: no boundary is surer than a guess; granularity 'fine' shows the deepest valleys"
    )
    if granularity == "fine":
        starts = cut_meeting(vectors, [len(messages[index].text.split()) for index in spoken])
        note = "long talk of several people: boundaries are the deepest valleys between blocks of about 120 words"
    return assembled(_spread(messages, spoken, _by_topic(starts, len(spoken))), "meeting", None, (note,))


def _crowd(messages: Sequence[Message], matrix: Array, heads: Heads) -> Segmentation:
    segmenter = Segmenter(heads, talk="crowd")
    return assembled(
        [segmenter.receive(message, vector) for message, vector in zip(messages, matrix, strict=True)], "crowd"
    )


def _spread(messages: Sequence[Message], spoken: list[int], choices: list[Choice]) -> list[Decision]:
    """Decisions on all messages from the choices on those that say something: the others stay with what is before."""
    choice_of = dict(zip(spoken, choices, strict=True))
    topic = choices[0].topic
    calls: dict[str, int] = {}
    decisions = []
    for index, message in enumerate(messages):
        choice = choice_of.get(index)
        if choice is None:
            own = topic if message.call is None else calls.get(message.call, topic)
            calls.update(dict.fromkeys(message.calls, own))
            decisions.append(Decision(index, "continue", own, False, 0.0, confirmed=True, id=message.id))
            continue
        topic = choice.topic
        decisions.append(
            Decision(
                index,
                choice.kind,
                topic,
                choice.boundary,
                choice.score,
                choice.candidates,
                confirmed=True,
                id=message.id,
            )
        )
    return decisions
