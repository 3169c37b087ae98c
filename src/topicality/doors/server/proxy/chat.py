"""POST /v1/chat/completions: judged, remembered, sent on, and answered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from topicality.doors.server.operations import note, span
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.proxy import guarding, streaming, wire
from topicality.doors.server.proxy.call import STOPPING, Call
from topicality.doors.server.proxy.identity import Headers, conversation_of, exchange_of, told, wishes_of
from topicality.doors.server.proxy.room import Held, Room
from topicality.doors.server.proxy.sse import DONE, Heard, packed
from topicality.doors.server.proxy.upstream import UpstreamFailedError, answered, encoded, read
from topicality.layer.conversation import BLOCKED
from topicality.layer.guard import Guard
from topicality.layer.hosted import Asked, Taken, Terms, said_before
from topicality.types import Message, Verdict

LARGE = 100_000  # bytes that are parsed in a thread, since it takes milliseconds
STREAM = "text/event-stream"
_UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Chat:
    """The endpoint, as an ASGI application: it has to notice when the client leaves, also before there is an answer."""

    def __init__(self, room: Callable[[], Room]) -> None:
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        room = self._room()
        service = room.service
        request = Request(scope, receive)
        caller = service.keys.caller(request.headers)
        note(scope).key = caller.key
        caller.need("chat")
        wishes = wishes_of(request.headers, caller)
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise RefusedError(415, "bad_encoding", "send the body without compression")
        try:
            raw = await request.body()
        except ClientDisconnect:
            return

        def prepared() -> tuple[wire.ChatRequest, Asked | None, str, bool]:
            chat = wire.read_request(raw)
            conversation, shared = conversation_of(chat, wishes.conversation)
            if chat.start is None:
                return chat, None, conversation, shared
            exchange = exchange_of(chat, conversation)
            return (
                chat,
                Asked(caller.owner, conversation, exchange, chat.turns, chat.start, chat.text),
                conversation,
                shared,
            )

        found = prepared() if len(raw) < LARGE else await service.bridge.run(prepared)
        chat, asked, conversation, shared = found
        call = Call(scope, receive, send, service.settings.upstream.idle)
        work = _Answer(room, call, chat, asked, conversation, wishes.terms(service.settings, shared))
        await call.watched(work.give)


@dataclass(slots=True)
class _Answer:
    """One request being answered."""

    room: Room
    call: Call
    chat: wire.ChatRequest
    asked: Asked | None  # None: no user speaks in it
    conversation: str
    terms: Terms

    async def give(self) -> None:
        service = self.room.service
        asks = self.terms.remember or (self.terms.judge and service.layer.guard is not None)
        if self.asked is None or not asks:
            held = Held(self.room, self.call, ("", ""), Taken())
        else:
            with span("topicality.take"):
                held = await self.room.begin(self.call, self.asked, self.terms)
        taken = held.first
        if asks and self.terms.remember and (taken.verdict is None or taken.verdict.allowed):
            service.metrics.recalled(taken.sent.tokens)
        async with held:
            if taken.verdict is not None:
                note(self.call.scope).judged(taken.verdict)
                service.metrics.verdict(taken.verdict)
                if not taken.verdict.allowed:
                    await self._refuse(held, taken.verdict)
                    return
            await self._pass_on(held)

    async def _refuse(self, held: Held, verdict: Verdict) -> None:
        """Answer in place of the model."""
        text = verdict.reply or wire.REFUSED
        if verdict.action == "redirect":
            held.complete(text)
        else:
            held.fail(BLOCKED)
        await held.stored()
        taken = await held.taken()
        exchange, now = taken.exchange or uuid4().hex, int(time.time())
        headers = told(self.conversation, taken)
        if self.chat.stream:
            chunks = wire.refusal_chunks(self.chat, text, exchange, now)
            headers += [(b"content-type", f"{STREAM}; charset=utf-8".encode()), *_UNBUFFERED]
            await self.call.whole(200, headers, b"".join(packed(chunk) for chunk in chunks) + DONE)
            return
        body = wire.dump(wire.refusal(self.chat, text, exchange, now))
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.call.whole(200, headers, body)

    async def _pass_on(self, held: Held) -> None:
        """Ask the model and give its answer."""
        sent, chat = held.first.sent, self.chat
        if len(chat.raw) < LARGE:
            body = chat.with_messages(sent.kept, sent.evidence)
        else:
            body = await self.room.service.bridge.finish(chat.with_messages, sent.kept, sent.evidence)
        heard = Heard()
        last = b""
        try:
            async with self._asked(body) as response:
                if response.status_code == 200 and response.headers.get("content-type", "").startswith(STREAM):
                    await self._stream(held, response, heard)
                else:
                    headers, last = await self._whole(held, response)
        except UpstreamFailedError as error:
            if not self.call.begun:
                raise
            held.fail(error.code)  # unless the first choice was complete before the stream broke off
            last = b"" if heard.done else streaming.broken(error)
        await held.stored()
        if not self.call.begun:
            await self.call.begin(response.status_code, headers)
        await self.call.write(last, last=True)

    @asynccontextmanager
    async def _asked(self, body: bytes) -> AsyncIterator[httpx2.Response]:
        """The model's answer, its body still to be read."""
        with span("topicality.upstream"):
            async with self.room.upstream.asked(self.call.scope, body, plain=True) as response:
                yield response

    async def _whole(self, held: Held, response: httpx2.Response) -> tuple[Headers, bytes]:
        """Read an answer that is not streamed: its headers and its body as they go to the client."""
        service = self.room.service
        body = await read(response)
        changed = False
        if not 200 <= response.status_code < 300:
            service.metrics.upstream_error(f"status_{response.status_code}")
            held.fail("upstream_status")
        else:
            body, changed = await self._read(held, body)
        headers = answered(response, whole=len(body), changed=changed or encoded(response))
        return [*headers, *told(self.conversation, await held.taken())], body

    async def _read(self, held: Held, body: bytes) -> tuple[bytes, bool]:
        """Judge and remember a whole answer: its body, and whether that is another."""
        bridge, guard = self.room.service.bridge, self._output_guard()
        try:
            value = wire.loads(body) if len(body) < LARGE else await bridge.finish(wire.loads, body)
        except ValueError:
            value = None
        choices = wire.replies_of(value)
        if choices is None:
            if guard is not None:
                raise UpstreamFailedError(502, "upstream_unreadable", "the model server's answer cannot be read")
            held.fail("upstream_unreadable")
            return body, False
        first = next((one for one in choices if one.get("index") == 0), choices[0])
        if guard is not None:
            replaced, verdicts = await bridge.finish(guarding.checked, guard, self._said(), choices)
            for verdict in verdicts:
                self.room.service.metrics.verdict(verdict, "output")
            if replaced is not None:
                if not verdicts[choices.index(first)].allowed:
                    held.fail("reply_blocked")
                body = wire.dump({**value, "choices": replaced})
        message = first["message"]
        if wire.calls_tools(message):
            held.leave()
        else:
            held.complete(wire.storable(wire.text_of(message)))
        return body, guard is not None and replaced is not None

    async def _stream(self, held: Held, response: httpx2.Response, heard: Heard) -> None:
        """Pass on a streamed answer, all but its end."""
        service, guard = self.room.service, self._output_guard()
        own = {name for name, _ in _UNBUFFERED}
        headers = [pair for pair in answered(response, changed=True) if pair[0] not in own]
        await self.call.begin(
            response.status_code, [*headers, *_UNBUFFERED, *told(self.conversation, await held.taken())]
        )
        self.call.farewell = packed(STOPPING.to_openai())
        work = None
        if guard is not None:
            window = service.settings.guard.window
            work = guarding.Filter(guard, self._said(), window, heard, self.chat.choices)

        async def ending() -> None:
            self._settle(held, heard, work)
            await held.stored()

        with service.metrics.stream():
            try:
                if work is None:
                    await streaming.relayed(self.call, response, heard, ending)
                else:
                    await streaming.guarded(self.call, response, work, service.bridge, ending)
            finally:  # also when the client has left meanwhile: what is whole is whole
                self._settle(held, heard, work)
                for verdict in work.verdicts if work is not None else ():
                    service.metrics.verdict(verdict, "output")
        if not heard.whole and not (work is not None and work.first_stopped):
            service.metrics.upstream_error("told" if heard.failed else "incomplete")
            held.fail("upstream_error" if heard.failed else "upstream_incomplete")

    def _settle(self, held: Held, heard: Heard, work: guarding.Filter | None) -> None:
        if work is not None and work.first_stopped:
            held.fail("reply_blocked")
        elif heard.whole and heard.reply.calls:
            held.leave()
        elif heard.whole:
            held.complete(wire.storable(heard.reply.text))

    def _output_guard(self) -> Guard | None:
        """The guard, where the policy checks what the model says."""
        guard = self.room.service.layer.guard
        return guard if self.terms.judge and guard is not None and guard.policy.direction != "input" else None

    def _said(self) -> tuple[Message, ...]:
        """What was said before the reply."""
        if self.asked is None:
            return ()
        return (*said_before(self.asked), Message("user", self.asked.text))
