"""A model server on loopback that does what a script says: one step a request; the last step goes on for ever.

    upstream.script(says("Hello."), fails(429, retry_after="3"), breaks("Hel", "lo"))

It is a bare asyncio server in a thread, so that a step may also send half an answer, or nothing, or hang up.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 30.0  # seconds; only ends a hang
MODEL = "scripted-1"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


@dataclass(eq=False)
class Seen:
    """A request as it came. `left` is set when the client went away before its answer was whole."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Answer:
    """What a step answers with."""

    def __init__(self, seen: Seen, writer: asyncio.StreamWriter, released: asyncio.Event) -> None:
        self._seen = seen
        self._writer = writer
        self._released = released
        self._chunked = False
        self.keep = True  # the connection, for the next request

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A complete answer."""
        await self.head(status, {"content-length": str(len(body)), **(headers or {})})
        await self.write(body)

    async def head(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        """Status and headers. Without a content-length, chunked."""
        given = {"content-type": "application/json", "x-upstream": "scripted", **(headers or {})}
        self._chunked = "content-length" not in given
        if self._chunked:
            given["transfer-encoding"] = "chunked"
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        await self._send("\r\n".join(lines).encode("latin-1"))

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        if data:
            await self._send(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)

    async def end(self) -> None:
        """The body is complete."""
        if self._chunked:
            await self._send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Hang up in the middle."""
        self.keep = False
        self._writer.transport.abort()

    async def pause(self, seconds: float) -> None:
        """Wait, unless the script ends."""
        try:
            await asyncio.wait_for(self._released.wait(), seconds)
        except TimeoutError:
            return

    async def _send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            self._seen.left.set()
            raise


Step = Callable[[Seen, Answer], Awaitable[None]]


