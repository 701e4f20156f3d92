"""The subscriber over real sockets: joins, follows, loses, recovers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
import zmq

from router import limits
from router.feed import State
from router.fleet import Action, Fleet, ReplicaInfo
from router.subscriber import Subscriber
from router.wire import (
    Frame,
    Load,
    Op,
    SnapshotChunk,
    Stored,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
    encode_snapshot_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD = Load(1, 0, 0, 90, 100)


class Replica:
    """The other side, raw: a PUB and a ROUTER on loopback, and a task that beats and answers."""

    def __init__(self, context: zmq.Context[Any], name: str, incarnation: str = "i1") -> None:
        self.name, self.incarnation, self.seq = name, incarnation, -1
        self.blocks: set[int] = set()
        self.answered = 0
        self.mute = False
        self.events, self.snapshots = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for socket in (self.events, self.snapshots):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind("tcp://127.0.0.1:0")

    @property
    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            replica=self.name,
            incarnation=self.incarnation,
            model="m",
            block_size=16,
            pool_blocks=100,
            max_model_len=4096,
            events=self.events.getsockopt_string(zmq.LAST_ENDPOINT),
            snapshots=self.snapshots.getsockopt_string(zmq.LAST_ENDPOINT),
        )

    def frame(self, ops: tuple[Op, ...]) -> bytes:
        return encode_frame(Frame(self.name, self.incarnation, self.seq, time.time(), ops, LOAD, 16))

    def store(self, *hashes: int, lost: int = 0) -> None:
        """Publish one block per frame; the last `lost` frames never leave."""
        for at, block in enumerate(hashes):
            self.seq += 1
            self.blocks.add(block)
            if at < len(hashes) - lost:
                self.events.send(self.frame((Stored("gpu", (block,)),)))

    async def serve(self) -> None:
        while True:
            if not self.mute:
                self.events.send(self.frame(()))
                self.answer()
            await asyncio.sleep(0.02)

    def answer(self) -> None:
        while self.snapshots.poll(0):
            identity, request = self.snapshots.recv_multipart()
            nonce = decode_snapshot_request(request)
            held = tuple(self.blocks)
            parts = [held[0::2], held[1::2]]
            for index, part in enumerate(parts):
                runs = (Stored("gpu", part),) if part else ()
                chunk = SnapshotChunk(self.name, self.incarnation, self.seq, index, 2, 16, runs)
                self.snapshots.send_multipart([identity, encode_chunk(chunk, nonce=nonce)])
            self.answered += 1

    def close(self) -> None:
        self.events.close()
        self.snapshots.close()


class Scene:
    """A fleet, its running subscriber, and replicas with their tasks."""

    def __init__(self, fleet: Fleet) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.fleet = fleet
        self.subscriber = Subscriber(self.fleet, time.monotonic)
        self.replicas: list[Replica] = []
        self.tasks = [asyncio.create_task(self.subscriber.run())]

    def replica(self, name: str, *hashes: int) -> Replica:
        made = Replica(self.context, name)
        made.store(*hashes)
        self.replicas.append(made)
        self.tasks.append(asyncio.create_task(made.serve()))
        self.subscriber.add(made.info)
        return made

    def exact(self, replica: Replica) -> bool:
        shown = self.fleet.resident(replica.name)["gpu"]
        return not self.fleet.fenced(replica.name) and shown == replica.blocks

    async def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, self.fleet.status(time.monotonic())
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        await self.subscriber.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for replica in self.replicas:
            replica.close()
        self.context.term()


def played(play: Callable[[Scene], Any], *, fleet: Fleet | None = None) -> None:
    async def run() -> None:
        scene = Scene(fleet or Fleet(model="m"))
        try:
            await play(scene)
            scene.fleet.check_integrity()
        finally:
            await scene.end()

    asyncio.run(run())


def test_it_joins_by_snapshot_and_follows_the_stream() -> None:
    """Several replicas, each exact; what was published before the subscription is known too."""

    async def play(scene: Scene) -> None:
        one, two = scene.replica("a", 1, 2, 3), scene.replica("b")
        await scene.until(lambda: scene.exact(one) and scene.exact(two))
        one.store(4, 5)
        two.store(*range(100, 180))
        await scene.until(lambda: scene.exact(one) and scene.exact(two))
        assert scene.fleet.routable == ("a", "b")

    played(play)


def test_lost_frames_at_the_end_of_the_stream_are_repaired() -> None:
    """The next heartbeat tells, a snapshot repairs."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        before = one.answered
        one.store(2, 3, 4, lost=2)
        await scene.until(lambda: scene.exact(one))
        assert one.answered > before

    played(play)


