"""A replica's event sockets: numbered frames out over PUB, the resident set over ROUTER to whoever asks.

Publishing never waits: where a subscriber is too slow, ZMQ drops frames beyond its high-water mark, the subscriber sees
the gap by number and asks for a snapshot. Hashes only: what this module is given holds neither tokens nor salts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import zmq

from router.errors import WireError
from router.limits import (
    HEARTBEAT_INTERVAL_S,
    MAX_FRAME_BYTES,
    MAX_FRAME_HASHES,
    PUBLISHER_HWM_FRAMES,
    SNAPSHOT_CHUNK_HASHES,
    SNAPSHOT_REPLIES_HWM,
)
from router.wire import (
    Frame,
    Load,
    Op,
    Removed,
    SnapshotChunk,
    Stored,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOK_INTERVAL_S: Final = 0.02
REQUESTS_AT_ONCE: Final = 16

Socket = zmq.Socket[bytes]


class Publisher:
    """Publishes one engine's operations under one incarnation. Used on one event loop.

    `resident` returns the shown blocks as of the last published operation; `load` is read for every frame.
    """

    def __init__(
        self,
        *,
        host: str,
        replica: str,
        incarnation: str,
        block_size: int,
        resident: Callable[[], tuple[Stored, ...]],
        load: Callable[[], Load],
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self._block_size = block_size
        self._resident = resident
        self._load = load
        self._seq = -1
        self._sent_at = 0.0
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._pub = self._bound(zmq.PUB, host, hwm=PUBLISHER_HWM_FRAMES)
        self._router = self._bound(zmq.ROUTER, host, hwm=SNAPSHOT_REPLIES_HWM)
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.snapshots = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Publisher {self.replica} seq={self._seq} {self.events}>"

    def start(self) -> None:
        """Begin to send heartbeats and to answer snapshot requests. Needs a running loop."""
        self._task = asyncio.create_task(self._run())

    def publish(self, ops: tuple[Op, ...]) -> None:
        """Send operations as one or more frames, in order. Never waits; nothing to say sends nothing."""
        for part in _parts(ops):
            self._seq += 1
            self._send(part)

    async def close(self) -> None:
        """Stop and leave no socket behind. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for socket in (self._pub, self._router):
            socket.close(linger=0)
        self._context.term()

    def _bound(self, kind: int, host: str, *, hwm: int) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, hwm)
        socket.setsockopt(zmq.RCVHWM, hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.bind(f"tcp://{host}:0")
        return socket

    async def _run(self) -> None:
        while True:
            self._answer_requests()
            if time.monotonic() - self._sent_at >= HEARTBEAT_INTERVAL_S:
                self._send(())
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _send(self, ops: tuple[Op, ...]) -> None:
        frame = Frame(
            replica=self.replica,
            incarnation=self.incarnation,
            seq=self._seq,
            ts=time.time(),
            ops=ops,
            load=self._load(),
            block_size=self._block_size,
        )
        self._sent_at = time.monotonic()
        with contextlib.suppress(zmq.Again):
            self._pub.send(encode_frame(frame), zmq.NOBLOCK)

    def _answer_requests(self) -> None:
        for _ in range(REQUESTS_AT_ONCE):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            with contextlib.suppress(WireError, ValueError):
                sender, request = parts
                self._send_snapshot(sender, nonce=decode_snapshot_request(request))

    def _send_snapshot(self, sender: bytes, *, nonce: int) -> None:
        chunks = list(_chunks(self._resident()))
        for index, blocks in enumerate(chunks):
            chunk = SnapshotChunk(
                replica=self.replica,
                incarnation=self.incarnation,
                seq=self._seq,
                index=index,
                count=len(chunks),
                block_size=self._block_size,
                blocks=blocks,
            )
            try:
                self._router.send_multipart([sender, encode_chunk(chunk, nonce=nonce)], zmq.NOBLOCK)
            except zmq.Again:  # its queue is full: the rest would be useless, and it will ask again
                return


def _parts(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """Cut so that no frame holds more than MAX_FRAME_HASHES."""
    part: list[Op] = []
    count = 0
    for op in ops:
        for piece in _pieces(op):
            size = len(piece.hashes) if isinstance(piece, Stored | Removed) else 0
            if part and count + size > MAX_FRAME_HASHES:
                yield tuple(part)
                part, count = [], 0
            part.append(piece)
            count += size
    if part:
        yield tuple(part)


def _pieces(op: Op) -> Iterator[Op]:
    if isinstance(op, Stored | Removed) and len(op.hashes) > MAX_FRAME_HASHES:
        for start in range(0, len(op.hashes), MAX_FRAME_HASHES):
            yield type(op)(op.medium, op.hashes[start : start + MAX_FRAME_HASHES])
    else:
        yield op


def _chunks(blocks: tuple[Stored, ...]) -> Iterator[tuple[Stored, ...]]:
    """Cut into chunks of at most SNAPSHOT_CHUNK_HASHES; one empty chunk when nothing is resident."""
    if not blocks:
        yield ()
    for medium, hashes in blocks:
        for start in range(0, len(hashes), SNAPSHOT_CHUNK_HASHES):
            yield (Stored(medium, hashes[start : start + SNAPSHOT_CHUNK_HASHES]),)
