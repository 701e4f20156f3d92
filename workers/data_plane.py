"""A replica's end of the data plane: generations over TCP beside the Serve handle, many on one connection.

Every generation takes one of Serve's slots, so Serve's limits, drain and counts hold on both ways. An ingress proves
that it knows the replica's secret, which only Serve's metadata carries, before anything else is read from it; so does
the replica. A stream ends with its last delta, which is sent when the slot is free again, with an error, or by its
cancel; a lost connection cancels all it carried.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import TYPE_CHECKING, Protocol

from router.errors import ReplicaBusy, ReplicaDied, WireError
from router.limits import (
    DATA_CLOSE_S,
    DATA_PROOF_TIMEOUT_S,
    MAX_DATA_CONNECTIONS,
    MAX_DATA_STREAMS,
)
from router.replicas import DataEndpoint
from workers import data_frames as frames
from workers.data_link import DataLink, proof

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from workers.data_frames import Message
    from workers.engine import Generation, TokenDelta

    Generate = Callable[[Generation], AsyncIterator[TokenDelta]]

SECRET_BYTES = 32


class Slots(Protocol):
    """What bounds and counts running generations."""

    def hold(self, request_id: str) -> AbstractAsyncContextManager[None]:
        """Holds a slot. Entering never waits: it raises `ReplicaBusy` when there is none to be had."""
        ...


class DataServer:
    """Listens for ingresses. Used on the engine's event loop."""

    def __init__(self, *, generate: Generate, slots: Slots) -> None:
        self.generate = generate
        self.slots = slots
        self.secret = secrets.token_hex(SECRET_BYTES)
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<DataServer connections={len(self.connections)} streams={self.streams}>"

    @property
    def streams(self) -> int:
        """Generations that run now."""
        return sum(len(connection.streams) for connection in self.connections)

    async def start(self, host: str) -> DataEndpoint:
        """Listen on a free port of `host`; where that is, with the secret."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), host, 0)
        return DataEndpoint(host=host, port=self._server.sockets[0].getsockname()[1], secret=self.secret)

    async def close(self) -> None:
        """Cancel what runs and leave no socket behind. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        connections = list(self.connections)
        for connection in connections:
            connection.cancel_all()
            connection.close()
        if connections:
            await asyncio.wait([asyncio.ensure_future(one.lost.wait()) for one in connections], timeout=DATA_CLOSE_S)
        for connection in connections:
            connection.abort()


class _Connection(DataLink):
    """One ingress, or who claims to be one."""

    def __init__(self, server: DataServer) -> None:
        super().__init__(frames.FROM_STRANGER)
        self._server = server
        self._challenge = secrets.token_bytes(frames.NONCE_BYTES)
        self._patience: asyncio.TimerHandle | None = None
        self.streams: dict[int, _Stream] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_DATA_CONNECTIONS:
            self.abort()
            return
        self._patience = asyncio.get_running_loop().call_later(DATA_PROOF_TIMEOUT_S, self.abort)
        self.send(frames.encode_frame(frames.CHALLENGE, body=self._challenge))

    def on_message(self, message: Message) -> None:
        stream = self.streams.get(message.stream)
        if message.kind == frames.OPEN:
            self._open(message)
        elif message.kind == frames.HELLO:
            self._greet(message.body)
        elif stream is None:
            return  # it has ended meanwhile
        elif message.kind == frames.CANCEL:
            stream.task.cancel()
        elif message.kind == frames.PAUSE:
            stream.flow.clear()
        else:
            stream.flow.set()

    def on_lost(self) -> None:
        self._server.connections.discard(self)
        if self._patience is not None:
            self._patience.cancel()
        self.cancel_all()

    def cancel_all(self) -> None:
        for stream in self.streams.values():
            stream.task.cancel()

    def _greet(self, body: bytes) -> None:
        nonce, claim = body[: frames.NONCE_BYTES], body[frames.NONCE_BYTES :]
        if not hmac.compare_digest(claim, proof(self._server.secret, "ingress", self._challenge, nonce)):
            raise WireError("hello: not the secret of this replica")
        assert self._patience is not None
        self._patience.cancel()
        self.reader.allowed = frames.FROM_INGRESS
        self.send(
            frames.encode_frame(frames.WELCOME, body=proof(self._server.secret, "replica", self._challenge, nonce))
        )

    def _open(self, message: Message) -> None:
        if message.stream in self.streams:
            raise WireError("generation: its stream is in use")
        generation = frames.decode_open(message.body)
        if len(self.streams) >= MAX_DATA_STREAMS:
            self.send(frames.encode_frame(frames.REFUSED, message.stream))
            return
        self.streams[message.stream] = _Stream(self, self._server, message.stream, generation)


class _Stream:
    """One generation, from its slot to its last frame."""

    def __init__(self, connection: _Connection, server: DataServer, number: int, generation: Generation) -> None:
        self._connection = connection
        self._server = server
        self._number = number
        self.flow = asyncio.Event()
        self.flow.set()
        self.task = asyncio.create_task(self._run(generation))
        self.task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del task
        self._connection.streams.pop(self._number, None)

    async def _run(self, generation: Generation) -> None:
        try:
            async with self._server.slots.hold(generation.request_id):
                last = await self._relay(generation)
            frame = frames.encode_delta(self._number, last)
        except ReplicaBusy:
            frame = frames.encode_frame(frames.REFUSED, self._number)
        except Exception as fault:  # noqa: BLE001 - the slot has logged it; the ingress is told its kind
            frame = frames.encode_error(self._number, fault)
        self._connection.send(frame)

    async def _relay(self, generation: Generation) -> TokenDelta:
        """Send all deltas but the last, which is returned. Waits while the ingress, or its connection, has enough."""
        deltas = self._server.generate(generation)
        try:
            async for delta in deltas:
                if delta.finish_reason is not None:
                    return delta
                self._connection.send(frames.encode_delta(self._number, delta))
                if not self._connection.writable.is_set():
                    await self._connection.writable.wait()
                if not self.flow.is_set():
                    await self.flow.wait()
        finally:
            await deltas.aclose()  # type: ignore[attr-defined]
        raise ReplicaDied("the engine ended a generation without a finish reason")
