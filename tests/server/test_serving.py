"""`serve`: sockets, signals, and several workers over one store."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from tests.server.running import START, Running, started
from tests.server.upstream import PATIENCE, Upstream, says

from topicality.doors.server.serving import address_of, listening, serve
from topicality.doors.server.settings import Settings
from topicality.errors import ConfigError
from topicality.records import Scope
from topicality.store import open_store

SECRET = "sk-very-secret-0123456789"  # noqa: S105 - of nobody
UPSTREAM_SECRET = "up-very-secret-0123456789"  # noqa: S105 - of nobody

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def test_a_free_port_is_taken_and_told() -> None:
    with listening("127.0.0.1", 0) as one, listening("localhost", 0) as two:
        assert one.getsockname()[1] != two.getsockname()[1]
        assert address_of(one) == f"http://127.0.0.1:{one.getsockname()[1]}"
        assert one.getsockname()[0] == two.getsockname()[0], "some clients know localhost by its old address only"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_is_listened_on_with_brackets_or_without(host: str) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening(host, 0) as one:
        assert address_of(one) == f"http://[::1]:{one.getsockname()[1]}"
        one.listen()
        with socket.create_connection(("::1", one.getsockname()[1]), timeout=PATIENCE):
            pass


def test_an_address_that_cannot_be_had_is_named() -> None:
    with listening("127.0.0.1", 0) as one:
        one.listen()
        taken = one.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {taken}"):
            serve(Settings(port=taken))
    not_ours = "192.0.2.1"  # of a net that is reserved for documentation
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"), listening(not_ours, 0):
        pass


@posix
def test_one_process_listens_answers_and_ends_with_the_signal(tmp_path: Path) -> None:
    with started(tmp_path, TOPICALITY_STORE="sqlite:///chat.db", TOPICALITY_POLICY="customer_support") as server:
        server.until_listening()
        assert server.get("/healthz").status_code == 200
        assert server.get("/readyz").json() == {"ready": True, "reasons": []}
        assert server.stop() == 0
        access = [line for line in server.lines() if line["logger"] == "topicality.access"]
        assert [line["route"] for line in access] == ["/healthz", "/readyz"]
        with pytest.raises(httpx2.TransportError):
            server.get("/healthz")


@posix
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_load_balancer_sees_that_it_stops_while_it_still_answers(tmp_path: Path) -> None:
    with started(tmp_path, TOPICALITY_LIMITS__DRAIN="3") as server:
        server.until_listening()
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.get("/readyz").status_code == 503)
        assert server.get("/readyz").json()["reasons"] == ["shutting_down"]
        assert server.get("/healthz").status_code == 200
        assert server.process.wait(START) == 0


@posix
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("environment", "code", "told"),
    [
        ({"TOPICALITY_STORE": "sqlite:////no/such/folder/chat.db"}, 3, "/no/such/folder/chat.db"),
        ({"TOPICALITY_POLICY": "no-such-policy.toml"}, 2, "no-such-policy.toml"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_ends(
    tmp_path: Path, workers: str, environment: dict[str, str], code: int, told: str
) -> None:
    given = {"TOPICALITY_STORE": "sqlite:///chat.db", **environment}
    with started(tmp_path, TOPICALITY_WORKERS=workers, **given) as server:
        ended = server.process.wait(START)
        assert told in server.log.read_text()
        if workers == "2":
            assert ended == code
        else:
            assert ended != 0  # the command makes the code of the error


def workers_of(server: Running) -> set[int]:
    return {line["process"] for line in server.lines()} - {server.process.pid}


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")


def upstream_for(upstream: Upstream, tmp_path: Path) -> dict[str, str]:
    key = {"name": "app", "key": SECRET, "scopes": ["chat", "metrics"]}
    return {
        "TOPICALITY_WORKERS": "2",
        "TOPICALITY_STORE": f"sqlite:///{tmp_path}/chat.db",
        "TOPICALITY_UPSTREAM__URL": upstream.url,
        "TOPICALITY_UPSTREAM__KEY": UPSTREAM_SECRET,
        "TOPICALITY_KEYS": json.dumps([key]),
        "TOPICALITY_POLICY": "customer_support",
    }


@linux
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_write_one_conversation_and_no_secret_is_in_a_command_line(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.script(says("Your invoice is in the account settings."))
    with started(tmp_path, **upstream_for(upstream, tmp_path)) as server:
        server.until_listening()
        server.until(lambda: len(children(server.process.pid)) == 2)
        lines = [
            Path(f"/proc/{one}/cmdline").read_bytes() for one in (server.process.pid, *children(server.process.pid))
        ]
        assert not [line for line in lines if SECRET.encode() in line or UPSTREAM_SECRET.encode() in line]

        failures: list[object] = []

        def talk(name: int) -> None:
            try:
                for n in range(10):
                    with httpx2.Client(
                        timeout=START, trust_env=False
                    ) as client:  # a connection for each, to reach both
                        answer = client.post(
                            f"{server.root}/v1/chat/completions",
                            json={
                                "model": "m",
                                "messages": [{"role": "user", "content": f"How do I pay invoice {name} {n}?"}],
                            },
                            headers={"authorization": f"Bearer {SECRET}", "x-topicality-conversation": "shared"},
                        )
                    if answer.status_code != 200:
                        failures.append((answer.status_code, answer.text))
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(START)
        assert not failures
        page = server.get("/metrics", authorization=f"Bearer {SECRET}").text
        assert 'topicality_exchanges_total{end="completed",reason=""} 40.0' in page
        answered = {line["process"] for line in server.lines() if line["logger"] == "topicality.access"}
        assert len(answered) == 2, "one worker answered everything"
        assert all(seen.header("authorization") == f"Bearer {UPSTREAM_SECRET}" for seen in upstream.chats())
        assert server.stop() == 0
        assert SECRET not in server.log.read_text()
    store = open_store(f"sqlite:///{tmp_path}/chat.db")
    found = store.exchanges(Scope("default", "shared"), statuses=("pending", "completed", "failed"))
    assert [one.sequence for one in found] == list(range(1, 41))
    assert {one.status for one in found} == {"completed"}
    assert len({one.user for one in found}) == 40
    store.close()


@linux
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_that_dies_is_replaced_and_all_end_with_the_parent(tmp_path: Path, upstream: Upstream) -> None:
    with started(tmp_path, **upstream_for(upstream, tmp_path)) as server:
        server.until_listening()
        server.until(lambda: len(children(server.process.pid)) == 2, START)
        first = children(server.process.pid)
        # not before it serves: one that cannot start is not replaced
        server.until(lambda: said_ready(server) >= 2, START)
        os.kill(first[0], signal.SIGKILL)
        server.until(lambda: len(set(children(server.process.pid)) - set(first)) == 1, START)
        assert server.get("/healthz").status_code == 200
        left = children(server.process.pid)
        server.process.kill()
        server.process.wait(PATIENCE)
        for one in left:
            until_gone(one)


def said_ready(server: Running) -> int:
    return len([line for line in server.lines() if line["message"] == "serving"])


def until_gone(process: int, *, alive: Callable[[int], bool] = lambda one: Path(f"/proc/{one}").exists()) -> None:
    waiting = threading.Event()
    for _ in range(int(START / 0.1)):
        if not alive(process):
            return
        waiting.wait(0.1)
    pytest.fail(f"worker {process} outlived its parent")
