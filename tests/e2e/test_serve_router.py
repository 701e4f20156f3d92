"""The adapter to Ray Serve 2.60, on real Ray behind HAProxy: one regression test for each of its traps."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from cluster.ports import free_port
from tests.e2e.serve_apps import CHUNK_GAP_S, CHUNKS, REPLICAS, SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.ray

DISCONNECTS, AT_ONCE = 240, 8
LEAVE_AFTER_S = (0.002, 0.12)
STREAM_S = CHUNKS * CHUNK_GAP_S


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """URL of the regression application, with all its replicas known to the router."""
    port = free_port()
    scratch = tempfile.mkdtemp(prefix="kv-", dir="/tmp")
    driver = [sys.executable, "-m", "tests.e2e.run_serve_apps", scratch, str(port)]
    command = [sys.executable, "-m", "cluster.supervisor", scratch, *driver]
    supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2])
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(until_members(url, supervisor))
        yield url
    finally:
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        supervisor.wait(timeout=20)


async def until_members(url: str, supervisor: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    async with aiohttp.ClientSession(url) as http:
        while time.monotonic() < deadline and supervisor.poll() is None:
            try:
                if len(await get(http, "/members")) == REPLICAS:
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.3)
    raise AssertionError("the regression application did not come up")


async def get(http: aiohttp.ClientSession, path: str, *, limit_s: float = 30.0, **query: Any) -> Any:
    timeout = aiohttp.ClientTimeout(total=limit_s)
    async with http.get(path, params={name: str(value) for name, value in query.items()}, timeout=timeout) as response:
        response.raise_for_status()
        return await response.json()


def test_a_call_goes_to_the_replica_its_route_names(base: str) -> None:
    """60 of 60, and the router says where each went."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            members = await get(http, "/members")
            targets = [random.Random(i).choice(members) for i in range(60)]
            answers = await asyncio.gather(*(get(http, "/call", target=target) for target in targets))
            assert [answer["replica"] for answer in answers] == targets
            assert [answer["routed"] for answer in answers] == [[target] for target in targets]

    asyncio.run(run())


def test_the_replica_never_sees_the_route(base: str) -> None:
    """The hint is taken off the call before it is sent."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            answer = await get(http, "/call", target="unknown")
            assert answer["kwargs"] == []

    asyncio.run(run())


def test_a_route_whose_candidates_are_gone_still_finds_a_replica(base: str) -> None:
    """An empty answer would make Serve spin; the rank of all others is always there."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            members = await get(http, "/members")
            assert (await get(http, "/call", target="gone"))["replica"] in members
            assert (await get(http, "/call", target=f"gone,{members[1]}"))["replica"] == members[1]

    asyncio.run(run())


def test_eight_calls_made_inside_one_http_request_are_all_answered(base: str) -> None:
    """They share a request id; a router that looks the waiting call up by it answers one and hangs the others."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            for member in await get(http, "/members"):
                assert await get(http, "/siblings", count=SLOTS, target=member) == SLOTS
            member = (await get(http, "/members"))[0]
            assert await get(http, "/siblings", count=8, target=member) >= SLOTS  # the others overflow, none hangs

    asyncio.run(run())


def test_the_ingress_answers_others_while_every_slot_is_taken(base: str) -> None:
    """Waiting requests back off; without `should_backoff` they would spin on the one loop and stop it."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            members = await get(http, "/members")
            streams = [read_stream(http, member) for member in members for _ in range(SLOTS)]
            full = [asyncio.create_task(stream) for stream in streams]
            await asyncio.sleep(1.0)
            waiting = asyncio.create_task(get(http, "/call", target=members[0]))
            for _ in range(5):
                assert await get(http, "/members", limit_s=3.0) == members
            assert not waiting.done()
            await asyncio.gather(*full)
            assert (await waiting)["replica"] in members

    asyncio.run(run())


async def read_stream(http: aiohttp.ClientSession, target: str) -> int:
    async with http.get("/stream", params={"target": target}) as response:
        return len((await response.read()).splitlines())


def test_240_early_disconnects_leak_no_slot(base: str) -> None:
    """Clients leave after 2 to 120 ms; once every stream would have ended, no replica counts a request."""

    async def leave_early(patience_s: float, target: str) -> None:
        timeout = aiohttp.ClientTimeout(total=patience_s)
        try:
            async with (
                aiohttp.ClientSession(base) as http,
                http.get("/stream", params={"target": target}, timeout=timeout) as response,
            ):
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            pass

    async def run() -> None:
        rng = random.Random(0)
        async with aiohttp.ClientSession(base) as http:
            members = await get(http, "/members")
            for _ in range(DISCONNECTS // AT_ONCE):
                leavers = [leave_early(rng.uniform(*LEAVE_AFTER_S), rng.choice(members)) for _ in range(AT_ONCE)]
                await asyncio.gather(*leavers)
            deadline = time.monotonic() + STREAM_S + 6
            while sum(ongoing := await get(http, "/ongoing")) and time.monotonic() < deadline:
                await asyncio.sleep(0.5)
            assert ongoing == [0] * REPLICAS
            for member in members:
                assert (await get(http, "/call", target=member))["replica"] == member

    asyncio.run(run())
