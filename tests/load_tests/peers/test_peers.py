"""Peers without starting any: command lines, paces, settings, and what is said when one is missing or fails."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import psutil
import pytest
import yaml

from cluster.config import load_config
from load_tests.peers import compare, dynamo, kvist, pairs, ray_kv_aware_app
from load_tests.peers.children import Children, chat_fault
from load_tests.peers.environment import (
    SCRIPTS,
    PeerFailed,
    PeerMissing,
    interpreter_of,
    lab_folder,
    versions_of,
)
from load_tests.peers.pace import Pace
from load_tests.peers.ports import BLOCK_PORTS, free_block, is_free
from load_tests.peers.running import Running
from load_tests.stats import machine
from load_tests.swarm.settings import make_settings
from workers.simulator import SimParameters

if TYPE_CHECKING:
    from collections.abc import Iterator

PACE = Pace(
    step_s=0.004,
    prefill_token_s=1e-5,
    decode_s=2e-4,
    step_tokens=256,
    block_size=16,
    pool_blocks=1_000,
    max_model_len=4_096,
)


def table_of(folder: Path) -> dict[str, Any]:
    PACE.mocker_options(folder / "pace.npz")
    with np.load(folder / "pace.npz") as arrays:
        return dict(arrays)


def fail_to_start_two(folder: Path, pids: list[int]) -> None:
    with Children("peer", folder) as children:
        for name in ("one", "two"):
            pids.append(children.start(name, [sys.executable, "-c", "import time; time.sleep(600)"], os.environ))
        children.wait_until(lambda: "no answer", limit_s=0.05)


class TestPace:
    """Both simulators take the same time for the same step."""

    def test_a_prefill_costs_both_the_same(self, tmp_path: Path) -> None:
        """Whatever number of new tokens a step may have, to its budget."""
        table = table_of(tmp_path)
        assert table["prefill_isl"][0] == 0
        assert table["prefill_isl"][-1] >= PACE.step_tokens
        for tokens, time_ms in zip(table["prefill_isl"], table["prefill_ttft_ms"], strict=True):
            assert time_ms == pytest.approx(1e3 * (PACE.step_s + tokens * PACE.prefill_token_s))

    def test_a_decode_costs_by_how_many_run(self, tmp_path: Path) -> None:
        """The table knows requests as cached tokens over tokens of one."""
        table = table_of(tmp_path)
        loads, contexts = table["decode_active_kv_tokens"], table["decode_context_length"]
        row, column = len(loads) // 2, len(contexts) // 4
        running = loads[row] / contexts[column]
        assert table["decode_itl"][row, column] == pytest.approx(1e3 * (PACE.step_s + running * PACE.decode_s))
        assert table["decode_itl"].min() == pytest.approx(1e3 * (PACE.step_s + PACE.decode_s)), "one at least"

    def test_kvists_simulator_takes_all_of_it(self) -> None:
        """As the engine arguments of a model."""
        parameters = msgspec.convert(PACE.sim_args(), SimParameters)
        assert (parameters.step_s, parameters.pool_blocks, parameters.max_batched_tokens) == (0.004, 1_000, 256)


class TestCommands:
    """What is started."""

    def test_dynamos_frontend_listens_on_loopback_and_routes_by_cache(self) -> None:
        """With both APIs."""
        command = " ".join(dynamo.frontend_command("python", 81))
        for option in ("--http-host 127.0.0.1", "--http-port 81", "--router-mode kv", "--enable-anthropic-api"):
            assert option in command

    def test_no_plane_of_dynamo_leaves_loopback(self) -> None:
        """Each has a setting of its own for it."""
        hosts = [value for name, value in dynamo.SETTINGS.items() if name.endswith("_HOST")]
        assert len(hosts) == 3
        assert set(hosts) == {"127.0.0.1"}

    def test_every_mock_engine_is_a_process_of_its_model(self) -> None:
        """So that one can be ended by its pid."""
        command = dynamo.mocker_command("python", Path("/m"), dynamo.Fleet("agent", 3, {"--block-size": 16}))
        pairs_of = dict(zip(command[3::2], command[4::2], strict=True))
        assert pairs_of["--endpoint"] == "dyn://dynamo.agent.generate"
        assert (pairs_of["--num-workers"], pairs_of["--model-path"], pairs_of["--block-size"]) == ("1", "/m", "16")

    def test_rays_application_gets_a_chat_request_with_its_body(self) -> None:
        """Without these three its router has no tokens and chooses at random, silently."""
        needed = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING")
        for name in (*needed, "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"):
            assert ray_kv_aware_app.ENVIRONMENT[name] == "1"

    def test_rays_haproxy_is_kept_on_loopback(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its own listeners as well: the wrapper rewrites the file before HAProxy reads it."""
        monkeypatch.setattr(os, "environ", dict(os.environ))
        settings = ray_kv_aware_app.Settings(
            model="m", folder="", port=1, first_port=30_000, replicas=2, scratch=str(tmp_path), engine_args={}
        )
        ray_kv_aware_app.set_environment(settings)
        wrapper = Path(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"])
        assert "bind 127.0.0.1:" in wrapper.read_text()
        assert os.access(wrapper, os.X_OK)
        ports = [int(value) for name, value in os.environ.items() if name.endswith("_PORT") and value.startswith("300")]
        assert len(ports) == len(set(ports)) == 6
        assert max(ports) < 30_000 + BLOCK_PORTS


class TestPairs:
    """What is compared, before anything runs."""

    @pytest.mark.parametrize("peer", pairs.PAIRS)
    def test_every_peer_has_a_workload_and_a_way_to_make_it(self, peer: str) -> None:
        """Its script is there."""
        assert make_settings(**pairs.PAIRS[peer].swarm).agents
        assert (Path(compare.__file__).parent / SCRIPTS[peer]).is_file()

    def test_both_sides_are_asked_by_each_api(self) -> None:
        """In columns of their own, and each is told how many replicas there are."""
        ours, theirs = (Running(name, f"http://{name}", "m") for name in ("kvist", "dynamo"))
        sides = compare.sides_of(pairs.PAIRS["dynamo"], ours, theirs)
        assert [side.label for side in sides] == ["kvist-messages", "dynamo-messages", "kvist-chat", "dynamo-chat"]
        assert {side.replicas for side in sides} == {pairs.SIM_REPLICAS}

    def test_a_cluster_file_says_small_times_as_numbers(self, tmp_path: Path) -> None:
        """A YAML reader takes 2e-05 for a text."""
        file = tmp_path / "kvist.yaml"
        model = {"name": "tiny", "engine": "sim", "engine_args": pairs.SIM_PACE.sim_args()}
        kvist.write_config(file, [model], port=8001)
        assert yaml.safe_load(file.read_text())["models"][0]["engine_args"]["prefill_token_s"] == 2e-5
        assert load_config(file).port == 8001

    def test_a_missing_peer_is_said_before_anything_starts(self, tmp_path: Path, capsys: Any) -> None:
        """With the script that makes its environment; no file is written."""
        file = tmp_path / "rows.json"
        assert compare.main(["--peer", "ray-kv-aware", "--lab", str(tmp_path), "--json", str(file)]) == 2
        assert "load_tests/peers/make_ray_kv_aware.sh" in capsys.readouterr().err
        assert not file.exists()

    def test_the_table_names_machine_and_versions(self) -> None:
        """Below the columns."""
        text = compare.as_text({}, {"engines": "two", "machine": machine(), "versions": {"ray": "2.60.0"}})
        assert text.splitlines()[-3:][0] == "two"
        assert text.endswith("ray 2.60.0")


class TestEnvironments:
    """Where peers are installed."""

    def test_the_lab_is_a_folder_of_the_users_choice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or one below the cache folder."""
        monkeypatch.setenv("KVIST_LAB", "/somewhere")
        assert lab_folder() == Path("/somewhere")
        monkeypatch.delenv("KVIST_LAB")
        assert lab_folder() == Path.home() / ".cache" / "kvist-lab"

    def test_versions_are_those_of_the_peers_own_environment(self, tmp_path: Path) -> None:
        """Not of ours."""
        python = tmp_path / "dynamo" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho \'{"ai-dynamo": "7"}\'\n')
        python.chmod(0o755)
        assert versions_of("dynamo", tmp_path) == {"ai-dynamo": "7"}
        with pytest.raises(PeerMissing, match="no environment of ray-kv-aware"):
            interpreter_of("ray-kv-aware", tmp_path)


class TestChildren:
    """Processes of a peer."""

    def test_all_have_ended_when_the_block_is_left(self, tmp_path: Path) -> None:
        """Also when it is left by an error."""
        pids: list[int] = []
        with pytest.raises(PeerFailed, match="not ready"):
            fail_to_start_two(tmp_path, pids)
        assert len(pids) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    def test_what_a_process_leaves_behind_has_ended_too(self, tmp_path: Path) -> None:
        """A cluster's engines are processes of processes, and some do not notice that it is gone."""
        sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        program = (
            f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleeper!r}]).pid, flush=True)"
        )
        log = tmp_path / "peer-parent.log"
        with Children("peer", tmp_path) as children:
            children.start("parent", [sys.executable, "-c", f"{program}; input()"], os.environ)
            children.wait_until(lambda: "" if log.read_text() else "no child", limit_s=60.0)
        assert not psutil.pid_exists(int(log.read_text().split()[0]))

    def test_one_that_ends_while_it_starts_is_an_error(self, tmp_path: Path) -> None:
        """With its exit code and where its log is."""
        with Children("peer", tmp_path) as children:
            children.start("short", [sys.executable, "-c", "print('words'); raise SystemExit(3)"], os.environ)
            with pytest.raises(PeerFailed, match="ended with code 3"):
                children.wait_until(lambda: "never", limit_s=60.0)
        assert (tmp_path / "peer-short.log").read_text() == "words\n"

    def test_one_that_is_never_ready_is_an_error(self, tmp_path: Path) -> None:
        """With what was missing last."""
        with Children("peer", tmp_path) as children, pytest.raises(PeerFailed, match="not ready after 0 s: no answer"):
            children.wait_until(lambda: "no answer", limit_s=0.05)

    def test_a_server_is_ready_when_it_answers_a_chat(self, answering: str) -> None:
        """Else its own words say what is wrong, or the system's."""
        assert chat_fault(answering, "known") == ""
        assert "no such model" in chat_fault(answering, "other")
        assert "refused" in chat_fault(f"http://127.0.0.1:{free_block().start}", "known")


class TestPorts:
    """Ports for what is started."""

    def test_a_block_is_free_as_a_whole(self) -> None:
        """It starts where systems do not give out ports by themselves."""
        block = free_block()
        assert len(block) == BLOCK_PORTS
        assert all(map(is_free, block))


@pytest.fixture
def answering() -> Iterator[str]:
    """A server that knows one model."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, said = (200, b"{}") if asked["model"] == "known" else (404, b"no such model")
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
