"""The time of a run: seconds from its start, and waiting for them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class RunClock:
    """Starts when it is made. `clock` and `sleep` are in seconds; waiting ends at `end_s` at the latest."""

    def __init__(
        self,
        *,
        end_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._end_s = end_s
        self.start_s = clock()

    def __repr__(self) -> str:
        return f"<RunClock at {self.now_s():.1f} s of {self._end_s:.1f} s>"

    def now_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.start_s

    async def wait_until(self, due_s: float) -> bool:
        """Return when it is time: True, or at once False for what is due after the end."""
        if due_s >= self._end_s:
            return False
        left_s = due_s - self.now_s()
        if left_s > 0:
            await self._sleep(left_s)
        return True
