"""A hundred streams at once, clients that hang up, a model server that fails: every exchange ends, once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.conftest import ALL, Serve
from tests.server.running import START, started
from tests.server.upstream import Answer, Seen, Step, Upstream, breaks, fails, says

from topicality.layer.memory import Layer
from topicality.records import Exchange, Scope
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 100
TEXT = " ".join(f"word{n}" for n in range(30))


def weather(seed: int, *, delay: float) -> Step:
    """Answers in a stream; one in ten fails: before an answer, with an error, or in the middle of it."""
    dice = random.Random(seed)
    kinds = [breaks(), fails(500), breaks("half", " an", " answer")]

    async def step(seen: Seen, answer: Answer) -> None:
        if dice.random() < 0.1:
            await dice.choice(kinds)(seen, answer)
        else:
            await says(TEXT, delay=delay)(seen, answer)

    return step


async def talk(client: httpx2.AsyncClient, number: int, leave_after: float | None) -> str:
    """One stream: how it ended for the client."""
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"question {number}"}]}
    headers = {"x-topicality-conversation": f"talk-{number % 25}"}
    found = b""
    try:
        async with asyncio.timeout(leave_after):
            async with client.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
                if answer.status_code != 200:
                    return "refused"
                async for piece in answer.aiter_raw():
                    found += piece
    except TimeoutError:
        return "left"
    except httpx2.TransportError:
        return "cut"
    return "whole" if found.endswith(b"data: [DONE]\n\n") else "broken"


async def storm(root: str, seed: int) -> list[str]:
    """All streams at once; a third of the clients leaves at a random moment."""
    dice = random.Random(seed)
    leaving = [dice.uniform(0.0, 1.5) if n % 3 == 0 else None for n in range(STREAMS)]
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=root, timeout=START, limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(talk(client, n, leave) for n, leave in enumerate(leaving)))


def judge(found: list[Exchange], asked: int = STREAMS) -> Counter[str]:
    """Nothing pending, nothing twice, sequences without gaps."""
    assert not [one for one in found if one.status == "pending"]
    assert len({(one.conversation, one.id) for one in found}) == len(found)
    said = Counter(one.user.text for one in found)
    assert not [text for text, times in said.items() if times > 1], "a message was begun twice"
    assert len(found) <= asked
    for name in {one.conversation for one in found}:
        sequences = [one.sequence for one in found if one.conversation == name]
        assert sequences == list(range(1, len(sequences) + 1))
    assert {one.reply.text for one in found if one.status == "completed" and one.reply} <= {TEXT}
    return Counter(one.status for one in found)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("store", ["memory://", "sqlite"])
def test_every_exchange_of_a_storm_ends_once(
    serve: Serve, upstream: Upstream, tmp_path: Path, store: str, seed: int
) -> None:
    url = store if store == "memory://" else f"sqlite:///{tmp_path}/chat.db"
    layer = Layer(open_store(url), None, WordEmbedder())
    upstream.script(weather(seed, delay=0.02))
    served = serve(layer=layer)
    ends = Counter(asyncio.run(storm(served.root, seed)))
    served.until(lambda: not [one for one in served.exchanges() if one.status == "pending"], "exchanges stay open")
    statuses = judge(served.exchanges())
    assert ends["whole"] > STREAMS / 3, ends
    assert ends["left"] > 0, "nobody hung up"
    assert ends["broken"] + ends["cut"] + ends["refused"] > 0, "the model server did not fail"
    assert statuses["completed"] >= ends["whole"], "a client was given a whole reply that is not kept"
    assert statuses["failed"] >= ends["broken"] + ends["cut"]

    def counted() -> float:
        page = served.service.metrics.exposed()[0].decode().splitlines()
        return sum(float(one.rpartition(" ")[2]) for one in page if one.startswith("topicality_exchanges_total"))

    served.until(lambda: counted() == sum(statuses.values()), "not every end was counted")
    for gauge in ("topicality_streams_open", "topicality_requests_open"):
        served.until(lambda gauge=gauge: f"{gauge} 0.0" in served.service.metrics.exposed()[0].decode())  # type: ignore[misc]
    served.until(lambda: upstream.open == 0, "requests to the model server are left over")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_in_a_storm_ends_every_exchange(upstream: Upstream, tmp_path: Path, workers: int) -> None:
    """Some streams are given the time they need, others outlast it."""
    store = f"sqlite:///{tmp_path}/chat.db"
    given: dict[str, Any] = {
        "TOPICALITY_STORE": store,
        "TOPICALITY_UPSTREAM__URL": upstream.url,
        "TOPICALITY_WORKERS": str(workers),
        "TOPICALITY_LIMITS__SHUTDOWN": "2",
    }
    dice = random.Random(workers)

    async def step(seen: Seen, answer: Answer) -> None:
        await says(TEXT, delay=dice.choice([0.01, 0.05, 5.0]))(seen, answer)

    upstream.script(step)
    with started(tmp_path, **given) as server:
        server.until_listening()

        async def run() -> list[str]:
            work = asyncio.create_task(storm(server.root, 7))
            end = asyncio.get_running_loop().time() + START
            while len(upstream.chats()) < STREAMS // 2:
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            return await work

        ends = Counter(asyncio.run(run()))
        assert server.process.wait(START) == 0
        assert "Traceback" not in server.log.read_text()
    kept = open_store(store)
    statuses = judge(kept.exchanges(Scope("default"), statuses=ALL))
    kept.close()
    assert statuses["completed"] >= ends["whole"] > 0
    assert statuses["failed"] > 0
    assert sum(statuses.values()) >= STREAMS // 2
    assert json.dumps(TEXT) not in (tmp_path / "server.log").read_text()
