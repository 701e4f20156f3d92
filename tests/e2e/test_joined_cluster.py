"""A Ray cluster that was there before: Kvist joins it, serves, leaves it running, and can be taken away again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster.config import ClusterConfig, parse_config
from cluster.ports import free_port
from cluster.probe import get_json
from tests.e2e.cluster_process import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.ray

LIMIT_S = 120.0


class Joined:
    """The running Ray cluster: how to reach it, and what is deployed on it."""

    def __init__(self, folder: Path) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="kv-", dir="/tmp"))
        data = {"models": [{"name": "tiny", "source": "tiny", "engine": "sim"}], "port": free_port()}
        self.config: ClusterConfig = parse_config(data)
        self.path = folder / "cluster.yaml"
        self.path.write_text(yaml.safe_dump(data))
        driver = [sys.executable, "-m", "tests.e2e.run_ray", str(self.scratch)]
        command = [sys.executable, "-m", "cluster.supervisor", str(self.scratch), *driver]
        self.supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY)
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        note = self.scratch / "environment.yaml"
        until(note.exists)
        added: dict[str, str] = yaml.safe_load(note.read_text())
        return {**os.environ, **added}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    def health(self) -> dict[str, Any]:
        return get_json(self.config, "/healthz")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.2)


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    cluster = Joined(tmp_path)
    try:
        yield cluster
    finally:
        assert cluster.supervisor.stdin is not None
        cluster.supervisor.stdin.close()
        cluster.supervisor.wait(timeout=30)


def test_serve_joins_a_cluster_that_keeps_serving_until_down_and_serve_run_builds_the_same(joined: Joined) -> None:
    """The command returns once all is warm; the application outlives it; `kvist down` removes it; `serve run` brings
    the same graph back."""
    done = joined.run("-m", "cluster.cli", "serve", "--config", str(joined.path))
    assert "Kvist is serving tiny × 2" in done.stdout
    assert joined.health()["warm"]
    joined.run("-m", "cluster.cli", "down")
    until(lambda: not joined.health())
    arguments = ("run", "--non-blocking", "--name", "kvist", "cluster.app:build", f"config={joined.path}")
    joined.run("-m", "ray.serve.scripts", *arguments)
    until(lambda: joined.health().get("warm"))
    assert joined.supervisor.poll() is None
