"""Run the real `kvist serve` in a process of its own, as a person would, and wait for its banner."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cluster.ports import free_port
from tests.e2e.processes import MARK, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = Path(__file__).parents[2]
READY_LIMIT_S = 180.0


class ServeProcess:
    """A running command: its URL, its banner, the mark that all its processes carry."""

    def __init__(self, config: dict[str, Any], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mark = uuid.uuid4().hex
        self.banner = ""
        path = folder / f"cluster-{self.mark}.yaml"
        path.write_text(yaml.safe_dump(config | {"port": self.port}))
        self.log = folder / f"serve-{self.mark}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cluster.cli", "serve", "--config", str(path)],
                cwd=REPOSITORY,
                env=os.environ | {MARK: self.mark} | dict(environment or {}),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def wait_ready(self) -> None:
        """Read the banner. Fails with the log when the command ends or takes too long."""
        lines: list[str] = []
        deadline = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                lines.append(self.lines.get(timeout=0.5))
            except queue.Empty:
                continue
            if lines[-1].startswith("Stop with"):
                self.banner = "\n".join(lines)
                return
        raise AssertionError(f"no banner; the command said: {self.log.read_text()[-3000:]}")

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        return self.process.wait(timeout=30)


@contextmanager
def serving(
    config: dict[str, Any], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ServeProcess]:
    """A warm cluster; on the way out it is stopped, and every process that carries its mark is gone."""
    serve = ServeProcess(config, folder, environment)
    try:
        serve.wait_ready()
        yield serve
    finally:
        if serve.process.poll() is None:
            serve.end(signal.SIGINT)
        for pid in wait_until_gone(serve.mark, 20.0):
            os.kill(pid, signal.SIGKILL)


def tiny(**changes: Any) -> dict[str, Any]:
    """Config of the tiny model on two real replicas with small pools."""
    engine_args = {"block_size": 32, "kv_cache_memory_bytes": 64 * 2**20, **changes.pop("engine_args", {})}
    return {"models": [{"name": "tiny", "source": "tiny", "replicas": 2, "engine_args": engine_args, **changes}]}


def simulated(**changes: Any) -> dict[str, Any]:
    """Config of two simulated replicas in the tiny model's place."""
    return {"models": [{"name": "tiny", "source": "tiny", "replicas": 2, "engine": "sim", **changes}]}
