"""The gate: request ids, limits, and errors that nobody below answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from tests.server.upstream import PATIENCE

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.operations import answer_errors, note, routed, wrapped
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.errors import StoreError
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

SAID = "what the user said"


@pytest.fixture
def service() -> Iterator[Service]:
    settings = Settings.model_validate({"limits": {"body": 2000, "concurrent": 2}})
    made = Service(settings, Layer(open_store("memory://"), None, WordEmbedder()), Bridge(2, 10), Keys(settings))
    yield made
    made.close()


async def echo(request: Request) -> Response:
    return JSONResponse({"length": len(await request.body()), "id": note(request.scope).id})


async def swallow(request: Request) -> Response:
    """Answers whatever it read, as frameworks do that turn every error while reading into an answer of their own."""
    try:
        await request.body()
    except Exception:  # noqa: BLE001 - the claim is about just that
        return JSONResponse({"mine": True}, 400)
    return JSONResponse({})


async def crash(_: Request) -> Response:
    raise ValueError(SAID)


async def refuse(_: Request) -> Response:
    raise RefusedError(403, "forbidden", "no", {"x-why": "because"})


async def unreachable(_: Request) -> Response:
    raise StoreError("the database is away")


async def breaking(_: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        raise ValueError(SAID)

    return StreamingResponse(pieces())


def routes() -> list[Route]:
    handlers = (echo, swallow, crash, refuse, unreachable, breaking)
    paths = [Route(f"/{handler.__name__}", handler, methods=["GET", "POST"]) for handler in handlers]
    return [*paths, Route("/things/{id}", echo)]


def app_of(service: Service, extra: list[Route] | None = None) -> ASGIApp:
    mounted = Starlette(routes=routes())
    answer_errors(mounted)
    inner = Starlette(routes=[*(extra or []), Mount("/v1", routes=routes()), Mount("/api", mounted), *routes()])
    return wrapped(inner, service.settings, lambda: service)


async def ask(app: ASGIApp, method: str, path: str, **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
        return await client.request(method, path, **more)


def counted(service: Service) -> list[str]:
    lines = service.metrics.exposed()[0].decode().splitlines()
    return [line for line in lines if line.startswith("topicality_requests_total")]


def test_a_request_gets_an_id_or_keeps_a_usable_one(service: Service) -> None:
    app = app_of(service)

    async def run() -> None:
        made = await ask(app, "GET", "/echo")
        assert made.headers["x-topicality-request-id"] == made.json()["id"]
        assert len(made.json()["id"]) == 32
        kept = await ask(app, "GET", "/echo", headers={"x-topicality-request-id": "A.b_c-1"})
        assert kept.headers["x-topicality-request-id"] == kept.json()["id"] == "A.b_c-1"
        for bad in ("", "a b", "x" * 65, "a\tb", "é", "a;b", "<script>"):
            given = {"x-topicality-request-id": bad.encode("latin-1")}
            other = await ask(app, "GET", "/echo", headers=given)
            assert other.json()["id"] != bad
            assert len(other.json()["id"]) == 32

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/echo", "/swallow", "/v1/echo", "/v1/swallow", "/api/echo", "/api/swallow"])
def test_a_body_above_the_limit_is_refused_however_it_comes(service: Service, path: str) -> None:
    app = app_of(service)

    given = 0

    async def chunks(size: int) -> AsyncIterator[bytes]:
        nonlocal given
        for start in range(0, size, 100):
            given += 1
            yield b"x" * min(100, size - start)

    async def run() -> None:
        for content in (b"x" * 2001, chunks(2001), chunks(50_000)):
            answer = await ask(app, "POST", path, content=content)
            assert answer.status_code == 413
            told = answer.json()
            assert (told["error"] if path.startswith("/v1") else told)[
                "code" if path.startswith("/v1") else "title"
            ] == "too_large"
            assert answer.headers["x-topicality-request-id"]
        assert given <= 2 * 21, "it was read to its end"
        for content in (b"x" * 2000, chunks(2000)):
            assert (await ask(app, "POST", path, content=content)).status_code == 200

    asyncio.run(run())
    assert all('status="413"' in line or 'status="200"' in line for line in counted(service))


@pytest.mark.parametrize("length", ["9" * 30, "9" * 5000, "-1", "1e3", "x"])
def test_an_absurd_length_is_no_crash(service: Service, length: str) -> None:
    app = app_of(service)
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/echo",
            "headers": [(b"content-length", length.encode())],
            "query_string": b"",
        }
        await app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == (413 if length.isdigit() else 200)


def test_more_requests_than_allowed_are_told_to_come_again_but_health_is_answered(service: Service) -> None:
    async def run() -> None:
        free = asyncio.Event()

        async def slow(_: Request) -> Response:
            await free.wait()
            return JSONResponse({})

        async def healthy(_: Request) -> Response:
            return JSONResponse({})

        app = app_of(service, [Route("/slow", slow), Route("/v1/slow", slow), Route("/healthz", healthy)])
        first = [asyncio.create_task(ask(app, "GET", "/slow")) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await ask(app, "GET", "/v1/slow")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "busy"
        assert (await ask(app, "GET", "/healthz")).status_code == 200
        assert b"topicality_requests_open 2.0" in service.metrics.exposed()[0]
        free.set()
        assert [answer.status_code for answer in await asyncio.gather(*first)] == [200, 200]
        assert (await ask(app, "GET", "/slow")).status_code == 200

    asyncio.run(run())


def test_a_request_that_is_cancelled_frees_its_place(service: Service) -> None:
    async def run() -> None:
        async def never(_: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        app = app_of(service, [Route("/never", never)])
        for _ in range(5):
            task = asyncio.create_task(ask(app, "GET", "/never"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await ask(app, "GET", "/echo")).status_code == 200

    asyncio.run(run())
    assert b"topicality_requests_open 0.0" in service.metrics.exposed()[0]
    assert any('route="/never",status="499"' in line and line.endswith(" 5.0") for line in counted(service))


@pytest.mark.parametrize("prefix", ["", "/v1", "/api"])
def test_an_error_that_nobody_answered_is_a_500_without_a_word_of_it(
    service: Service, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = asyncio.run(ask(app_of(service), "GET", f"{prefix}/crash"))
    assert answer.status_code == 500
    assert SAID not in answer.text
    assert "Traceback" not in answer.text
    body = answer.json()
    if prefix == "/v1":
        assert body["error"] == {
            "message": "the server failed; its log says more",
            "type": "server_error",
            "param": None,
            "code": "internal",
        }
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert (body["status"], body["title"]) == (500, "internal")
    failures = [record for record in caplog.records if record.name == "topicality.server"]
    assert len(failures) == 1, "told once"
    assert "in crash" in failures[0].__dict__["trace"]


@pytest.mark.parametrize("prefix", ["", "/v1", "/api"])
def test_errors_with_a_status_are_answered_with_it(service: Service, prefix: str) -> None:
    app = app_of(service)

    def code(answer: httpx2.Response) -> str:
        return str(answer.json()["error"]["code"] if prefix == "/v1" else answer.json()["title"])

    async def run() -> None:
        refused = await ask(app, "GET", f"{prefix}/refuse")
        assert (refused.status_code, code(refused), refused.headers["x-why"]) == (403, "forbidden", "because")
        away = await ask(app, "GET", f"{prefix}/unreachable")
        assert (away.status_code, code(away), away.headers["retry-after"]) == (503, "store", "1")
        unknown = await ask(app, "GET", f"{prefix}/nothing-{SAID}")
        assert (unknown.status_code, code(unknown)) == (404, "not_found")
        assert SAID not in unknown.text
        other = await ask(app, "DELETE", f"{prefix}/echo")
        assert (other.status_code, code(other)) == (405, "method_not_allowed")
        assert "GET" in other.headers["allow"]

    asyncio.run(run())


def test_an_answer_that_breaks_off_is_cut_and_told_in_the_log_only(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(service)
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(
            {"type": "http", "method": "GET", "path": "/breaking", "headers": [], "query_string": b""}, receive, send
        )

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"], "the client must not take it for whole"
    line = next(record for record in caplog.records if record.name == "topicality.access")
    assert (line.__dict__["status"], line.__dict__["cut"], line.__dict__["error"]) == (200, True, "internal")


def test_requests_are_counted_by_template_and_unknown_paths_as_one(service: Service) -> None:
    app = app_of(service)

    async def run() -> None:
        for path in (
            "/things/1",
            "/things/two",
            "/api/things/3",
            "/v1/things/4",
            "/secret/1",
            "/secret/2",
            "/api/secret",
        ):
            await ask(app, "GET", path)

    asyncio.run(run())
    assert sorted(counted(service)) == [
        'topicality_requests_total{method="GET",route="/api",status="404"} 1.0',
        'topicality_requests_total{method="GET",route="/api/things/{id}",status="200"} 1.0',
        'topicality_requests_total{method="GET",route="/things/{id}",status="200"} 2.0',
        'topicality_requests_total{method="GET",route="/v1/things/{id}",status="200"} 1.0',
        'topicality_requests_total{method="GET",route="unmatched",status="404"} 2.0',
    ]


def test_a_layer_that_copies_the_scope_can_tell_its_route(service: Service) -> None:
    def copying(app: ASGIApp) -> ASGIApp:
        async def layer(scope: Any, receive: Any, send: Any) -> None:
            scope = {**scope}
            try:
                await app(scope, receive, send)
            finally:
                routed(scope)

        return layer

    inner = Starlette(routes=[Mount("/api", copying(Starlette(routes=routes())))])
    asyncio.run(ask(wrapped(inner, service.settings, lambda: service), "GET", "/api/things/5"))
    assert counted(service) == ['topicality_requests_total{method="GET",route="/api/things/{id}",status="200"} 1.0']


def test_an_odd_method_is_no_label_of_its_own(service: Service) -> None:
    app = app_of(service)
    for method in ("BREW", "PROPFIND"):
        asyncio.run(ask(app, method, "/echo"))
    assert counted(service) == ['topicality_requests_total{method="other",route="/echo",status="405"} 2.0']


def test_a_burst_of_requests_begins_one_in_each_round_of_the_loop(service: Service) -> None:
    """What is under way, such as a stream, is not held up by fifty requests that come at once."""
    rounds, begun = 0, list[int]()

    async def counting(_: Request) -> Response:
        begun.append(rounds)
        return JSONResponse({})

    async def run() -> None:
        settings = Settings()
        app = wrapped(Starlette(routes=[Route("/counting", counting)]), settings, lambda: service)
        answered: list[int] = []

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        async def one() -> None:
            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answered.append(message["status"])

            await app(
                {"type": "http", "method": "GET", "path": "/counting", "headers": [], "query_string": b""},
                receive,
                send,
            )

        counter = asyncio.create_task(count())
        tasks = [asyncio.create_task(one()) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks[10:20]:
            task.cancel()  # in the middle of the queue
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks, return_exceptions=True)
            await one()  # the queue is empty again
        counter.cancel()
        assert answered == [200] * 41

    asyncio.run(run())
    assert len(begun) == len(set(begun)) == 41
