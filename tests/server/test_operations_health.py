"""Alive, ready, and the page for Prometheus."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from tests.server.upstream import PATIENCE

from topicality.doors.server import operations
from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.operations import health
from topicality.doors.server.operations.metrics import Metrics, forget_dead
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.errors import EmbedError, StoreError
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import LlmUse, Verdict

Make = Callable[..., Service]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Service] = []

    def service(**settings: Any) -> Service:
        told = Settings.model_validate(settings)
        layer = Layer(open_store("memory://"), None, WordEmbedder())
        made.append(Service(told, layer, Bridge(1, 1), Keys(told)))
        return made[-1]

    yield service
    for one in made:
        one.close()


class Client:
    """The room's own routes, as an application."""

    def __init__(self, service: Service) -> None:
        self.service = service

        def current() -> Service:
            return service

        @asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            async with operations.running(current):
                yield

        routes = operations.routes(service.settings, current)
        inner = Starlette(routes=routes, lifespan=lifespan)
        self._inner = inner
        app = operations.wrapped(inner, service.settings, current)
        self._client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self._client.get(path, headers=headers)

    async def ready(self) -> tuple[int, list[str]]:
        answer = await self.get("/readyz")
        assert answer.json()["ready"] == (answer.status_code == 200)
        return answer.status_code, answer.json()["reasons"]

    def again(self) -> None:
        """Forget the latest answer, as a second would."""
        self.service.readiness._found = None


