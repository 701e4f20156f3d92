"""A process outside Ray that lets nothing outlive `kvist serve`.

It adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so whatever Ray or vLLM start stays its descendant, whoever
dies in between. It holds a pipe from the command: when the pipe closes, by Ctrl-C, SIGTERM or kill -9 of the command,
or when the cluster's own process ends, it ends all descendants and removes the scratch folder. After a failure the
folder stays, for its logs.

    python -m cluster.supervisor SCRATCH COMMAND...
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

PR_SET_CHILD_SUBREAPER: Final = 36
GRACE_S: Final = 4.0
KILL_LIMIT_S: Final = 8.0
POLL_S: Final = 0.1


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def wait_for_end(child: subprocess.Popen[bytes], pipe: int) -> int:
    """Return the child's exit code, or 0 when the pipe's other end closed first. Reaps adopted orphans meanwhile."""
    while True:
        readable, _, _ = select.select([pipe], [], [], POLL_S)
        if readable and os.read(pipe, 4096) == b"":
            return 0
        code = child.poll()
        if code is not None:
            return code
        reap_orphans(keep=child.pid)


def reap_orphans(*, keep: int) -> None:
    """Collect dead adopted processes; `keep` is left to its Popen object."""
    for process in psutil.Process().children():
        if process.pid != keep:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def end_descendants() -> None:
    """SIGTERM to all, then SIGKILL until none is left, within GRACE_S + KILL_LIMIT_S."""
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while _living() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    deadline = time.monotonic() + KILL_LIMIT_S
    while _living() and time.monotonic() < deadline:
        _signal_all(signal.SIGKILL)
        time.sleep(POLL_S)


def _living() -> list[psutil.Process]:
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
            else:
                alive.append(process)
    return alive


def _signal_all(signum: int) -> None:
    for process in _living():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


def main() -> None:
    """Run COMMAND until it ends or standard input closes; exit with its code."""
    scratch, command = Path(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    code = 1
    try:
        code = wait_for_end(child, sys.stdin.fileno())
    finally:
        end_descendants()
        if code:
            print(f"kvist: the logs are in {scratch}/session_latest/logs", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
