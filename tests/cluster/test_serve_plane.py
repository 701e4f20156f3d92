"""One model deployment as an ingress reaches it: data plane first, Serve's queue when all are busy, books that balance.

Serve itself is a stand-in here; the real one is met in tests/e2e.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cluster.backend import Job
from cluster.serve_plane import ModelPlane
from cluster.tenants import Tenant
from router.errors import NoReplica, ReplicaGone
from router.fleet import Fleet
from router.limits import LEASE_S, STALL_CHECK_S
from router.membership import MEMBERSHIP
from router.replicas import PromptBlocks, ReplicaInfo
from router.serve_router import ROUTE_KWARG, Route
from tests.workers.data_support import Replica, packed, replica, until
from workers.engine import Sampling, TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workers.engine import Generation

pytestmark = pytest.mark.anyio

DISCONNECTS, AT_ONCE = 240, 24


class Handle:
    """Serve's handle as the plane uses it: calls wait until `free`, then go to the last candidate."""

    is_initialized = True

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.calls: list[HandleCall] = []
        self.stalls = False
        self.generate = self

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, generation: Generation, **kwargs: Any) -> HandleCall:
        self.calls.append(HandleCall(self.free, kwargs[ROUTE_KWARG], self.stalls))
        return self.calls[-1]


class HandleCall:
    def __init__(self, free: asyncio.Event, route: Route, stalls: bool) -> None:
        self.route = route
        self.is_cancelled = False
        self._stalls = stalls
        self._deltas = self._run(free)

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

    async def _run(self, free: asyncio.Event) -> AsyncIterator[TokenDelta]:
        await free.wait()
        assert self.route.on_routed is not None
        self.route.on_routed(self.route.candidates[-1])
        if self._stalls:
            yield TokenDelta(tokens=packed([8]), cached_tokens=0)
            await asyncio.Event().wait()
        yield TokenDelta(tokens=packed([9]), cached_tokens=0, finish_reason="stop")

    def cancel(self) -> None:
        self.is_cancelled = True


class MarkedFleet(Fleet):
    """One whose `marked` replicas have fallen silent, though none of them has ever spoken."""

    marked: frozenset[str] = frozenset()
    nobody = False

    @property
    def routable(self) -> tuple[str, ...]:
        return () if self.nobody else super().routable

    @property
    def silent(self) -> frozenset[str]:
        return self.marked


class World:
    """A plane with its stand-in for Serve. The replicas' event sockets lead nowhere: no credit, but routable."""

    def __init__(self) -> None:
        self.handle = Handle()
        self.fleet = MarkedFleet(model="m")
        self.plane = ModelPlane(deployment="Worker-m", fleet=self.fleet, handle=self.handle, clock=lambda: 1.0)

    def stream(self, *, max_tokens: int = 2) -> Any:
        return self.plane.start_stream(job_of(max_tokens=max_tokens))


def job_of(*, max_tokens: int = 2) -> Job:
    sampling = Sampling(max_tokens=max_tokens)
    tenant = Tenant(id="t", salt="")
    return Job(request_id="r", model="m", tokens=packed([0, 2, 3]), sampling=sampling, tenant=tenant)


def info(name: str, one: Replica | None) -> dict[str, Any]:
    return ReplicaInfo(
        replica=name,
        incarnation="i",
        model="m",
        block_size=16,
        pool_blocks=64,
        max_model_len=4096,
        events="tcp://127.0.0.1:9",
        snapshots="tcp://127.0.0.1:9",
        data=one.endpoint if one else None,
    ).to_metadata()


