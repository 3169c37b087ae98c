"""Spans where somebody set OpenTelemetry up, and nothing where nobody did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.operations import note, onward, span, tracing, wrapped
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import Verdict

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

SAID = "the users own words"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def serve(path: str, headers: dict[str, str] | None = None) -> list[dict[str, str]]:
    """Ask once; what would have been sent to the model server."""
    settings = Settings()
    service = Service(settings, Layer(open_store("memory://"), None, WordEmbedder()), Bridge(1, 1), Keys(settings))
    sent: list[dict[str, str]] = []

    def work() -> None:
        with span("topicality.engine"):
            pass

    async def things(request: Request) -> Response:
        note(request.scope).judged(Verdict("flag", "OFF_TOPIC", SAID))
        with span("topicality.check", side="input") as begun:
            begun.set(action="flag", score=0.25)
            await service.bridge.run(work)
        headers: dict[str, str] = {}
        onward(headers)
        sent.append(headers)
        return JSONResponse({})

    async def crash(_: Request) -> Response:
        with span("topicality.check"):
            raise ValueError(SAID)

    app = wrapped(Starlette(routes=[Route("/things/{id}", things), Route("/crash", crash)]), settings, lambda: service)

    async def run() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            await client.get(path, headers=headers)

    asyncio.run(run())
    service.close()
    return sent


def test_a_request_is_a_span_under_its_callers_and_the_engines_work_is_under_it(spans: Any) -> None:
    sent = serve(f"/things/{SAID}?q={SAID}", {"traceparent": PARENT})
    engine, check, request = spans.get_finished_spans()
    assert [one.name for one in (engine, check, request)] == [
        "topicality.engine",
        "topicality.check",
        "GET /things/{id}",
    ]
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert check.parent.span_id == request.context.span_id
    assert engine.parent.span_id == check.context.span_id, "the context goes along to the engine's thread"
    assert request.kind is trace.SpanKind.SERVER
    attributes = dict(request.attributes)
    assert len(attributes.pop("topicality.request")) == 32
    assert attributes == {
        "http.request.method": "GET",
        "http.route": "/things/{id}",
        "http.response.status_code": 200,
        "topicality.action": "flag",
        "topicality.reason": "OFF_TOPIC",
    }
    assert dict(check.attributes) == {"topicality.side": "input", "topicality.action": "flag", "topicality.score": 0.25}
    assert sent[0]["traceparent"].split("-")[1:3] == [PARENT.split("-")[1], f"{request.context.span_id:016x}"]
    assert all(SAID not in one.to_json() for one in (engine, check, request))


@pytest.mark.parametrize("parent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_unusable_parent_is_no_parent(spans: Any, parent: str) -> None:
    serve("/things/1", {"traceparent": parent})
    assert spans.get_finished_spans()[-1].parent is None


def test_a_failure_is_marked_without_its_words(spans: Any) -> None:
    serve("/crash")
    check, request = spans.get_finished_spans()
    assert check.status.description == "ValueError"
    assert (request.status.status_code, request.status.description) == (trace.StatusCode.ERROR, "internal")
    assert dict(request.attributes)["http.response.status_code"] == 500
    assert not check.events, "an exception's event would hold its words"
    assert SAID not in check.to_json() + request.to_json()


def test_without_a_provider_nothing_is_made() -> None:
    assert not tracing.enabled()
    assert serve("/things/1", {"traceparent": PARENT}) == [{}]


def test_without_the_library_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    try:
        importlib.reload(tracing)
        assert not tracing.enabled()
        with tracing.span("x", a=1) as begun:
            begun.set(b=2)
            begun.fail("no")
    finally:
        monkeypatch.undo()
        importlib.reload(tracing)
