"""The real publisher and the real subscriber over loopback sockets: what one publishes, the other's fleet shows."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

from router.curve import ClientCurve, CurveKeys, ServerCurve
from router.fleet import Fleet
from router.limits import (
    LEASE_S,
    MAX_FRAME_BYTES,
    MAX_FRAME_HASHES,
    PUBLISHER_HWM_FRAMES,
    SNAPSHOT_CHUNK_HASHES,
    SNAPSHOT_REPLIES_HWM,
)
from router.replicas import ReplicaInfo
from router.subscriber import Subscriber
from router.wire import Cleared, Load, Removed, Stored, decode_frame
from workers.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POOL_BLOCKS = 400_000
LIMIT_S = 20.0


class Source:
    """The shown blocks of a pretended relay, and the publisher over it."""

    def __init__(self, incarnation: str = "one", curve: ServerCurve | None = None) -> None:
        self.blocks: set[int] = set()
        self.publisher = Publisher(
            host="127.0.0.1",
            replica="r",
            incarnation=incarnation,
            block_size=16,
            resident=lambda: (Stored("gpu", tuple(self.blocks)),) if self.blocks else (),
            load=lambda: Load(1, 2, 3, 4, 5),
            curve=curve,
        )

    def store(self, *hashes: int) -> None:
        self.blocks.update(hashes)
        self.publisher.publish((Stored("gpu", hashes),))

    def remove(self, *hashes: int) -> None:
        self.blocks.difference_update(hashes)
        self.publisher.publish((Removed("gpu", hashes),))

    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            replica="r",
            incarnation=self.publisher.incarnation,
            model="m",
            block_size=16,
            pool_blocks=POOL_BLOCKS,
            max_model_len=1024,
            events=self.publisher.events,
            snapshots=self.publisher.snapshots,
        )


@asynccontextmanager
async def following(source: Source, curve: ClientCurve | None = None) -> AsyncIterator[Fleet]:
    """A fleet that follows the source, ended with its sockets."""
    fleet = Fleet(model="m")
    subscriber = Subscriber(fleet, time.monotonic, curve=curve)
    running = asyncio.create_task(subscriber.run())
    source.publisher.start()
    subscriber.add(source.info())
    try:
        yield fleet
    finally:
        await subscriber.close()
        await running
        await source.publisher.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


def shows(fleet: Fleet, blocks: set[int]) -> bool:
    shown = fleet.resident("r").get("gpu", frozenset())
    return not fleet.fenced("r") and shown == blocks


def test_a_subscriber_that_joins_late_gets_everything_then_follows() -> None:
    """A snapshot in several chunks, then live frames: stored, removed, cleared."""

    async def run() -> None:
        source = Source()
        source.store(*range(1, SNAPSHOT_CHUNK_HASHES * 2 + 10))
        async with following(source) as fleet:
            await until(lambda: shows(fleet, source.blocks))
            source.remove(*range(1, 1000))
            source.store(10**15)
            await until(lambda: shows(fleet, source.blocks))
            source.blocks.clear()
            source.publisher.publish((Cleared(),))
            await until(lambda: shows(fleet, set()))

    asyncio.run(run())


def test_a_frame_never_holds_more_hashes_than_a_decoder_takes() -> None:
    """MAX_FRAME_HASHES: one giant operation goes out as several frames and arrives whole."""

    async def run() -> None:
        source = Source()
        async with following(source) as fleet:
            await until(lambda: shows(fleet, set()))
            source.publisher.publish((Removed("gpu", tuple(range(MAX_FRAME_HASHES + 5))), Stored("gpu", (7,))))
            source.blocks = {7}
            await until(lambda: shows(fleet, {7}))
            assert fleet.status(time.monotonic())[0].bad_messages == 0

    asyncio.run(run())


def test_heartbeats_carry_the_last_number_and_the_load() -> None:
    """Silence of the engine is not silence of the replica, and a lost tail shows."""

    async def run() -> None:
        source = Source()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        raw = context.socket(zmq.SUB)
        raw.subscribe(b"")
        raw.connect(source.publisher.events)
        source.publisher.start()
        await asyncio.sleep(0.3)
        source.store(1)
        frames = []
        for _ in range(400):
            while raw.poll(0):
                frames.append(decode_frame(raw.recv()))
            if len(frames) >= 4 and frames[-1].seq == 0 and not frames[-1].ops:
                break
            await asyncio.sleep(0.02)
        assert [frame.seq for frame in frames if frame.ops] == [0]
        assert {frame.seq for frame in frames if not frame.ops} == {-1, 0}
        assert all(frame.load == Load(1, 2, 3, 4, 5) for frame in frames)
        raw.close(linger=0)
        context.term()
        await source.publisher.close()

    asyncio.run(run())


def test_a_subscriber_that_sleeps_costs_the_publisher_nothing_and_catches_up() -> None:
    """Frames beyond the high-water mark are dropped; the gap is noticed and repaired from a snapshot."""

    async def run() -> None:
        source = Source()
        async with following(source) as fleet:
            await until(lambda: shows(fleet, set()))
            for start in range(0, 60_000, 2):  # nothing reads meanwhile: this loop never yields
                source.store(start, start + 1)
            await until(lambda: shows(fleet, source.blocks))
            assert len(source.blocks) == 60_000

    asyncio.run(run())


@pytest.mark.parametrize("request_bytes", [b"", b"\xc1", msgpack.packb({"v": 1}), b"\x00" * 1000])
def test_a_malformed_snapshot_request_is_ignored(request_bytes: bytes) -> None:
    """And the next good one is answered."""

    async def run() -> None:
        source = Source()
        source.store(5)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        raw = context.socket(zmq.DEALER)
        raw.connect(source.publisher.snapshots)
        raw.send(request_bytes)
        raw.send_multipart([b"a", b"b", b"c"])
        async with following(source) as fleet:
            await until(lambda: shows(fleet, {5}))
            assert raw.poll(0) == 0
        raw.close(linger=0)
        context.term()

    asyncio.run(run())


def test_publisher_hwm_frames_and_snapshot_replies_hwm_stop_slow_readers_from_filling_memory() -> None:
    """Frames wait for each subscriber up to PUBLISHER_HWM_FRAMES, parts of snapshots up to SNAPSHOT_REPLIES_HWM."""

    async def run() -> None:
        publisher = Source().publisher
        for socket, hwm in ((publisher._pub, PUBLISHER_HWM_FRAMES), (publisher._router, SNAPSHOT_REPLIES_HWM)):
            assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == hwm
            assert socket.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES
            assert socket.getsockopt(zmq.LINGER) == 0
        await publisher.close()

    asyncio.run(run())


SERVER, FRIEND, STRANGER = CurveKeys.generate(), CurveKeys.generate(), CurveKeys.generate()
GUARD = ServerCurve(SERVER, frozenset({FRIEND.public}))


def test_with_keys_a_subscriber_that_is_allowed_follows_as_without() -> None:
    """Events and snapshots, encrypted."""

    async def run() -> None:
        source = Source(curve=GUARD)
        source.store(1, 2, 3)
        async with following(source, curve=ClientCurve(FRIEND, SERVER.public)) as fleet:
            await until(lambda: shows(fleet, {1, 2, 3}))
            source.store(4)
            await until(lambda: shows(fleet, {1, 2, 3, 4}))

    asyncio.run(run())


@pytest.mark.parametrize(
    "curve",
    [None, ClientCurve(STRANGER, SERVER.public), ClientCurve(FRIEND, STRANGER.public)],
    ids=["no keys", "keys that are not allowed", "another server's key"],
)
def test_with_keys_a_subscriber_without_the_right_ones_hears_nothing(curve: ClientCurve | None) -> None:
    """Not a frame and no snapshot, for longer than the lease."""

    async def run() -> None:
        source = Source(curve=GUARD)
        source.store(1, 2, 3)
        async with following(source, curve=curve) as fleet:
            await asyncio.sleep(LEASE_S + 0.5)
            assert fleet.routable == ()
            assert fleet.resident("r").get("gpu", frozenset()) == frozenset()

    asyncio.run(run())
