"""Find and strike the processes of a running cluster's replicas, as a machine would: without a word to anybody."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.e2e.cluster_process import ServeProcess

WORKER = "ray::ServeReplica:kvist:Worker"


def workers_of(serve: ServeProcess) -> list[int]:
    """Pids of the replicas that serve models."""
    found = []
    for process in psutil.Process(serve.process.pid).children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(WORKER):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def kill(pid: int) -> None:
    """SIGKILL, and proof that it took effect."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while _state(pid) not in (None, psutil.STATUS_ZOMBIE):
        assert time.monotonic() < deadline, f"{pid} lives"
        time.sleep(0.005)


def stop(pid: int) -> None:
    """SIGSTOP, and proof that it took effect."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5.0
    while _state(pid) != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, f"{pid} runs"
        time.sleep(0.005)


def _state(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None
