"""A replica's event sockets: numbered frames out over PUB, the resident set over ROUTER to whoever asks.

A snapshot is of one moment and goes out chunk by chunk, one per turn of the loop, so that a big one holds up nobody.

Publishing never waits: where a subscriber is too slow, ZMQ drops frames beyond its high-water mark, the subscriber sees
the gap by number and asks for a snapshot. Hashes only: what this module is given holds neither tokens nor salts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import zmq

from router.curve import AllowList, bind_with
from router.errors import WireError
from router.limits import (
    MAX_FRAME_BYTES,
    MAX_WAITING_SNAPSHOTS,
    PUBLISHER_HWM_FRAMES,
    REQUESTS_AT_ONCE,
    SNAPSHOT_REPLIES_HWM,
)
from router.wire import decode_snapshot_request
from workers.announcer import Announcer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.curve import ServerCurve
    from router.wire import Load, Op, Stored

LOOK_INTERVAL_S: Final = 0.02

Socket = zmq.Socket[bytes]


class Publisher:
    """Publishes one engine's operations under one incarnation. Used on one event loop.

    `resident` returns the shown blocks as of the last published operation; `load` is read for every frame. With
    `curve`, only the keys that it allows get anything.
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
        curve: ServerCurve | None = None,
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self._announcer = Announcer(
            replica=replica, incarnation=incarnation, block_size=block_size, resident=resident, load=load
        )
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._curve = curve
        self._allow_list = AllowList(self._context, curve.allowed) if curve else None
        self._pub = self._bound(zmq.PUB, host, hwm=PUBLISHER_HWM_FRAMES)
        self._router = self._bound(zmq.ROUTER, host, hwm=SNAPSHOT_REPLIES_HWM)
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.snapshots = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._answers: dict[bytes, Iterator[bytes]] = {}  # by who asked, first come first served
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Publisher {self._announcer!r} {self.events}>"

    @property
    def block_size(self) -> int:
        """Tokens per block that frames and snapshots say from now on."""
        return self._announcer.block_size

    @block_size.setter
    def block_size(self, block_size: int) -> None:
        self._announcer.block_size = block_size

    def start(self) -> None:
        """Begin to send heartbeats and to answer snapshot requests. Needs a running loop."""
        self._task = asyncio.create_task(self._run())

    def publish(self, ops: tuple[Op, ...]) -> None:
        """Send operations as one or more frames, in order. Never waits; nothing to say sends nothing."""
        for frame in self._announcer.announce(ops, now=time.monotonic(), ts=time.time()):
            self._send(frame)

    def fall_silent(self) -> None:
        """Say nothing more by itself and answer nobody, so that routers end the lease. What was published still goes
        out."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop and leave no socket behind. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for socket in (self._pub, self._router):
            socket.close(linger=0)
        if self._allow_list is not None:
            self._allow_list.stop()
            self._allow_list = None
        self._context.term()

    def _bound(self, kind: int, host: str, *, hwm: int) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, hwm)
        socket.setsockopt(zmq.RCVHWM, hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        if self._curve is not None:
            bind_with(socket, self._curve)
        socket.bind(f"tcp://{host}:0")
        return socket

    async def _run(self) -> None:
        while True:
            self._take_requests()
            self._send_chunk()
            now = time.monotonic()
            if now >= self._announcer.heartbeat_at:
                self._send(self._announcer.heartbeat(now=now, ts=time.time()))
            await asyncio.sleep(0 if self._answers else LOOK_INTERVAL_S)

    def _send(self, frame: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self._pub.send(frame, zmq.NOBLOCK)

    def _take_requests(self) -> None:
        """A newer request of the same router replaces the one before, and waits again."""
        for _ in range(REQUESTS_AT_ONCE):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            with contextlib.suppress(WireError, ValueError):
                sender, request = parts
                nonce = decode_snapshot_request(request)
                self._answers.pop(sender, None)
                if len(self._answers) < MAX_WAITING_SNAPSHOTS:
                    self._answers[sender] = self._announcer.snapshot(nonce)

    def _send_chunk(self) -> None:
        """The next one of the oldest answer. Its first fixes the moment: only one answer holds a resident set."""
        if not self._answers:
            return
        sender, chunks = next(iter(self._answers.items()))
        chunk = next(chunks, None)
        if chunk is None or not self._reply(sender, chunk):
            del self._answers[sender]

    def _reply(self, sender: bytes, chunk: bytes) -> bool:
        """False when its queue is full: the rest would be useless, and it will ask again."""
        try:
            self._router.send_multipart([sender, chunk], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
