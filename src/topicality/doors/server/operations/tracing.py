"""Spans for OpenTelemetry, where its API is installed (extra `otel`) and a provider was set up; otherwise nothing happens.

This project sets up no provider and no exporter: `opentelemetry-instrument topicality serve …` does, from `OTEL_*` in the
environment. Attributes are names, codes and counts, never text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

Value = str | int | float | bool

try:
    from opentelemetry import propagate, trace
except ImportError:  # the extra is not installed
    _installed = False
else:
    _installed = True


class Span:
    """A piece of work that is being traced, or not: the methods are the same."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **attributes: Value) -> None:
        """Attributes, with "topicality." put before their names."""
        if self._span is not None:
            for name, value in attributes.items():
                self._span.set_attribute(f"topicality.{name}", value)

    def standard(self, **attributes: Value) -> None:
        """Attributes of the semantic conventions: `http__route` is "http.route"."""
        if self._span is not None:
            for name, value in attributes.items():
                self._span.set_attribute(name.replace("__", "."), value)

    def rename(self, name: str) -> None:
        """Another name than it was begun with."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, code: str) -> None:
        """It went wrong; `code` is for machines."""
        if self._span is not None:
            self._span.set_status(trace.StatusCode.ERROR, code)


_NONE = Span()


@contextmanager
def span(name: str, **attributes: Value) -> Iterator[Span]:
    """Around a piece of work inside a request; a child of the request's span, also in the bridge's threads.

    An exception marks it with the exception's type; its text is not recorded.
    """
    if not enabled():
        yield _NONE
        return
    with _begun(name, None, trace.SpanKind.INTERNAL) as begun:
        begun.set(**attributes)
        yield begun


@contextmanager
def request_span(headers: Mapping[str, str]) -> Iterator[Span]:
    """Around a request; its parent is the `traceparent` header, if it has one."""
    if not enabled():
        yield _NONE
        return
    with _begun("request", propagate.extract(headers), trace.SpanKind.SERVER) as begun:
        yield begun


def onward(headers: MutableMapping[str, str]) -> None:
    """Put `traceparent` into the headers of a request to the model server, where spans are made."""
    if enabled():
        propagate.inject(headers)


def enabled() -> bool:
    """Whether somebody set up a provider of spans."""
    return _installed and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def _begun(name: str, parent: Any, kind: Any) -> Iterator[Span]:
    tracer = trace.get_tracer("topicality")
    with tracer.start_as_current_span(
        name, parent, kind=kind, record_exception=False, set_status_on_exception=False
    ) as started:
        begun = Span(started)
        try:
            yield begun
        except BaseException as error:
            begun.fail(type(error).__name__)
            raise
