"""Asking a language model in a role: strict replies, one repair, a time limit that holds, budgets, counters."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from topicality.core.packet import quoted
from topicality.errors import LlmError
from topicality.llm.adapters import load_llm
from topicality.llm.budget import Budget, Counters, Purse
from topicality.llm.prompts import read_prompts
from topicality.ports import Llm
from topicality.types import LlmReply, LlmUse

T = TypeVar("T")
_log = logging.getLogger("topicality.llm")
_FAULTS = 20
_LATE = "no reply"


class AskError(LlmError):
    """A question brought no usable answer; `use` says what it cost all the same."""

    def __init__(self, message: str, use: LlmUse) -> None:
        self.use = use
        super().__init__(message)


@dataclass(frozen=True)
class Role(Generic[T]):
    """What a model is asked to be.

    Attributes:
        name: "judge", "labeller", "selector" or "expander"; names the prompt file, counters and logs.
        schema: JSON schema of the reply. read: the value in a reply's text, or the list of its faults. A fault is shown to
            the model and may stand in a note or a log: it has nothing of the conversation in it.
    """

    name: str
    schema: Mapping[str, Any]
    read: Callable[[str], T | list[str]]


class Stop:
    """Ends the waiting for every question that was asked with it, from another thread and for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether `set` was called."""
        return self._stopped

    def set(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._stopped = True
            for event in self._waiting:
                event.set()

    def wait(self, event: threading.Event, timeout: float) -> None:
        """Until the event is set, the time is up, or `set` is called."""
        with self._lock:
            if self._stopped:
                return
            self._waiting.add(event)
        event.wait(timeout)
        with self._lock:
            self._waiting.discard(event)


class Asker:
    """Asks a model in any role, within budgets and time limits. One serves many threads.

    Args:
        llm: the model. budget: how much may be asked.
        prompts: a folder whose `ROLE.txt` replaces the shipped prompt of that role; read now.
        log_text: whether questions and replies, which hold text of conversations, are logged (level DEBUG).
        clock: seconds that only grow; for tests.
    Raises:
        ConfigError: the folder, or a prompt in it, cannot be used.
    """

    def __init__(
        self,
        llm: Llm,
        budget: Budget | None = None,
        *,
        prompts: str | Path | None = None,
        log_text: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.llm = llm
        self.counters = Counters()
        self._purse = Purse(budget or Budget())
        self._prompts = read_prompts(prompts)
        self._log_text = log_text
        self._clock = clock

    @property
    def model(self) -> str:
        """The model's name, for logs."""
        return str(getattr(self.llm, "model", type(self.llm).__name__))

    def ask(
        self, role: Role[T], question: Mapping[str, Any], *, timeout: float, conversation: str = ""
    ) -> tuple[T, LlmUse]:
        """Ask, show the faults of an unusable reply and ask once more, then give up.

        The caller waits `timeout` seconds at the most, whatever the model does.

        Args:
            question: data for the model, sent as JSON with nothing in it that could end a string, a tag or a turn.
            conversation: whose budget it counts against.
        Returns:
            The valid value, and what it cost.
        Raises:
            AskError: over budget, no usable reply in time, or the model failed. The message has nothing of the reply.
        """
        asked = _Asked(role.name, self._clock(), timeout, conversation)

        def work() -> T:
            faults: list[str] = []
            for attempt in range(2):
                data = {**question, "your_last_reply_was_refused_because": faults} if faults else question
                answer = role.read(self._call(asked, as_data(data), role.schema).text)
                if not isinstance(answer, list):
                    asked.outcome = "repaired" if attempt else "ok"
                    return answer
                faults = [str(fault) for fault in answer][:_FAULTS]
            asked.outcome = "refused"
            raise LlmError("unusable reply twice: " + "; ".join(faults)[:400])

        return self._in_time(asked, work)

    def once(
        self,
        role: str,
        user: str,
        schema: Mapping[str, Any],
        *,
        timeout: float,
        conversation: str = "",
        stop: Stop | None = None,
    ) -> tuple[LlmReply, LlmUse]:
        """Ask without reading the reply, for a caller that holds it against its own rules. See `ask`.

        Args:
            role: whose prompt is sent. user: the data, as JSON. stop: to end the waiting early.
        """
        asked = _Asked(role, self._clock(), timeout, conversation)

        def work() -> LlmReply:
            reply = self._call(asked, user, schema)
            asked.outcome = "ok"
            return reply

        return self._in_time(asked, work, stop)

    def _in_time(self, asked: _Asked, work: Callable[[], T], stop: Stop | None = None) -> tuple[T, LlmUse]:
        """Run in a daemon thread and stop waiting in time: a hanging model must not hold up a reply."""
        if self._purse.paused(asked.started):
            asked.outcome = "paused"
            raise self._failure(asked, "the model failed several times in a row and is left alone for a while")
        box: list[T] = []
        failed: list[str] = []
        lock, ended = threading.Lock(), threading.Event()
        state = {"back": False, "given up": False}

        def run() -> None:
            try:
                box.append(work())
            except LlmError as error:
                failed.append(str(error))
            except Exception as error:  # noqa: BLE001 - an adapter or a reader of the host's may raise anything
                failed.append(f"the model raised {type(error).__name__}")
            with lock:
                state["back"] = True
                if state["given up"]:
                    self._purse.hang(-1)
            ended.set()

        stop = stop or Stop()
        threading.Thread(target=run, name=f"topicality-{asked.role}", daemon=True).start()
        stop.wait(ended, asked.timeout)
        with lock:
            back = state["back"]
            if not back:
                state["given up"] = True
                self._purse.hang(1)
        if back and box:
            self._purse.ended(self._clock(), failed=False)
            return box[0], self._ended(asked)
        if not back and stop.stopped:
            asked.outcome = "stopped"
            raise self._failure(asked, "nobody waits for the answer any longer")
        late = not back or failed[0].startswith(_LATE)
        asked.outcome = "timeout" if late else asked.outcome or "failed"
        if asked.outcome != "over budget":
            self._purse.ended(self._clock(), failed=asked.outcome in ("timeout", "failed"))
        raise self._failure(asked, f"{_LATE} within {asked.timeout:g} s" if late else failed[0])

    def _call(self, asked: _Asked, user: str, schema: Mapping[str, Any]) -> LlmReply:
        """One call, if there is time and budget left; what it costs is counted even when nobody waits for it any more."""
        left = asked.deadline - self._clock()
        if left <= 0:
            raise LlmError(_LATE)
        if not self._purse.take(asked.conversation, self._clock()):
            asked.outcome = "over budget"
            raise LlmError("the budget for language models is used up")
        asked.calls += 1
        self.counters.add(asked.role, calls=1)
        if self._log_text:
            _log.debug("%s is asked: %s", asked.role, user)
        reply: object = self.llm.ask(self._prompts[asked.role], user, schema, timeout=left)
        if not isinstance(reply, LlmReply) or not isinstance(reply.text, str):
            raise LlmError(f"an Llm must return an LlmReply with text, got {type(reply).__name__}")
        if self._log_text:
            _log.debug("%s replies: %s", asked.role, reply.text)
        tokens = (reply.input_tokens, reply.output_tokens)
        asked.tokens = (asked.tokens[0] + tokens[0], asked.tokens[1] + tokens[1])
        self.counters.add(asked.role, tokens=tokens)
        self._purse.spend(sum(tokens) or _estimate(self._prompts[asked.role], user, reply.text), self._clock())
        return reply

    def _ended(self, asked: _Asked) -> LlmUse:
        seconds = self._clock() - asked.started
        use = LlmUse(asked.role, asked.calls, *asked.tokens, seconds, asked.outcome)
        self.counters.ended(asked.role, asked.outcome, seconds)
        _log.info(
            "%s: %s, %d calls, %d + %d tokens, %.2f s", use.role, use.outcome, use.calls, *asked.tokens, use.seconds
        )
        return use

    def _failure(self, asked: _Asked, why: str) -> AskError:
        return AskError(why, self._ended(asked))


def as_asker(llm: str | Llm | Callable[[str, str], Any] | Asker | None) -> Asker | None:
    """An `Asker` with the usual budget around whatever `load_llm` takes; one that is given stays itself, None is None."""
    if llm is None or isinstance(llm, Asker):
        return llm
    model = load_llm(llm)
    return None if model is None else Asker(model)


@dataclass
class _Asked:
    """One question while it is being asked."""

    role: str
    started: float
    timeout: float
    conversation: str
    outcome: str = ""
    calls: int = 0
    tokens: tuple[int, int] = (0, 0)

    @property
    def deadline(self) -> float:
        return self.started + self.timeout


def as_data(value: object) -> str:
    """A value as JSON on one line, in which no text can end a string, a tag, a line or a turn of a chat template.

    Raises:
        TypeError: the value is none that JSON has. ValueError: it has a number that is not finite.
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted(str(key))}: {as_data(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(as_data(entry) for entry in value) + "]"
    return json.dumps(value, allow_nan=False)


def _estimate(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) // 3
