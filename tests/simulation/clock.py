"""Virtual time: calls in the order of their times, and nothing in between."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Calls due at the same time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        """Call at a time, or at once when that has passed."""
        self._asked += 1
        heapq.heappush(self._due, (max(when, self.now), self._asked, call, args))

    def run_until(self, end: float) -> None:
        """Let time pass, `end` included."""
        due, pop = self._due, heapq.heappop
        while due and due[0][0] <= end:
            self.now, _, call, args = pop(due)
            call(*args)
        self.now = end
