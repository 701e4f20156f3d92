"""How often what failed may be attempted again: a share of the traffic, so that a failing cluster is not hammered.

Every request counts as one, every further attempt that an engine's fault causes draws on the budget. The death of a
replica is no such fault: it moves each of its generations once, and cannot do so twice.
"""

from __future__ import annotations

from typing import NamedTuple

from router.errors import KvistBug
from router.limits import MAX_RESUMES, MAX_RETRIES, RETRY_FLOOR, RETRY_SHARE, RETRY_WINDOW_S


class Tenacity(NamedTuple):
    """How often one generation goes to another replica: `retries` before its first token, `resumes` after it."""

    retries: int = MAX_RETRIES
    resumes: int = MAX_RESUMES


class RetryBudget:
    """Of all requests of one ingress. An attempt is granted while those that were granted, this one included, are no
    more than max(RETRY_FLOOR, RETRY_SHARE of the requests), both counted over the window of RETRY_WINDOW_S that runs
    and the one before it; requests are those that ran in them. `now` is monotonic seconds. O(1), constant memory."""

    def __init__(self) -> None:
        self.running = 0
        self._window = 0
        self._ended = [0, 0]  # requests that ended in the last window and in this one
        self._granted = [0, 0]

    def __repr__(self) -> str:
        return f"<RetryBudget running={self.running} granted={sum(self._granted)}>"

    def started(self) -> None:
        """A request has begun."""
        self.running += 1

    def ended(self, now: float) -> None:
        """A request that had begun has ended."""
        self._turn(now)
        self.running -= 1
        self._ended[1] += 1

    def take(self, now: float) -> bool:
        """Whether one more attempt is granted; if so, it counts."""
        self._turn(now)
        requests = self.running + sum(self._ended)
        if sum(self._granted) + 1 > max(RETRY_FLOOR, RETRY_SHARE * requests):
            return False
        self._granted[1] += 1
        return True

    def check_integrity(self) -> None:
        """Raise `KvistBug` when a count is not one."""
        if min(self.running, *self._ended, *self._granted) < 0:
            raise KvistBug(f"{self!r}: a request ended that had not begun")

    def _turn(self, now: float) -> None:
        window = int(now // RETRY_WINDOW_S)
        if window != self._window:
            follows = window == self._window + 1
            self._ended = [self._ended[1] if follows else 0, 0]
            self._granted = [self._granted[1] if follows else 0, 0]
            self._window = window