def test_a_restart_at_new_endpoints_is_followed_anew() -> None:
    """The old incarnation's blocks are gone when the new one is known."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1, 2)
        await scene.until(lambda: scene.exact(one))
        scene.tasks[1].cancel()
        again = Replica(scene.context, "a", "i2")
        again.store(7)
        scene.replicas.append(again)
        scene.tasks.append(asyncio.create_task(again.serve()))
        scene.subscriber.add(again.info)
        scene.subscriber.add(again.info)
        assert scene.fleet.resident("a")["gpu"] == frozenset()
        await scene.until(lambda: scene.exact(again))

    played(play)


def test_a_silent_replica_is_not_routable_until_it_speaks_again() -> None:
    """The lease runs on the router's own clock."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        one.mute = True
        await scene.until(lambda: scene.fleet.routable == ())
        one.mute = False
        await scene.until(lambda: scene.exact(one))

    played(play)


def test_a_blocked_loop_is_not_taken_for_silence() -> None:
    """What arrived during the pause is read before the lease is judged."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        one.store(2)
        before = scene.fleet.status(time.monotonic())[0].counters
        time.sleep(limits.LEASE_S + 0.3)
        one.store(3)
        await scene.until(lambda: scene.exact(one))
        after = scene.fleet.status(time.monotonic())[0].counters
        assert "live_to_expired_silence" not in after
        assert before["joining_to_live_synced"] == after["joining_to_live_synced"] == 1

    played(play)


def test_a_removed_replica_leaves_neither_blocks_nor_sockets() -> None:
    """Removing is complete, and safe to repeat."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        link = scene.subscriber._links["a"]
        scene.subscriber.remove("a")
        scene.subscriber.remove("a")
        assert link.events.closed
        assert link.snapshots.closed
        assert scene.fleet.routable == ()
        assert scene.fleet.block_sizes == frozenset()
        assert "links=0" in repr(scene.subscriber)

    played(play)


def test_garbage_and_oversized_messages_change_nothing() -> None:
    """Junk is counted; more than MAX_FRAME_BYTES costs the connection, which is opened anew; the stream goes on."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        for junk in (b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000):
            one.events.send(junk)
        await scene.until(lambda: scene.fleet.status(time.monotonic())[0].bad_messages == 4)
        assert scene.exact(one)
        one.events.send(bytes(limits.MAX_FRAME_BYTES + 1))
        await scene.until(lambda: scene.fleet.routable == ())
        one.store(2)
        await scene.until(lambda: scene.exact(one))
        assert scene.fleet.status(time.monotonic())[0].bad_messages == 4

    played(play)


def test_a_storm_of_frames_is_taken_in_batches_and_none_is_missed() -> None:
    """More than one batch at once, on one socket, without a further signal from ZMQ."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        for _ in range(100):
            one.store(*range(10, 40))
            one.blocks.clear()
            one.blocks.update({1, *range(10, 40)})
        assert 10 * limits.SUBSCRIBER_BATCH < 100 * 30
        await scene.until(lambda: scene.fleet.status(time.monotonic())[0].counters.get("applied_frames") == 3_000)
        assert scene.exact(one)
        assert scene.fleet.status(time.monotonic())[0].counters["joining_to_live_synced"] == 1

    played(play)


def test_a_broken_state_of_one_replica_starts_afresh_without_touching_the_others() -> None:
    """An invariant of our own that breaks costs one replica its history, not the process its events."""

    async def play(scene: Scene) -> None:
        one, two = scene.replica("a", 1), scene.replica("b", 2)
        await scene.until(lambda: scene.exact(one) and scene.exact(two))
        broken = scene.fleet._members["a"].feed
        broken._state = State.JOINING  # though all is applied: the next heartbeat is an illegal event
        await scene.until(lambda: scene.fleet._members["a"].feed is not broken)
        one.store(5, 6)
        await scene.until(lambda: scene.exact(one) and scene.exact(two))

    played(play)


class Flawed(Fleet):
    """Fails in ways that nobody foresaw, while `failing` names one of its methods."""

    failing = ""

    def on_frame(self, replica: str, data: bytes, now: float) -> list[Action]:
        self.fail("on_frame", replica)
        return super().on_frame(replica, data, now)

    def tick_replica(self, replica: str, now: float) -> list[Action]:
        self.fail("tick_replica", replica)
        return super().tick_replica(replica, now)

    def leave(self, replica: str, now: float) -> None:
        super().leave(replica, now)
        self.fail("leave", replica)

    def join(self, info: ReplicaInfo, now: float) -> list[Action]:
        self.fail("join", info.replica)
        return super().join(info, now)

    def sweep(self, now: float) -> None:
        self.fail("sweep", "a")
        super().sweep(now)

    def fail(self, method: str, replica: str) -> None:
        if method in self.failing and replica == "a":
            raise ZeroDivisionError(method)


