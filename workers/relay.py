"""Turns one engine's KV events into the operations a router's index needs: hashes only, prefix-closed, ref-counted.

The engine's stream is numbered from 0. What each number means:

    number          state               action
    last + 1        in order            apply
    0               a new engine        forget all, apply
    1 .. last       seen before         refuse
    beyond          batches were lost   forget all (removals may be among them), apply

Blocks whose parent was never announced are parked within a bound until it is. An event that cannot be read is skipped
and counted; if it may have taken blocks away, all is forgotten: a router may know too little, never too much.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from router.errors import WireError
from router.hashing import seed_of
from router.limits import MAX_PARKED_BLOCKS, MAX_VERDICT_REASONS
from workers.kv_events import ClearedPool, LostTrack, RemovedBlocks, SkippedEvent, StoredBlocks, decode_batch
from workers.residency import OpLog, Residency

if TYPE_CHECKING:
    from router.wire import Op, Stored
    from workers.kv_events import EngineBatch, EngineEvent


class Verdict(NamedTuple):
    """What became of one batch. `applied`: all of it; `partly`: some of it was skipped or parked; `rejected`: nothing
    was. `ops` may be non-empty in any case, for what the batch's number alone says. `reasons` are for people."""

    ops: tuple[Op, ...]
    verdict: Literal["applied", "partly", "rejected"]
    reasons: tuple[str, ...] = ()


