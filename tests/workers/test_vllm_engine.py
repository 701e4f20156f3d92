"""The real engine's life in a process: what it leaves behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
LIFE = """
import asyncio, os, sys
from pathlib import Path
from workers.vllm_engine import VllmEngine

async def live():
    await engine.start()
    print("FOLDERS", *os.listdir(os.environ["TMPDIR"]))
    asyncio.kept = engine._engine  # this module outlives those of vLLM when the interpreter goes to pieces
    await engine.close()

if __name__ == "__main__":
    engine = VllmEngine(model="m", path=Path(sys.argv[1]), engine_args={"kv_cache_memory_bytes": 2**26})
    asyncio.run(live())
"""


def test_a_closed_engine_leaves_no_files_and_says_nothing_when_the_process_ends(
    tiny_model: Path, tmp_path: Path
) -> None:
    """An exception at exit reads like a failure. Its event sockets are where TMPDIR says."""
    folder = Path(tempfile.mkdtemp(prefix="kv-"))  # a short path: that of a socket holds about a hundred characters
    script = tmp_path / "life.py"
    script.write_text(LIFE, encoding="utf-8")
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script, tiny_model],
        check=False,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    [folders] = [line for line in done.stdout.splitlines() if line.startswith("FOLDERS")]
    assert "kv-events-" in folders
    assert not [left for left in os.listdir(folder) if left.startswith("kv-events-")]
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(folder)
