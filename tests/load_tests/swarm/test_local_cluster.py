"""Swarms against a real cluster of two simulated replicas: what the client measures is what the cluster did."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from load_tests.swarm.ledger import read_ledger
from load_tests.swarm.run import Target, run_swarm
from load_tests.swarm.settings import make_settings
from tests.e2e.cluster_process import serving, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from load_tests.swarm.summary import Summary

pytestmark = pytest.mark.ray

SMALL: dict[str, Any] = {
    "agents": 4,
    "sessions": 8,
    "turns": 4,
    "heads": 2,
    "tools": 1,
    "system_chars": 4_000,
    "result_chars": 300,
    "answer_tokens": 12,
    "think_s": 0.05,
    "ramp_s": 0.0,
    "warmup_s": 0.0,
    "fork_share": 0.3,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"block_size": 16, "pool_blocks": 16_384, "max_model_len": 32_768}
    with serving(simulated(engine_args=settings), tmp_path_factory.mktemp("swarm")) as running:
        yield running.url


def played(url: str, **changes: Any) -> Summary:
    return asyncio.run(run_swarm(make_settings(**SMALL | changes), Target(url))).summary


@pytest.mark.parametrize("api", ["messages", "chat"])
def test_a_changing_line_costs_no_hits_and_replicas_are_told(url: str, api: str) -> None:
    """Close to what one infinite cache would hold, on each of two replicas a part of the work."""
    found = played(url, api=api, preamble="changing", cancel_share=0.0)
    assert found.outcomes["completed"] == found.requests
    assert found.hit_of_ideal is not None
    assert 0.75 < found.hit_of_ideal <= 1.1
    assert len(found.replicas) == 2
    assert sum(one.requests for one in found.replicas) == found.requests
    assert sum(one.cached_tokens for one in found.replicas) == found.cached_tokens > 0


def test_cuts_by_the_client_are_no_errors_of_the_cluster(url: str) -> None:
    found = played(url, cancel_share=0.5, answer_tokens=60)
    assert found.outcomes["cancelled"] > 0
    assert found.outcomes["cancelled"] + found.outcomes["completed"] == found.requests
    assert found.errors == {}


def test_the_command_writes_all_its_files(url: str, tmp_path: Path) -> None:
    """Here of an open loop: sessions at a rate."""
    options = {"--url": url, "--rate": "4", "--duration": "2", "--warmup": "1", "--ramp": "0", "--turns": "2"}
    options |= {"--think": "0.1", "--answer-tokens": "5", "--out": str(tmp_path), "--name": "small", "--seed": "3"}
    done = CliRunner().invoke(app, ["swarm", *[part for pair in options.items() for part in pair]])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "small.json").read_text())
    entries = list(read_ledger(tmp_path / "small.jsonl"))
    assert summary["requests"] == sum(entry.is_measured for entry in entries) > 0
    assert {entry.is_measured for entry in entries} == {True, False}
    assert (tmp_path / "small.csv").read_text().startswith("metric,value")
    assert f"{summary['requests']} requests" in done.output
