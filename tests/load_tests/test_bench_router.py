"""The router bench in a small form: every row is there and was measured. Nothing here judges how fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from load_tests.bench import workload
from load_tests.bench.peer import Peer
from load_tests.bench.report import as_data, as_text, write
from load_tests.bench.run import bench_router
from load_tests.bench.workload import Sizes
from load_tests.peers.environment import PeerFailed, PeerMissing

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Sizes(
    replicas=4,
    prompt_blocks=32,
    long_prompt_blocks=128,
    shared_blocks=8,
    private_blocks=64,
    choice_private_blocks=32,
    ingest_replicas=2,
    ingest_blocks=256,
    blocks_per_event=16,
    memory_blocks=40_000,
    calls=5,
)
ROWS = {
    "hash_52k_tokens_us": "us",
    "match_32_blocks_4_replicas_us": "us",
    "match_32_blocks_4_replicas_shared_prefix_us": "us",
    "match_32_blocks_4_replicas_staggered_us": "us",
    "match_128_blocks_4_replicas_us": "us",
    "match_128_blocks_4_replicas_shared_prefix_us": "us",
    "match_128_blocks_4_replicas_staggered_us": "us",
    "store_blocks_per_s": "blocks/s",
    "remove_blocks_per_s": "blocks/s",
    "bytes_per_block": "bytes",
    "choose_4_replicas_us": "us",
    "hash_and_choose_4_replicas_us": "us",
    "ingest_engine_frames_blocks_per_s": "blocks/s",
    "ingest_kvist_frames_blocks_per_s": "blocks/s",
}


def test_every_row_is_measured_and_written(tmp_path: Path) -> None:
    """One round of everything, through real sockets and processes; the CPUs are given back at the end."""
    allowed = os.sched_getaffinity(0)
    data = bench_router(rounds=1, sizes=SMALL)
    assert {row["name"]: row["unit"] for row in data["rows"]} == ROWS
    assert all(row["value"] > 0 and row["peer_value"] is None and row["ratio"] is None for row in data["rows"])
    assert data.keys() == {"rows", "machine", "versions"}
    assert data["machine"]["cores"] >= 1
    assert "pyzmq" in data["versions"]
    assert os.sched_getaffinity(0) == allowed
    write(data, tmp_path / "out" / "rows.json")
    assert json.loads((tmp_path / "out" / "rows.json").read_text()) == data


def test_the_default_sizes_are_what_the_rows_names_say() -> None:
    """3,250 blocks are 52,000 tokens, and the long prompt is four times as long."""
    sizes = Sizes()
    names = [case.name for case in workload.match_cases(sizes)]
    assert {"match_3250_blocks_64_replicas_us", "match_13000_blocks_64_replicas_us"} <= set(names)
    assert sizes.prompt_blocks * sizes.block_size == 52_000


def test_rows_are_medians_and_ratios_are_ours_by_the_peers() -> None:
    """A row the peer does not have stays without a ratio."""
    ours = {"store_blocks_per_s": [30.0, 10.0, 20.0], "hash_52k_tokens_us": [5.0]}
    data = as_data(ours, {"store_blocks_per_s": [10.0, 90.0, 8.0]}, {"peer": "1"})
    assert data["rows"] == [
        {"name": "store_blocks_per_s", "value": 20.0, "unit": "blocks/s", "peer_value": 10.0, "ratio": 2.0},
        {"name": "hash_52k_tokens_us", "value": 5.0, "unit": "us", "peer_value": None, "ratio": None},
    ]
    assert data["versions"]["peer"] == "1"
    assert "store_blocks_per_s" in as_text(data)


def test_the_last_prompts_are_whole_prompts() -> None:
    """What a peer is asked for to see that all is in begins at the start of a prompt, however it was cut."""
    prompts = workload.last_prompts(workload.choice_token_runs(SMALL)[1])
    assert {replica: len(tokens) for replica, tokens in prompts.items()} == dict.fromkeys(range(4), 32 * 16)


def test_a_missing_peer_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    """Exit code 2, before anything was measured."""
    done = _kvist("bench", "router", "--peer", "dynamo", "--json", str(tmp_path / "rows.json"), lab=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvist: no environment of dynamo at ")
    assert "--lab or KVIST_LAB" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "rows.json").exists()


def test_a_peer_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    """An environment without the peer's wheels, say."""
    program = "import sys; print('no wheels', file=sys.stderr); sys.exit(3)"
    with (
        _peer(tmp_path, program) as peer,
        pytest.raises(PeerFailed, match="dynamo has ended with code 3: no wheels"),
    ):
        peer.ask("hello")


def test_an_error_of_the_peer_ends_the_run(tmp_path: Path) -> None:
    """No value is made up for it."""
    program = 'input(); print(\'{"error": "out of luck"}\', flush=True); input()'
    with _peer(tmp_path, program) as peer, pytest.raises(PeerFailed, match="dynamo: out of luck"):
        peer.ask("hello")


def test_bulk_data_reaches_the_peer_as_files(tmp_path: Path) -> None:
    """Written once for each name."""
    with _peer(tmp_path, "import json\nwhile True: print(json.dumps({'ok': json.loads(input())}), flush=True)") as peer:
        first = peer.file("numbers", [1, 2])
        assert peer.file("numbers", []) == first
        assert peer.ask("load", file=first) == {"do": "load", "file": first}
    with pytest.raises(PeerMissing):
        Peer("dynamo", lab=tmp_path / "elsewhere")


def _peer(lab: Path, program: str) -> Peer:
    """A peer whose interpreter runs this program, whatever script it is given."""
    python = lab / "dynamo" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (lab / "program.py").write_text(program)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{lab / "program.py"}"\n')
    python.chmod(0o755)
    return Peer("dynamo", lab=lab)


def _kvist(*args: str, lab: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KVIST_LAB": str(lab)}
    command = [sys.executable, "-m", "cluster.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
