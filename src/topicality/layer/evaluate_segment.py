"""Measuring segmentation on labelled dialogues: the figures of `topicality eval segment`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from topicality.core.measure import percentiles
from topicality.core.segment import Decision, Segmenter, segment
from topicality.core.segment.heads import Heads
from topicality.core.segment.measure import (
    b_cubed,
    boundary_f1,
    harmonic,
    joint_score,
    one_to_one,
    return_counts,
    window_errors,
)
from topicality.errors import ConfigError, InputError
from topicality.types import Message, Space

Mode = Literal["online", "confirmed", "offline"]
MODES: tuple[Mode, ...] = ("online", "confirmed", "offline")
_PARTIES = frozenset({"user", "human", "agent", "assistant", "system", "bot", "ai", "tool", "function"})


@dataclass(frozen=True, slots=True)
class LabelledDialogue:
    """A dialogue and what people say about it.

    Attributes:
        marks: 1 for each message that starts a segment, else 0; None when unknown.
        topics: number of each message's topic; None when unknown.
        links: (earlier, later) reply pairs, a message that replies to nobody paired with itself; None when unknown.
        scored: messages [first, end) that count.
    """

    messages: tuple[Message, ...]
    marks: tuple[int, ...] | None = None
    topics: tuple[int, ...] | None = None
    links: tuple[tuple[int, int], ...] | None = None
    scored: tuple[int, int] | None = None
    id: str = ""


def read_dialogues(path: str | Path) -> list[LabelledDialogue]:
    """Dialogues from JSONL: `{"turns": [{"role", "text"}], "boundaries"?, "topic"?, "links"?, "scored"?}` a line.

    A role that is none of the usual ones is a speaker's name; an empty one is a notice of the system. A turn may have
    `t`, its time in minutes.

    Raises:
        InputError: unreadable or malformed, with the line.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    return [
        _dialogue(line, f"{path}, line {number}") for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]


