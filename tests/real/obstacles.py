"""What can stand between a replica and a router on a network, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from router.wire import decode_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK_BYTES = 65_536


class LossyForwarder:
    """Passes a publisher's frames on, except that `lose` data frames vanish when it is told so. Heartbeats pass."""

    def __init__(self, source: str) -> None:
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(source)
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind("tcp://127.0.0.1:0")
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self._to_lose = 0
        self._lost: asyncio.Queue[float] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def lose(self, frames: int) -> None:
        self._to_lose = frames

    async def lost_at(self) -> float:
        """When the next of the lost frames was sent, in monotonic seconds."""
        return await self._lost.get()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        while True:
            data = await self._sub.recv()
            frame = decode_frame(data)
            if frame.ops and self._to_lose:
                self._to_lose -= 1
                self._lost.put_nowait(time.monotonic() - (time.time() - frame.ts))
            else:
                await self._pub.send(data)


class TcpProxy:
    """A fixed address in front of a changing one, whose connections can be cut."""

    def __init__(self, server: asyncio.Server, target: str) -> None:
        self._server = server
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(cls, target: str) -> TcpProxy:
        proxies: list[TcpProxy] = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await proxies[0]._pass_on(reader, writer)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        proxies.append(cls(server, target))
        return proxies[0]

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def retarget(self, target: str) -> None:
        """Cut all connections; new ones go elsewhere, nowhere if it is empty."""
        self._target = target
        for writer in self._open:
            writer.transport.abort()

    async def close(self) -> None:
        self._server.close()
        self.retarget("")

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._kept(writer):
            if not self._target:
                return
            host, port = self._target.removeprefix("tcp://").split(":")
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(host, int(port))
                async with self._kept(back):
                    await asyncio.gather(_copy(reader, back), _copy(there, writer))

    @contextlib.asynccontextmanager
    async def _kept(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()
    target.transport.abort()
