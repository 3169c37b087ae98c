"""Connections to the model server: kept, given up, and what comes of servers that misbehave."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.upstream import PATIENCE

from topicality.doors.server.proxy.lines import Lines, transport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Bench:
    """A server that does what a test says, and a client of it."""

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[bytes] = []

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        return self.heads[-1]

    def says(self, *answers: bytes, close: bool = False) -> Handler:
        """One answer a request."""

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                await self.head(reader)
                writer.write(answer)
                await writer.drain()
            if not close:
                await reader.read()

        return handler

    def run(
        self,
        handler: Handler,
        test: Callable[[httpx2.AsyncClient], Awaitable[None]],
        *,
        connections: int = 5,
        context: ssl.SSLContext | None = None,
        **timeouts: float,
    ) -> None:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            try:
                await handler(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.transport.abort()

        async def main() -> None:
            server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=context)
            scheme = "http" if context is None else "https"
            root = httpx2.URL(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            told = httpx2.Timeout(PATIENCE, **timeouts)
            lines = Lines(root, connections)
            try:
                async with httpx2.AsyncClient(base_url=root, transport=lines, timeout=told) as client:
                    await test(client)
                assert lines._slots._value == connections, "a place was not given back"
            finally:
                server.close()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()

        asyncio.run(main())


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def text(client: httpx2.AsyncClient, path: str = "/", method: str = "GET", **more: Any) -> str:
    return (await client.request(method, path, **more)).text


def test_a_connection_serves_one_request_after_another(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        for _ in range(3):
            assert await text(client, "/a?b=c", "POST", content=b"body") == "ok"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await bench.head(reader)
            assert await reader.readexactly(4) == b"body"
            assert head.startswith(b"POST /a?b=c HTTP/1.1\r\n")
            assert head.lower().count(b"content-length: 4") == 1
            writer.write(OK)

    bench.run(handler, test)
    assert bench.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokmore",
    ],
)
def test_a_connection_that_is_of_no_more_use_is_not_used_again(bench: Bench, answer: bytes) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        assert [await text(client), await text(client)] == ["ok", "ok"]

    bench.run(bench.says(answer), test)
    assert bench.connections == 2


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        assert await text(client) == "ok"
        await asyncio.sleep(0.1)
        assert await text(client) == "ok"

    bench.run(bench.says(OK, close=True), test)
    assert bench.connections == 2


def test_a_connection_that_says_more_than_it_was_asked_is_not_used_again(bench: Bench) -> None:
    """What came unasked would be taken for the next answer, which may be somebody else's."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await bench.head(reader)
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(OK)
        await reader.read()

    async def test(client: httpx2.AsyncClient) -> None:
        assert await text(client) == "ok"
        await asyncio.sleep(0.2)
        assert await text(client) == "ok"

    bench.run(handler, test)
    assert bench.connections == 2


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", "ok"),
        (b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK, "ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", ""),
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", ""),
    ],
)
def test_answers_are_read_as_http_wants(bench: Bench, answer: bytes, wanted: str) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        for _ in range(2):
            found = await client.get("/")
            assert found.text == wanted
            assert "x-early" not in found.headers

    bench.run(bench.says(answer, answer), test)
    assert bench.connections == 1


