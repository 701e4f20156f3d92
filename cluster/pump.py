"""Reads a token stream ahead of its consumer, so that waiting can time out and slow clients get larger pieces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.hashing import BYTES_PER_TOKEN
from router.limits import DATA_STREAM_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from cluster.backend import TokenStream
    from cluster.news import News
    from workers.engine import TokenDelta


class Pump:
    """An async context manager; leaving it, however, aborts the generation.

    `news` is told whenever there is something to take; several pumps may share one. The first delta and the last are
    urgent, and so is any whose tokens (packed u32) cannot wait, as `waits` says. A pump that holds DATA_STREAM_TOKENS
    reads no further until they are taken.
    """

    def __init__(self, stream: TokenStream, news: News, *, waits: Callable[[bytes], bool]) -> None:
        self.stream = stream
        self._news = news
        self._waits = waits
        self._deltas: list[TokenDelta] = []
        self._tokens = 0
        self._room = asyncio.Event()
        self._error: BaseException | None = None
        self._ended = False

    async def __aenter__(self) -> Pump:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        try:
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            await asyncio.shield(self.stream.aclose())

    def take(self) -> Sequence[TokenDelta]:
        """All deltas that have come, maybe none. Raises what the stream raised, after the deltas before it."""
        deltas, self._deltas = self._deltas, []
        self._tokens = 0
        self._room.set()
        if not deltas and self._error is not None:
            raise self._error
        return deltas

    @property
    def ended(self) -> bool:
        """Whether the stream has; what is left can be taken."""
        return self._ended

    async def _read(self) -> None:
        try:
            is_first = True
            async for delta in self.stream:
                self._deltas.append(delta)
                self._tokens += max(1, len(delta.tokens) // BYTES_PER_TOKEN)
                is_full = self._tokens >= DATA_STREAM_TOKENS
                urgent = is_first or is_full or delta.finish_reason is not None or not self._waits(delta.tokens)
                self._news.tell(urgent=urgent)
                is_first = False
                if is_full:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # noqa: BLE001 - handed to the consumer, who knows what it means
            self._error = error
        finally:
            self._ended = True
            self._news.tell(urgent=True)
