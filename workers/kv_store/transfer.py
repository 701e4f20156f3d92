"""Moving blocks between an engine's cache and the store, beside the engine's own thread.

Loads are jobs: threads read and check frames into a staging buffer and copy them into the cache, a chunk at a time.
A job that is late is given up: what it has not copied counts as failed, and since copying happens under the job's lock,
nothing of it reaches the cache afterwards, when the blocks may be another request's.

Saves copy at once, while the engine cannot yet overwrite the blocks, and are written behind the engine's back. What
does not fit into the backlog is not saved.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from workers.kv_store.frames import BadFrame
from workers.kv_store.store import Unwritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.kv_store.layout import KvLayout
    from workers.kv_store.store import BlockStore

logger = logging.getLogger("vllm.kvist.kv_store")

STAGED_BYTES: Final = 4 * 2**20  # of one loading thread
BACKLOG_BYTES: Final = 512 * 2**20  # copied and not yet written; more is not saved
LOADERS: Final = 2
FLUSH_S: Final = 5.0  # for what is not written when an engine stops


class Copies:
    """Where copies of one thread are enqueued: a stream of its own on a GPU, nothing on a CPU."""

    def __init__(self, device: Any) -> None:
        # Not yet run on a GPU.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def after_the_model(self) -> None:
        """What comes next waits for all that the current stream has enqueued."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def enqueue(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def finish(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class LoadJob:
    """The blocks that one request waits for, in prompt order. `deadline` is on the clock of its `Loader`."""

    def __init__(self, request_id: str, blocks: Sequence[tuple[bytes, int]], *, deadline: float) -> None:
        self.request_id = request_id
        self.blocks = blocks
        self.deadline = deadline
        self.lock = threading.Lock()
        self.copied = 0  # of its first blocks
        self.ended = False

    def __repr__(self) -> str:
        return f"<LoadJob {self.request_id} {self.copied}/{len(self.blocks)}{' ended' if self.ended else ''}>"

    def end(self) -> set[int]:
        """Copy nothing from now on; the cache blocks that were not filled. Waits for a chunk under way."""
        with self.lock:
            self.ended = True
            return {block_id for _, block_id in self.blocks[self.copied :]}


class Loader:
    """Threads that fill the cache from the store."""

    def __init__(self, store: BlockStore, layout: KvLayout) -> None:
        self._store = store
        self._layout = layout
        self._waiting: queue.SimpleQueue[LoadJob | None] = queue.SimpleQueue()
        self._jobs: list[LoadJob] = []
        self._threads = [threading.Thread(target=self._run, name="kv-load", daemon=True) for _ in range(LOADERS)]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<Loader {self._jobs}>"

    def submit(self, job: LoadJob) -> None:
        self._jobs.append(job)
        self._waiting.put(job)

    def collect(self, now: float) -> tuple[set[str], set[int]]:
        """Requests whose loads have ended since the last call, well or not, and the cache blocks that failed."""
        over = [job for job in self._jobs if job.ended or now >= job.deadline]
        self._jobs = [job for job in self._jobs if job not in over]
        failed: set[int] = set()
        for job in over:
            failed |= job.end()
        return {job.request_id for job in over}, failed

    def close(self) -> None:
        for job in self._jobs:
            job.end()
        for _ in self._threads:
            self._waiting.put(None)

    def _run(self) -> None:
        staging = self._layout.rows(max(1, STAGED_BYTES // max(1, self._layout.block_bytes)))
        copies = Copies(self._layout.device)
        while (job := self._waiting.get()) is not None:
            try:
                self._fill(job, staging, copies)
            except Exception:
                logger.exception("a load failed; its blocks are computed")
            job.ended = True  # nobody waits for it any more, and what is not copied has failed

    def _fill(self, job: LoadJob, staging: Any, copies: Copies) -> None:
        for start in range(0, len(job.blocks), len(staging)):
            chunk = job.blocks[start : start + len(staging)]
            read = self._read(chunk, staging)
            with job.lock:
                if job.ended:
                    return
                if read:
                    with copies.enqueue():
                        self._layout.scatter(staging, [block_id for _, block_id in chunk[:read]])
                    copies.finish()
                job.copied += read
            if read < len(chunk):
                return  # what follows a missing block is of no use

    def _read(self, chunk: Sequence[tuple[bytes, int]], staging: Any) -> int:
        rows = staging.numpy()
        for place, (key, _) in enumerate(chunk):
            try:
                self._store.load(key, memoryview(rows[place]))
            except BadFrame:
                return place
        return len(chunk)


class Saver:
    """A thread that writes what was copied out of the cache."""

    def __init__(self, store: BlockStore, layout: KvLayout) -> None:
        self._store = store
        self._layout = layout
        self._copies = Copies(layout.device)
        self._waiting: queue.SimpleQueue[tuple[list[tuple[bytes, int]], Any] | None] = queue.SimpleQueue()
        self._backlog = 0
        self._lock = threading.Lock()
        self.counters = {"saved": 0, "dropped": 0}
        self._thread = threading.Thread(target=self._run, name="kv-save", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Saver backlog={self._backlog} {self.counters}>"

    def save(self, blocks: Sequence[tuple[bytes, int, int]]) -> None:
        """Copy blocks (key, stamp, id in the cache) out of the cache, and write them later."""
        size = len(blocks) * self._layout.block_bytes
        with self._lock:
            if not blocks or self._backlog + size > BACKLOG_BYTES:
                self.counters["dropped"] += len(blocks)
                return
            self._backlog += size
        rows = self._layout.rows(len(blocks))
        self._copies.after_the_model()
        with self._copies.enqueue():
            self._layout.gather([block_id for _, _, block_id in blocks], rows)
        self._copies.finish()
        self._waiting.put(([(key, stamp) for key, stamp, _ in blocks], rows))

    def touch(self, marks: Sequence[tuple[bytes, int]]) -> None:
        """Stamp blocks that are used."""
        self._waiting.put(([*marks], None))

    def close(self) -> None:
        """Write what was copied, within a time."""
        self._waiting.put(None)
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            marks, rows = work
            if rows is None:
                for key, stamp in marks:
                    self._store.touch(key, stamp)
                continue
            try:
                self._write(marks, rows.numpy())
            except Exception:
                logger.exception("blocks could not be saved")
            with self._lock:
                self._backlog -= rows.numel()

    def _write(self, marks: list[tuple[bytes, int]], rows: Any) -> None:
        blocks = [Unwritten(key, memoryview(row), stamp) for (key, stamp), row in zip(marks, rows, strict=True)]
        self.counters["saved"] += self._store.put(blocks)
