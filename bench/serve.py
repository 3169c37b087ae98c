"""What the server costs, on loopback: the proxy's share of a request, a load for a minute, and stalls of its event loop.

    python bench/serve.py                    about three minutes
    python bench/serve.py --json --rounds 7 --latency 0.2

Model server, proxies and client are processes of their own. The model server answers after a fixed time. Figures are
differences from asking it directly, in turns with asking it through the proxy, eight at a time; the median of the rounds. A
busy machine changes them: the load average is printed with them. POSIX.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loopback.ends import AT_ONCE, Line, Talk, closed, model_server, steady

CHECKS = 50
WAYS = {"off": "guard and memory off", "on": "guard and memory on", "both": "replies judged too"}


@dataclass(frozen=True)
class Figure:
    """One line of the report. `target` is met when value <= target."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


# ---- the server under test, with a clock on its loop ------------------------------------------------------------------


class Ticker:
    """Around the application: `GET /ticker` gives the worst stall of the loop since the last time, in seconds."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._worst = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/ticker":
            await self._app(scope, receive, send)
            return
        if self._task is None:
            self._task = asyncio.create_task(self._tick())
            await asyncio.sleep(0.01)
        body = json.dumps({"worst": self._worst, "cpu": time.process_time()}).encode()
        self._worst = 0.0
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _tick(self) -> None:
        pause = 0.001
        before = time.perf_counter()
        while True:
            await asyncio.sleep(pause)
            now = time.perf_counter()
            self._worst = max(self._worst, now - before - pause)
            before = now


def server() -> int:
    from topicality.doors.server import serving
    from topicality.doors.server.settings import load_settings

    made = serving.create_app
    serving.create_app = lambda *args, **more: Ticker(made(*args, **more))
    return serving.serve(load_settings(None, os.environ))


# ---- the report -------------------------------------------------------------------------------------------------------


class Process:
    """One of the processes, and its port."""

    def __init__(self, place: Path, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        log = place / f"{name}.log"
        with log.open("wb") as out:
            kept = {key: value for key, value in os.environ.items() if not key.startswith("TOPICALITY_")}
            self._process = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, __file__, *arguments], env={**kept, **environment}, stdout=out, stderr=out, cwd=place
            )
        end = time.monotonic() + 300
        while not (found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", log.read_text())):
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        self.port = int(found[1])

    def resident(self) -> float:
        """Megabytes."""
        command = [shutil.which("ps") or "ps", "-o", "rss=", "-p", str(self._process.pid)]
        told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - nobody else's words
        return int(told.stdout) / 1024

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)


async def ticked(port: int) -> dict[str, float]:
    line = Line(port)
    _, _, _, body = await line.ask("/ticker", b"")
    line.close()
    return dict(json.loads(body))


async def compared(
    options: argparse.Namespace, ports: dict[str, int], talk: Talk, *, stream: bool
) -> dict[str, list[float]]:
    """By way ("direct", "off", "on"): the median of each round, in milliseconds."""
    found: dict[str, list[float]] = {way: [] for way in ports}
    for way, port in ports.items():
        await closed(port, talk, 3, stream=stream)
        found[way].clear()
    for _ in range(options.rounds):
        for way, port in ports.items():
            times = await closed(port, talk, options.count, stream=stream, apart=options.latency)
            if times.failed:
                raise SystemExit(f"{way}: {times.failed} requests failed")
            found[way].append(median(times.first if stream else times.whole) * 1e3)
    return found


async def stalls(port: int, talk: Talk, work: Callable[[Line, int], Awaitable[int]]) -> float:
    """The worst stall in milliseconds while `CHECKS` requests are open at a time, twice over."""
    lines = [Line(port) for _ in range(CHECKS)]
    await ticked(port)
    for _ in range(2):
        statuses = await asyncio.gather(*(work(line, n) for n, line in enumerate(lines)))
        if set(statuses) != {200}:
            raise SystemExit(f"requests failed: {statuses}")
    worst = (await ticked(port))["worst"] * 1e3
    for line in lines:
        line.close()
    return worst


async def measured(options: argparse.Namespace, ports: dict[str, int], off: Process) -> list[Figure]:
    talk = Talk()
    figures: list[Figure] = []
    for stream, what in ((False, "a request"), (True, "first streamed token")):
        found = await compared(options, ports, talk, stream=stream)
        direct = found["direct"]
        figures.append(Figure(f"{what}, direct, p50", median(direct), "ms"))
        for way, target in (("off", 3.0), ("on", 15.0), ("both", None)):
            added = [through - without for through, without in zip(found[way], direct, strict=True)]
            note = f"{min(added):.1f} to {max(added):.1f}"
            figures.append(Figure(f"{what}, added, {WAYS[way]}", median(added), "ms", target, note))
    for way, what in WAYS.items():
        before = (await ticked(ports[way]))["cpu"]
        await closed(ports[way], talk, options.count, stream=False)
        spent = (await ticked(ports[way]))["cpu"] - before
        figures.append(Figure(f"CPU a request, {what}", spent / (AT_ONCE * options.count) * 1e3, "ms"))

    async def check(line: Line, _: int) -> int:
        text = json.loads(talk.body())["messages"][0]["content"]
        return (await line.ask("/api/check", json.dumps({"text": text}).encode()))[0]

    async def chat(line: Line, number: int) -> int:
        return (await line.ask("/v1/chat/completions", talk.body(), f"x-topicality-conversation: s{number}\r\n"))[0]

    await ticked(ports["on"])
    await asyncio.sleep(2)
    idle = (await ticked(ports["on"]))["worst"] * 1e3
    figures.append(Figure("worst stall of the idle loop, 2 s", idle, "ms"))
    for name, work, target in (("checks", check, 25.0), ("chats, guard and memory", chat, None)):
        worst = [await stalls(ports["on"], talk, work) for _ in range(options.rounds)]
        note = f"{min(worst):.1f} to {max(worst):.1f}"
        figures.append(Figure(f"worst stall, {CHECKS} {name} at a time", median(worst), "ms", target, note))

    if options.seconds:
        await steady(ports["off"], talk, options.rate, min(5.0, options.seconds))
        resident = [off.resident()]
        done = asyncio.create_task(steady(ports["off"], talk, options.rate, options.seconds))
        while not done.done():
            await asyncio.sleep(1)
            resident.append(await asyncio.to_thread(off.resident))
        times = await done
        what = f"{options.rate:.0f} a second for {options.seconds:.0f} s, guard and memory off"
        figures += [
            Figure(f"{what}: failed", times.failed, "", 0.0, f"of {len(times.whole) + times.failed}"),
            Figure(f"{what}: p50", median(times.whole) * 1e3, "ms"),
            Figure(f"{what}: p99", sorted(times.whole)[int(len(times.whole) * 0.99)] * 1e3, "ms"),
            Figure(f"{what}: memory grown by", resident[-1] - resident[0], "MB", 5.0, f"of {resident[0]:.0f}"),
        ]
    return figures


def judged(place: Path, direction: str) -> dict[str, str]:
    """Settings with guard and memory; "both" judges replies too, so that the beginning of a stream is held back."""
    from topicality.config import Policy

    file = place / f"{direction}.json"
    file.write_text(Policy.load("customer_support").model_copy(update={"direction": direction}).model_dump_json())
    return {"TOPICALITY_POLICY": str(file), "TOPICALITY_STORE": f"sqlite:///{place}/{direction}.db"}


def report(options: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = Process(place, "model", ["--role", "model", "--latency", str(options.latency)], {})
        common = {"TOPICALITY_PORT": "0", "TOPICALITY_UPSTREAM__URL": f"http://127.0.0.1:{model.port}/v1"}
        switched = {"TOPICALITY_GUARD__ENABLED": "false", "TOPICALITY_MEMORY__ENABLED": "false"}
        off = Process(place, "off", ["--role", "server"], {**common, **switched})
        on = Process(place, "on", ["--role", "server"], {**common, **judged(place, "input")})
        both = Process(place, "both", ["--role", "server"], {**common, **judged(place, "both")})
        try:
            ports = {"direct": model.port, "off": off.port, "on": on.port, "both": both.port}
            import uvloop

            return uvloop.run(measured(options, ports, off))
        finally:
            for process in (off, on, both, model):
                process.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=15, help="requests of each of the eight clients in a round")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds the model server takes")
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=60, help="0 leaves the load out")
    parser.add_argument("--role", choices=["model", "server"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "model":
        model_server(options.latency)
        return
    if options.role == "server":
        raise SystemExit(server())
    load = [os.getloadavg()[0]]
    figures = report(options)
    load.append(os.getloadavg()[0])
    cores = os.cpu_count() or 1
    if options.json:
        rows = [{**vars(one), "met": one.met} for one in figures]
        settings = {"latency": options.latency, "rounds": options.rounds, "cores": cores, "load": load}
        print(json.dumps({"settings": settings, "figures": rows}, indent=2))
        return
    print(
        f"model server: {options.latency * 1e3:.0f} ms; {cores} cores; load {load[0]:.1f} before, {load[1]:.1f} after\n"
    )
    for one in figures:
        target = "" if one.target is None else f"<= {one.target:g}  {'met' if one.met else 'MISSED'}"
        print(f"{one.name:62} {one.value:8.2f} {one.unit:3} {target:16} {one.note}")


if __name__ == "__main__":
    main()
