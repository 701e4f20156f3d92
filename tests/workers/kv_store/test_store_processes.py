"""Several processes write, read and evict at once; some are killed at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.workers.kv_store.support import bytes_of_files, opened
from workers.kv_store.store import PAGE_BYTES

ROOT = Path(__file__).parents[3]
PAGES = 40
FOREVER = 10**9


def started(folder: Path, seed: int, rounds: int) -> subprocess.Popen[str]:
    arguments = [str(folder), str(PAGES), str(seed), str(rounds)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workers.kv_store.writer_process", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_at_once_never_exceed_the_bound_and_never_read_a_wrong_block(tmp_path: Path) -> None:
    processes = [started(tmp_path, seed, 60) for seed in range(3)]
    assert [line_of(process) for process in processes] == ["begun"] * 3
    watcher, looks = opened(tmp_path, pages=PAGES), 0
    while any(process.poll() is None for process in processes):
        with watcher._ledger.locked():  # writing goes on, nobody evicts
            assert bytes_of_files(tmp_path) <= PAGES * PAGE_BYTES
        looks += 1
    assert looks > 0
    assert [line_of(process) for process in processes] == ["0"] * 3
    store = opened(tmp_path, pages=PAGES)
    store.check_integrity()
    assert store.used_bytes == bytes_of_files(tmp_path) > 0


def test_a_killed_writer_leaves_only_what_the_next_start_removes(tmp_path: Path) -> None:
    """Its reservation and its unfinished files go, its finished blocks stay."""
    survivor = opened(tmp_path, pages=PAGES)
    for seed in range(3):
        process = started(tmp_path, seed, FOREVER)
        assert line_of(process) == "begun"
        while bytes_of_files(tmp_path) < PAGES * PAGE_BYTES // 2:
            assert process.poll() is None
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert len([*(tmp_path / "store" / "writers").iterdir()]) >= 2
    opened(tmp_path, pages=PAGES).close()
    assert [*(tmp_path / "store" / "writers").iterdir()] == [survivor._ledger.temporary]
    survivor.check_integrity()
    assert survivor.used_bytes == bytes_of_files(tmp_path)


def test_a_writer_killed_between_reserving_and_writing_gives_its_space_back(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    script = (
        "import os, signal, pathlib, workers.kv_store.store as s\n"
        f"store = s.BlockStore(pathlib.Path({str(folder)!r}), max_bytes={PAGES * PAGE_BYTES}, layout=bytes(16))\n"
        f"assert store._reserve({PAGES * PAGE_BYTES})\n"
        "(store._ledger.temporary / '0').write_bytes(b'half a block')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert len([*(folder / "writers").iterdir()]) == 1
    store = opened(tmp_path, pages=PAGES)
    assert store.used_bytes == bytes_of_files(tmp_path) == 0