@asynccontextmanager
async def world(**replicas: Replica | None) -> AsyncIterator[World]:
    """Everything is given back on the way out: reservations, slots, streams, places in Serve's queue."""
    found = World()
    MEMBERSHIP.update("Worker-m", {name: info(name, one) for name, one in replicas.items()})
    found.plane.start()
    await until(lambda: len(found.fleet.routable) == len(replicas))
    await until(lambda: all(one.server.connections for one in replicas.values() if one))
    try:
        yield found
        live = [one for one in replicas.values() if one]
        await until(lambda: all(one.slots.held == one.speaker.running == 0 for one in live))
        assert (found.fleet.open_reservations, found.plane.queued, found.plane.data.streams) == (0, 0, 0)
        assert not found.plane.streams
        found.fleet.check_integrity()
    finally:
        await found.plane.close()
        MEMBERSHIP._listeners.pop("Worker-m")
        MEMBERSHIP._replicas.pop("Worker-m")


async def said(stream: Any) -> bytes:
    """All its tokens; closed afterwards, as a pump does."""
    try:
        return b"".join([delta.tokens async for delta in stream])
    finally:
        await stream.aclose()
        await stream.aclose()


async def test_a_generation_goes_over_the_data_plane_to_the_replica_that_was_chosen() -> None:
    """Serve's handle is not touched, and the reservation is given back."""
    async with replica() as one, replica() as other, world(a=one, b=other) as here:
        stream = here.stream()
        chosen = {"a": one, "b": other}[stream.routed.replica]
        assert await said(stream) == packed([1, 2])
        assert len(chosen.speaker.asked) == 1
        assert here.handle.calls == []


async def test_a_busy_replicas_turn_goes_to_the_next_candidate_and_the_books_follow() -> None:
    """The route says so, and promises no cached tokens there."""
    async with replica(limit=0) as one, replica() as other, world(a=one, b=other) as here:
        streams = [here.stream() for _ in range(6)]
        assert await asyncio.gather(*map(said, streams)) == [packed([1, 2])] * 6
        assert {stream.routed.replica for stream in streams} == {"b"}
        assert here.handle.calls == []


async def test_when_all_are_busy_serve_queues_and_later_calls_wait_behind() -> None:
    """Or those that come later would take every slot from those that wait."""
    async with replica(limit=0) as one, world(a=one) as here:
        first = asyncio.create_task(said(here.stream()))
        await until(lambda: here.plane.queued == 1)
        one.slots.limit = 10
        second = asyncio.create_task(said(here.stream()))
        await until(lambda: here.plane.queued == 2)
        assert one.speaker.asked == []
        here.handle.free.set()
        assert list(await asyncio.gather(first, second)) == [packed([9])] * 2
        assert await said(here.stream()) == packed([1, 2])


async def test_a_replica_without_a_data_plane_is_reached_through_serve() -> None:
    """And so is every replica of a cluster that is set to use the handle."""
    async with world(a=None) as here:
        here.handle.free.set()
        assert await said(here.stream()) == packed([9])
        assert here.handle.calls[0].route.candidates == ("a",)


async def test_a_replica_that_dies_in_a_generation_ends_it_and_the_next_is_served_elsewhere() -> None:
    """No second try for what had begun."""
    async with replica() as one, replica() as other, world(a=one, b=other) as here:
        one.speaker.gate.clear()
        other.speaker.gate.clear()
        stream = here.stream()
        task = asyncio.create_task(said(stream))
        dying, living = (one, other) if stream.routed.replica == "a" else (other, one)
        await until(lambda: dying.speaker.running == 1)
        assert dying.server._server is not None
        dying.server._server.close()
        for connection in dying.server.connections:
            connection.abort()
        with pytest.raises(ReplicaGone, match="the connection to the replica was lost"):
            await task
        fresh = here.stream()
        assert fresh.routed.replica == ("b" if dying is one else "a")  # at once
        await fresh.aclose()
        living.speaker.gate.set()
        for _ in range(4):
            assert await said(here.stream()) == packed([1, 2])
        assert len(living.speaker.asked) == 4


