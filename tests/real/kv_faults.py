"""Two real engines that share a store, and somebody who breaks it while they use it.

`python -m tests.real.kv_faults 1000` plays so many faults and says what came of them.
"""

from __future__ import annotations

import collections
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.conformance.engines import BLOCK_SIZE, MAX_MODEL_LEN, Bench
from tests.workers.kv_store.support import bytes_of_files
from workers.kv_store.settings import KvStoreSettings
from workers.kv_store.store import BlockStore, Unwritten
from workers.models import prepare_tiny
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).parents[2]
STORE_BYTES: Final = 32 * 2**20
ANSWER_TOKENS: Final = 6
SAVED_WITHIN_S: Final = 10.0
PROGRESS: Final = 110


class Pair:
    """Engine `here` computes, engine `there` loads. Pools are small, so that they evict; steps too, so that prompts
    come in chunks. The store is `folder`/store."""

    def __init__(self, tiny: Path, folder: Path, **settings: Any) -> None:
        self.folder = folder
        store = KvStoreSettings(folder=str(folder / "store"), max_bytes=STORE_BYTES, **settings)
        arguments = {
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks_override": 201,
            "max_model_len": MAX_MODEL_LEN // 2,
            "max_num_batched_tokens": 512,
            "max_num_seqs": 8,
        }
        engines = [VllmEngine(model="conformance", path=tiny, engine_args=arguments, kv_store=store) for _ in range(2)]
        self.here, self.there = map(Bench, engines)
        for bench in (self.here, self.there):
            bench._loop.run_until_complete(bench.start())  # for as long as a busy machine needs

    def close(self) -> None:
        self.here.finish()
        self.there.finish()

    def files(self) -> set[Path]:
        return {Path(entry.path) for entry in _entries(str(self.folder / "store" / "blocks"), depth=2)}

    def compute(self, prompt: list[int], salt: str = "", *, stored: int = 0) -> tuple[list[int], list[Path]]:
        """The first engine's answer, and the files of the prompt's blocks once they are there: all but those `stored`
        before."""
        before = self.files()
        text = self.here.run(self.here.text(self.here.generation(prompt, salt=salt, max_tokens=ANSWER_TOKENS)))
        deadline = time.monotonic() + SAVED_WITHIN_S
        while len(new := self.files() - before) < len(prompt) // BLOCK_SIZE - stored and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        return text, sorted(new)

    def load(self, prompt: list[int], salt: str = "") -> tuple[list[int], int]:
        """The second engine's answer, and how many tokens it found."""
        bench = self.there
        deltas = bench.run(bench.deltas(bench.generation(prompt, salt=salt, max_tokens=ANSWER_TOKENS)))
        tokens = b"".join([delta.tokens for delta in deltas])
        return [*memoryview(tokens).cast("I")], deltas[-1].cached_tokens or 0

    def leave_while_loading(self, prompt: list[int], rng: random.Random) -> None:
        """A client that goes away before its blocks have come, or just after."""

        async def leave() -> None:
            import asyncio

            bench = self.there
            task = asyncio.ensure_future(bench.deltas(bench.generation(prompt, max_tokens=ANSWER_TOKENS)))
            await asyncio.sleep(rng.random() * 0.03)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.there.run(leave())


def _entries(folder: str, *, depth: int) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(folder):
        if depth:
            yield from _entries(entry.path, depth=depth - 1)
        else:
            yield entry