class Relay:
    """The events of one engine (one data-parallel rank), in; operations for routers, out. No exception leaves `apply`.

    `block_size` is learnt from the first event when it is not given. Counters: batches, rejected, duplicates, gaps,
    restarts, skipped, faults, parked, dropped, unknown_removals, mismatches, lost_track; and `unusable`, what an
    operator should know of: each batch that cannot be read, and each event that is broken or finds no room, once.
    """

    __slots__ = (
        "_block_size",
        "_confirmed",
        "_last_seq",
        "_mismatch",
        "_model",
        "_parked",
        "_parked_blocks",
        "_rank",
        "_resets_to_come",
        "_resets_told",
        "_residency",
        "counters",
    )

    def __init__(self, *, model: str, block_size: int | None = None) -> None:
        self.counters: Counter[str] = Counter()
        self._model = model
        self._block_size = block_size
        self._confirmed = False  # an event of this block size has been seen
        self._mismatch: int | None = None
        self._last_seq = -1
        self._rank: int | None = None
        self._residency = Residency()
        self._parked: dict[int, list[StoredBlocks]] = {}  # by the parent they wait for
        self._parked_blocks = 0
        self._resets_told = 0
        self._resets_to_come = 0  # announced by `reset`, not yet by the engine

    def __repr__(self) -> str:
        return f"Relay(seq {self._last_seq}, {self._residency!r}, {self._parked_blocks} parked)"

    @property
    def block_size(self) -> int | None:
        """Tokens per block; None until learnt."""
        return self._block_size

    @property
    def mismatch(self) -> int | None:
        """The engine's block size where it is not the expected one. Nothing of that size is shown, and the state stays
        until the engine starts anew."""
        return self._mismatch

    @property
    def optimistic(self) -> bool:
        """What is shown is an upper bound: the engine also needs blocks of groups that are not followed."""
        return self._residency.optimistic

    def apply(self, seq: int, payload: bytes) -> Verdict:
        """Apply batch number `seq`. O(payload), plus descendants of blocks that leave before their children."""
        self.counters["batches"] += 1
        if 0 < seq <= self._last_seq:
            self.counters["duplicates"] += 1
            return self._rejected(OpLog(), f"batch {seq} was seen before")
        log = OpLog()
        self._follow(seq, log)
        try:
            batch = decode_batch(payload)
        except WireError as error:
            self.counters["unusable"] += 1
            return self._rejected(log, str(error))
        if self._is_foreign(batch):
            self.counters["unusable"] += 1
            return self._rejected(log, f"data-parallel rank {batch.data_parallel_rank} in the stream of {self._rank}")
        problems = [problem for event in batch.events if (problem := self._apply_event(event, log))]
        reasons = tuple(problem.reason for problem in problems[:MAX_VERDICT_REASONS])
        if problems and len(problems) == len(batch.events) and all(problem.is_fault for problem in problems):
            self.counters["rejected"] += 1
            return Verdict(log.ops(), "rejected", reasons)
        return Verdict(log.ops(), "partly" if problems else "applied", reasons)

    def clear(self) -> tuple[Op, ...]:
        """Forget all blocks, as after a reset of the engine that it does not announce itself."""
        log = OpLog()
        self._forget(log)
        return log.ops()

    @property
    def resets_known(self) -> int:
        """How many resets the engine has told of, or has yet to tell of."""
        return self._resets_told + self._resets_to_come

    def reset(self, known: int) -> tuple[Op, ...]:
        """Forget all blocks, for the engine was reset, when `resets_known` were known. It says so itself with its next
        step only; what it said before may still be on its way, and is of blocks that are gone: all is ignored until its
        own word comes. That may have overtaken its reply: then all is said."""
        if self._resets_told > known:
            return ()
        to_come = self._resets_to_come + 1
        ops = self.clear()
        self._resets_to_come = to_come
        return ops

    def snapshot(self) -> tuple[Stored, ...]:
        """All shown blocks."""
        return self._residency.shown()

    def resident(self) -> dict[str, dict[int, int]]:
        """Tier -> engine hash -> physical copies, of all blocks whose place in a chain is known, hidden ones too."""
        return self._residency.resident()

    def pools(self) -> dict[tuple[int, int], dict[int, int]]:
        """(tier's rank, attention group) -> engine hash -> physical copies; every block that was announced."""
        found = {key: self._residency.copies(key) for key in self._residency.pools()}
        return {key: copies for key, copies in found.items() if copies}

    def check_integrity(self) -> None:
        """Raise AssertionError when an invariant is broken. O(blocks)."""
        self._residency.check_integrity()
        parked = [blocks for waiting in self._parked.values() for blocks in waiting]
        assert self._parked_blocks == sum(len(blocks.hashes) for blocks in parked) <= MAX_PARKED_BLOCKS

    def _follow(self, seq: int, log: OpLog) -> None:
        if seq == self._last_seq + 1:
            pass
        elif seq == 0:
            self.counters["restarts"] += 1
            self._mismatch = None
            self._forget(log)
        else:
            self.counters["gaps"] += 1
            self._forget(log)
        self._last_seq = seq

    def _forget(self, log: OpLog) -> None:
        self._residency.forget()
        self._parked, self._parked_blocks = {}, 0
        self._resets_to_come = 0
        log.clear()

    def _clear_tier(self, rank: int | None, log: OpLog) -> None:
        if rank is None:
            self._forget(log)
        else:
            self._residency.clear_tier(rank, log)
            self._parked, self._parked_blocks = {}, 0

    def _is_foreign(self, batch: EngineBatch) -> bool:
        if self._rank is None:
            self._rank = batch.data_parallel_rank
        return batch.data_parallel_rank is not None and batch.data_parallel_rank != self._rank

    def _rejected(self, log: OpLog, reason: str) -> Verdict:
        self.counters["rejected"] += 1
        return Verdict(log.ops(), "rejected", (reason,))

    def _apply_event(self, event: EngineEvent, log: OpLog) -> SkippedEvent | None:
        """Apply one event; what kept it from being applied in full, if anything did."""
        if self._resets_to_come and isinstance(event, StoredBlocks | RemovedBlocks):
            return None
        match event:
            case StoredBlocks():
                problem = self._store(event, log)
            case RemovedBlocks(rank, group, hashes):
                self.counters["unknown_removals"] += self._residency.remove((rank, group), hashes, log)
                return None
            case ClearedPool():
                to_come = max(0, self._resets_to_come - 1)
                self._clear_tier(0, log)
                self._resets_told += 1
                self._resets_to_come = to_come
                return None
            case LostTrack(reason, rank):
                self.counters["unusable"] += 1
                self.counters["lost_track"] += 1
                self._clear_tier(rank, log)
                return SkippedEvent(reason, is_fault=True)
            case SkippedEvent():
                problem = event
        if problem:
            self.counters["faults" if problem.is_fault else "skipped"] += 1
            self.counters["unusable"] += problem.is_fault
        return problem

    def _store(self, blocks: StoredBlocks, log: OpLog) -> SkippedEvent | None:
        followed = self._residency.follows(blocks)
        if followed and (problem := self._check_block_size(blocks)):
            return problem
        if self._residency.turns_sparse(blocks):
            self._forget(log)
        if self._residency.is_full(blocks):
            return SkippedEvent("more blocks than an engine can hold", is_fault=True)
        seed = seed_of(self._model, lora=blocks.lora, salt=blocks.salt) if blocks.parent is None else 0
        if not self._residency.store_plain(blocks, seed, log):
            self._residency.count(blocks)
            if followed and not self._residency.link(blocks, seed, log):
                return self._park(blocks)
        if self._parked:
            self._unpark(blocks, log)
        return None

    def _check_block_size(self, blocks: StoredBlocks) -> SkippedEvent | None:
        if self._block_size is None:
            self._block_size = blocks.block_size
        if blocks.block_size == self._block_size:
            self._confirmed = True
            return None
        if self._confirmed and blocks.block_size < self._block_size and len(blocks.hashes) == 1:
            return SkippedEvent(f"partial block of {blocks.block_size} tokens", is_fault=False)
        self.counters["mismatches"] += 1
        self._mismatch = blocks.block_size
        return SkippedEvent(f"block size {blocks.block_size}, expected {self._block_size}", is_fault=True)

    def _park(self, blocks: StoredBlocks) -> SkippedEvent:
        assert blocks.parent is not None
        if self._parked_blocks + len(blocks.hashes) > MAX_PARKED_BLOCKS:
            self._sweep()
        if self._parked_blocks + len(blocks.hashes) > MAX_PARKED_BLOCKS:
            self.counters["dropped"] += len(blocks.hashes)
            self.counters["unusable"] += 1
            return SkippedEvent("parent unknown, too many blocks wait already", is_fault=False)
        self.counters["parked"] += len(blocks.hashes)
        self._parked.setdefault(blocks.parent, []).append(blocks)
        self._parked_blocks += len(blocks.hashes)
        return SkippedEvent("parent unknown, waiting for it", is_fault=False)

    def _sweep(self) -> None:
        """Drop what waits in vain: blocks that have left meanwhile."""
        kept: dict[int, list[StoredBlocks]] = {}
        for parent, waiting in self._parked.items():
            alive = [blocks for blocks in waiting if any(map(self._residency.holds, blocks.hashes))]
            if alive:
                kept[parent] = alive
        self._parked = kept
        self._parked_blocks = sum(len(blocks.hashes) for waiting in kept.values() for blocks in waiting)

    def _unpark(self, blocks: StoredBlocks, log: OpLog) -> None:
        ready = [blocks]
        while ready:
            for engine_hash in ready.pop().hashes:
                for waiting in self._parked.pop(engine_hash, ()):
                    self._parked_blocks -= len(waiting.hashes)
                    self._residency.link(waiting, 0, log)
                    ready.append(waiting)