def test_a_body_without_a_length_ends_with_the_connection(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        assert await text(client) == "ok"

    bench.run(bench.says(b"HTTP/1.1 200 OK\r\n\r\nok", close=True), test)


def test_an_answer_to_head_has_no_body_whatever_it_says(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        found = await client.head("/")
        assert (found.headers["content-length"], found.content) == ("2", b"")
        assert await text(client) == "ok"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await bench.head(reader)
        writer.write(OK[:-2] if head.startswith(b"HEAD") else OK)
        await reader.read()

    bench.run(handler, test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-le", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nok", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok", httpx2.RemoteProtocolError),
        (b"SSH-2.0-nothing like HTTP\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000 + b"\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"x: yyyyyyyyyyyyyyyy\r\n" * 20_000 + b"\r\n", httpx2.RemoteProtocolError),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_httpx(bench: Bench, answer: bytes, error: type[Exception]) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        for _ in range(2):
            with pytest.raises(error):
                await text(client)

    bench.run(bench.says(answer, close=True), test)
    assert bench.connections == 2


def test_patience_ends(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        with pytest.raises(httpx2.ReadTimeout):
            await text(client)
        async with client.stream("GET", "/half") as found:
            with pytest.raises(httpx2.ReadTimeout):
                await found.aread()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await bench.head(reader)).startswith(b"GET /half"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await reader.read()

    bench.run(handler, test, read=0.2)


def test_more_requests_than_connections_wait_and_then_give_up(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        async with client.stream("GET", "/") as first:
            with pytest.raises(httpx2.PoolTimeout):
                await text(client)
            assert (await first.aread()) == b"ok"
        assert await text(client) == "ok"

    bench.run(bench.says(OK, OK), test, connections=1, pool=0.1)
    assert bench.connections == 1


def test_a_server_that_is_not_there_is_a_connect_error() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        lines = Lines(httpx2.URL(f"http://127.0.0.1:{port}"), 1)
        async with httpx2.AsyncClient(transport=lines) as client:
            for _ in range(2):
                with pytest.raises(httpx2.ConnectError):
                    await client.get(f"http://127.0.0.1:{port}/")

    asyncio.run(run())


def test_a_request_that_is_given_up_leaves_its_connection(bench: Bench) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        waiting = asyncio.create_task(text(client))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with client.stream("GET", "/") as found:
            async for piece in found.aiter_raw():
                assert piece
                break

    left = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await bench.head(reader)
        if bench.connections > 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        left.append(await reader.read())

    bench.run(handler, test, connections=1)
    assert bench.connections == 2


def test_a_body_is_sent_in_chunks_where_its_length_is_not_known(bench: Bench) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"hel"
        yield b""
        yield b"lo"

    seen: list[bytes] = []

    async def test(client: httpx2.AsyncClient) -> None:
        assert await text(client, method="POST", content=body()) == "ok"
        assert await text(client, method="POST", content=body(), headers={"content-length": "5"}) == "ok"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await bench.head(reader)
        assert b"transfer-encoding: chunked" in head.lower()
        seen.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(OK)
        head = await bench.head(reader)
        assert b"transfer-encoding" not in head.lower()
        seen.append(await reader.readexactly(5))
        writer.write(OK)

    bench.run(handler, test)
    assert seen == [b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello"]


def test_an_answer_before_the_whole_question_ends_the_sending(bench: Bench) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 1
            yield b"x" * 100_000
            await asyncio.sleep(0)

    async def test(client: httpx2.AsyncClient) -> None:
        answer = await client.post("/", content=body())
        assert answer.status_code == 413

    bench.run(bench.says(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n"), test)
    assert sent < 10_000


def test_a_slow_reader_slows_the_server_down(bench: Bench) -> None:
    """Megabytes must not pile up here because the client at the other end reads slowly."""
    poured = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        await bench.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 200000000\r\n\r\n")
        for _ in range(2000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            poured += 100_000
        await reader.read()  # else the end of it would be thrown away with the connection

    async def test(client: httpx2.AsyncClient) -> None:
        async with client.stream("GET", "/") as found:
            before = -1
            while poured != before:
                before = poured
                await asyncio.sleep(0.3)
            assert poured < 50_000_000
            size = 0
            async for piece in found.aiter_raw():
                size += len(piece)
            assert size == 200_000_000

    bench.run(handler, test)


@pytest.mark.parametrize("value", ["a\nb: c", "a\r\nb: c", "a\0b"])
def test_nothing_can_be_smuggled_into_a_request(bench: Bench, value: str) -> None:
    async def test(client: httpx2.AsyncClient) -> None:
        for headers in ({"x-a": value}, {f"x{value}": "a"}):
            request = client.build_request("GET", "/")
            request.headers = httpx2.Headers([(k.encode(), v.encode()) for k, v in headers.items()])
            with pytest.raises(httpx2.LocalProtocolError):
                await client.send(request)
        assert await text(client) == "ok"

    bench.run(bench.says(OK), test)
    assert len(bench.heads) == 1


def test_over_tls_the_certificate_is_checked(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    what = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    where = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *what, *where, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def distrusted(client: httpx2.AsyncClient) -> None:
        with pytest.raises(httpx2.ConnectError):
            await text(client)

    async def trusted(client: httpx2.AsyncClient) -> None:
        assert [await text(client), await text(client)] == ["ok", "ok"]

    bench.run(bench.says(OK, OK), distrusted, context=context)
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda: ssl.create_default_context(cafile=str(certificate)))
    bench.run(bench.says(OK, OK), trusted, context=context)


def test_a_proxy_in_the_environment_is_left_to_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def own(url: str) -> bool:
        async def made() -> bool:
            return transport(httpx2.URL(url), 1) is not None

        return asyncio.run(made())

    assert own("https://models.example/v1")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert not own("https://models.example/v1")
    assert own("http://models.example/v1")
    monkeypatch.setenv("no_proxy", "models.example")
    assert own("https://models.example/v1")
    monkeypatch.setenv("all_proxy", "socks5://proxy.example:3128")
    assert not own("http://other.example/v1")
