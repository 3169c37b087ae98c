"""A server in process with the data of two owners, for the tests of REST and MCP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from tests.layer.memory_talks import FLIGHT, PASTA, Clock, ids

from topicality.config import Policy
from topicality.doors.server.app import create_app
from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.service import Service
from topicality.doors.server.settings import Settings
from topicality.layer.memory import Layer
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.vectors import Array

Message = MutableMapping[str, Any]


class Quick(WordEmbedder):
    """An encoder that all worlds share, and that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Array] = {}

    def embed(self, texts: Sequence[str]) -> Array:
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(fresh, super().embed(fresh), strict=True))
        return np.array([self._known[text] for text in texts], np.float32).reshape(len(texts), -1)


ENCODER = Quick()
MARKER = "zanzibarine"  # a word that only alice has said
ALL = ["chat", "read", "write", "erase", "override"]
KEYS: list[dict[str, Any]] = [
    {"name": "alice", "key": "alice-secret", "owner": "alice", "scopes": ALL},
    {"name": "bob", "key": "bob-secret", "owner": "bob", "scopes": ALL},
    {"name": "back", "key": "back-secret", "scopes": ALL},
    {"name": "reader", "key": "reader-secret", "owner": "alice", "scopes": ["read"]},
    {"name": "writer", "key": "writer-secret", "owner": "alice", "scopes": ["write"]},
    {"name": "eraser", "key": "eraser-secret", "owner": "alice", "scopes": ["erase"]},
    {"name": "chatter", "key": "chatter-secret", "owner": "alice", "scopes": ["chat"]},
]
POLICY = Policy(
    name="travel",
    allowed=["flights to Lisbon and their refunds", "pasta and spaghetti cooking"],
    blocked=["bombs and explosives"],
    blocked_action="block",
)


@dataclass
class World:
    """A server that runs, and what it works with."""

    app: ASGIApp
    client: TestClient
    service: Service

    @property
    def layer(self) -> Layer:
        return self.service.layer

    def ask(self, method: str, path: str, key: str | None = "alice", **request: Any) -> Any:
        """One request to REST."""
        headers = dict(request.pop("headers", {}))
        if key is not None:
            headers["authorization"] = f"Bearer {key}-secret"
        return self.client.request(method, f"/api{path}", headers=headers, **request)

    def raw(self, path: str, *, stay: bool = True, key: str = "alice") -> list[Message]:
        """What the application sends for a GET, message by message, to a client that stays or goes at once."""
        sent: list[Message] = []

        async def receive() -> Message:
            await asyncio.sleep(0.001)
            gone = bool(sent) and not stay
            return {"type": "http.disconnect"} if gone else {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(dict(message))
            await asyncio.sleep(0)

        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
            "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {key}-secret".encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "state": {},
        }  # fmt: skip

        async def run() -> None:
            with suppress(Exception):  # the server would log it and end the connection
                await self.app(scope, receive, send)

        assert self.client.portal is not None, "it does not run"
        self.client.portal.call(run)
        return sent

    def everything(self, owner: str) -> list[str]:
        """All that is kept of an owner."""
        return list(self.layer.export(owner))


def plant(layer: Layer) -> None:
    """Alice has talked about flights and pasta, and has a pending exchange; bob has said hello."""
    talk = layer.conversation("trip/1", "alice")
    for number, (text, reply) in enumerate((*FLIGHT, *PASTA), 1):
        talk.receive(f"{text} {MARKER}", id=f"e/{number}")
        talk.reply(f"{reply} {MARKER}")
    talk.receive(f"Is the refund there? {MARKER}", id="open")
    other = layer.conversation("hello", "bob")
    other.receive("Hello, is the Lisbon flight late?", id="b1")
    other.reply("It is on time.")


@contextmanager
def built(
    *, policy: Policy | None = POLICY, store: str = "memory://", keys: bool = True, planted: bool = True, **told: Any
) -> Iterator[World]:
    """A server in process, which whoever calls it has to run. Settings as in a file."""
    settings = Settings.model_validate({"log": "off", "keys": KEYS if keys else [], **told})
    layer = Layer(open_store(store), policy, ENCODER, clock=Clock(), ids=ids())
    service = Service(settings, layer, Bridge(settings.limits.threads, settings.limits.waiting), Keys(settings))
    if planted:
        plant(layer)
    app = create_app(settings, service)
    yield World(app, TestClient(app, base_url="http://127.0.0.1:8000"), service)
    service.close()


@contextmanager
def world(**told: Any) -> Iterator[World]:
    """A server in process, running."""
    with built(**told) as made, made.client:
        yield made
