"""Start a cluster of one machine below a supervisor, or deploy on a running one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cluster.ray_env import apply_node_environment
from router.errors import NoReplica, ReplicaDied

if TYPE_CHECKING:
    from types import FrameType

    from cluster.config import ClusterConfig

STOP_LIMIT_S: Final = 15.0
CONNECT_LIMIT_S: Final = 5.0


class LocalCluster:
    """A supervised cluster. Whoever holds this object holds the pipe: when it closes, everything ends.

    `stdout` is where the banner goes, as in `subprocess.Popen`.
    """

    def __init__(self, config: ClusterConfig, *, stdout: int | None = None) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="kv-", dir="/tmp"))
        (scratch / "config.json").touch(mode=0o600)  # it may hold keys
        (scratch / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
        driver = [sys.executable, "-m", "cluster.driver", str(scratch)]
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "cluster.supervisor", str(scratch), *driver],
            stdin=subprocess.PIPE,
            stdout=stdout,
            start_new_session=True,  # a terminal's Ctrl-C reaches the command only, which then closes the pipe
        )

    def wait(self) -> int:
        """Block until the cluster ends by itself; its exit code."""
        return self._supervisor.wait()

    def raise_if_ended(self) -> None:
        """Raise `ReplicaDied` when the cluster has ended by itself."""
        code = self._supervisor.poll()
        if code is not None:
            raise ReplicaDied(f"the cluster ended with code {code} before it was warm")

    def stop(self) -> int:
        """End every process of the cluster and wait for it, STOP_LIMIT_S at most."""
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        return self._supervisor.wait(timeout=STOP_LIMIT_S)


def serve_locally(config: ClusterConfig) -> int:
    """Run until Ctrl-C or SIGTERM (then 0) or until the cluster fails (then its code)."""
    cluster = LocalCluster(config)
    for signum in (signal.SIGINT, signal.SIGTERM):  # set, not inherited: a shell's background jobs ignore SIGINT
        signal.signal(signum, _interrupt)
    try:
        return cluster.wait()
    except KeyboardInterrupt:
        print("kvist: stopping", file=sys.stderr, flush=True)
        return cluster.stop()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def serve_on_cluster(config: ClusterConfig, address: str) -> None:
    """Deploy on the Ray cluster at `address` and return; it keeps serving until `kvist down`."""
    _join(address)
    from cluster.deploy import deploy_and_announce  # noqa: PLC0415 - imports Ray, which must see its environment first

    deploy_and_announce(config)


def take_down(address: str) -> None:
    """Remove the application from the cluster at `address`. Safe when it is not there."""
    _join(address)
    from ray import serve  # noqa: PLC0415 - after the environment is set

    from cluster.app import APPLICATION  # noqa: PLC0415 - same

    serve.delete(APPLICATION)


def _join(address: str) -> None:
    """Connect to a running cluster. Raises `NoReplica` when none is there."""
    _check_reachable(address)
    apply_node_environment()
    import ray  # noqa: PLC0415 - reads the environment set above when it is imported

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as fault:
        raise NoReplica(f"no Ray cluster can be joined at {address}: {fault}") from None


def _check_reachable(address: str) -> None:
    """Ray tries for minutes; a plain connect knows at once."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # `auto`, or a name that Ray itself resolves
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_LIMIT_S).close()
    except OSError as fault:
        raise NoReplica(f"no Ray cluster answers at {address} ({fault}): pass --ray-address") from None
