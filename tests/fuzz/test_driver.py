"""The fuzzer that is behind the corpus runs, and leaves its finds where it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def driven(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_target_is_fuzzed_for_a_bounded_number_of_runs(tmp_path: Path) -> None:
    """Beginning with the corpus; new inputs go to `out/fuzz`, never into the repository."""
    done = driven("frame", "-runs=2000", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "Done 2000 runs" in done.stderr
    assert any((tmp_path / "out" / "fuzz" / "frame").iterdir())


def test_memory_beyond_the_bound_is_a_find(tmp_path: Path) -> None:
    """The bound is libFuzzer's own; here it is set below what the process has from the start."""
    done = driven("frame", "-runs=-1", "-max_total_time=60", "-rss_limit_mb=8", folder=tmp_path)
    assert done.returncode != 0
    assert "out-of-memory" in done.stderr


def test_an_unknown_target_is_refused_by_name(tmp_path: Path) -> None:
    """And nothing is fuzzed."""
    done = driven("nonsense", folder=tmp_path)
    assert done.returncode == 1
    assert "nonsense is none of frame, snapshot" in done.stderr
