"""`kvist replay` as typed: from a trace file to a table and a file of rows."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two sessions of three turns."""
    path = tmp_path / "tiny_sessions.jsonl.gz"
    with gzip.open(path, "wt") as out:
        for name in "ab":
            calls = [
                {"t": 20.0 * turn, "i": 640 + 128 * turn, "o": 64, "api": 2.0, "h": [[1, 10 + 2 * turn]]}
                for turn in range(3)
            ]
            head = {"id": name, "tool_tokens": 128, "system_tokens": 64, "block_size": 64}
            out.write(json.dumps(head | {"requests": calls}) + "\n")
    return path


def replay(*args: object) -> Any:
    return CliRunner().invoke(app, ["replay", *[str(arg) for arg in args]])


def test_a_trace_becomes_a_row_for_each_policy(trace: Path, tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    done = replay(
        trace, "--policy", "kvist,round-robin", "--replicas", 2, "--pool-blocks", 500, "--sessions", 2,
        "--requests", 6, "--step", "shared", "--rate-scale", 2, "--json", rows_file,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(rows_file.read_text())["rows"]
    assert [(row["policy"], row["requests"]) for row in rows] == [("kvist", 6), ("round-robin", 6)]
    assert rows[0]["hit_rate"] >= rows[1]["hit_rate"]
    assert "tiny_sessions: 2 × 500 blocks, h100-32b, shared" in done.output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--pool-blocks", "lots"), "a pool of 'lots'"),
        (("--block-size", 16), "blocks of 64, not 16"),
        (("--calibration", "abacus"), "unknown calibration"),
        (("--policy", "luck"), "no policy 'luck'"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(trace: Path, given: tuple[object, ...], words: str) -> None:
    fault = replay(trace, *given).exception
    assert isinstance(fault, InvalidRequest)
    assert words in str(fault)


def test_without_a_trace_there_is_nothing_to_do() -> None:
    assert isinstance(replay().exception, InvalidRequest)
