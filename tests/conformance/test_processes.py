"""A closed engine leaves no process and a dead one is noticed; both seen from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

MARK = "KVIST_TEST_MARK"
REPOSITORY = Path(__file__).parents[2]
GONE_WITHIN_S = 15.0


def alive(pids: list[int], mark: str) -> list[int]:
    """Those of the processes that still run, and all whose environment carries the mark. A process that renames itself,
    as vLLM's do, overwrites what /proc tells of its environment, hence both."""
    found = {pid for pid in pids if psutil.pid_exists(pid)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.add(process.pid)
    return sorted(found)


@pytest.mark.parametrize("end", ["close", "die"])
@pytest.mark.parametrize("kind", ["sim", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_no_process_outlives_its_engine(kind: str, end: str, tiny_model: Path) -> None:
    """`close` also cleans up after a crash: running and new generations, and the health check, say that it is dead."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "tests.conformance.engine_process", kind, end, str(tiny_model)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | {MARK: mark}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["done"], done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("pids")]
    pids = [int(word) for word in line.split()[1:]]
    assert bool(pids) == (kind == "vllm")
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := alive(pids, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
