"""Loads end in time, well or not; nothing arrives late; saves never wait for a disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from router.limits import KV_LOAD_DEADLINE_S
from tests.workers.kv_store.support import file_of, key_of
from workers.kv_store.frames import BadFrame
from workers.kv_store.settings import KvStoreSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workers.kv_store.layout import KvLayout
    from workers.kv_store.store import BlockStore
    from workers.kv_store.transfer import Loader, LoadJob, Saver

torch = pytest.importorskip("torch")
BLOCKS = 8
SOON, NEVER = 1.0, float("inf")


class Worker:
    """A cache with its store, loader and saver; block i of a new cache is full of i."""

    def __init__(self, folder: Path) -> None:
        from workers.kv_store.layout import KvLayout
        from workers.kv_store.store import BlockStore
        from workers.kv_store.transfer import Loader, Saver

        self.cache = torch.arange(BLOCKS, dtype=torch.float32)[:, None].repeat(1, 4)
        self.layout: KvLayout = KvLayout({"layer": self.cache}, blocks=BLOCKS)
        self.store: BlockStore = BlockStore(folder / "store", max_bytes=2**20, layout=self.layout.fingerprint)
        self.loader: Loader = Loader(self.store, self.layout)
        self.saver: Saver = Saver(self.store, self.layout)

    def save(self, *ids: int) -> None:
        self.saver.save([(key_of(number), 1, number) for number in ids])

    def close(self) -> None:
        self.loader.close()
        self.saver.close()
        self.store.close()


def job(names: list[int], targets: list[int], deadline: float = NEVER) -> LoadJob:
    from workers.kv_store.transfer import LoadJob

    return LoadJob(
        "r", [(key_of(name), target) for name, target in zip(names, targets, strict=True)], deadline=deadline
    )


def ended(worker: Worker, load: LoadJob) -> tuple[set[str], set[int]]:
    worker.loader.submit(load)
    while not load.ended:
        threading.Event().wait(0.001)
    return worker.loader.collect(0.0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.close()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Worker]:
    """Another worker's blocks 1, 2, 3 are in its store."""
    first = Worker(tmp_path)
    first.save(1, 2, 3)
    first.close()
    made = Worker(tmp_path)
    made.cache.zero_()
    yield made
    made.close()


def test_what_one_worker_saved_another_loads(filled: Worker) -> None:
    assert ended(filled, job([1, 2, 3], [5, 6, 7])) == ({"r"}, set())
    assert filled.cache[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("fault", ["missing", "cut", "flipped"])
def test_a_block_that_cannot_be_read_fails_with_all_that_follow_it(filled: Worker, tmp_path: Path, fault: str) -> None:
    file = file_of(tmp_path, 2)
    data = file.read_bytes()
    file.unlink()
    if fault != "missing":
        file.write_bytes(data[:-1] if fault == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    assert ended(filled, job([1, 2, 3], [5, 6, 7])) == ({"r"}, {6, 7})
    assert filled.cache[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def test_a_job_whose_thread_meets_a_bug_has_failed_and_others_go_on(
    filled: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(filled.store, "load", bug)
        assert ended(filled, job([1], [5])) == ({"r"}, {5})
        assert ended(filled, job([1], [5])) == ({"r"}, {5})
        assert ended(filled, job([1], [5])) == ({"r"}, {5}), "both threads are alive"
    assert ended(filled, job([1], [5])) == ({"r"}, set())


def test_a_late_load_is_given_up_and_nothing_of_it_arrives_afterwards(
    filled: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks may be another request's by then. KV_LOAD_DEADLINE_S, unless an operator says otherwise, stops a store
    that hangs from holding its requests."""
    assert KvStoreSettings(folder="f").load_deadline_s == KV_LOAD_DEADLINE_S
    asked, go_on = threading.Event(), threading.Event()
    real: Any = filled.store.load

    def stalled(key: bytes, payload: memoryview) -> None:
        asked.set()
        go_on.wait()
        real(key, payload)

    monkeypatch.setattr(filled.store, "load", stalled)
    late = job([1, 2], [5, 6], deadline=SOON)
    filled.loader.submit(late)
    asked.wait()
    assert filled.loader.collect(SOON / 2) == (set(), set())
    assert filled.loader.collect(SOON) == ({"r"}, {5, 6})
    go_on.set()
    assert ended(filled, job([3], [7])) == ({"r"}, set())
    filled.loader.close()
    for thread in filled.loader._threads:
        thread.join()
    assert filled.cache[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 3]


def test_a_saved_block_is_as_it_was_when_it_was_saved(worker: Worker, tmp_path: Path) -> None:
    """The engine may overwrite it at once."""
    worker.save(4)
    worker.cache[4] = 99.0
    worker.close()
    reader = Worker(tmp_path)
    assert ended(reader, job([4], [0])) == ({"r"}, set())
    assert reader.cache[0, 0] == 4.0
    reader.close()


def test_beyond_the_backlog_blocks_are_not_saved(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk must not hold an engine up, nor fill its memory."""
    monkeypatch.setattr("workers.kv_store.transfer.BACKLOG_BYTES", 3 * worker.layout.block_bytes)
    asked, go_on = threading.Event(), threading.Event()
    real: Any = worker.store.put

    def stalled(blocks: Any) -> int:
        asked.set()
        go_on.wait()
        return int(real(blocks))

    monkeypatch.setattr(worker.store, "put", stalled)
    worker.save(1, 2)
    asked.wait()
    worker.save(3, 4)
    worker.save(5)
    go_on.set()
    worker.saver.close()
    assert worker.saver.counters == {"saved": 3, "dropped": 2}
    assert [worker.store.contains(key_of(number)) for number in range(1, 6)] == [True, True, False, False, True]


def test_a_used_block_is_stamped(worker: Worker, tmp_path: Path) -> None:
    worker.save(1)
    worker.saver.touch([(key_of(1), 5_000), (key_of(2), 6_000)])
    worker.saver.close()
    assert file_of(tmp_path, 1).stat().st_mtime_ns == 5_000


def test_a_store_that_cannot_write_does_not_end_the_saving_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(worker.store, "put", bug)
        worker.save(1)
        while worker.saver._backlog:
            threading.Event().wait(0.001)
    worker.save(2)
    worker.saver.close()
    assert worker.store.contains(key_of(2))


def test_loads_of_nothing_known_fail_as_missing(worker: Worker) -> None:
    with pytest.raises(BadFrame):
        worker.store.load(key_of(1), memoryview(bytearray(worker.layout.block_bytes)))
    assert ended(worker, job([1], [2])) == ({"r"}, {2})
