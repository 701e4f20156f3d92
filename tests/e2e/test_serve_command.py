"""`kvist serve` as a process: what it opens, and that nothing of it stays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.cluster_process import READY_LIMIT_S, ServeProcess, serving, simulated, tiny
from tests.e2e.processes import marked, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

LOOPBACK = ("127.", "::1", "::ffff:127.")
LEAVES_NOTHING_WITHIN_S = 15.0


def test_after_kill_9_no_process_that_inherited_its_environment_is_left(tmp_path: Path) -> None:
    """EngineCore, raylet, agents, HAProxy and the watchdog itself are gone 15 s later."""
    with serving(tiny(replicas=1), tmp_path) as serve:
        commands = " ".join(marked(serve.mark).values())
        for expected in ("raylet", "gcs_server", "haproxy", "EngineCore", "cluster.supervisor"):
            assert expected in commands
        serve.end(signal.SIGKILL)
        assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_everything_with_code_0(tmp_path: Path, signum: int) -> None:
    """A clean stop is not an error."""
    with serving(simulated(), tmp_path) as serve:
        assert serve.end(signum) == 0
        assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}


def test_a_cluster_of_one_machine_listens_on_loopback_only(tmp_path: Path) -> None:
    """Except Serve's gRPC port between replicas, which has no address option and asks for the cluster's token."""
    with serving(simulated(), tmp_path) as serve:
        pids = marked(serve.mark)
        names = {pids[pid].split()[0] for pid, _ in listeners_beyond_loopback(pids)}
        assert {name for name in names if not name.startswith("ray::ServeReplica")} == set()


def listeners_beyond_loopback(pids: dict[int, str]) -> list[tuple[int, str]]:
    """(process, address) of every TCP socket that listens on more than loopback."""
    found = []
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids and connection.laddr:
            address = connection.laddr.ip
            if not address.startswith(LOOPBACK):
                found.append((connection.pid, address))
    return found


def test_a_replica_that_cannot_start_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    """Not Serve's "failed to update the deployments", and no traceback."""
    serve = ServeProcess(simulated(engine_args={"no_such_setting": 1}), tmp_path)
    assert serve.process.wait(timeout=READY_LIMIT_S) == 1
    said = serve.log.read_text()
    assert "no_such_setting" in said
    assert "Traceback" not in said
    assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}
