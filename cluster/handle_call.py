"""One generation through Serve's handle, read by a task of its own, so that it can be given up at any time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from router.hashing import BYTES_PER_TOKEN
from router.limits import DATA_STREAM_TOKENS
from workers.engine import joined

if TYPE_CHECKING:
    from workers.engine import TokenDelta


class HandleCall:
    """Iterate it for its deltas. What has come since the last one is one delta; for a slow reader it holds
    DATA_STREAM_TOKENS. `response` is what the handle's `remote` returned. Needs a running loop."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._held: list[TokenDelta] = []
        self._held_tokens = 0
        self._error: Exception | None = None
        self._has_ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    def __aiter__(self) -> HandleCall:
        return self

    async def __anext__(self) -> TokenDelta:
        while not self._held:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        delta, self._held, self._held_tokens = joined(self._held), [], 0
        self._room.set()
        return delta

    def cancel(self) -> None:
        """Abort it, wherever it is. Safe at any time, and twice."""
        self._has_ended = True
        self._reading.cancel()
        self._response.cancel()

    def abandon(self, error: Exception) -> None:
        """Abort it; iteration ends with `error`, after the deltas before it."""
        if not self._has_ended:
            self._error = error
            self.cancel()
            self._news.set()

    async def _read(self) -> None:
        try:
            async for delta in self._response:
                self._held.append(delta)
                self._held_tokens += max(1, len(delta.tokens) // BYTES_PER_TOKEN)
                self._news.set()
                if self._held_tokens >= DATA_STREAM_TOKENS:
                    self._room.clear()
                    await self._room.wait()
        except Exception as fault:  # noqa: BLE001 - handed to the reader, who maps it
            self._error = self._error or fault
        finally:
            self._has_ended = True
            self._news.set()
