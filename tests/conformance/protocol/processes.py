"""Servers under test in processes of their own: started, waited for, stopped by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.conformance.protocol.probe import BEARER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

START_LIMIT_S = 180.0
STOP_LIMIT_S = 15.0


@contextmanager
def running(
    command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """One command, its output in `log`. On the way out it and its process group end, by id."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | dict(env or {}), start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely first. The group is ours alone: the process leads a session of its own."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind, such as an engine
    except ProcessLookupError:
        return


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until `url` answers 200. Raises SystemExit with the log's end when the process ends or takes too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=BEARER), timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise SystemExit(f"{url} did not answer; the server said: {log.read_text(errors='replace')[-2000:]}")
