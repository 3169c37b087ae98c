"""The model server: how it is reached, which headers go there and come back, and what its failures are called."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

import httpx2
from starlette.types import Scope

from topicality.doors.server.operations import onward
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy.identity import PREFIX, Headers
from topicality.doors.server.proxy.lines import transport
from topicality.doors.server.service import Service

# RFC 9110, 7.6.1: about one connection only, as is whatever the Connection header names.
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_OURS = frozenset(b"host expect".split())
_PREFIX = PREFIX.encode()
_IDENTITY = (b"accept-encoding", b"identity")
LARGEST = 64_000_000  # bytes of an answer that is read as a whole


class UpstreamFailedError(RefusedError):
    """The model server did not answer as it should. `code` is the reason its exchange fails for."""


class Upstream:
    """The model server of a service. Close it when done."""

    def __init__(self, service: Service) -> None:
        settings = service.settings.upstream
        base = httpx2.URL(settings.url or "")
        self._base = base
        self._path = base.raw_path.partition(b"?")[0].rstrip(b"/")
        self._metrics = service.metrics
        key = settings.key.get_secret_value() if settings.key is not None else None
        self._authorization = None if key is None else f"Bearer {key}".encode()
        self._forward = service.keys.open and key is None
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(settings.idle, connect=settings.connect, pool=settings.connect),
            limits=httpx2.Limits(max_connections=settings.connections, max_keepalive_connections=settings.connections),
            follow_redirects=False,
            transport=transport(base, settings.connections) if settings.url else None,
        )
        self._client.headers.clear()  # what the client did not say is not said for it

    @asynccontextmanager
    async def asked(
        self, scope: Scope, content: bytes | AsyncIterator[bytes] | None, *, plain: bool
    ) -> AsyncIterator[httpx2.Response]:
        """Ask what a request asks; the answer's body is still to be read.

        Args:
            content: the body. plain: whether the answer must not be compressed.
        Raises:
            UpstreamFailedError: it cannot be reached, or was too slow, or broke off, here or in the body of the `async with`.
        """
        length = len(content) if isinstance(content, bytes) else None
        request = self._client.build_request(
            scope["method"], self._url(scope), headers=self._headers(scope["headers"], length, plain), content=content
        )
        begun = time.perf_counter()
        try:
            response = await self._client.send(request, stream=True)
            self._metrics.upstream_answered(time.perf_counter() - begun)
            try:
                yield response
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            failed = _failed(error)
            self._metrics.upstream_error(failed.code.removeprefix("upstream_"))
            raise failed from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _url(self, scope: Scope) -> httpx2.URL:
        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        rest = raw.partition(b"?")[0].removeprefix(b"/v1")
        if any(unquote(part.decode("latin-1")) in (".", "..") for part in rest.split(b"/")):
            raise RefusedError(400, "bad_path", "a path may not have . or .. in it")
        query: bytes = scope["query_string"]
        return self._base.copy_with(raw_path=self._path + rest + (b"?" + query if query else b""))

    def _headers(self, given: Headers, length: int | None, plain: bool) -> Headers:
        dropped = {b"authorization", b"content-length"} if length is not None else {b"authorization"}
        out = [pair for pair in _through(given) if pair[0] not in _OURS and pair[0] not in dropped]
        if plain or all(name != b"accept-encoding" for name, _ in out):
            out = [pair for pair in out if pair[0] != b"accept-encoding"]
            out.append(_IDENTITY)
        if length is not None:
            out.append((b"content-length", str(length).encode()))
        if self._authorization is not None:
            out.append((b"authorization", self._authorization))
        elif self._forward:
            out += [pair for pair in given if pair[0].lower() == b"authorization"]
        onward(_Traced(out))
        return out


def answered(response: httpx2.Response, *, whole: int | None = None, changed: bool = False) -> Headers:
    """The headers of an answer as they go to the client.

    Args:
        whole: bytes of the body, where it is known. changed: whether the body is not the bytes that came, so that its
            length and encoding do not hold.
    """
    out = [pair for pair in _through(response.headers.raw) if pair[0] != b"date"]  # our HTTP server gives its own
    if changed or whole is not None:
        out = [pair for pair in out if pair[0] not in (b"content-length", b"content-encoding", b"content-md5", b"etag")]
    if whole is not None:
        out.append((b"content-length", str(whole).encode()))
    return out


def encoded(response: httpx2.Response) -> bool:
    """Whether the body came compressed, though it was asked not to."""
    return response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")


async def read(response: httpx2.Response) -> bytes:
    """The whole body, decompressed.

    Raises:
        UpstreamFailedError: it is too large.
    """
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > LARGEST:
            raise UpstreamFailedError(502, "upstream_too_large", "the model server's answer is too large")
    return bytes(body)


def _through(given: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers that go on to the next server, names in lower case."""
    pairs = [(name.lower(), value) for name, value in given]
    named = {one.strip().lower() for name, value in pairs if name == b"connection" for one in value.split(b",")}
    gone = _HOP | named
    return [pair for pair in pairs if pair[0] not in gone and not pair[0].startswith(_PREFIX)]


def _failed(error: httpx2.HTTPError) -> UpstreamFailedError:
    if isinstance(error, httpx2.PoolTimeout):
        return UpstreamFailedError(
            503, "upstream_busy", "all connections to the model server are taken", {"retry-after": "1"}
        )
    if isinstance(error, httpx2.TimeoutException):
        return UpstreamFailedError(504, "upstream_timeout", "the model server did not answer in time")
    if isinstance(error, httpx2.ConnectError):
        return UpstreamFailedError(502, "upstream_unreachable", "the model server cannot be reached")
    if isinstance(error, httpx2.LocalProtocolError):
        return UpstreamFailedError(400, "bad_header", "a header of the request cannot be sent on")
    return UpstreamFailedError(502, "upstream_broken", "the model server broke off its answer")


class _Traced(MutableMapping[str, str]):
    """Headers as a mapping, for what only sets some."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def __setitem__(self, name: str, value: str) -> None:
        key = name.lower().encode()
        self._headers[:] = [pair for pair in self._headers if pair[0] != key]
        self._headers.append((key, value.encode("latin-1", "replace")))

    def __getitem__(self, name: str) -> str:
        key = name.lower().encode()
        return next(value.decode("latin-1") for known, value in self._headers if known == key)

    def __delitem__(self, name: str) -> None:
        key = name.lower().encode()
        self._headers[:] = [pair for pair in self._headers if pair[0] != key]

    def __iter__(self) -> Any:
        return iter([name.decode("latin-1") for name, _ in self._headers])

    def __len__(self) -> int:
        return len(self._headers)
