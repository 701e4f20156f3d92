"""Tenants apart on a real cluster: keys, caches, numbers, and the sockets that tell of blocks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
import zmq
from typer.testing import CliRunner

from cluster.cli import app
from load_tests.prose import sentences
from router.curve import ClientCurve, CurveKeys, connect_with
from router.errors import WireError
from router.event_keys import EventKeys
from router.wire import decode_frame
from tests.e2e.cluster_process import ServeProcess, serving
from tests.e2e.processes import marked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.ray
CONFIG: dict[str, Any] = {"models": [{"name": "tiny", "source": "tiny", "engine": "sim", "replicas": 2}]}
TAKEN_LIMIT_S = 20.0


def kvist(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


class Cluster:
    """A running cluster, its files, and a key of each tenant."""

    def __init__(self, process: ServeProcess, folder: Path, keys: dict[str, str]) -> None:
        self.url = process.url
        self._mark = process.mark
        self.tenants, self.events = folder / "tenants.yaml", folder / "events.json"
        self.keys = keys

    def ask(self, key: str, text: str) -> httpx.Response:
        body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{self.url}/v1/messages", json=body, headers={"x-api-key": key}, timeout=60)

    def cached(self, key: str, text: str) -> int:
        answer = self.ask(key, text)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["cache_read_input_tokens"])

    def ports(self) -> set[int]:
        """Where any of its processes listens."""
        mine = marked(self._mark)
        listening = [one for one in psutil.net_connections("tcp4") if one.status == psutil.CONN_LISTEN]
        return {one.laddr.port for one in listening if one.pid in mine}

    def status(self) -> httpx.Response:
        return httpx.get(f"{self.url}/kvist/status", headers={"x-api-key": self.keys["boss"]}, timeout=60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("tenants")
    tenants, events = folder / "tenants.yaml", folder / "events.json"
    keys = {name: kvist("add", str(tenants), "--tenant", name) for name in ("first", "second")}
    keys["boss"] = kvist("add", str(tenants), "--tenant", "boss", "--admin")
    kvist("events", str(events))
    config = CONFIG | {"tenants_file": str(tenants), "event_keys_file": str(events)}
    with serving(config, folder) as process:
        yield Cluster(process, folder, keys)


def test_a_tenant_finds_its_own_prefix_and_never_anothers(cluster: Cluster) -> None:
    """The same prompt of another tenant is cold, on whichever replica."""
    text = sentences(7, 80)
    assert cluster.cached(cluster.keys["first"], text) == 0
    first = [cluster.cached(cluster.keys["first"], text) for _ in range(3)]
    assert min(first) > 100
    assert cluster.cached(cluster.keys["second"], text) == 0
    assert cluster.cached(cluster.keys["second"], text) == first[0]


def test_a_new_key_works_and_a_removed_one_does_not_without_a_restart(cluster: Cluster) -> None:
    key = kvist("add", str(cluster.tenants), "--tenant", "third")
    await_status(cluster, key, 200)
    kvist("remove", str(cluster.tenants), key)
    await_status(cluster, key, 401)
    assert cluster.ask(cluster.keys["first"], "still here").status_code == 200


class Ears:
    """Subscribers to everything, one at each port."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ports: set[int], curve: ClientCurve | None) -> None:
        self._sockets = [context.socket(zmq.SUB) for _ in ports]
        self._heard: set[zmq.Socket[bytes]] = set()
        for socket, port in zip(self._sockets, ports, strict=True):
            if curve is not None:
                connect_with(socket, curve)
            socket.connect(f"tcp://127.0.0.1:{port}")
            socket.subscribe(b"")

    def count(self) -> int:
        """How many have heard an event frame, after a while. (What speaks HTTP answers, too.)"""
        time.sleep(0.2)
        for socket in self._sockets:
            with contextlib.suppress(zmq.Again, WireError):
                while True:
                    decode_frame(socket.recv_multipart(zmq.NOBLOCK)[-1])
                    self._heard.add(socket)
        return len(self._heard)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(0)


def await_status(cluster: Cluster, key: str, wanted: int) -> None:
    deadline = time.monotonic() + TAKEN_LIMIT_S
    while (got := cluster.ask(key, "hello").status_code) != wanted:
        assert time.monotonic() < deadline, f"still {got}"
        time.sleep(0.1)


def test_only_an_admin_reads_the_status(cluster: Cluster) -> None:
    refused = httpx.get(f"{cluster.url}/kvist/status", headers={"x-api-key": cluster.keys["first"]}, timeout=60)
    assert refused.status_code == 403
    assert len(cluster.status().json()["replicas"]) == 2


def test_event_streams_are_live_for_those_who_have_the_keys(cluster: Cluster) -> None:
    """Blocks are known, so frames came through sockets that ask for keys."""
    cluster.ask(cluster.keys["first"], sentences(8, 80))
    deadline = time.monotonic() + TAKEN_LIMIT_S
    while not any(row["blocks"].get("gpu") for row in cluster.status().json()["replicas"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not any(row["fenced"] for row in cluster.status().json()["replicas"])


def test_event_sockets_say_nothing_to_who_has_no_key_or_another(cluster: Cluster) -> None:
    """At every port of the cluster; with the right keys both replicas are heard at two of them."""
    known = EventKeys.read(cluster.events).for_ingresses
    stranger = ClientCurve(CurveKeys.generate(), known.server_public)
    with zmq.Context() as context:
        curves = {"none": None, "stranger": stranger, "known": known}
        heard = {name: Ears(context, cluster.ports(), curve) for name, curve in curves.items()}
        deadline = time.monotonic() + TAKEN_LIMIT_S
        while heard["known"].count() < 2:  # heartbeats come every 250 ms
            assert time.monotonic() < deadline
        assert (heard["none"].count(), heard["stranger"].count()) == (0, 0)
        for ears in heard.values():
            ears.close()
