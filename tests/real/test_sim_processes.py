"""Losses, deaths and pauses between real processes and real sockets; the engine is simulated, so that many can die."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from router.limits import FEED_SETTLED_S, PUBLISHER_HWM_FRAMES
from tests.real.leading import REPLICA, Follower, Router, Worker, seconds_until
from tests.real.measured import record, record_times
from tests.real.obstacles import LossyForwarder, TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.replicas import ReplicaInfo

SIM = {"block_size": 16, "pool_blocks": 200, "max_model_len": 2048, "max_batched_tokens": 512}
SANE_S = 5.0  # what a busy machine may make of a promise; the promises themselves are in docs/reliability.md


@asynccontextmanager
async def router_of(info: ReplicaInfo) -> AsyncIterator[Router]:
    router = Router()
    router.follow(info)
    try:
        yield router
    finally:
        await router.close()


def prompt(seed: int, length: int = 400) -> list[int]:
    return random.Random(seed).choices(range(300, 4000), k=length)


async def sim_worker(**arguments: float) -> Worker:
    return await Worker.start(path=None, engine_args=SIM | {"speed": 1000.0} | arguments)


def test_a_lost_tail_is_noticed_by_the_next_heartbeat_and_repaired() -> None:
    """The lost frame says that everything is gone, and nothing follows it: the worst that a router can miss."""

    async def run() -> None:
        worker = await sim_worker()
        forwarder = LossyForwarder(worker.info.events)
        noticed, repaired, pauses_s = [], [], []
        async with router_of(msgspec.structs.replace(worker.info, events=forwarder.endpoint)) as router:
            await router.agrees_with(worker)
            for turn in range(8):
                await router.generate(worker, prompt(turn))
                await router.agrees_with(worker)
                await asyncio.sleep(FEED_SETTLED_S + 0.1)  # losses in quick succession are repaired with a back-off
                assert router.holds()
                router.longest_pause_s()
                forwarder.lose(1)
                assert (await worker.ask("reset")).done
                lost_at = await forwarder.lost_at()
                await seconds_until(lambda: not router.holds())
                noticed.append(time.monotonic() - lost_at)
                await seconds_until(lambda: not router.fleet.fenced(REPLICA))
                repaired.append(time.monotonic() - lost_at)
                pauses_s.append(router.longest_pause_s())
                await router.agrees_with(worker)
        await forwarder.close()
        await worker.end()
        record_times("tail loss, until noticed", noticed, pauses_s=pauses_s)
        record_times("tail loss, until repaired", repaired, pauses_s=pauses_s)
        assert max(repaired) < SANE_S

    asyncio.run(run())


def test_what_was_said_while_a_connection_was_cut_is_made_good() -> None:
    """A network that breaks loses what is on its way, and what is published until it is back."""

    async def run() -> None:
        worker = await sim_worker()
        proxy = await TcpProxy.start(worker.info.events)
        repaired, pauses_s = [], []
        async with router_of(msgspec.structs.replace(worker.info, events=proxy.endpoint)) as router:
            for turn in range(6):
                await router.generate(worker, prompt(turn))
                await router.agrees_with(worker)
                proxy.retarget("")
                await worker.ask("generate", tokens=prompt(100 + turn, 2000))
                assert (await worker.ask("reset")).done
                await asyncio.sleep(0.3)
                router.longest_pause_s()
                proxy.retarget(worker.info.events)
                repaired.append(await seconds_until(lambda: not router.holds()))
                pauses_s.append(router.longest_pause_s())
                await router.agrees_with(worker)
        await proxy.close()
        await worker.end()
        record_times("cut connection, from its return until right again", repaired, pauses_s=pauses_s)
        assert max(repaired) < SANE_S

    asyncio.run(run())


def test_a_replica_that_was_killed_is_not_believed_for_long() -> None:
    """Even when nobody tells the router: silence ends the lease."""

    async def run() -> None:
        unbelieved, pauses_s = [], []
        for turn in range(4):
            worker = await sim_worker()
            async with router_of(worker.info) as router:
                await router.generate(worker, prompt(turn))
                await router.agrees_with(worker)
                router.longest_pause_s()
                await worker.kill()
                unbelieved.append(await seconds_until(lambda: not router.holds()))
                pauses_s.append(router.longest_pause_s())
                assert router.fleet.routable == ()
        record_times("SIGKILL without a successor, until not routable", unbelieved, pauses_s=pauses_s)
        assert max(unbelieved) < SANE_S

    asyncio.run(run())


def test_a_new_incarnation_ends_the_old_one_at_once() -> None:
    """The successor speaks from the same address; its first word, a heartbeat, is enough."""

    async def run() -> None:
        worker, successor = await asyncio.gather(sim_worker(), sim_worker())
        events, snapshots = await TcpProxy.start(worker.info.events), await TcpProxy.start(worker.info.snapshots)
        info = msgspec.structs.replace(worker.info, events=events.endpoint, snapshots=snapshots.endpoint)
        gone, pauses_s = [], []
        async with router_of(info) as router:
            for turn in range(6):
                await router.generate(worker, prompt(turn))
                await router.agrees_with(worker)
                held = router.shown()["gpu"]
                router.longest_pause_s()
                began = time.monotonic()
                await worker.kill()
                events.retarget(successor.info.events)
                snapshots.retarget(successor.info.snapshots)
                await seconds_until(lambda held=held: held.isdisjoint(router.shown().get("gpu", ())))  # type: ignore[misc]
                gone.append(time.monotonic() - began)
                pauses_s.append(router.longest_pause_s())
                await router.agrees_with(successor)
                assert router.fleet.status(time.monotonic())[0].incarnation == successor.info.incarnation
                worker, successor = successor, await sim_worker()
        await events.close()
        await snapshots.close()
        await worker.end()
        await successor.end()
        record_times("SIGKILL and restart, until the old entries are gone", gone, pauses_s=pauses_s)
        assert max(gone) < SANE_S

    asyncio.run(run())


def test_a_successor_that_is_announced_ends_the_old_one_at_once() -> None:
    """As Ray Serve announces one: the same replica under another incarnation and other addresses."""

    async def run() -> None:
        worker = await sim_worker()
        async with router_of(worker.info) as router:
            await router.generate(worker, prompt(0))
            await router.agrees_with(worker)
            successor = await sim_worker()
            await worker.kill()
            router.follow(successor.info)
            assert not router.holds()
            await router.agrees_with(successor)
            await successor.end()

    asyncio.run(run())


def test_a_router_that_sleeps_costs_the_engine_nothing() -> None:
    """At the full pace of a simulated engine, many hundreds of frames a second: the engine goes on, and the index is
    exact afterwards. That frames beyond the high-water mark are dropped, and made good, is shown in tests/workers."""

    async def run() -> None:
        worker = await sim_worker(speed=1e12)
        follower = await Follower.start(worker.info)
        await follower.agrees_with(worker)
        await worker.ask("busy", at_once=8, prompt_tokens=160, max_tokens=64)
        before = await worker.pace(4.0)
        asleep_at = (await worker.ask("stats")).counters["batches"]
        os.kill(follower.pipe.pid, signal.SIGSTOP)
        during = await worker.pace(8.0)
        frames = (await worker.ask("stats")).counters["batches"] - asleep_at
        os.kill(follower.pipe.pid, signal.SIGCONT)
        after = await worker.pace(4.0)
        await worker.ask("idle")
        await follower.agrees_with(worker)
        counters = (await follower.ask("stats")).counters
        await follower.end()
        await worker.end()
        record(
            "SIGSTOP of the router for 8 s, simulated engine at full speed",
            during.against(before, after)
            | {
                "frames_meanwhile": frames,
                "high_water_mark": PUBLISHER_HWM_FRAMES,
                "snapshots": sum(count for name, count in counters.items() if name.endswith("_synced")),
            },
        )
        assert during.per_s > before.per_s / 10, "the engine waits for a router"

    asyncio.run(run())
