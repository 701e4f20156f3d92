"""The adapter to Ray Serve 2.60, on real Ray behind HAProxy: one regression test for each of its traps.

And the data plane beside it: Serve's limits, drain, counts and deaths hold for what does not come through its handle.
"""

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
from tests.e2e import data_app
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
                elastic = (await get(http, "/data/state"))["replicas"]
                if len(await get(http, "/members")) == REPLICAS and len(elastic) >= data_app.FEWEST:
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


async def until_state(http: aiohttp.ClientSession, **wanted: int) -> dict[str, Any]:
    """The data plane's ingress when these counts are as wanted, with no fewer replicas than there must be."""
    for _ in range(300):
        state: dict[str, Any] = await get(http, "/data/state")
        if len(state["replicas"]) >= data_app.FEWEST and all(state[name] == count for name, count in wanted.items()):
            return state
        await asyncio.sleep(0.1)
    raise AssertionError(f"{state}, wanted {wanted}")


async def until_idle(http: aiohttp.ClientSession) -> dict[str, Any]:
    """No slot, stream, reservation or place in a queue is taken on either side."""
    state = await until_state(http, reservations=0, streams=0, queued=0)
    for _ in range(100):
        if not sum((await get(http, "/data/ongoing")).values()):
            return state
        await asyncio.sleep(0.1)
    raise AssertionError("slots are still taken")


async def generated(http: aiohttp.ClientSession, tokens: int, *, prompt: int = 0) -> list[str]:
    """The lines of an answer: tokens and their replica, then how it ended."""
    async with http.get("/data/generate", params={"tokens": tokens, "prompt": prompt}) as response:
        assert response.status == 200
        return (await response.text()).splitlines()


def replicas_of(lines: list[str]) -> set[str]:
    return {line.split()[1] for line in lines[:-1]}


def test_generations_go_over_the_data_plane_and_take_serves_slots(base: str) -> None:
    """Serve counts them where it counts its own, and its handle is not used."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            before = (await until_idle(http))["handle_calls"]
            tasks = [asyncio.create_task(generated(http, 100, prompt=n)) for n in range(data_app.FEWEST * 2)]
            await until_state(http, streams=len(tasks))
            assert sum((await get(http, "/data/ongoing")).values()) == len(tasks)
            for lines in await asyncio.gather(*tasks):
                assert lines[-1] == "whole"
                assert sum(int(line.split()[0]) for line in lines[:-1]) == 100
            assert (await until_idle(http))["handle_calls"] == before

    asyncio.run(run())


def test_no_replica_ever_runs_more_than_its_slots_and_all_that_wait_are_served(base: str) -> None:
    """`max_ongoing_requests` bounds both ways together; what finds no slot waits in Serve's queue."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            await until_idle(http)
            tasks = [
                asyncio.create_task(generated(http, 50, prompt=n)) for n in range(data_app.MOST * data_app.SLOTS * 2)
            ]
            most = 0
            while not all(task.done() for task in tasks):
                most = max(most, *(await get(http, "/data/ongoing")).values())
                await asyncio.sleep(0.1)
            assert most == data_app.SLOTS
            assert {(await task)[-1] for task in tasks} == {"whole"}
            assert (await until_idle(http))["handle_calls"] > 0

    asyncio.run(run())


def test_load_on_the_data_plane_alone_makes_serve_scale_up(base: str) -> None:
    """Replicas report what runs; its handles would not know of it."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            await until_idle(http)
            full = [asyncio.create_task(generated(http, 10_000, prompt=n)) for n in range(data_app.FEWEST * 2)]
            for _ in range(300):
                if len((await get(http, "/data/state"))["replicas"]) == data_app.MOST:
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError("no replica was added")
            for task in full:
                task.cancel()
            await until_idle(http)

    asyncio.run(run())


def test_a_replica_that_drains_finishes_its_streams_and_takes_no_more(base: str) -> None:
    """Its engine lives until they are whole; then another replica takes its place."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            await until_idle(http)
            stream = asyncio.create_task(generated(http, 300))
            await until_state(http, streams=1)
            (leaving,) = [name for name, count in (await get(http, "/data/ongoing")).items() if count]
            await get(http, "/data/drain", replica=leaving)
            lines = await stream
            assert lines[-1] == "whole"
            assert replicas_of(lines) == {leaving}
            for _ in range(300):
                if leaving not in (await get(http, "/data/state"))["replicas"]:
                    break
                lines = await generated(http, 2)
                assert lines[-1] == "whole"
                await asyncio.sleep(0.1)
            assert replicas_of(await generated(http, 2)) != {leaving}
            await until_idle(http)

    asyncio.run(run())


def test_a_killed_replica_ends_its_streams_with_an_error_and_the_next_request_is_served(base: str) -> None:
    """At once, by another one."""

    async def run() -> None:
        async with aiohttp.ClientSession(base) as http:
            await until_idle(http)
            stream = asyncio.create_task(generated(http, 10_000))
            await until_state(http, streams=1)
            (killed,) = [name for name, count in (await get(http, "/data/ongoing")).items() if count]
            await get(http, "/data/kill", replica=killed)
            assert (await stream)[-1] == "ReplicaGone"
            lines = await generated(http, 2)
            assert lines[-1] == "whole"
            assert replicas_of(lines) != {killed}
            await until_idle(http)

    asyncio.run(run())


def test_240_early_disconnects_leak_nothing_on_the_data_plane_or_in_serves_queue(base: str) -> None:
    """More at once than there are slots: some leave while they wait."""

    async def leave_early(patience_s: float, prompt: int) -> None:
        timeout = aiohttp.ClientTimeout(total=patience_s)
        try:
            async with aiohttp.ClientSession(base, timeout=timeout) as http:
                await generated(http, 1_000, prompt=prompt)
        except (aiohttp.ClientError, TimeoutError):
            pass

    async def run() -> None:
        rng = random.Random(0)
        async with aiohttp.ClientSession(base) as http:
            await until_idle(http)
            at_once = data_app.MOST * data_app.SLOTS * 2
            for _ in range(DISCONNECTS // at_once):
                await asyncio.gather(*(leave_early(rng.uniform(*LEAVE_AFTER_S), n) for n in range(at_once)))
            await until_idle(http)
            assert (await generated(http, 2))[-1] == "whole"

    asyncio.run(run())
