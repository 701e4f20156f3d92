"""Clocks and CPUs of a measure."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from load_tests.bench.peer import Peer

Values = dict[str, float]


class Group:
    """Measures that share a set-up. Each call of `kvist` or `peer` is one round: row name → value."""

    def kvist(self) -> Values:
        """Do the work with Kvist's parts."""
        raise NotImplementedError

    def peer(self, peer: Peer) -> Values:
        """Have the peer do the same work; rows for which it has nothing are left out."""
        raise NotImplementedError


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """Keep this thread, and the threads and processes it starts meanwhile, on one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def median_us(call: Callable[[], object], calls: int) -> float:
    """Median time of a call, the first one not counted."""
    call()
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6
