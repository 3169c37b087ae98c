"""What is counted, for Prometheus. Label values are from fixed lists: no conversation, no owner, no text is ever one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from topicality.types import Action, LlmUse, ReasonCode, Verdict

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the library's name: a directory where workers leave their numbers for each other

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_ACTIONS = frozenset(get_args(Action))
_REASONS = frozenset(get_args(ReasonCode))
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_CODE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MOST_CODES = 50  # different codes of one label; they come from this project's code, so more of them is a mistake


class Metrics:
    """The numbers of one application. Every method is thread-safe, costs microseconds and never raises.

    Several workers share theirs through the directory that the environment names as `PROMETHEUS_MULTIPROC_DIR` (`serve` makes
    one): whichever of them is asked then answers for all.
    """

    def __init__(self) -> None:
        self._shared = os.environ.get(SHARED)
        self._registry = registry = CollectorRegistry()
        self._codes: dict[str, set[str]] = {}
        self._watched: Callable[[], int] | None = None
        self._requests = Counter(
            "topicality_requests", "Answered requests.", ("route", "method", "status"), registry=registry
        )
        self._seconds = Histogram(
            "topicality_request_seconds",
            "From a request's headers to the last byte of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._open = self._gauge("topicality_requests_open", "Requests that are being answered.")
        self._verdicts = Counter(
            "topicality_verdicts", "What the guard said.", ("side", "action", "reason"), registry=registry
        )
        self._exchanges = Counter("topicality_exchanges", "Exchanges that ended.", ("end", "reason"), registry=registry)
        self._streams = self._gauge("topicality_streams_open", "Answers that are being streamed.")
        self._bridge = self._gauge("topicality_bridge_calls", "Calls of the engine that run or wait.")
        self._recalled = Summary(
            "topicality_recalled_tokens", "Tokens of the passages put into a request.", registry=registry
        )
        self._llm = Counter(
            "topicality_llm_calls", "Questions to a language model.", ("role", "outcome"), registry=registry
        )
        self._llm_tokens = Counter(
            "topicality_llm_tokens", "Tokens a language model was paid for.", ("role", "kind"), registry=registry
        )
        self._upstream_errors = Counter(
            "topicality_upstream_errors", "Failures of the model server.", ("kind",), registry=registry
        )
        self._upstream_seconds = Histogram(
            "topicality_upstream_seconds",
            "From sending a request to the model server to the headers of its answer.",
            buckets=_SECONDS,
            registry=registry,
        )

    @property
    def requests_open(self) -> Gauge:
        """For the gate, which counts up and down."""
        return self._open

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """An answered request. `route` is the template ("/api/topics/{id}"), never the path; 499 is a client that left."""
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def verdict(self, verdict: Verdict, side: Literal["input", "output"] = "input") -> None:
        """What the guard said of a message or a reply, with what a language model cost if one was asked."""
        action = verdict.action if verdict.action in _ACTIONS else "other"
        reason = verdict.reason_code if verdict.reason_code in _REASONS else "other"
        self._verdicts.labels(side, action, reason).inc()
        self.llm(verdict.llm)

    def exchange(self, end: Literal["completed", "failed", "edited"], reason: str = "") -> None:
        """An exchange ended. `reason` is the code of a failure ("hung_up", "upstream"), not its text."""
        self._exchanges.labels(end, self._bounded("exchange", reason)).inc()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Around an answer that is streamed."""
        self._streams.inc()
        try:
            yield
        finally:
            self._streams.dec()

    def recalled(self, tokens: int) -> None:
        """Passages of so many tokens were put into a request (0: nothing was found)."""
        self._recalled.observe(tokens)

    def llm(self, use: LlmUse | None) -> None:
        """A question to a language model; None is no question."""
        if use is None:
            return
        role = self._bounded("role", use.role)
        self._llm.labels(role, self._bounded("outcome", use.outcome.replace(" ", "_"))).inc(max(1, use.calls))
        self._llm_tokens.labels(role, "input").inc(max(0, use.input_tokens))
        self._llm_tokens.labels(role, "output").inc(max(0, use.output_tokens))

    def upstream_error(self, kind: str) -> None:
        """The model server failed: a code such as "connect", "timeout", "broken", "status_500"."""
        self._upstream_errors.labels(self._bounded("upstream", kind)).inc()

    def upstream_answered(self, seconds: float) -> None:
        """The headers of an answer of the model server came after so many seconds."""
        self._upstream_seconds.observe(seconds)

    def watch(self, calls: Callable[[], int]) -> None:
        """Say where the number of calls on the bridge is read."""
        self._watched = calls

    def sample(self) -> None:
        """Read what is watched. A worker does it every second, for the scrapes that reach its siblings."""
        if self._watched is not None:
            self._bridge.set(self._watched())

    def exposed(self) -> tuple[bytes, str]:
        """The page for Prometheus and its content type. Blocks for a file or two per worker when workers share."""
        self.sample()
        registry = self._registry
        if self._shared:
            forget_dead(self._shared)
            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._shared)  # type: ignore[no-untyped-call]  # the library has no types here
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def close(self) -> None:
        """This process's gauges count no more."""
        if self._shared:
            _forget(os.getpid(), self._shared)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self._registry, multiprocess_mode="livesum")

    def _bounded(self, kind: str, code: str) -> str:
        if not code:
            return ""
        known = self._codes.setdefault(kind, set())
        if code not in known:
            if len(known) >= _MOST_CODES or not _CODE.fullmatch(code):
                return "other"
            known.add(code)
        return code


def forget_dead(directory: str) -> None:
    """Drop the gauges of workers that were killed; what they counted stays."""
    for path in Path(directory).glob("gauge_live*_*.db"):
        number = path.stem.rpartition("_")[2]
        if number.isdigit() and not _alive(int(number)):
            _forget(int(number), directory)


def _forget(process: int, directory: str) -> None:
    mark_process_dead(process, directory)  # type: ignore[no-untyped-call]  # the library has no types here


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