def evaluate_dialogues(
    dialogues: Sequence[LabelledDialogue],
    embed: Callable[[Sequence[str]], ArrayLike],
    heads: Heads | None,
    *,
    mode: Mode = "online",
    space: Space | None = None,
    granularity: str = "balanced",
    expected_rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Segment every dialogue and measure.

    Args:
        embed: texts to vectors. mode: "online" takes each decision as it was given at once, "confirmed" as it was one
            message later, "offline" cuts whole transcripts.
    Returns:
        Figures as in the docs, means over dialogues (returns and links: over all of them). A figure that the data has no
        labels for is None. `ms_per_message` is the segmenter's time without the encoder.
    Raises:
        InputError: no dialogues. ConfigError: unknown mode.
    """
    if mode not in MODES:
        raise ConfigError("unknown mode", key="mode", got=mode, accepted=", ".join(MODES))
    if not dialogues:
        raise InputError("there is nothing to measure: the data has no dialogues")
    windows, scores, agreement, cubed, rates = [], [], [], [], []
    returns, links = np.zeros(3, int), np.zeros(3, int)
    spent: list[float] = []
    for done, dialogue in enumerate(dialogues, start=1):
        spoken = [index for index, message in enumerate(dialogue.messages) if message.text.strip()]
        vectors = np.zeros((len(dialogue.messages), (space or _space(heads)).dimension), np.float32)
        if spoken:
            vectors[spoken] = embed([dialogue.messages[index].text for index in spoken])
        settings = {"space": space, "granularity": granularity, "expected_rate": expected_rate}
        decisions, cost = _decided(dialogue.messages, vectors, heads, mode, settings)
        spent += cost
        first, end = dialogue.scored or (0, len(decisions))
        marks = [int(decision.boundary) for decision in decisions]
        gold_marks = dialogue.marks
        if gold_marks is None and dialogue.topics is not None:
            gold_marks = tuple(
                int(index > 0 and topic != dialogue.topics[index - 1]) for index, topic in enumerate(dialogue.topics)
            )
        if gold_marks is not None:
            gold = [0, *gold_marks[first + 1 : end]]
            guess = [0, *marks[first + 1 : end]]
            windows.append(window_errors(gold, guess))
            scores.append(boundary_f1(gold, guess))
            rates.append((np.mean(gold), np.mean(guess)))
        if dialogue.topics is not None:
            told = [decision.topic for decision in decisions]
            agreement.append(one_to_one(dialogue.topics[first:end], told[first:end]))
            cubed.append(b_cubed(dialogue.topics[first:end], told[first:end]))
            kinds = [decision.kind for decision in decisions]
            returns += return_counts(dialogue.topics[first:end], told[first:end], kinds[first:end])
        if dialogue.links is not None:
            links += _links(dialogue.links, decisions, first, end)
        if progress is not None:
            progress(done)
    pk, difference = np.mean(windows, axis=0).tolist() if windows else (None, None)
    f1 = float(np.mean(scores)) if scores else None
    gold_rate, guessed_rate = np.mean(rates, axis=0) if rates else (None, None)
    has_topics, has_links = bool(agreement), any(dialogue.links is not None for dialogue in dialogues)
    return {
        "dialogues": len(dialogues),
        "mode": mode,
        "pk": _rounded(pk),
        "window_diff": _rounded(difference),
        "f1": _rounded(f1),
        "score": None if f1 is None else _rounded(joint_score(pk or 0.0, difference or 0.0, f1)),
        "boundary_rate": {"gold": _rounded(gold_rate), "predicted": _rounded(guessed_rate)},
        "return_precision": _rounded(returns[0] / returns[1]) if has_topics and returns[1] else None,
        "return_recall": _rounded(returns[0] / returns[2]) if has_topics and returns[2] else None,
        "topic_one_to_one": _rounded(np.mean(agreement)) if has_topics else None,
        "topic_b3_f1": _rounded(np.mean(cubed)) if has_topics else None,
        "link_f": _rounded(harmonic(*links.tolist())) if has_links else None,
        "ms_per_message": percentiles(spent),
    }


def mean_of_segmentations(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over several reports, leaving out those that have none."""
    found = list(reports)
    names = ("pk", "window_diff", "f1", "score", "return_precision", "return_recall", "topic_one_to_one", "topic_b3_f1",
             "link_f")  # fmt: skip
    means: dict[str, Any] = {name: _mean([report[name] for report in found]) for name in names}
    for name, keys in (("boundary_rate", ("gold", "predicted")), ("ms_per_message", ("p50", "p95"))):
        means[name] = {key: _mean([report[name][key] for report in found]) for key in keys}
    return means


def _decided(
    messages: Sequence[Message], vectors: ArrayLike, heads: Heads | None, mode: Mode, settings: dict[str, Any]
) -> tuple[list[Decision], list[float]]:
    if mode == "offline":
        started = time.perf_counter()
        found = segment(messages, vectors, heads, **settings)
        spent = (time.perf_counter() - started) * 1000.0 / max(len(messages), 1)
        return list(found.decisions), [spent] * len(messages)
    segmenter = Segmenter(heads, **settings)
    told: list[Decision] = []
    cost = []
    for message, vector in zip(messages, np.asarray(vectors), strict=True):
        started = time.perf_counter()
        decision = segmenter.receive(message, vector)
        cost.append((time.perf_counter() - started) * 1000.0)
        told.append(decision)
        if mode == "confirmed":
            for final in decision.previous:
                told[final.index] = final
    if mode == "confirmed":
        for final in segmenter.finish():
            told[final.index] = final
    return told, cost


def _links(
    links: Iterable[tuple[int, int]], decisions: Sequence[Decision], first: int, end: int
) -> tuple[int, int, int]:
    """Right, predicted and gold links of the messages that count; a message that replies to nobody links to itself."""
    gold = {(earlier, later) for earlier, later in links if first <= later < end}
    told = {(index if decisions[index].link is None else decisions[index].link, index) for index in range(first, end)}
    return len(gold & told), len(told), len(gold)


def _dialogue(line: str, where: str) -> LabelledDialogue:
    try:
        row = json.loads(line)
        turns = row["turns"]
        messages = tuple(_message(turn) for turn in turns)
        known = {name: row.get(name) for name in ("boundaries", "topic", "links", "scored")}
        for name in ("boundaries", "topic"):
            if known[name] is not None and len(known[name]) != len(messages):
                raise InputError(f'{where}: "{name}" has {len(known[name])} entries for {len(messages)} turns')
        return LabelledDialogue(
            messages,
            None if known["boundaries"] is None else tuple(int(mark) for mark in known["boundaries"]),
            None if known["topic"] is None else tuple(int(topic) for topic in known["topic"]),
            None if known["links"] is None else tuple((int(a), int(b)) for a, b in known["links"]),
            None if known["scored"] is None else (int(known["scored"][0]), int(known["scored"][1])),
            str(row.get("id") or ""),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{type(error).__name__}: {error}"[:120]
        raise InputError(f'{where}: not a dialogue with "turns" of "role" and "text" ({what})') from error


def _message(turn: dict[str, Any]) -> Message:
    role, text = turn["role"], turn["text"]
    if not isinstance(role, str) or not isinstance(text, str):
        raise TypeError("role and text must be strings")
    at = None if turn.get("t") is None else float(turn["t"]) * 60.0
    if not role:
        return Message("system", text, at)
    return Message(role, text, at) if role.lower() in _PARTIES else Message("user", text, at, name=role)


def _space(heads: Heads | None) -> Space:
    if heads is None:
        raise ConfigError("whose vectors are these?", key="space", got=None, accepted="a Space, or heads that have one")
    return heads.space


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(float(np.mean(known))) if known else None


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)
