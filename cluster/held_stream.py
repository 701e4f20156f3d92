"""A generation that may not begin yet: its session is new, and live ones fill the caches (router/admission.py)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from cluster.backend import Job, Routed
    from cluster.serve_plane import Asked, ModelPlane
    from cluster.serve_stream import ServeStream
    from workers.engine import TokenDelta


class HeldStream:
    """A `TokenStream` that asks again and again whether it may begin, then is what it began.

    Leaving it while it is held gives its place in the queue to the next."""

    def __init__(self, plane: ModelPlane, job: Job, asked: Asked) -> None:
        self._plane = plane
        self._job = job
        self._asked = asked
        self._stream: ServeStream | None = None
        self._deltas = self._run()

    @property
    def routed(self) -> Routed | None:
        """None while it is held."""
        return None if self._stream is None else self._stream.routed

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

    async def aclose(self) -> None:
        """Give up its place, or abort what it began."""
        if self._stream is None:
            self._plane.fleet.leave_held(self._asked.prompt.session)
        else:
            await self._stream.aclose()
        await self._deltas.aclose()

    async def _run(self) -> AsyncGenerator[TokenDelta, None]:
        while (hold := self._plane.fleet.hold(self._asked.prompt, self._plane.clock())) is not None:  # noqa: ASYNC110
            await asyncio.sleep(hold.again_in_s)
        self._stream = self._plane.begin(self._job, self._asked)
        async for delta in self._stream:
            yield delta