def broken(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_ready_says_what_is_out_of_reach_and_when_it_is_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    client = Client(service)

    async def run() -> None:
        assert await client.ready() == (200, [])
        with monkeypatch.context() as patch:
            patch.setattr(service.layer.store, "conversations", broken(StoreError("SECRET of the database")))
            assert await client.ready() == (200, []), "an answer is good for a second"
            client.again()
            assert await client.ready() == (503, ["store"])
            patch.setattr(service.layer, "embedder", type("E", (), {"embed": broken(EmbedError("gone"))})())
            client.again()
            answer = await client.get("/readyz")
            assert answer.json()["reasons"] == ["store", "encoder"]
            assert "SECRET" not in answer.text
            assert answer.headers["retry-after"] == "1"
            assert (await client.get("/healthz")).status_code == 200, "alive all the same"
        client.again()
        assert await client.ready() == (200, [])

    asyncio.run(run())


def test_ready_asks_the_engine_once_however_many_ask(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    client = Client(service)
    asked: list[int] = []
    free = threading.Event()

    def look(_: Any) -> list[str]:
        asked.append(threading.get_ident())
        assert free.wait(PATIENCE)
        return []

    monkeypatch.setattr(health, "look", look)
    monkeypatch.setattr(health, "_PATIENCE", 0.05)

    async def run() -> None:
        slow = await asyncio.gather(*(client.ready() for _ in range(10)))
        assert set(map(str, slow)) == {"(503, ['slow'])"}
        assert await client.ready() == (503, ["slow"])
        free.set()
        monkeypatch.setattr(health, "_PATIENCE", PATIENCE)
        assert await client.ready() == (200, [])

    asyncio.run(run())
    assert len(asked) == 1
    assert threading.get_ident() not in asked


def test_not_ready_while_the_bridge_is_full(make: Make) -> None:
    service = make()
    client = Client(service)
    free = threading.Event()

    async def run() -> None:
        calls = [asyncio.create_task(service.bridge.run(free.wait, PATIENCE)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await client.ready() == (503, ["busy"])
        assert b"topicality_bridge_calls 2.0" not in (await client.get("/metrics")).content, "nobody said where to look"
        service.metrics.watch(lambda: service.bridge.open)
        assert b"topicality_bridge_calls 2.0" in (await client.get("/metrics")).content
        free.set()
        await asyncio.gather(*calls)

    asyncio.run(run())


def test_running_loads_the_encoder_before_the_first_request_and_ends_not_ready(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    client = Client(service)
    looked: list[Any] = []

    def look(layer: Layer) -> list[str]:
        looked.append(layer)
        return []

    monkeypatch.setattr(health, "look", look)

    async def run() -> None:
        async with operations.running(lambda: service):
            assert looked == [service.layer]
            assert await client.ready() == (200, [])
        assert await client.ready() == (503, ["shutting_down"])

    asyncio.run(run())


def test_a_broken_store_does_not_keep_the_server_from_starting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    monkeypatch.setattr(service.layer.store, "conversations", broken(StoreError("away")))

    async def run() -> None:
        async with operations.running(lambda: service):
            assert await Client(service).ready() == (503, ["store"])

    asyncio.run(run())


def test_metrics_need_their_scope_unless_only_this_machine_can_ask(make: Make) -> None:
    keys = [{"name": "all", "key": "metrics-secret", "scopes": ["metrics"]}, {"name": "chat", "key": "chat-secret"}]

    async def run() -> None:
        assert (await Client(make()).get("/metrics")).status_code == 200
        assert (await Client(make(keys=keys)).get("/metrics")).status_code == 200
        far = Client(make(host="0.0.0.0", keys=keys))  # noqa: S104 - not listened on
        assert (await far.get("/metrics")).status_code == 401
        assert (await far.get("/metrics", authorization="Bearer chat-secret")).status_code == 403
        answer = await far.get("/metrics", authorization="Bearer metrics-secret")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert (await far.get("/healthz")).status_code == 200
        assert (await far.get("/readyz")).status_code == 200

    asyncio.run(run())


def page(metrics: Metrics) -> list[str]:
    lines = metrics.exposed()[0].decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


def test_what_rooms_tell_is_counted() -> None:
    metrics = Metrics()
    use = LlmUse("judge", 2, 100, 7, 0.5, "over budget")
    metrics.verdict(Verdict("block", "BLOCKED_TOPIC", "why", llm=use))
    metrics.verdict(Verdict("allow", "ON_TOPIC", "why"), "output")
    metrics.exchange("completed")
    metrics.exchange("failed", "hung_up")
    metrics.recalled(120)
    metrics.recalled(0)
    metrics.llm(LlmUse("selector", 0, 0, 0, 0.0, "paused"))
    metrics.upstream_error("status_500")
    metrics.upstream_answered(0.2)
    with metrics.stream():
        assert "topicality_streams_open 1.0" in page(metrics)
    found = page(metrics)
    for line in (
        'topicality_verdicts_total{action="block",reason="BLOCKED_TOPIC",side="input"} 1.0',
        'topicality_verdicts_total{action="allow",reason="ON_TOPIC",side="output"} 1.0',
        'topicality_exchanges_total{end="completed",reason=""} 1.0',
        'topicality_exchanges_total{end="failed",reason="hung_up"} 1.0',
        "topicality_recalled_tokens_sum 120.0",
        "topicality_recalled_tokens_count 2.0",
        'topicality_llm_calls_total{outcome="over_budget",role="judge"} 2.0',
        'topicality_llm_calls_total{outcome="paused",role="selector"} 1.0',
        'topicality_llm_tokens_total{kind="input",role="judge"} 100.0',
        'topicality_llm_tokens_total{kind="output",role="judge"} 7.0',
        'topicality_upstream_errors_total{kind="status_500"} 1.0',
        'topicality_upstream_seconds_bucket{le="0.25"} 1.0',
        "topicality_streams_open 0.0",
    ):
        assert line in found


def test_a_stream_that_fails_is_no_longer_open() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="x"), metrics.stream():
        raise ValueError("x")
    assert "topicality_streams_open 0.0" in page(metrics)


def test_labels_are_bounded_whatever_rooms_tell() -> None:
    metrics = Metrics()
    said = "the user's own words"
    for n in range(500):
        metrics.exchange("failed", f"code_{n}")
        metrics.upstream_error(f"{said} {n}")
        metrics.verdict(Verdict("allow", f"NEW_{n}", ""))  # type: ignore[arg-type]  # a rule's text by mistake
        metrics.llm(LlmUse(f"role {n}", 1, 0, 0, 0.0, said))
    found = page(metrics)
    assert len([line for line in found if line.startswith("topicality_exchanges")]) == 51
    assert 'topicality_exchanges_total{end="failed",reason="other"} 450.0' in found
    assert 'topicality_upstream_errors_total{kind="other"} 500.0' in found
    assert 'topicality_verdicts_total{action="allow",reason="other",side="input"} 500.0' in found
    assert said not in "\n".join(found)


def test_two_applications_in_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.exchange("completed")
    assert not [line for line in page(second) if line.startswith("topicality_exchanges")]


WORKER = """
import sys
from topicality.doors.server.operations.metrics import Metrics
metrics = Metrics()
metrics.exchange("completed")
metrics.requests_open.inc()
with metrics.stream():
    print("ready", flush=True)
    sys.stdin.readline()
    if "close" in sys.argv:
        metrics.close()
    elif "ask" in sys.argv:
        print(metrics.exposed()[0].decode(), flush=True)
"""


def test_workers_answer_for_each_other_and_not_for_those_that_are_gone(tmp_path: Any) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def worker(what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, what],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    asked, other, closed, killed = (worker(what) for what in ("ask", "wait", "close", "kill"))
    closed.communicate("go\n", timeout=PATIENCE)
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    said, _ = asked.communicate("go\n", timeout=PATIENCE)
    other.communicate("go\n", timeout=PATIENCE)
    assert 'topicality_exchanges_total{end="completed",reason=""} 4.0' in said, "what was counted stays"
    assert "topicality_streams_open 2.0" in said
    assert "topicality_requests_open 2.0" in said
    forget_dead(str(tmp_path))
    assert not list(tmp_path.glob("gauge_live*"))