def _cut(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def _flip(file: Path, rng: random.Random) -> None:
    with file.open("r+b") as opened:
        place = rng.randrange(file.stat().st_size)
        opened.seek(place)
        old = opened.read(1)
        opened.seek(place)
        opened.write(bytes([old[0] ^ 1 << rng.randrange(8)]))


def _grow(file: Path, rng: random.Random) -> None:
    with file.open("ab") as opened:
        opened.write(rng.randbytes(rng.randrange(1, 100)))


def _replace(file: Path, rng: random.Random) -> None:
    """By another block of this size, under this one's name: who makes files grow breaks the bound himself."""
    size = file.stat().st_size
    other = rng.choice([other for other in file.parents[2].glob("*/*/*") if other.stat().st_size == size])
    data = other.read_bytes()
    file.unlink()
    file.write_bytes(data)


def _pipe(file: Path, rng: random.Random) -> None:
    del rng
    file.unlink()
    os.mkfifo(file)


def _delete(file: Path, rng: random.Random) -> None:
    del rng
    file.unlink()


FILE_FAULTS: Final[dict[str, Callable[[Path, random.Random], None]]] = {
    "delete": _delete,
    "cut": _cut,
    "flip": _flip,
    "grow": _grow,
    "replace": _replace,
    "pipe": _pipe,
}
KINDS: Final = (*FILE_FAULTS, "delete all", "fill", "stall", "leave", "none")


class Faults:
    """Breaks the store of a pair in ways that `seed` chooses, and counts what came of it."""

    def __init__(self, pair: Pair, *, seed: int) -> None:
        self.pair = pair
        self.rng = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()

    def play(self, rounds: int) -> dict[str, int]:
        """Raises `AssertionError` on a wrong token, a dead engine or a store beyond its bound."""
        for number in range(rounds):
            kind = KINDS[number % len(KINDS)]
            self._round(kind, number)
            if number % 97 == 96:
                self._kill_a_writer()
            with self._locked():  # saving goes on, nobody evicts
                assert bytes_of_files(self.pair.folder) <= STORE_BYTES
        self.pair.here.run(self.pair.here.engine.check_health())
        self.pair.there.run(self.pair.there.engine.check_health())
        return dict(self.counts)

    def _round(self, kind: str, number: int) -> None:
        rng, pair = self.rng, self.pair
        prompt = pair.here.prompt(rng.randrange(40, 1500))
        expected, files = pair.compute(prompt)
        if kind == "leave":
            breaker = threading.Thread(target=self._break, args=("flip", files))
        else:
            breaker = threading.Thread(target=self._break, args=(kind, files))
        breaker.start()
        if rng.random() < 0.5:
            breaker.join()  # before the load, else meanwhile
        if kind == "leave":
            pair.leave_while_loading(prompt, rng)
        found, cached = pair.load(prompt)
        breaker.join()
        again, _ = pair.load(prompt)
        assert found == expected, f"round {number}: a wrong token after {kind}"
        assert again == expected, f"round {number}: a wrong token in the cache after {kind}"
        whole = cached >= (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        self.counts[f"{kind}: " + ("all loaded" if whole else "some computed" if cached else "all computed")] += 1

    def _break(self, kind: str, files: list[Path]) -> None:
        rng = self.rng
        if kind in FILE_FAULTS:
            for file in rng.sample(files, min(len(files), rng.randrange(1, 4))):
                try:
                    FILE_FAULTS[kind](file, rng)
                except (OSError, ValueError):
                    self.counts["fault met a file that was gone"] += 1
        elif kind == "delete all":
            for file in files:
                file.unlink(missing_ok=True)
        elif kind == "fill":
            self._fill()
        elif kind == "stall":
            self._hold_the_lock()

    def _fill(self) -> None:
        """Blocks of somebody else push out all others."""
        store = BlockStore(self.pair.folder / "store", max_bytes=STORE_BYTES, layout=bytes(16))
        size = STORE_BYTES // 64
        now = time.time_ns()
        store.put([Unwritten(self.rng.randbytes(32), bytes(size), now) for _ in range(60)])
        store.close()

    def _hold_the_lock(self) -> None:
        """A process that stops at the worst place."""
        with self._locked():
            threading.Event().wait(0.05)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.pair.folder / "store" / "ledger").open("r+b") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)
            yield

    def _kill_a_writer(self) -> None:
        arguments = [str(self.pair.folder), str(STORE_BYTES // 4096), "1", str(10**9)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.kv_store.writer_process", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        threading.Event().wait(self.rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        self.counts["killed writers"] += 1


def main() -> None:
    rounds = int(sys.argv[1])
    folder = Path(tempfile.mkdtemp(prefix="kv-faults-", dir="/dev/shm"))
    pair = Pair(prepare_tiny(Path.home() / ".cache" / "kvist", template="system-first"), folder)
    try:
        started = time.monotonic()
        faults = Faults(pair, seed=1)
        for done in range(0, rounds, PROGRESS):
            counts = faults.play(min(PROGRESS, rounds - done))
            print(f"{done + PROGRESS} of {rounds}: {json.dumps(counts, sort_keys=True)}", flush=True)
        print(f"{rounds} faults in {time.monotonic() - started:.0f} s: no wrong token, no dead engine")
    finally:
        pair.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
