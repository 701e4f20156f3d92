"""The peer's side of the bench: Dynamo's bindings doing the work that `kvist bench router` does itself.

Runs under the peer's own interpreter and imports nothing of Kvist. One JSON command per line on stdin, one JSON answer
per line on stdout: `{"do": name, ...}` → `{"ok": ...}` or `{"error": text}`. Bulk data comes as msgpack files. The
parent has pinned this process to a CPU before it starts a thread.

`RadixTree` takes each event as JSON, so the JSON is made before the clock starts, and every block gets one number both
as its hash and as the hash of its tokens. It works in a thread of its own: a look-up at the end waits for it.
`SelectionService` subscribes to engine events over ZMQ by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DYN_LOG", "error")

import msgpack
from dynamo.llm import RadixTree, SelectionService, compute_block_hash_for_seq  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

MODEL = "bench"
POLL_S = 0.02  # waiting costs no CPU time
PACKAGES = ("ai-dynamo", "ai-dynamo-runtime")


class Bench:
    """One method per command."""

    def __init__(self) -> None:
        self.tree: Any = RadixTree()
        self.service: Any = None
        self.selections = 0

    async def hello(self) -> dict[str, str]:
        return {package: metadata.version(package) for package in PACKAGES}

    async def hash(self, file: str, block_size: int, calls: int) -> float:
        tokens = load(file)
        return median_us(lambda: compute_block_hash_for_seq(tokens, block_size), calls)

    async def fill(self, file: str) -> None:
        """Keep a tree for `match`."""
        for replica, event in stored_events(load(file)):
            self.tree.apply_event(replica, event)

    async def match(self, file: str, calls: int) -> float:
        """Median of a look-up; the scores must be the blocks that each replica holds."""
        case = load(file)
        hashes, held = case["hashes"], case["held"]
        expected = {replica: blocks for replica, blocks in enumerate(held) if blocks}
        scores = self.tree.find_matches(hashes).scores
        found = {(key[0] if isinstance(key, tuple) else key): blocks for key, blocks in scores.items()}
        if found != expected:
            raise ValueError(f"{file}: the peer's scores are not what its replicas hold")
        return median_us(lambda: self.tree.find_matches(hashes).scores, calls)

    async def update(self, file: str) -> dict[str, float]:
        """Blocks per CPU second, stored and removed."""
        runs = load(file)
        blocks = sum(len(hashes) for _, _, hashes in runs)
        probe = runs[0][2]
        tree = RadixTree()
        stored = apply_all(tree, list(stored_events(runs)), probe)
        removed = apply_all(tree, list(removed_events(runs)), probe)
        if tree.find_matches(probe).scores:
            raise ValueError("blocks are left after all were removed")
        return {"store": blocks / stored, "remove": blocks / removed}

    async def memory(self, file: str) -> float:
        """Resident bytes per block. For a process that has done nothing else."""
        return bytes_per_block(file)

    async def subscribe(self, endpoints: list[str], block_size: int, pool_blocks: int) -> None:
        self.service = SelectionService(indexer_threads=4)
        for replica, endpoint in enumerate(endpoints):
            await self.service.upsert_worker(
                {
                    "worker_id": replica,
                    "model_name": MODEL,
                    "block_size": block_size,
                    "endpoint": f"http://127.0.0.1:{9_000 + replica}",
                    "kv_events_endpoints": {0: endpoint},
                    "total_kv_blocks": pool_blocks,
                    "max_num_batched_tokens": 8_192,
                }
            )

    async def wait(self, file: str, block_size: int, limit_s: float) -> float:
        """CPU seconds of this process until the last prompt of every replica was found."""
        start, deadline = time.process_time(), time.monotonic() + limit_s
        for replica, tokens in load(file).items():
            while not await self._holds(replica, tokens, len(tokens) // block_size):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"replica {replica} is not complete after {limit_s} s")
                await asyncio.sleep(POLL_S)
        return time.process_time() - start

    async def choose(self, file: str, calls: int) -> float:
        """Median of select and reserve; the reservation is freed off the clock."""
        query = {"model_name": MODEL, "token_ids": load(file)}
        seconds = []
        for _ in range(calls + 1):
            self.selections += 1
            name = f"bench-{self.selections}"
            start = time.perf_counter()
            await self.service.select_and_reserve({**query, "selection_id": name})
            seconds.append(time.perf_counter() - start)
            await self.service.prefill_complete(name)
            await self.service.free_reservation(name)
        return statistics.median(seconds[1:]) * 1e6

    async def unsubscribe(self) -> None:
        self.service.shutdown()
        self.service = None

    async def _holds(self, replica: int, tokens: list[int], blocks: int) -> bool:
        scores = await self.service.overlap_scores({"model_name": MODEL, "token_ids": tokens})
        return any(one["worker_id"] == replica and one["device_blocks"] == blocks for one in scores["workers"])


def load(file: str) -> Any:
    with open(file, "rb") as source:
        return msgpack.unpackb(source.read(), strict_map_key=False)


def stored_events(runs: Any) -> Iterator[tuple[int, bytes]]:
    for number, (replica, parent, hashes) in enumerate(runs, 1):
        blocks = [{"block_hash": one, "tokens_hash": one} for one in hashes]
        yield replica, event(number, {"stored": {"parent_hash": parent, "blocks": blocks}})


def removed_events(runs: Any) -> Iterator[tuple[int, bytes]]:
    """Everything that was stored, last first, as an engine evicts."""
    for number, (replica, _, hashes) in enumerate(reversed(runs), len(runs) + 1):
        yield replica, event(number, {"removed": {"block_hashes": hashes[::-1]}})


def event(number: int, data: dict[str, Any]) -> bytes:
    return json.dumps({"event_id": number, "data": data}).encode()


def apply_all(tree: Any, events: list[tuple[int, bytes]], probe: list[int]) -> float:
    start = time.process_time()
    for replica, text in events:
        tree.apply_event(replica, text)
    tree.find_matches(probe)
    return time.process_time() - start


def bytes_per_block(file: str) -> float:
    tree, blocks = RadixTree(), 0
    tree.find_matches([1])
    before = resident_bytes()
    with open(file, "rb") as source:
        for run in msgpack.Unpacker(source):
            blocks += len(run[2])
            for replica, text in stored_events([run]):
                tree.apply_event(replica, text)
    tree.find_matches([1])
    return (resident_bytes() - before) / blocks


def median_us(call: Callable[[], object], calls: int) -> float:
    call()
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def serve() -> None:
    # Whatever the peer prints goes to stderr; answers go where stdout was.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    bench = Bench()
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        method: Callable[..., Awaitable[object]] = getattr(bench, command.pop("do"))
        try:
            answer: dict[str, object] = {"ok": await method(**command)}
        except Exception as error:  # noqa: BLE001 - told to the parent, which ends the run
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
