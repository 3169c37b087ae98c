"""The limit on bodies, over a real connection."""

from __future__ import annotations

import socket

import httpx2
from tests.server.conftest import Serve
from tests.server.upstream import PATIENCE


def test_a_client_that_sends_too_much_still_reads_why(serve: Serve) -> None:
    """Over a real connection: closing it with bytes unread would reset it before the answer is read."""
    served = serve(limits={"body": 100_000})
    address = httpx2.URL(served.root)
    path = "/v1/chat/completions"
    big = 5_000_000

    def told(head: str, body: bytes) -> bytes:
        with socket.create_connection((address.host, address.port or 0), timeout=PATIENCE) as line:
            line.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n".encode())
            line.sendall(body)
            line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            found = b""
            while piece := line.recv(65536):
                found += piece
            return found

    chunk = b"%x\r\n" % 50_000 + b"x" * 50_000 + b"\r\n"
    for found in (
        told(f"content-length: {big}", b"x" * big),
        told("transfer-encoding: chunked", chunk * 100 + b"0\r\n\r\n"),
    ):
        assert found.startswith(b"HTTP/1.1 413"), found[:200]
        assert b'"code": "too_large"' in found
        assert b'{"status":"ok"}' in found, "the connection is of use still"
