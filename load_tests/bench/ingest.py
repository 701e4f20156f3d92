"""Events over ZMQ into the index, from the first byte sent until the last block is found.

ingest_engine_frames  vLLM's batches (tokens in them) through socket, relay and index in one process, which is what the
                      peer's `SelectionService` does.
ingest_kvist_frames   what reaches Kvist's ingress: hash-only frames of real publishers, through a real subscriber and
                      fleet. The same blocks in the same portions; compared with the peer's figure for engine frames,
                      the only ones it takes.

Rates are per second of the one CPU that a side may use, all its threads counted: on a quiet machine the same as by the
clock, for neither side waits. The sender is the same for both sides and sits on another CPU where there is one. Pools
are as in `workload.token_runs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from typing import TYPE_CHECKING, Final

import zmq

from load_tests.bench import workload
from load_tests.bench.index import GPU, MODEL, name_of
from load_tests.bench.sender import EngineSender, FrameSender, SenderFailed
from load_tests.bench.timing import Group, Values
from router.fleet import Fleet
from router.hashing import block_hashes, seed_of
from router.index import Index
from router.subscriber import Subscriber
from router.wire import Stored
from workers.relay import Relay

if TYPE_CHECKING:
    from load_tests.bench.peer import Peer
    from load_tests.bench.workload import Sizes
    from router.wire import Op

ENGINE_ROW, KVIST_ROW = "ingest_engine_frames_blocks_per_s", "ingest_kvist_frames_blocks_per_s"
POLL_S: Final = 0.02  # waiting costs no CPU time
LIMIT_S: Final = 60.0
GREETING_S: Final = 0.05
Socket = zmq.Socket[bytes]


class Ingesting(Group):
    """Fresh sockets, relays and indexes in every round."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._runs = workload.token_runs(sizes)
        self._frames = [(run.run.replica, workload.engine_frame(run, sizes)) for run in self._runs]
        self._ops = _ops_of(self._runs, sizes)
        self._blocks = sum(len(run.run.hashes) for run in self._runs)

    def kvist(self) -> Values:
        engine_s = self._engine_frames()
        return {ENGINE_ROW: self._blocks / engine_s, KVIST_ROW: self._blocks / asyncio.run(self._kvist_frames())}

    def peer(self, peer: Peer) -> Values:
        sizes = self._sizes
        file = peer.file("ingest-last", workload.last_prompts(self._runs))
        with EngineSender(self._frames, replicas=sizes.ingest_replicas) as sender:
            peer.ask(
                "subscribe", endpoints=sender.endpoints, block_size=sizes.block_size, pool_blocks=sizes.ingest_blocks
            )
            peer.send("wait", file=file, block_size=sizes.block_size, limit_s=LIMIT_S)
            sender.go()
            rate = self._blocks / peer.answer()
            peer.ask("unsubscribe")
        return {ENGINE_ROW: rate, KVIST_ROW: rate}

    def _engine_frames(self) -> float:
        replicas, context = range(self._sizes.ingest_replicas), zmq.Context[Socket](io_threads=1)
        index = Index()
        for replica in replicas:
            index.add(name_of(replica), pool_blocks=self._sizes.ingest_blocks)
        with EngineSender(self._frames, replicas=len(replicas)) as sender, contextlib.ExitStack() as stack:
            stack.callback(context.destroy, linger=0)
            sockets = [_subscribed(context, endpoint) for endpoint in sender.endpoints]
            start = time.process_time()
            sender.go()
            self._relay_all(sockets, index)
            return time.process_time() - start

    def _relay_all(self, sockets: list[Socket], index: Index) -> None:
        poller, left = zmq.Poller(), self._blocks
        ends = {}
        for replica, socket in enumerate(sockets):
            poller.register(socket, zmq.POLLIN)
            ends[socket] = name_of(replica), Relay(model=MODEL, block_size=self._sizes.block_size)
        while left:
            ready = poller.poll(int(LIMIT_S * 1_000))
            if not ready:
                raise SenderFailed(f"{left} blocks never came")
            for socket, _ in ready:
                left -= _relay_some(socket, index, *ends[socket])

    async def _kvist_frames(self) -> float:
        sizes = self._sizes
        fleet = Fleet(model=MODEL)
        subscriber = Subscriber(fleet, time.monotonic)
        with FrameSender(
            self._ops, replicas=sizes.ingest_replicas, block_size=sizes.block_size, pool_blocks=sizes.ingest_blocks
        ) as sender:
            for info in sender.infos:
                subscriber.add(info)
            running = asyncio.create_task(subscriber.run())
            try:
                greetings = await _greeted(fleet, sender)
                start, deadline = time.process_time(), time.monotonic() + LIMIT_S
                sender.go()
                expected = self._blocks + greetings * sizes.ingest_replicas
                while (held := _held(fleet)) < expected:
                    if time.monotonic() > deadline:
                        raise SenderFailed(f"{expected - held} blocks never came")
                    await asyncio.sleep(POLL_S)
                return time.process_time() - start
            finally:
                await subscriber.close()
                await running


def _ops_of(runs: list[workload.TokenRun], sizes: Sizes) -> list[tuple[int, Op]]:
    """What a relay makes of the runs: one operation each."""
    links: dict[int | None, int] = {None: seed_of(MODEL)}
    ops: list[tuple[int, Op]] = []
    for (replica, parent, engine_hashes), tokens in runs:
        hashes = block_hashes(tokens.tobytes(), block_size=sizes.block_size, seed=links[parent])
        links[engine_hashes[-1]] = hashes[-1]
        ops.append((replica, Stored(GPU, tuple(hashes))))
    return ops


def _subscribed(context: zmq.Context[Socket], endpoint: str) -> Socket:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(endpoint)
    socket.subscribe(b"")
    return socket


def _relay_some(socket: Socket, index: Index, replica: str, relay: Relay) -> int:
    """Blocks of what has arrived on one socket, when they are in the index."""
    blocks = 0
    with contextlib.suppress(zmq.Again):
        while True:
            _, number, payload = socket.recv_multipart(zmq.NOBLOCK)
            verdict = relay.apply(struct.unpack(">Q", number)[0], payload)
            if verdict.verdict != "applied":
                raise SenderFailed(f"the relay of {replica}: {', '.join(verdict.reasons)}")
            index.apply(replica, verdict.ops)
            blocks += sum(len(op.hashes) for op in verdict.ops if isinstance(op, Stored))
    return blocks


async def _greeted(fleet: Fleet, sender: FrameSender) -> int:
    """Greet until every stream is live and has brought two frames in order; how often that took."""
    deadline = time.monotonic() + LIMIT_S
    greetings = 0
    while any(one.fenced or one.counters.get("applied_frames", 0) < 2 for one in fleet.status(time.monotonic())):
        if time.monotonic() > deadline:
            raise SenderFailed("the streams of the publishers did not become live")
        sender.greet()
        greetings += 1
        await asyncio.sleep(GREETING_S)
    return greetings


def _held(fleet: Fleet) -> int:
    return sum(one.blocks[GPU] for one in fleet.status(time.monotonic()))
