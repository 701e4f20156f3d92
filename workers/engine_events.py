"""Reads one engine's own event sockets without a hole: live batches over SUB, missing ones replayed over DEALER.

A late subscriber has missed what came before it, so reading starts with a replay from number 0. While it is under way,
and whenever a number is missing, live batches wait. An idle engine is asked now and then whether the last batches were
lost: a gap shows only when something follows it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import zmq
import zmq.asyncio

from router.limits import ENGINE_EVENTS_HWM, ENGINE_PENDING_BATCHES, ENGINE_REPLAY_INTERVAL_S, REPLAY_PATIENCE_S
from workers.recording import SEQ_BYTES, read_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from workers.engine import EventBatch

POLL_MS: Final = 250


class EngineEvents:
    """The batches of one engine that publishes to `live` and replays from `replay`. One reader, on one event loop."""

    def __init__(self, *, live: str, replay: str) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._live = self._connected(zmq.SUB, live)
        self._live.subscribe(b"")
        self._replay = self._connected(zmq.DEALER, replay)
        self._next = 0
        self._pending: dict[int, EventBatch] = {}
        self._overflowed = False  # since the last question
        self._asked_at: float | None = None
        self._heard_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<EngineEvents next={self._next} pending={len(self._pending)}>"

    async def batches(self) -> AsyncIterator[EventBatch]:
        """Every batch from 0 on, in order; one that the engine itself no longer has is left out, and shows as a gap."""
        poller = zmq.asyncio.Poller()
        poller.register(self._live, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        await self._ask()
        while True:
            await poller.poll(POLL_MS)
            for batch in self._received():
                yield batch
            if self._should_ask():
                await self._ask()

    def close(self) -> None:
        """Leave no socket behind. Safe to call twice."""
        for socket in (self._live, self._replay):
            socket.close(linger=0)
        self._context.term()

    def _connected(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, ENGINE_EVENTS_HWM)
        socket.connect(endpoint)
        return socket

    def _received(self) -> Iterator[EventBatch]:
        for frames in _waiting(self._live):
            self._keep(read_message(frames))
        for frames in _waiting(self._replay):
            batch = read_message(frames)
            self._keep(batch)
            if batch is None:
                self._asked_at = None
                if not self._overflowed:  # else it may be us who no longer have it
                    self._next = min(self._pending, default=self._next)  # what is still missing, the engine has not
        while (batch := self._pending.pop(self._next, None)) is not None:
            self._next += 1
            yield batch
        if self._overflowed and self._asked_at is None:
            self._pending.clear()  # what did not fit stands before them: all is asked for again

    def _keep(self, batch: EventBatch | None) -> None:
        self._heard_at = time.monotonic()
        if batch is None or batch.seq < self._next:
            return
        if len(self._pending) < ENGINE_PENDING_BATCHES:
            self._pending[batch.seq] = batch
        else:
            self._overflowed = True

    def _should_ask(self) -> bool:
        now = time.monotonic()
        if self._asked_at is not None:
            return now - self._asked_at > REPLAY_PATIENCE_S
        return self._overflowed or bool(self._pending) or now - self._heard_at > ENGINE_REPLAY_INTERVAL_S

    async def _ask(self) -> None:
        """Ask for everything from the next number on; the answer ends with a marker, also when there is nothing."""
        self._asked_at = time.monotonic()
        self._overflowed = False
        await self._replay.send_multipart([b"", self._next.to_bytes(SEQ_BYTES, "big")])


def _waiting(socket: zmq.asyncio.Socket) -> Iterator[list[bytes]]:
    """What has arrived, without waiting: no cancellation can lose a message that was already handed over."""
    plain: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
    while True:
        try:
            yield plain.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
