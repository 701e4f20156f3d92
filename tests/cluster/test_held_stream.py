"""A held generation begins when it may, and leaves its place when its client goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cluster.backend import Job, Routed
from cluster.held_stream import HeldStream
from cluster.serve_plane import Asked
from cluster.tenants import Tenant
from router.admission import Hold
from router.errors import NoReplica
from router.replicas import PromptBlocks
from workers.engine import Sampling, TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

JOB = Job(request_id="r", model="m", tokens=b"", sampling=Sampling(max_tokens=1), tenant=Tenant(id="t", salt=""))
ASKED = Asked(PromptBlocks(10, {}, "t/s"), 0.0, 0.0)


class Begun:
    """What a plane begins: one delta."""

    def __init__(self) -> None:
        self.routed = Routed(replica="a", predicted_cached_tokens=0)
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(finish_reason="stop")

    async def aclose(self) -> None:
        self.closed += 1


class Plane:
    """Holds `holds` times; then begins, or fails."""

    def __init__(self, *, holds: int, fault: Exception | None = None) -> None:
        self.fleet = self
        self.holds = holds
        self.fault = fault
        self.begun = Begun()
        self.left: list[str] = []

    def clock(self) -> float:
        return 0.0

    def hold(self, prompt: PromptBlocks, now: float) -> Hold | None:
        self.holds -= 1
        return Hold("why", 0.0) if self.holds >= 0 else None

    def leave_held(self, session: str) -> None:
        self.left.append(session)

    def begin(self, job: Job, asked: Asked) -> Begun:
        if self.fault is not None:
            raise self.fault
        return self.begun


def held(plane: Any) -> HeldStream:
    return HeldStream(plane, JOB, ASKED)


async def test_it_asks_until_it_may_begin_and_then_is_what_it_began() -> None:
    """Where it goes is known from then on; closing it closes that, and gives up no place."""
    plane = Plane(holds=3)
    stream = held(plane)
    assert [stream.routed] == [None]
    assert [delta.finish_reason async for delta in stream] == ["stop"]
    assert stream.routed == plane.begun.routed
    await stream.aclose()
    assert (plane.begun.closed, plane.left) == (1, [])


async def test_a_client_that_goes_while_it_is_held_leaves_its_place() -> None:
    """Cancelled where it waits, then closed, twice: as a pump does."""
    plane = Plane(holds=10**9)
    stream = held(plane)
    reading = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await stream.aclose()
    await stream.aclose()
    assert set(plane.left) == {"t/s"}
    assert plane.begun.closed == 0


async def test_when_nobody_is_routable_at_its_turn_it_says_so() -> None:
    """As a generation that was not held does at once."""
    with pytest.raises(NoReplica):
        await anext(aiter(held(Plane(holds=1, fault=NoReplica("none")))))
