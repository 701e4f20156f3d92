"""What processes cost: time on a CPU, memory. Read from the kernel, in nanoseconds where others count in hundredths."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Seconds on a CPU of each process that is there, threads that have ended included."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            found[pid] = time.clock_gettime(_clock_of(pid))
    return found


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """CPU seconds between two readings. A process that came in between counts from its start, one that went not."""
    return sum(now - before.get(pid, 0.0) for pid, now in after.items())


def resident_mb(pids: Iterable[int]) -> float:
    """Resident memory together, in MiB; pages that processes share count for each."""
    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 2**20


def _clock_of(pid: int) -> int:
    """The id of a process's CPU clock, as clock_getcpuclockid(3) makes it on Linux; Python has no name for it."""
    return (~pid << 3) | 2