@pytest.mark.parametrize("served_by", ["tcp", "handle"])
async def test_stall_check_s_stops_a_silent_replica_from_holding_its_streams(served_by: str) -> None:
    """Two looks, STALL_CHECK_S apart, find nothing new and its lease ended: the stream ends, after what it brought, and
    the replica is told to stop. A stream that still brings something goes on, and so does one of a replica that
    speaks."""
    assert 4 * STALL_CHECK_S <= LEASE_S
    async with replica() as one, world(a=one if served_by == "tcp" else None, b=None) as here:
        one.speaker.gate.clear()
        here.handle.stalls = True
        here.handle.free.set()
        stream: Any = here.plane.start_stream(job_of(), exclude=frozenset({"b"}))
        task = asyncio.create_task(said(stream))
        await until(lambda: one.speaker.running == 1 or stream.heard == 1)
        for marked in (frozenset[str](), frozenset({"b"})):
            here.fleet.marked = marked
            here.plane.give_up_stalled()
            here.plane.give_up_stalled()
        here.fleet.marked = frozenset({"a"})
        here.plane.give_up_stalled()
        stream.heard += 1  # something new
        here.plane.give_up_stalled()
        await asyncio.sleep(0)
        assert not task.done()
        here.plane.give_up_stalled()
        with pytest.raises(ReplicaGone, match="fallen silent"):
            await task
        assert all(call.is_cancelled for call in here.handle.calls)
        one.speaker.gate.set()


async def test_with_nobody_left_a_stalled_stream_is_waited_for() -> None:
    """Its replica may speak again; giving it up would lose the answer for certain."""
    async with replica() as one, world(a=one) as here:
        one.speaker.gate.clear()
        task = asyncio.create_task(said(here.stream()))
        await until(lambda: one.speaker.running == 1)
        here.fleet.marked = frozenset({"a"})
        here.fleet.nobody = True
        for _ in range(3):
            here.plane.give_up_stalled()
        one.speaker.gate.set()
        assert await task == packed([1, 2])


async def test_a_replica_whose_connection_ends_is_passed_over_though_it_had_nothing_to_do() -> None:
    """As after SIGKILL: before its lease ends, and before Serve says so."""
    async with replica() as one, replica() as other, world(a=one, b=other) as here:
        assert here.fleet.choose(PromptBlocks(3, {}), 1.0, exclude=frozenset({"b"})).candidates == ("a",)
        here.fleet.finish(1, 1.0)
        for connection in list(one.server.connections):
            connection.abort()
        await until(lambda: [row.replica for row in here.fleet.status(1.0) if row.routable] == ["b"])
        for _ in range(4):
            assert await said(here.stream()) == packed([1, 2])
        assert (len(one.speaker.asked), len(other.speaker.asked)) == (0, 4)


async def test_without_replicas_nothing_is_reserved() -> None:
    """The client is told to come back."""
    async with world() as here:
        with pytest.raises(NoReplica):
            here.stream()


@pytest.mark.parametrize("has_data", [True, False])
async def test_240_early_disconnects_give_every_reservation_slot_and_stream_back(has_data: bool) -> None:
    """On either way, at any stage, busy replicas and Serve's queue included."""
    rng = random.Random(1)
    async with replica(limit=AT_ONCE // 3) as one, world(a=one if has_data else None) as here:
        for turn in range(DISCONNECTS // AT_ONCE):
            if turn % 2:
                here.handle.free.set()
            else:
                here.handle.free.clear()
            await asyncio.gather(*(leave_early(here, rng.randrange(20)) for _ in range(AT_ONCE)))
        assert all(call.is_cancelled for call in here.handle.calls)
        assert bool(here.handle.calls) == (one.slots.limit < AT_ONCE or not has_data)


async def leave_early(here: World, patience: int) -> None:
    """A client that leaves after some turns of the loop, with all that its request had begun."""
    stream = here.stream(max_tokens=10**6)
    task = asyncio.create_task(said(stream))
    for _ in range(patience):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stream.aclose()