class _Watched(asyncio.StreamReaderProtocol):
    """Tells when the other side has gone, without reading from it."""

    def __init__(self, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        super().__init__(asyncio.StreamReader(limit=2**24), connected)
        self.left = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.left.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()
        super().connection_lost(exc)


class Upstream:
    """What a server was asked, and what it does next."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.url = ""
        self._steps: list[Step] = [echoes()]
        self._taken = 0
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="upstream")
        self.open = 0  # requests that are being answered
        self.connections = 0  # accepted so far

    def script(self, *steps: Step) -> None:
        """What to do from the next request on."""
        with self._lock:
            self._steps, self._taken = list(steps), 0

    @property
    def last(self) -> Seen:
        return self.requests[-1]

    def chats(self) -> list[Seen]:
        """Requests for a completion."""
        return [seen for seen in self.requests if seen.path.endswith("/chat/completions")]

    def release(self) -> None:
        """End every step that hangs or waits."""
        self._loop.call_soon_threadsafe(self._released.set)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def stop(self) -> None:
        self.release()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Watched(self._serve), "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._started.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        method, path, _ = first.split(" ")
        seen = Seen(method, path, headers, b"")
        if seen.header("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                seen.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
        with self._lock:
            step = self._steps[min(self._taken, len(self._steps) - 1)]
            self._taken += 1
            self.requests.append(seen)
        answer = Answer(seen, writer, self._released)
        self.open += 1
        work = asyncio.ensure_future(step(seen, answer))
        protocol = writer.transport.get_protocol()
        assert isinstance(protocol, _Watched)
        leaving = asyncio.ensure_future(protocol.left.wait())
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                seen.left.set()
                return False
            work.result()
            return answer.keep and not leaving.done()
        finally:
            self.open -= 1
            for task in (work, leaving):
                task.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)


def completion(text: str | None, *, finish: str = "stop", n: int = 1, **message: Any) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = [
        {
            "index": index,
            "finish_reason": finish,
            "logprobs": None,
            "message": {"role": "assistant", "content": text, "refusal": None, **message},
        }
        for index in range(n)
    ]
    known = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": MODEL}
    return {**known, "choices": choices, "usage": USAGE, "system_fingerprint": "fp", "x_unknown": {"kept": True}}


def event(delta: Mapping[str, Any] | None, *, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of a streamed answer; without a delta, one that has no choices."""
    choices = [] if delta is None else [{"index": index, "delta": dict(delta), "finish_reason": finish}]
    known = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": MODEL}
    return b"data: " + json.dumps({**known, "choices": choices, **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
SSE = {"content-type": "text/event-stream; charset=utf-8"}


def pieces_of(text: str) -> list[str]:
    """A text in pieces of one word, as a model would stream it."""
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def says(text: str, *, delay: float = 0.0, finish: str = "stop", **headers: str) -> Step:
    """An answer of this text, for each choice that is asked for; word by word, with a delay after each, if streamed."""

    async def step(seen: Seen, answer: Answer) -> None:
        asked = seen.json if seen.body else {}
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        n = asked.get("n") or 1
        if not asked.get("stream"):
            await answer.pause(delay) if delay else None
            await answer.whole(200, json.dumps(completion(text, finish=finish, n=n)).encode(), extra)
            return
        await answer.head(200, {**SSE, **extra})
        for index in range(n):
            await answer.write(event({"role": "assistant", "content": ""}, index=index))
        for piece in pieces_of(text):
            for index in range(n):
                await answer.write(event({"content": piece}, index=index))
            if delay:
                await answer.pause(delay)
        for index in range(n):
            await answer.write(event({}, index=index, finish=finish))
        if (asked.get("stream_options") or {}).get("include_usage"):
            await answer.write(event(None, usage=USAGE))
        await answer.write(DONE)
        await answer.end()

    return step


def echoes() -> Step:
    """Answers with the last user message; anything but a completion, with what was asked."""

    async def step(seen: Seen, answer: Answer) -> None:
        if seen.method != "POST" or not seen.path.split("?")[0].endswith("/chat/completions"):
            told = {"method": seen.method, "path": seen.path, "body": seen.body.decode("utf-8", "replace")}
            await answer.whole(200, json.dumps(told).encode())
            return
        said = [m["content"] for m in seen.json["messages"] if m["role"] == "user"]
        last = said[-1] if said else ""
        await says(f"You said: {last}" if isinstance(last, str) else "You sent parts.")(seen, answer)

    return step


def calls(name: str, arguments: str, *, id: str = "call_1", text: str | None = None) -> Step:  # noqa: A002 - the wire's name
    """An answer that is a tool call, in three pieces if streamed."""
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    async def step(seen: Seen, answer: Answer) -> None:
        if not seen.json.get("stream"):
            await answer.whole(200, json.dumps(completion(text, finish="tool_calls", tool_calls=[call])).encode())
            return
        await answer.head(200, SSE)
        half = len(arguments) // 2
        await answer.write(event({"role": "assistant", "content": text}))
        start = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        await answer.write(event({"tool_calls": [start]}))
        for part in (arguments[:half], arguments[half:]):
            await answer.write(event({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
        await answer.write(event({}, finish="tool_calls"))
        await answer.write(DONE)
        await answer.end()

    return step


def fails(status: int, message: str = "no", **headers: str) -> Step:
    """An error in the form of OpenAI."""

    async def step(_: Seen, answer: Answer) -> None:
        body = {"error": {"message": message, "type": "scripted_error", "param": None, "code": "scripted"}}
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        await answer.whole(status, json.dumps(body).encode(), extra)

    return step


def answers(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Step:
    """These bytes."""

    async def step(_: Seen, answer: Answer) -> None:
        await answer.whole(status, body, headers)

    return step


def streams(events: Sequence[bytes], *, delay: float = 0.0, headers: Mapping[str, str] | None = None) -> Step:
    """These pieces as a stream, whatever they are."""

    async def step(_: Seen, answer: Answer) -> None:
        await answer.head(200, {**SSE, **(headers or {})})
        for one in events:
            await answer.write(one)
            if delay:
                await answer.pause(delay)
        await answer.end()

    return step


def breaks(*pieces: str) -> Step:
    """A stream that is cut off after these pieces: the connection is reset. Without pieces, before any answer."""

    async def step(_: Seen, answer: Answer) -> None:
        if pieces:
            await answer.head(200, SSE)
            for piece in pieces:
                await answer.write(event({"content": piece}))
            await answer.pause(0.05)  # so that what was sent is not lost with the connection
        answer.reset()

    return step


def hangs(*pieces: str) -> Step:
    """A stream that stops after these pieces and stays open until the script is released; without any, no answer at all."""

    async def step(_: Seen, answer: Answer) -> None:
        if pieces:
            await answer.head(200, SSE)
            for piece in pieces:
                await answer.write(event({"content": piece}))
        await answer.pause(PATIENCE)
        answer.reset()

    return step


def pours(size: int, count: int) -> Step:
    """`count` chunks of `size` characters as fast as they are taken; `seen.poured` tells how many went out."""

    async def step(seen: Seen, answer: Answer) -> None:
        await answer.head(200, SSE)
        for n in range(count):
            await answer.write(event({"content": "x" * size}))
            seen.__dict__["poured"] = n + 1
        await answer.write(event({}, finish="stop"))
        await answer.write(DONE)
        await answer.end()

    return step
