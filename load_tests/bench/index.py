"""Hashing and the index: match, store, remove, memory. Nothing but function calls.

hash     a prompt of 52,000 tokens into block hashes. Kvist takes packed tokens and chains; the peer takes a list of
         integers and does not chain (its look-up does).
match    hashes of a prompt → blocks held, for each of 64 replicas, whose pools hold all prompts and private blocks.
store,   an event of 64 blocks, as bytes, into the index: Kvist decodes its frame, `RadixTree` decodes JSON.
remove   Pools as in `workload.pool_runs`; removal is last in, first out.
memory   what the resident size of a process grows by, per (replica, block), at a million of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from typing import TYPE_CHECKING, Final

import psutil

from load_tests.bench import workload
from load_tests.bench.timing import Group, Values, median_us
from router.errors import KvistBug
from router.hashing import block_hashes, seed_of
from router.index import Index
from router.wire import Frame, Load, Removed, Stored, decode_frame, encode_frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

    from load_tests.bench.peer import Peer
    from load_tests.bench.workload import MatchCase, Run, Sizes
    from router.wire import Op

GPU: Final = "gpu"
MODEL: Final = "bench"
LOAD: Final = Load(running=4, waiting=1, backlog_tokens=8_192, free_blocks=1_000, total_blocks=16_384)
HASH_ROW: Final = "hash_52k_tokens_us"
STORE_ROW, REMOVE_ROW, MEMORY_ROW = "store_blocks_per_s", "remove_blocks_per_s", "bytes_per_block"


def name_of(replica: int) -> str:
    """A replica's name, as long as Serve's."""
    return f"{replica:08d}"


def frame_of(replica: int, seq: int, op: Op, sizes: Sizes) -> bytes:
    """One event frame with one operation."""
    return encode_frame(Frame(name_of(replica), "bench", seq, 0.0, (op,), LOAD, sizes.block_size))


class Hashing(Group):
    """A cold prompt's block hashes."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._tokens = workload.random_tokens(random.Random(0), sizes.prompt_blocks * sizes.block_size)

    def kvist(self) -> Values:
        packed, size, seed = self._tokens.tobytes(), self._sizes.block_size, seed_of(MODEL)
        return {HASH_ROW: median_us(lambda: block_hashes(packed, block_size=size, seed=seed), self._sizes.calls)}

    def peer(self, peer: Peer) -> Values:
        file = peer.file("prompt", self._tokens.tolist())
        return {HASH_ROW: peer.ask("hash", file=file, block_size=self._sizes.block_size, calls=self._sizes.calls)}


class Matching(Group):
    """Look-ups in one well-filled index. See `workload.match_cases`."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._cases = workload.match_cases(sizes)
        self._replicas = [name_of(replica) for replica in range(sizes.replicas)]
        self._index = Index()
        for name in self._replicas:
            self._index.add(name, pool_blocks=sizes.private_blocks + sum(len(case.hashes) for case in self._cases))
        for seq, (replica, _, hashes) in enumerate(workload.match_runs(self._cases, sizes)):
            data = frame_of(replica, seq, Stored(GPU, tuple(hashes)), sizes)
            self._index.apply(name_of(replica), decode_frame(data).ops)
        self._peer_is_filled = False

    def kvist(self) -> Values:
        return {case.name: self._match(case) for case in self._cases}

    def peer(self, peer: Peer) -> Values:
        if not self._peer_is_filled:
            peer.ask("fill", file=peer.file("matched", list(workload.match_runs(self._cases, self._sizes))))
            self._peer_is_filled = True
        return {case.name: self._peer_match(peer, case) for case in self._cases}

    def _match(self, case: MatchCase) -> float:
        found = self._index.match(case.hashes, self._replicas)
        held = [found[name].disk if name in found else 0 for name in self._replicas]
        if held != case.held:
            raise KvistBug(f"{case.name}: the index does not find what its replicas hold")
        return median_us(lambda: self._index.match(case.hashes, self._replicas), self._sizes.calls)

    def _peer_match(self, peer: Peer, case: MatchCase) -> float:
        file = peer.file(case.name, {"hashes": case.hashes, "held": case.held})
        value: float = peer.ask("match", file=file, calls=self._sizes.calls)
        return value


class Updating(Group):
    """Events into an empty index, and all of them out again."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._runs = workload.pool_runs(sizes)
        self._blocks = sum(len(run.hashes) for run in self._runs)
        stores: list[tuple[int, Op]] = [(run.replica, Stored(GPU, tuple(run.hashes))) for run in self._runs]
        removals: list[tuple[int, Op]] = [
            (run.replica, Removed(GPU, tuple(run.hashes[::-1]))) for run in reversed(self._runs)
        ]
        self._stored, self._removed = (
            [(name_of(replica), frame_of(replica, seq, op, sizes)) for seq, (replica, op) in enumerate(ops)]
            for ops in (stores, removals)
        )

    def kvist(self) -> Values:
        index = Index()
        for replica in range(self._sizes.ingest_replicas):
            index.add(name_of(replica), pool_blocks=self._sizes.ingest_blocks)
        stored_s = _apply_all(index, self._stored)
        removed_s = _apply_all(index, self._removed)
        if any(index.blocks(name_of(replica))[GPU] for replica in range(self._sizes.ingest_replicas)):
            raise KvistBug("blocks are left after all were removed")
        return {STORE_ROW: self._blocks / stored_s, REMOVE_ROW: self._blocks / removed_s}

    def peer(self, peer: Peer) -> Values:
        rates = peer.ask("update", file=peer.file("updates", self._runs))
        return {STORE_ROW: rates["store"], REMOVE_ROW: rates["remove"]}


class Memory(Group):
    """What a block costs to remember. Every round is a process of its own, on either side."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def kvist(self) -> Values:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_tell_bytes_per_block, args=(theirs, self._sizes))
        process.start()
        theirs.close()
        try:
            return {MEMORY_ROW: ours.recv()}
        except EOFError:
            raise KvistBug("the process that measures memory has failed") from None
        finally:
            process.join()

    def peer(self, peer: Peer) -> Values:
        file = peer.stream("memory", workload.memory_runs(self._sizes))
        with peer.another() as fresh:
            return {MEMORY_ROW: fresh.ask("memory", file=file)}


def _apply_all(index: Index, frames: Iterable[tuple[str, bytes]]) -> float:
    start = time.process_time()
    for replica, data in frames:
        index.apply(replica, decode_frame(data).ops)
    return time.process_time() - start


def _tell_bytes_per_block(answer: Connection, sizes: Sizes) -> None:
    process, index = psutil.Process(), Index()
    for replica in range(sizes.replicas):
        index.add(name_of(replica), pool_blocks=sizes.memory_blocks)
    before = process.memory_info().rss
    blocks = sum(_store(index, run, sizes) for run in workload.memory_runs(sizes))
    gc.collect()
    answer.send((process.memory_info().rss - before) / blocks)


def _store(index: Index, run: Run, sizes: Sizes) -> int:
    data = frame_of(run.replica, 0, Stored(GPU, tuple(run.hashes)), sizes)  # the index keeps the decoded integers only
    index.apply(name_of(run.replica), decode_frame(data).ops)
    return len(run.hashes)
