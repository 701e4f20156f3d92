"""Nothing outlives the command that started a cluster: the watchdog alone, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.e2e.processes import MARK, marked, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A process that daemonizes twice and ignores SIGTERM: the worst that can stand below a cluster.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork():
        time.sleep(600 if sys.argv[1:] == ["stay"] else 0.2)
        os._exit(0)
    os.setsid()
time.sleep(600)
"""
# Stands for the command: starts the supervisor with a pipe, then waits.
COMMAND = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "cluster.supervisor", *sys.argv[1:]], stdin=subprocess.PIPE,
                         start_new_session=True)
print("up", flush=True)
child.wait()
"""


@pytest.fixture
def mark() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    for pid in marked(value):
        os.kill(pid, signal.SIGKILL)


def start(mark: str, scratch: Path, *args: str) -> subprocess.Popen[str]:
    scratch.mkdir()
    command = [sys.executable, "-c", COMMAND, str(scratch), sys.executable, "-c", STUBBORN, *args]
    process = subprocess.Popen(command, env=os.environ | {MARK: mark}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    while len(marked(mark)) < 4:  # command, supervisor, stubborn parent, its daemon
        time.sleep(0.05)
    return process


def test_kill_9_of_the_command_leaves_no_process_and_no_scratch_folder(tmp_path: Path, mark: str) -> None:
    """Daemons that left their session and ignore SIGTERM are ended within 15 s as well."""
    command = start(mark, tmp_path / "scratch", "stay")
    command.kill()
    command.wait()
    assert wait_until_gone(mark, 15.0) == {}
    assert not (tmp_path / "scratch").exists()


def test_when_the_cluster_itself_ends_its_orphans_end_too(tmp_path: Path, mark: str) -> None:
    """The driver is gone, its daemons are adopted and ended, and the command gets the driver's exit code."""
    command = start(mark, tmp_path / "scratch")
    assert command.wait(timeout=20) == 0
    assert wait_until_gone(mark, 5.0) == {}
