"""The engine never runs on the event loop's thread, and the loop goes on while the engine is busy."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import isgeneratorfunction
from typing import Any

import httpx2
import pytest
from tests.server.conftest import Serve, Served
from tests.server.upstream import PATIENCE, Upstream, says

from topicality.config import Policy
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.vectors import Array

POLICY = Policy(allowed=["invoices and payments"], blocked=["weapons"], direction="both", scoring="cosine")


class Slow(WordEmbedder):
    """An encoder that says on which threads it is used, and waits when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()

    def embed(self, texts: Sequence[str]) -> Array:
        self.threads.add(threading.get_ident())
        if not self.free.is_set():
            self.entered.release()
            assert self.free.wait(PATIENCE)
        return super().embed(texts)


class Watched:
    """A store, or a turn of one, that notes on which threads its methods are called."""

    def __init__(self, inner: Any, threads: dict[int, str]) -> None:
        self._inner = inner
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self._threads[threading.get_ident()] = name
            return found(*args, **more)

        def lazy(*args: Any, **more: Any) -> Iterator[Any]:
            for one in found(*args, **more):
                self._threads[threading.get_ident()] = name
                yield one

        return lazy if isgeneratorfunction(found) else call


def chat(client: httpx2.Client, text: str, **body: Any) -> httpx2.Response:
    asked = {"model": "m", "messages": [{"role": "user", "content": text}], **body}
    return client.post("/v1/chat/completions", json=asked, headers={"x-topicality-conversation": "c"})


def exercise(served: Served) -> None:
    """One request of each kind."""
    client = served.client()
    assert chat(client, "How do I pay my invoice?").status_code == 200
    assert chat(client, "And the next invoice?", stream=True).text.endswith("data: [DONE]\n\n")
    assert chat(client, "invoices " * 30_000).status_code == 200, "a large body"
    for method, path, body in (
        ("POST", "/api/check", {"text": "How do I pay?"}),
        ("POST", "/api/recall", {"text": "invoice", "question": "invoice"}),
        ("GET", "/api/conversations", None),
        ("GET", "/api/conversations/c", None),
        ("GET", "/api/conversations/c/topics", None),
        ("GET", "/api/conversations/c/exchanges", None),
        ("GET", "/api/export", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ):
        answer = client.request(method, path, json=body)
        assert answer.status_code < 500, (path, answer.text)
    assert client.get("/v1/models").status_code == 200


def test_encoder_and_store_are_never_used_on_the_loops_thread(serve: Serve) -> None:
    encoder, threads = Slow(), dict[int, str]()
    store: Any = Watched(open_store("memory://"), threads)
    served = serve(layer=Layer(store, POLICY, encoder))
    used_by_the_test = set(encoder.threads)
    threads.clear()
    exercise(served)
    loop = served.thread.ident
    assert loop is not None
    assert loop not in encoder.threads - used_by_the_test
    assert loop not in threads, f"{threads.get(loop)} was called on the loop's thread"
    assert threads, "nothing was noted at all"
    assert len(encoder.threads - used_by_the_test) <= served.service.settings.limits.threads


def blocked(encoder: Slow, busy: Callable[[], Any], meanwhile: Callable[[], None], threads: int) -> Any:
    """Do something while the engine's threads are all stuck in the encoder."""
    encoder.free.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(busy)
            for _ in range(threads):
                assert encoder.entered.acquire(timeout=PATIENCE)
            meanwhile()
            assert not found.done()
            encoder.free.set()
            return found.result(PATIENCE)
    finally:
        encoder.free.set()


@pytest.mark.parametrize("stream", [False, True])
def test_the_loop_serves_on_while_the_engine_is_stuck_in_fifty_checks(
    serve: Serve, upstream: Upstream, stream: bool
) -> None:
    encoder = Slow()
    served = serve(layer=Layer(open_store("memory://"), POLICY, encoder))
    upstream.script(says("Your invoice is in the settings."))
    clients = [served.client() for _ in range(50)]

    def busy() -> list[int]:
        def ask(number: int) -> int:
            asked = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": f"invoice {number}?"}]}
            return clients[number].post("/v1/chat/completions", json=asked).status_code

        with ThreadPoolExecutor(50) as pool:
            return list(pool.map(ask, range(50)))

    def meanwhile() -> None:
        client = served.client()
        served.until(lambda: served.service.bridge.open >= 50, "fifty checks do not wait for the engine")
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
        assert b"topicality_requests_open 51.0" in client.get("/metrics").content
        off = client.post(
            "/v1/chat/completions",
            content=json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
            headers={"x-topicality-guard": "off", "x-topicality-memory": "off"},
        )
        assert off.status_code == 200, "what needs no engine does not wait for it"

    assert blocked(encoder, busy, meanwhile, 2) == [200] * 50
