"""Both ends of the line that bench/serve.py measures: a model server that answers after a fixed time, and a client."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

SEED = 7
TOKENS = 20  # of a streamed answer
AT_ONCE = 8
REPLY = "Your invoice is in the account settings, and you can pay it there by card or by bank transfer."


class Model(asyncio.Protocol):
    """Answers each request after a fixed time, whole or as a stream."""

    latency = 0.0
    whole = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    ).encode()

    def __init__(self) -> None:
        self._seen = b""

    def connection_made(self, transport: Any) -> None:
        self._out = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, rest = self._seen.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if not found or length is None or len(rest) < int(length[1]):
            return
        stream = b'"stream": true' in rest
        self._seen = b""
        asyncio.get_running_loop().call_later(self.latency, self._stream if stream else self._whole)

    def _whole(self) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(self.whole)}\r\n\r\n"
        self._out.write(head.encode() + self.whole)

    def _stream(self) -> None:
        self._out.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self._token(0)

    def _token(self, count: int) -> None:
        words = REPLY.split()
        delta = {"content": words[count % len(words)] + " "} if count < TOKENS else {}
        choice = {"index": 0, "delta": delta, "finish_reason": None if count < TOKENS else "stop"}
        event = b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).encode()
        if count < TOKENS:
            self._out.write(self._chunk(event + b"\n\n"))
            asyncio.get_running_loop().call_later(0.005, self._token, count + 1)
        else:
            self._out.write(self._chunk(event + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")

    @staticmethod
    def _chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)


def model_server(latency: float) -> None:
    import uvloop

    async def run() -> None:
        Model.latency = latency
        server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0, backlog=2048)
        print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
        await server.serve_forever()

    uvloop.run(run())


class Line:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: bytes, headers: str = "") -> tuple[int, float, float, bytes]:
        """Status, seconds to the first piece of the body that says something, seconds to its end, the body."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        method = "POST" if body else "GET"
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
        begun = time.perf_counter()
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        raw = await self._reader.readuntil(b"\r\n\r\n")
        status = int(raw[9:12])
        low = raw.lower()
        first = 0.0
        found = b""
        if length := re.search(rb"content-length: (\d+)", low):
            found = await self._reader.readexactly(int(length[1]))
            first = time.perf_counter() - begun
        else:
            while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
                found += (await self._reader.readexactly(size + 2))[:-2]
                if not first and b'"content"' in found:
                    first = time.perf_counter() - begun
            await self._reader.readexactly(2)
        return status, first, time.perf_counter() - begun, found

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Talk:
    """Messages of twelve words, never the same one twice."""

    def __init__(self) -> None:
        from topicality.embed.background import read_corpus

        self._dice = random.Random(SEED)
        self._words = [word for line in read_corpus().utterances for word in line.split()]
        self._count = 0

    def body(self, *, stream: bool = False) -> bytes:
        start = self._dice.randrange(len(self._words) - 12)
        words = [*self._words[start : start + 11], f"{self._count}"]
        self._count += 1
        asked = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": " ".join(words)}]}
        return json.dumps(asked).encode()

    def headers(self, client: int) -> str:
        """Each client talks in a conversation of its own, and begins another one now and then."""
        return f"x-topicality-conversation: c{client}-{self._count // (40 * AT_ONCE)}\r\n"


@dataclass
class Times:
    """Seconds of requests."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    failed: int = 0


async def closed(port: int, talk: Talk, count: int, *, stream: bool, apart: float = 0.0) -> Times:
    """`AT_ONCE` clients that ask one request after another; they begin within `apart` seconds, not in step."""
    found = Times()

    async def one(number: int) -> None:
        line = Line(port)
        await asyncio.sleep(apart * number / AT_ONCE)
        for _ in range(count):
            status, first, whole, _ = await line.ask(
                "/v1/chat/completions", talk.body(stream=stream), talk.headers(number)
            )
            found.failed += status != 200
            found.first.append(first)
            found.whole.append(whole)
        line.close()

    await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
    return found


async def steady(port: int, talk: Talk, rate: float, seconds: float) -> Times:
    """Requests at a fixed rate, however long each takes."""
    found, idle, tasks = Times(), list[Line](), set[asyncio.Task[None]]()

    async def one() -> None:
        line = idle.pop() if idle else Line(port)
        try:
            status, first, whole, _ = await line.ask("/v1/chat/completions", talk.body())
        except (OSError, asyncio.IncompleteReadError, ValueError):
            found.failed += 1
            line.close()
            return
        found.failed += status != 200
        found.first.append(first)
        found.whole.append(whole)
        idle.append(line)

    begun = time.perf_counter()
    for n in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + n / rate - time.perf_counter()))
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for line in idle:
        line.close()
    return found
