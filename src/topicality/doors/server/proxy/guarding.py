"""Replies under the guard: a stream with what is not checked yet held back, and answers that came whole. Synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topicality.doors.server.proxy.sse import DONE, Event, Heard, choices_of, delta_of, index_of, packed
from topicality.doors.server.proxy.wire import Json, choice, text_of
from topicality.layer.guard import Guard
from topicality.layer.stream import StreamGuard
from topicality.types import Message, Verdict

Said = Sequence[Message]


class Filter:
    """A streamed answer, each of its choices guarded by itself.

    Text is replaced by what may be shown of it; log-probabilities are left out, since they spell the text. Everything else
    passes as it comes: roles, calls of tools, usage, unknown fields. A choice that is stopped ends with the policy's reply
    and the reason "content_filter"; the others go on.

    Args:
        heard: follows the answer as the model gives it. choices: how many were asked for.
    """

    def __init__(self, guard: Guard, said: Said, window: int, heard: Heard, choices: int) -> None:
        self._guard = guard
        self._said = said
        self._window = window
        self.heard = heard
        self._choices = choices
        self._guards: dict[int, StreamGuard] = {}
        self._shown: set[int] = set()  # choices of which something was shown
        self._ended: set[int] = set()
        self._known: Json = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}

    @property
    def stopped(self) -> bool:
        """Whether the model need not be heard any further: every choice has ended, and not all by themselves."""
        return len(self._ended) >= self._choices and any(guard.stopped for guard in self._guards.values())

    @property
    def first_stopped(self) -> bool:
        """Whether the reply that is remembered was stopped."""
        return 0 in self._guards and self._guards[0].stopped

    @property
    def verdicts(self) -> list[Verdict]:
        """The gravest verdict on each choice."""
        return [guard.verdict for guard in list(self._guards.values()) if guard.verdict is not None]

    def take(self, events: Sequence[Event]) -> bytes:
        """What may be sent now that these events have come."""
        out: list[bytes] = []
        for event in events:
            chunk = self.heard.take(event)
            if event.data is None:
                out.append(event.raw)
            elif event.done:
                out += [self._rest(), DONE]
            elif chunk is not None:
                out += [packed(one) for one in self._chunk(chunk)]
        return b"".join(out)

    def finish(self) -> bytes:
        """What may be sent of the rest, now that nothing more comes."""
        return self._rest() + (DONE if self.stopped and not self.heard.done else b"")

    def _rest(self) -> bytes:
        out: list[bytes] = []
        for index, guard in self._guards.items():
            if index not in self._ended:
                shown = guard.finish()
                if guard.stopped:
                    out += [packed(one) for one in self._stop(index, shown)]
                elif shown:
                    out.append(packed({**self._known, "choices": [choice(index, {"content": shown})]}))
                self._ended.add(index)
        return b"".join(out)

    def _chunk(self, chunk: Json) -> list[Json]:
        if not isinstance(chunk.get("choices"), list) or not chunk["choices"]:
            return [chunk]
        self._known = {name: chunk[name] for name in self._known if name in chunk}
        out: list[Json] = []
        for one in choices_of(chunk):
            index = index_of(one)
            if index in self._ended:
                continue
            guard = self._guards.get(index)
            if guard is None:
                guard = self._guards[index] = StreamGuard(self._guard, self._said, window=self._window)
            delta, finish = delta_of(one), one.get("finish_reason")
            text = text_of(delta)
            shown = guard.feed(text) if text else ""
            if finish is not None and not guard.stopped:
                shown += guard.finish()
            if guard.stopped:
                out += self._stop(index, shown)
                continue
            passed: Json = {**delta, **({"content": shown} if text or shown else {})}
            if shown:
                self._shown.add(index)
            if finish is not None:
                self._ended.add(index)
            if text and not shown and finish is None and not any(passed.values()):
                continue  # nothing is left of it
            rest = {name: value for name, value in one.items() if name != "logprobs"}
            out.append({**chunk, "choices": [{**rest, "delta": passed}]})
        return out

    def _stop(self, index: int, shown: str) -> list[Json]:
        verdict = self._guards[index].verdict
        reply = (verdict.reply if verdict is not None else None) or ""
        gap = "\n\n" if reply and (shown or index in self._shown) else ""
        self._ended.add(index)
        text = f"{shown}{gap}{reply}"
        said = [{**self._known, "choices": [choice(index, {"content": text})]}] if text else []
        return [*said, {**self._known, "choices": [choice(index, {}, "content_filter")]}]


def checked(guard: Guard, said: Said, choices: Sequence[Json]) -> tuple[list[Json] | None, list[Verdict]]:
    """An answer that came whole: its choices with those replaced that may not be shown; None when all may.

    Args:
        choices: as `wire.replies_of` gives them.
    """
    texts = [text_of(one["message"]) for one in choices]
    verdicts = guard.check_many(texts, [said] * len(texts), role="assistant")
    if all(verdict.allowed for verdict in verdicts):
        return None, verdicts
    pairs = zip(choices, verdicts, strict=True)
    return [one if verdict.allowed else _replaced(one, verdict) for one, verdict in pairs], verdicts


def _replaced(one: Json, verdict: Verdict) -> Json:
    message: dict[str, Any] = {"role": "assistant", "content": verdict.reply or "", "refusal": None}
    return {"index": one.get("index", 0), "message": message, "logprobs": None, "finish_reason": "content_filter"}
