"""A scripted model server, and the server under test in front of it, both on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import uvicorn
from starlette.routing import BaseRoute
from tests.server.upstream import PATIENCE, Upstream

from topicality.config import Policy
from topicality.doors.server.app import create_app
from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.layer.memory import Layer
from topicality.records import Exchange, ExchangeStatus, Scope
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

if TYPE_CHECKING:
    from tests.server.rest_world import World

ALL: tuple[ExchangeStatus, ...] = ("pending", "completed", "failed")


@dataclass
class Served:
    """A server that runs.

    Attributes:
        root: its address without a path; url: with "/v1". service: what it works with.
    """

    root: str
    service: Service
    server: uvicorn.Server
    thread: threading.Thread
    clients: list[httpx2.Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def client(self, key: str | None = None, **headers: str) -> httpx2.Client:
        """A client of the server; closed with the test."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            given["authorization"] = f"Bearer {key}"
        made = httpx2.Client(base_url=self.root, headers=given, timeout=PATIENCE)
        self.clients.append(made)
        return made

    def exchanges(self, conversation: str | None = None, owner: str = "default") -> list[Exchange]:
        """What the store has, of any status, by conversation and sequence."""
        return self.service.layer.store.exchanges(Scope(owner, conversation), statuses=ALL)

    def until(self, wanted: Callable[[], bool], what: str = "the server did not get there") -> None:
        """Wait for something that happens after the answer."""
        end = time.monotonic() + PATIENCE
        while not wanted():
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def stop(self) -> None:
        """End it as a signal would."""
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server did not stop"


Serve = Callable[..., Served]


class _NoRest:
    def __init__(self, settings: Settings, current: object) -> None:
        pass

    def routes(self) -> list[BaseRoute]:
        return []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


@pytest.fixture(autouse=True)
def _proxy_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's tests start many servers and ask none of them for REST or MCP, which takes time to put together."""
    if request.path.name.startswith("test_proxy"):
        monkeypatch.setattr("topicality.doors.server.app.Rest", _NoRest)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def serve(upstream: Upstream) -> Iterator[Serve]:
    """Start a server: `serve(policy=…, keys=[…], memory={"budget": 500})`; settings as in a file.

    Args:
        policy: a `Policy`, a file or a preset. layer: one of your own; by default an empty one in memory with the encoder
            of the tests. patch: told the application before it runs; returns what is to be served.
    """
    running: list[Served] = []

    def start(
        *,
        policy: Policy | str | None = None,
        layer: Layer | None = None,
        patch: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> Served:
        settings.setdefault("upstream", {"url": upstream.url})
        settings.setdefault("log", "off")
        told = Settings.model_validate({"port": 0, **settings})
        own = layer or Layer(open_store(told.store), policy, WordEmbedder())
        service = Service(told, own, Bridge(told.limits.threads, told.limits.waiting), Keys(told))
        app = create_app(told, service)
        config = uvicorn.Config(
            patch(app) if patch else app,
            host="127.0.0.1",
            port=0,
            log_config=None,
            access_log=False,
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=int(PATIENCE),
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True, name="served")
        thread.start()
        end = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < end, "the server did not start in time"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        served = Served(f"http://127.0.0.1:{port}", service, server, thread)
        running.append(served)
        return served

    yield start
    for served in running:
        for client in served.clients:
            client.close()
        upstream.release()
        served.stop()
        served.service.close()


@pytest.fixture
def here() -> Iterator[World]:
    """REST over two owners' data, for one test."""
    from tests.server.rest_world import world  # here, so that the proxy's tests start without REST

    with world() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    """The same for tests that change nothing in it."""
    from tests.server.rest_world import world

    with world() as made:
        yield made
