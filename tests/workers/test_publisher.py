"""The real publisher and the real subscriber over loopback sockets: what one publishes, the other's fleet shows."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
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
from router.wire import (
    Cleared,
    Load,
    Removed,
    SnapshotChunk,
    Stored,
    decode_chunk,
    decode_frame,
    encode_snapshot_request,
)
from workers import publisher as publisher_module
from workers.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

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


@contextmanager
def asking(publisher: Publisher, routers: int = 1) -> Iterator[list[zmq.Socket[bytes]]]:
    """Raw sockets of routers that may ask the publisher."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(routers)]
    for socket in sockets:
        socket.connect(publisher.snapshots)
    try:
        yield sockets
    finally:
        context.destroy(linger=0)


async def chunks_of(socket: zmq.Socket[bytes], nonce: int) -> list[SnapshotChunk]:
    """The whole answer to one request."""
    chunks: list[SnapshotChunk] = []
    while not chunks or len(chunks) < chunks[0].count:
        await until(lambda: bool(socket.poll(0)))
        chunk, answered = decode_chunk(socket.recv())
        if answered == nonce:
            chunks.append(chunk)
    return chunks


def test_a_big_snapshot_leaves_the_loop_to_others_between_its_chunks_and_is_of_one_moment() -> None:
    """Encoding a million blocks in one go would hold up every token of the replica; and what is stored meanwhile is in
    no chunk, or the snapshot would show blocks under a number that does not have them."""

    async def run() -> None:
        source = Source()
        source.store(*range(SNAPSHOT_CHUNK_HASHES * 4))
        turns = 0
        sent_at: list[int] = []

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                source.store(10**9 + turns)
                await asyncio.sleep(0)

        def watched(nonce: int) -> Iterator[bytes]:
            for chunk in snapshot(nonce):
                sent_at.append(turns)
                yield chunk

        snapshot = source.publisher._announcer.snapshot
        source.publisher._announcer.snapshot = watched  # type: ignore[method-assign]
        source.publisher.start()
        task = asyncio.create_task(others())
        with asking(source.publisher) as (router,):
            router.send(encode_snapshot_request(1))
            chunks = await chunks_of(router, 1)
        task.cancel()
        assert len(chunks) == len(set(sent_at)) == 5
        assert len({chunk.seq for chunk in chunks}) == 1
        shown = {block for chunk in chunks for run in chunk.blocks for block in run.hashes}
        assert shown == {*range(SNAPSHOT_CHUNK_HASHES * 4), *range(10**9 + 1, 10**9 + 1 + chunks[0].seq)}
        await source.publisher.close()

    asyncio.run(run())


def test_a_newer_request_of_a_router_replaces_the_one_before() -> None:
    """It would ignore the rest of the old answer."""

    async def run() -> None:
        source = Source()
        source.store(*range(SNAPSHOT_CHUNK_HASHES * 2 + 1))
        publisher = source.publisher
        with asking(publisher) as (router,):
            router.send(encode_snapshot_request(1))
            await until(lambda: bool(publisher._router.poll(0)))
            publisher._take_requests()
            publisher._send_chunk()
            router.send(encode_snapshot_request(2))
            await until(lambda: bool(publisher._router.poll(0)))
            publisher.start()
            assert len(await chunks_of(router, 2)) == 3
            await until(lambda: not publisher._answers)
            assert router.poll(100) == 0, "two chunks of the first request were never sent"
        await publisher.close()

    asyncio.run(run())


def test_a_router_that_asks_and_leaves_does_not_keep_others_from_their_answer() -> None:
    async def run() -> None:
        source = Source()
        source.store(1, 2, 3)
        publisher = source.publisher
        with asking(publisher) as (gone,):
            gone.send(encode_snapshot_request(1))
            await until(lambda: bool(publisher._router.poll(0)))
        publisher.start()
        with asking(publisher) as (router,):
            router.send(encode_snapshot_request(2))
            assert [run.hashes for run in (await chunks_of(router, 2))[0].blocks] == [(1, 2, 3)]
        await publisher.close()

    asyncio.run(run())


def test_max_waiting_snapshots_and_requests_at_once_stop_a_flood_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond MAX_WAITING_SNAPSHOTS a router is not answered, and asks again; no more than REQUESTS_AT_ONCE are read
    before others get their turn."""
    monkeypatch.setattr(publisher_module, "MAX_WAITING_SNAPSHOTS", 2)
    monkeypatch.setattr(publisher_module, "REQUESTS_AT_ONCE", 1)

    async def run() -> None:
        source = Source()
        source.store(7)
        publisher = source.publisher
        waiting = []
        with asking(publisher, routers=3) as routers:
            for router in routers:
                router.send(encode_snapshot_request(1))
            for _ in routers:
                await until(lambda: bool(publisher._router.poll(0)))
                publisher._take_requests()
                waiting.append(len(publisher._answers))
            assert waiting == [1, 2, 2]
            publisher.start()
            await until(lambda: sum(bool(router.poll(0)) for router in routers) == 2 and not publisher._answers)
            [refused] = [router for router in routers if not router.poll(0)]
            refused.send(encode_snapshot_request(2))
            assert len(await chunks_of(refused, 2)) == 1
        await publisher.close()

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
