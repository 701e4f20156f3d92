"""Wakes whoever sends an answer: at once for what must not wait, else when it is time for the next write."""

from __future__ import annotations

import asyncio


class News:
    """Many tell, one waits. Times are seconds of the running loop's clock; waiting costs no task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.Handle | None = None  # uvloop's says nothing of its time when that is now
        self._timer_s = 0.0
        self._quiet_until_s = 0.0
        self._has_come = False
        self._is_urgent = False

    def tell(self, *, urgent: bool) -> None:
        """Something has come."""
        self._has_come = True
        self._is_urgent |= urgent
        if self._waiter is None:
            return
        if self._is_urgent or self._loop.time() >= self._quiet_until_s:
            self._wake()
        else:
            self._arm(self._quiet_until_s)

    async def wait(self, *, quiet_until_s: float, deadline_s: float | None) -> bool:
        """Until something urgent has come, or anything and `quiet_until_s` has passed: true. False at the deadline,
        with what has come still to be waited for."""
        self._quiet_until_s = quiet_until_s
        while True:
            now_s = self._loop.time()
            if self._is_urgent or (self._has_come and now_s >= quiet_until_s):
                self._has_come = self._is_urgent = False
                return True
            if deadline_s is not None and now_s >= deadline_s:
                return False
            if self._has_come:
                self._arm(quiet_until_s)
            if deadline_s is not None:
                self._arm(deadline_s)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def close(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at_s: float) -> None:
        """One timer, the earliest: when it was too early, the waiter sets the next one."""
        if self._timer is not None:
            if self._timer_s <= at_s:
                return
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
