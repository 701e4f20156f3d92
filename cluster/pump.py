"""Reads a token stream ahead of its consumer, so that waiting can time out and slow clients get larger pieces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from cluster.backend import TokenStream
    from workers.engine import TokenDelta


class Pump:
    """An async context manager; leaving it, however, aborts the generation.

    `news` is set whenever there is something to take; several pumps may share one. What a pump holds is bounded by the
    generation's own `max_tokens`.
    """

    def __init__(self, stream: TokenStream, news: asyncio.Event) -> None:
        self.stream = stream
        self._news = news
        self._deltas: list[TokenDelta] = []
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
        if not deltas and self._error is not None:
            raise self._error
        return deltas

    @property
    def ended(self) -> bool:
        """Whether the stream has; what is left can be taken."""
        return self._ended

    async def _read(self) -> None:
        try:
            async for delta in self.stream:
                self._deltas.append(delta)
                self._news.set()
        except Exception as error:  # noqa: BLE001 - handed to the consumer, who knows what it means
            self._error = error
        finally:
            self._ended = True
            self._news.set()
