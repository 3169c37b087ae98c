"""How a message goes on from where a topic was left: from its last two messages, whatever was said elsewhere since. Pure.

A question left open asks for its answer, also when other topics came between.
"""

from __future__ import annotations

from collections.abc import Sequence

from topicality.core.segment.cues import SILENT_CUES, Cues, overlap
from topicality.core.segment.features import Features, Said

READ = 2  # last messages of a topic that are read
KEPT = READ + 1  # and kept, so that the latest can be taken back
_CUES = ("log_words", "question_mark", "question", "thanks", "closing", "offer", "only_assent", "user")
_NEAR = ("last_aspect", "last_subject", "last_words", "second_aspect", "second_subject", "second_words")
THREAD = (
    *_NEAR, *(f"last_{name}" for name in _CUES), "second_question", "second_user", "same_role", "ends", "ends_in_words",
    *(f"gain_{name}" for name in _NEAR),
)  # fmt: skip
THREAD_NEXT = tuple(f"next_{name}" for name in _NEAR)
NO_THREAD, NO_THREAD_NEXT = [0.0] * len(THREAD), [0.0] * len(THREAD_NEXT)
_PLACES = tuple(Cues._fields.index(name) for name in _CUES)


def near(message: Said, tail: Sequence[Said]) -> Features:
    """Cosine by aspect, cosine by subject and shared words, with the last message and with the one before it."""
    found: Features = []
    for last in tail[: -READ - 1 : -1]:
        found += [
            float(message.aspect @ last.aspect),
            float(message.subject @ last.subject),
            overlap(message.words, last.words),
        ]
    return found + NO_THREAD_NEXT[len(found) :]


def thread(message: Said, tail: Sequence[Said], current: Features) -> Features:
    """`THREAD` of a message after a topic's last messages.

    Args:
        tail: of the topic, oldest first, at least one. current: `near` of the message to the current topic.
    """
    last = tail[-1]
    before = tail[-2].cues if len(tail) > 1 else SILENT_CUES
    own = near(message, tail)
    return [
        *own,
        *[last.cues[k] for k in _PLACES],
        before.question,
        before.user,
        float(last.cues.user == message.cues.user),
        *last.ends,
        *[mine - held for mine, held in zip(own, current, strict=True)],
    ]
