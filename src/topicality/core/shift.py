"""Topic shift by one cosine, as system C does it: pure, three lines of arithmetic, no return to earlier topics.

The segmenter decides better (a fixed cosine cuts almost every message of some encoders and none of others). This is for
hosts that come from system C, number their own topics and want its rule with its faults mended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from numpy.typing import ArrayLike

from topicality.core.packet import cut, quoted
from topicality.errors import ConfigError, InputError
from topicality.vectors import similarity

CONTINUITY_THRESHOLD = 0.65
LOOKBACK = 3
SNIPPET_LIMIT = 80
TAG_LIMIT = 64

Untagged = Literal["current", "other"]
T = TypeVar("T")
_PLAIN_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True, slots=True)
class Shift:
    """Whether a message continues the current topic.

    Attributes:
        tag: the current tag, or "topic-N" with the number given when the topic is new.
        is_new: whether a topic starts here.
        score: best cosine similarity to the messages looked at, floored at 0: [0, 1]. 0 when nothing was compared.
    """

    tag: str
    is_new: bool
    score: float


def detect_shift(
    current_tag: str | None,
    next_number: int,
    vector: ArrayLike,
    recent: Sequence[ArrayLike],
    threshold: float = CONTINUITY_THRESHOLD,
    lookback: int = LOOKBACK,
) -> Shift:
    """Continue the current topic, or start "topic-{next_number}".

    Continues when the message is close enough (`>=`) to one of the last few messages. Without a current tag, or without
    recent messages, the topic is new and the other argument is not looked at.

    A zero vector has no direction, so it is close to nothing: as the message it starts a new topic with score 0 (unless
    the threshold is 0), among the recent ones it is passed over. A message without content should inherit its topic:
    do not ask about it.

    Args:
        current_tag: tag of the topic so far, not blank; None when there is none.
        next_number: number for a new topic, 0 or more. The caller owns numbering; let the store allocate it.
        vector: the message's embedding, shape (D,), any length.
        recent: embeddings of earlier messages, newest first, shape (D,) each.
        threshold: cosine similarity that still continues, [0, 1].
        lookback: how many of the recent ones are looked at, at least 1.
    Returns:
        The tag to store with the message. Equal input gives equal output; nothing is kept.
    Raises:
        InputError: a vector is empty or has NaN or infinity inside (system C: a silent new topic); a blank tag; a
            negative or fractional number; a number that would give a new topic the current tag.
        SpaceMismatchError: dimensions differ (system C: a silent new topic).
        ConfigError: threshold or lookback out of range.
    Cost: O(lookback · D). Source: system C, `detect_topic_shift`; here tiny vectors are compared exactly (C: 0 below
    a product of lengths of 1e-10).
    """
    _check_setting("threshold", threshold, _is_number(threshold) and 0 <= threshold <= 1, "a number in [0, 1]")
    _check_setting("lookback", lookback, _is_count(lookback) and lookback >= 1, "a whole number from 1")
    if not _is_count(next_number):
        raise InputError(f"next_number must be a whole number from 0, got {next_number!r}")
    if current_tag is not None and not current_tag.strip():
        raise InputError("a topic tag must not be blank; pass None when there is no current topic")
    new_tag = f"topic-{next_number}"
    if new_tag == current_tag:
        raise InputError(f"next_number {next_number} is the number of the current topic; a new topic needs its own")
    similarity(vector, vector)  # a malformed message is an error whether or not there is a history
    if current_tag is None or len(recent) == 0:
        return Shift(new_tag, True, 0.0)
    score = max(0.0, *(similarity(vector, earlier) or 0.0 for earlier in recent[:lookback]))
    return Shift(current_tag, False, score) if score >= threshold else Shift(new_tag, True, score)


def partition_by_topic(
    messages: Iterable[T],
    current: str,
    tag_of: Callable[[T], str | None],
    *,
    untagged: Untagged = "other",
) -> tuple[list[T], list[T]]:
    """Split messages into those of the current topic and all others.

    Args:
        messages: anything that has a tag.
        current: tag of the current topic; compared exactly.
        tag_of: a message's tag; None or "" is untagged.
        untagged: where untagged messages go: "other" (the default, as in system C) or "current" (as in its Go port).
    Returns:
        (current, others): each message in exactly one of them, both in the order given; the objects themselves.
    Raises:
        ConfigError: another value of `untagged`.
    Cost: O(N). Source: system C, `partition_by_topic`.
    """
    _check_setting("untagged", untagged, untagged in ("current", "other"), '"current" or "other"')
    mine: list[T] = []
    others: list[T] = []
    for message in messages:
        tag = tag_of(message)
        belongs = tag == current if tag else untagged == "current"
        (mine if belongs else others).append(message)
    return mine, others


def summarize_block(tag: str, count: int, first_text: str | None, limit: int = SNIPPET_LIMIT) -> str:
    """One line that stands for a block of messages on another topic.

    Args:
        tag: the block's topic; a tag that is not plain letters, digits and "_.:/-" is quoted too.
        count: messages in the block.
        first_text: the first thing the user said in it; blank or None when there is nothing.
        limit: most characters (code points) of it that are shown.
    Returns:
        `[Earlier topic (topic-1, 5 messages): "first words of it..."]`, never with a line break. The text is a JSON
        string (see `packet.quoted`), so nothing in it can end the note or start another; "..." only when it was cut.
    Raises:
        InputError: blank tag, or a count that is negative or fractional. ConfigError: limit below 1.
    Cost: O(len(first_text)). Source: system C, `summarize_topic_block`, which cut words, always added "..." and put
    the text unescaped into a system message.
    """
    if not tag.strip():
        raise InputError("a topic tag must not be blank")
    if not _is_count(count):
        raise InputError(f"the number of messages must be a whole number from 0, got {count!r}")
    name = cut(tag, TAG_LIMIT)
    shown = name if _PLAIN_TAG.fullmatch(tag) else quoted(name)
    snippet = cut(first_text or "", limit)
    ending = f": {quoted(snippet)}]" if snippet else "]"
    return f"[Earlier topic ({shown}, {count} message{'' if count == 1 else 's'}){ending}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_setting(key: str, value: object, accepted: bool, what: str) -> None:
    if not accepted:
        raise ConfigError("cannot be used", key=key, got=value, accepted=what)
