"""What processes cost: time on a CPU, memory. Read from /proc, in nanoseconds where others count in hundredths."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Seconds on a CPU of all threads that each process has now. What a thread that has ended took is not in it."""
    return {pid: _thread_ns(pid) / 1e9 for pid in pids}


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """CPU seconds between two readings. A process that came in between counts from its start, one that went not."""
    return sum(now - before.get(pid, 0.0) for pid, now in after.items())


def resident_mb(pids: Iterable[int]) -> float:
    """Resident memory together, in MiB; pages that processes share count for each."""
    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 2**20


def _thread_ns(pid: int) -> int:
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            total += int(file.read_text(encoding="ascii").split()[0])
    return total
