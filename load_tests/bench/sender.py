"""The senders of the ingest measures: a process of its own, on another CPU than the receivers where there is one.

`EngineSender` is an engine's socket for whoever listens, Kvist or a peer. `FrameSender` is one real `Publisher` for
each replica. Both send everything as fast as it goes, on `go`, when all receivers are known to be connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import struct
from typing import TYPE_CHECKING, Final, Self

import zmq

from load_tests.bench.index import GPU, LOAD, name_of
from router.errors import KvistError
from router.replicas import ReplicaInfo
from router.wire import Stored
from workers.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

    from router.wire import Op

TOPIC: Final = b"kv-events"
CONNECT_LIMIT_S: Final = 60.0
COMMAND_LOOK_S: Final = 0.001
LOOPBACK: Final = "127.0.0.1"


class SenderFailed(KvistError):
    """The sending process has ended, or its receivers never came."""


class _Sender:
    """A child process and the pipe to it."""

    def __init__(self, body: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=body, args=(self._theirs, *arguments), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def _answer(self) -> object:
        try:
            if self._pipe.poll(CONNECT_LIMIT_S):
                return self._pipe.recv()
        except (EOFError, OSError):
            pass
        raise SenderFailed("the process that sends events has ended, or nobody listens to it")


class EngineSender(_Sender):
    """Batches as engines send them: `(replica, payload)` in order."""

    def __init__(self, frames: list[tuple[int, bytes]], *, replicas: int) -> None:
        super().__init__(_send_engine_frames, frames, replicas)

    def __enter__(self) -> Self:
        super().__enter__()
        self.endpoints: list[str] = list(map(str, _listed(self._answer())))
        return self

    def go(self) -> None:
        """Send, as soon as every replica's socket has a subscriber; returns when sending begins."""
        self._answer()
        self._pipe.send("go")


class FrameSender(_Sender):
    """Kvist's own frames: `(replica, operation)` in order, each a frame of its own."""

    def __init__(self, ops: list[tuple[int, Op]], *, replicas: int, block_size: int, pool_blocks: int) -> None:
        super().__init__(_run_publishers, ops, replicas, block_size, pool_blocks)

    def __enter__(self) -> Self:
        super().__enter__()
        self.infos = [info for info in _listed(self._answer()) if isinstance(info, ReplicaInfo)]
        return self

    def greet(self) -> None:
        """Send one more block of each replica, to see whether its frames arrive."""
        self._pipe.send("greet")
        self._answer()

    def go(self) -> None:
        """Send everything."""
        self._pipe.send("go")


def _listed(answer: object) -> list[object]:
    return answer if isinstance(answer, list) else []


def _leave_measured_cpu(measured: set[int]) -> None:
    others = set(range(os.cpu_count() or 1)) - measured
    with contextlib.suppress(OSError):  # there is no other
        os.sched_setaffinity(0, others)


def _send_engine_frames(pipe: Connection, frames: list[tuple[int, bytes]], replicas: int) -> None:
    _leave_measured_cpu(os.sched_getaffinity(0))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    for _ in range(replicas):
        socket = context.socket(zmq.XPUB)  # like PUB, but tells of subscribers
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"tcp://{LOOPBACK}:0")
        sockets.append(socket)
    pipe.send([socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets])
    for socket in sockets:
        socket.recv()
    pipe.send("connected")
    pipe.recv()
    numbers = [0] * replicas
    for replica, payload in frames:
        sockets[replica].send_multipart([TOPIC, struct.pack(">Q", numbers[replica]), payload])
        numbers[replica] += 1
    pipe.poll(None)  # until the parent has what it wants


def _run_publishers(
    pipe: Connection, ops: list[tuple[int, Op]], replicas: int, block_size: int, pool_blocks: int
) -> None:
    _leave_measured_cpu(os.sched_getaffinity(0))
    asyncio.run(_publish(pipe, ops, replicas=replicas, block_size=block_size, pool_blocks=pool_blocks))


async def _publish(
    pipe: Connection, ops: list[tuple[int, Op]], *, replicas: int, block_size: int, pool_blocks: int
) -> None:
    published: list[list[Stored]] = [[] for _ in range(replicas)]
    publishers = [
        Publisher(
            host=LOOPBACK,
            replica=name_of(replica),
            incarnation="bench",
            block_size=block_size,
            resident=lambda mine=published[replica]: tuple(mine),  # type: ignore[misc]
            load=lambda: LOAD,
        )
        for replica in range(replicas)
    ]
    for publisher in publishers:
        publisher.start()
    pipe.send([_info(publisher, block_size, pool_blocks) for publisher in publishers])
    greetings = 0
    while True:
        if not pipe.poll():
            await asyncio.sleep(COMMAND_LOOK_S)
        elif pipe.recv() == "greet":
            for replica, publisher in enumerate(publishers):
                greeting = Stored(GPU, (greetings,))
                published[replica].append(greeting)
                publisher.publish((greeting,))
            greetings += 1
            pipe.send("greeted")
        else:
            for replica, op in ops:
                publishers[replica].publish((op,))


def _info(publisher: Publisher, block_size: int, pool_blocks: int) -> ReplicaInfo:
    return ReplicaInfo(
        replica=publisher.replica,
        incarnation=publisher.incarnation,
        model="bench",
        block_size=block_size,
        pool_blocks=pool_blocks,
        max_model_len=10**6,
        events=publisher.events,
        snapshots=publisher.snapshots,
    )