@pytest.mark.parametrize("failing", ["on_frame", "tick_replica", "sweep", "on_frame leave", "tick_replica join"])
def test_nothing_unforeseen_ends_the_reading_or_touches_other_replicas(failing: str) -> None:
    """A task that ended would leave what it read last to be believed for ever. A replica that failed is exact again as
    soon as nothing fails any more."""

    async def play(scene: Scene) -> None:
        fleet = cast("Flawed", scene.fleet)
        one, two = scene.replica("a", 1), scene.replica("b", 2)
        await scene.until(lambda: scene.exact(one) and scene.exact(two))
        assert (scene.subscriber.running, scene.subscriber.fault) == (True, None)
        fleet.failing = failing
        await scene.until(lambda: scene.subscriber.fault is not None)
        assert "ZeroDivisionError" in str(scene.subscriber.fault)
        for block in range(10, 20):
            two.store(block)
            await scene.until(lambda: scene.exact(two))
        fleet.failing = ""
        one.store(3)
        await scene.until(lambda: "a" in fleet.routable and scene.exact(one))
        assert scene.subscriber.running
        await scene.subscriber.close()
        await scene.tasks[0]
        assert not scene.subscriber.running

    played(play, fleet=Flawed(model="m"))


def test_closing_twice_and_cancelling_leave_no_socket() -> None:
    """Whoever ends it, however often."""

    async def play(scene: Scene) -> None:
        one = scene.replica("a", 1)
        await scene.until(lambda: scene.exact(one))
        link = scene.subscriber._links["a"]
        scene.tasks[0].cancel()
        await asyncio.gather(scene.tasks[0], return_exceptions=True)
        assert link.events.closed
        await scene.subscriber.close()
        await scene.subscriber.close()

    played(play)


def test_subscriber_hwm_frames_stops_a_paused_router_from_queueing_without_end() -> None:
    """On every socket, with the size of a message: memory is bounded by the two."""

    async def play(scene: Scene) -> None:
        scene.replica("a")
        link = scene.subscriber._links["a"]
        for socket in (link.events, link.snapshots):
            assert socket.getsockopt(zmq.RCVHWM) == limits.SUBSCRIBER_HWM_FRAMES
            assert socket.getsockopt(zmq.MAXMSGSIZE) == limits.MAX_FRAME_BYTES
            assert socket.getsockopt(zmq.LINGER) == 0

    played(play)


def bind_when_free(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """ZMQ gives a closed socket's port back a little later."""
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_requests_hwm_stops_requests_from_piling_up_before_a_replica_that_does_not_listen() -> None:
    """What is too many is not sent: the feed asks again, and an old request's answer would be ignored."""
    context: zmq.Context[Any] = zmq.Context()
    replica = Replica(context, "a")
    info = replica.info
    replica.close()
    subscriber = Subscriber(Fleet(model="m"), lambda: 0.0)
    subscriber.add(info)
    for nonce in range(20):
        subscriber._perform([Action("a", encode_snapshot_request(nonce))])
    late = context.socket(zmq.ROUTER)
    bind_when_free(late, info.snapshots)
    received: list[list[bytes]] = []
    while late.poll(2_000 if not received else 300):
        received.append(late.recv_multipart())
    assert 0 < len(received) <= limits.REQUESTS_HWM
    asyncio.run(subscriber.close())
    late.close(linger=0)
    context.term()


def test_relink_interval_stops_sockets_from_being_opened_at_every_tick() -> None:
    """RELINK_INTERVAL_S passes between two attempts at a replica that stays silent; and they go on."""
    now = [0.0]
    subscriber = Subscriber(Fleet(model="m"), lambda: now[0])
    context: zmq.Context[Any] = zmq.Context()
    replica = Replica(context, "a")
    subscriber.add(replica.info)
    opened = set()
    for step in range(1, 201):
        now[0] = 0.1 * step
        subscriber._tick()
        opened.add(subscriber._links["a"].opened_at)
    assert len(opened) > 5
    assert min(later - sooner for sooner, later in pairwise(sorted(opened))) > limits.RELINK_INTERVAL_S
    asyncio.run(subscriber.close())
    replica.close()
    context.term()
