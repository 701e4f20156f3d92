"""`kvist serve` as a process: what it opens, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import urllib.request
from pathlib import Path

import anthropic
import psutil
import pytest

from tests.e2e.cluster_process import READY_LIMIT_S, ServeProcess, serving, simulated, tiny
from tests.e2e.processes import marked, wait_until_gone

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

LOOPBACK = ("127.", "::1", "::ffff:127.")
LEAVES_NOTHING_WITHIN_S = 15.0


def test_after_kill_9_no_process_that_inherited_its_environment_is_left(tmp_path: Path) -> None:
    """EngineCore, raylet, agents, HAProxy and the watchdog itself are gone 15 s later."""
    with serving(tiny(replicas=1), tmp_path) as serve:
        everything = below(serve.process.pid)
        commands = " ".join(everything.values())
        for expected in ("raylet", "gcs_server", "haproxy", "EngineCore", "cluster.supervisor"):
            assert expected in commands
        serve.end(signal.SIGKILL)
        assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}
        assert [everything[pid] for pid in everything if is_alive(pid)] == []  # some overwrite their environment


def test_a_cluster_of_one_machine_listens_on_loopback_only_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    """Except Serve's gRPC port between replicas, which has no address option and asks for the cluster's token. A clean
    stop is not an error."""
    with serving(simulated(), tmp_path) as serve:
        pids = marked(serve.mark)
        names = {pids[pid].split()[0] for pid, _ in listeners_beyond_loopback(pids)}
        assert {name for name in names if not name.startswith("ray::ServeReplica")} == set()
        assert serve.end(signal.SIGINT) == 0
        assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}


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
    """Not Serve's "failed to update the deployments", and no traceback; the logs stay, and are named."""
    serve = ServeProcess(simulated(engine_args={"no_such_setting": 1}), tmp_path)
    try:
        code = serve.process.wait(timeout=READY_LIMIT_S)
    finally:
        serve.process.kill()
    said = serve.log.read_text()
    assert code == 1
    assert "no_such_setting" in said
    assert "Traceback" not in said
    assert wait_until_gone(serve.mark, LEAVES_NOTHING_WITHIN_S) == {}
    logs = Path(said.split("the logs are in ")[1].splitlines()[0])
    assert any(logs.iterdir())
    shutil.rmtree(logs.parents[1])


def test_two_clusters_on_one_machine_never_answer_for_each_other_and_sigterm_ends_one(tmp_path: Path) -> None:
    """Serve's replicas share ports without an error; each cluster has a range of its own, and an end of its own."""
    with serving(simulated(name="one"), tmp_path) as first, serving(simulated(name="two"), tmp_path) as second:
        for cluster, name in ((first, "one"), (second, "two")) * 20:
            with urllib.request.urlopen(f"{cluster.url}/v1/models", timeout=10) as response:
                assert [model["id"] for model in json.load(response)["data"]] == [name]
        assert first.end(signal.SIGTERM) == 0
        assert wait_until_gone(first.mark, LEAVES_NOTHING_WITHIN_S) == {}
        assert replicas_of(second)


def test_a_dead_engine_is_noticed_and_its_replica_replaced(tmp_path: Path) -> None:
    """SIGKILL of the engine's own process below a living replica: another replica serves, by itself."""
    with serving(tiny(replicas=1), tmp_path) as serve:
        (before,) = replicas_of(serve)
        (engine,) = [pid for pid, command in below(serve.process.pid).items() if "EngineCore" in command]
        os.kill(engine, signal.SIGKILL)
        deadline = time.monotonic() + READY_LIMIT_S
        while replicas_of(serve) in ([], [before]):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        client = anthropic.Anthropic(base_url=serve.url, api_key="dummy", max_retries=20)
        message = client.messages.create(model="tiny", max_tokens=4, messages=[{"role": "user", "content": "Hi"}])
        assert message.usage.output_tokens > 0
        client.close()


def is_alive(pid: int) -> bool:
    """The process exists and is more than an entry that waits to be reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def replicas_of(serve: ServeProcess) -> list[str]:
    """Names of the routable replicas."""
    with urllib.request.urlopen(f"{serve.url}/kvist/status", timeout=10) as response:
        return [row["replica"] for row in json.load(response)["replicas"] if row["routable"]]


def below(pid: int) -> dict[int, str]:
    """Descendants of a process: pid → command line, as the processes name themselves."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = " ".join(process.cmdline())
    return found
