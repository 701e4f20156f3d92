"""A replica's data plane without Ray: slots that count, and an engine that says what a test wants."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from router.errors import ReplicaBusy
from workers.data_plane import DataServer
from workers.engine import Generation, Sampling, TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from router.replicas import DataEndpoint


def packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def generation(*tokens: int, max_tokens: int = 4, request_id: str = "req") -> Generation:
    return Generation(request_id=request_id, tokens=packed(tokens), sampling=Sampling(max_tokens=max_tokens))


class CountingSlots:
    """As many as `limit`, as Serve has them; `is_draining` refuses all."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.held = 0
        self.most = 0
        self.is_draining = False

    @asynccontextmanager
    async def hold(self, request_id: str) -> AsyncIterator[None]:
        if self.held >= self.limit or self.is_draining:
            raise ReplicaBusy("no slot")
        self.held += 1
        self.most = max(self.most, self.held)
        try:
            yield
        finally:
            self.held -= 1


class Speaker:
    """Says 1, 2, 3 … up to `max_tokens`, a token per delta; the first prompt token is the count of cached ones.

    Without `gate` set it waits before every delta. `error` is raised after `error_after` deltas.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.error_after = 0
        self.asked: list[Generation] = []
        self.running = 0
        self.said = 0

    async def generate(self, asked: Generation) -> AsyncIterator[TokenDelta]:
        self.asked.append(asked)
        self.running += 1
        last = asked.sampling.max_tokens
        try:
            for number in range(1, last + 1):
                if self.error is not None and number > self.error_after:
                    raise self.error
                await self.gate.wait()
                await asyncio.sleep(0)
                cached = array("I", asked.tokens)[0]
                self.said += 1
                reason = "length" if number == last else None
                yield TokenDelta(tokens=packed([number]), cached_tokens=cached, finish_reason=reason)  # type: ignore[arg-type]
        finally:
            self.running -= 1


class Replica:
    """A data plane server with what is behind it."""

    def __init__(self, limit: int = 1000) -> None:
        self.slots = CountingSlots(limit)
        self.speaker = Speaker()
        self.server = DataServer(generate=self.speaker.generate, slots=self.slots)
        self.endpoint: DataEndpoint


@asynccontextmanager
async def replica(*, limit: int = 1000) -> AsyncIterator[Replica]:
    """One that listens; on the way out nothing of it is left."""
    one = Replica(limit)
    one.endpoint = await one.server.start("127.0.0.1")
    try:
        yield one
    finally:
        await one.server.close()
        await until(lambda: not one.server.connections and not one.slots.held and not one.speaker.running)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.005)
