"""Which replica holds which blocks: exact longest prefix per replica and tier, without a tree.

What a relay shows is prefix-closed: the medium of a block is the slowest tier that its chain needs, so along a chain
the media never get faster, and membership along a prompt is a run of "gpu", then "cpu", then "disk", then nothing.
Each border is found by binary search over plain sets, in C.

Bounds: a replica's fastest tier holds at most its pool and a margin, its other tiers INDEX_OFFLOADED_BLOCKS together.
Memory: about 100 bytes per (replica, block) at a million, freed by `drop`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from router.errors import KvistBug, ReplicaError
from router.limits import INDEX_MARGIN_BLOCKS, INDEX_OFFLOADED_BLOCKS
from router.wire import MEDIA, Cleared, Removed, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.wire import Op


class IndexOverflow(ReplicaError):
    """A replica claims more blocks than it can hold. Nothing of the refused run was stored."""


class Depth(NamedTuple):
    """Blocks of a prompt held from its start on, cumulative: by the fastest tier alone, by two tiers, by all."""

    gpu: int
    cpu: int
    disk: int


class _Holding:
    """The blocks of one replica, one set per medium, disjoint."""

    __slots__ = ("cpu", "disk", "gpu", "gpu_cap", "tiers")

    def __init__(self, gpu_cap: int) -> None:
        self.gpu_cap = gpu_cap
        self.gpu: set[int] = set()
        self.cpu: set[int] = set()
        self.disk: set[int] = set()
        self.tiers = dict(zip(MEDIA, (self.gpu, self.cpu, self.disk), strict=True))

    def room(self, medium: str) -> int:
        if medium == MEDIA[0]:
            return self.gpu_cap - len(self.gpu)
        return INDEX_OFFLOADED_BLOCKS - len(self.cpu) - len(self.disk)


class Index:
    """The blocks of all replicas of one model deployment with one block size.

    A replica is added before its first block and may come and go. All methods are synchronous and touch nothing else.
    """

    def __init__(self) -> None:
        self._holdings: dict[str, _Holding] = {}

    def __repr__(self) -> str:
        total = sum(len(tier) for holding in self._holdings.values() for tier in holding.tiers.values())
        return f"<Index replicas={len(self._holdings)} blocks={total}>"

    def add(self, replica: str, *, pool_blocks: int) -> None:
        """Make room for a replica whose fastest tier has `pool_blocks`. What it held before is forgotten."""
        self._holdings[replica] = _Holding(pool_blocks + INDEX_MARGIN_BLOCKS)

    def store(self, replica: str, medium: str, hashes: Iterable[int]) -> None:
        """Note blocks under `medium`, and under no other medium of this replica any more. O(blocks given).

        Raises `IndexOverflow`, having stored none of them, when they exceed the replica's bound.
        """
        holding = self._holdings[replica]
        tier = holding.tiers[medium]
        hashes = hashes if isinstance(hashes, (tuple, list)) else tuple(hashes)
        if len(hashes) > holding.room(medium) and len(set(hashes) - tier) > holding.room(medium):
            raise IndexOverflow(f"{replica} claims more {medium} blocks than it can hold")
        tier.update(hashes)
        for other in holding.tiers.values():
            if other and other is not tier:
                other.difference_update(hashes)

    def remove(self, replica: str, medium: str, hashes: Iterable[int]) -> None:
        """Forget blocks under `medium`; unknown ones are ignored. O(blocks given)."""
        self._holdings[replica].tiers[medium].difference_update(hashes)

    def clear(self, replica: str) -> None:
        """Forget all blocks of a replica, which stays. O(its blocks)."""
        for tier in self._holdings[replica].tiers.values():
            tier.clear()

    def drop(self, replica: str) -> None:
        """Forget a replica and all its blocks; an unknown one is ignored. O(its blocks)."""
        self._holdings.pop(replica, None)

    def apply(self, replica: str, ops: Iterable[Op]) -> None:
        """Perform one frame's operations in order. Raises `IndexOverflow` as `store` does."""
        for op in ops:
            match op:
                case Stored(medium, hashes):
                    self.store(replica, medium, hashes)
                case Removed(medium, hashes):
                    self.remove(replica, medium, hashes)
                case Cleared():
                    self.clear(replica)

    def match(self, hashes: Sequence[int], replicas: Iterable[str]) -> dict[str, Depth]:
        """How much of a prompt each of `replicas` holds from its start on. O(log prompt) probes per replica and tier.

        Replicas without any of it, or unknown, are left out.
        """
        found: dict[str, Depth] = {}
        if not hashes:
            return found
        total = len(hashes)
        root, last = hashes[0], hashes[-1]
        deepest_first: Sequence[int] = ()
        whole, depth = _even(total), _even(1)
        border = 1  # where the replica before ends: replicas that share a system prompt end together
        for replica in replicas:
            holding = self._holdings.get(replica)
            if holding is None:
                continue
            gpu = holding.gpu
            if last in gpu:
                found[replica] = whole
                continue
            fast = 0
            if root in gpu:
                if hashes[border - 1] in gpu and hashes[border] not in gpu:
                    fast = border
                else:
                    deepest_first = deepest_first or hashes[::-1]
                    fast = border = total - bisect_left(deepest_first, True, key=gpu.__contains__)
                    depth = _even(border)
            if holding.cpu or holding.disk:
                deepest_first = deepest_first or hashes[::-1]
                middle = held(deepest_first, holding.cpu, start=fast)
                slow = held(deepest_first, holding.disk, start=middle)
                if slow:
                    found[replica] = Depth(fast, middle, slow)
            elif fast:
                found[replica] = depth
        return found

    def blocks(self, replica: str) -> dict[str, int]:
        """Number of blocks by medium; all zero for an unknown replica."""
        holding = self._holdings.get(replica)
        return {medium: len(holding.tiers[medium]) if holding else 0 for medium in MEDIA}

    def room_blocks(self, replica: str) -> int:
        """Blocks that a known replica's fastest tier can take before it evicts what it caches. May be negative."""
        return self._holdings[replica].room(MEDIA[0]) - INDEX_MARGIN_BLOCKS

    def resident(self, replica: str) -> dict[str, frozenset[int]]:
        """A copy of what is held, for tests and for comparison with a replica's own account. O(its blocks)."""
        return {medium: frozenset(tier) for medium, tier in self._holdings[replica].tiers.items()}

    def check_integrity(self) -> None:
        """Raise `KvistBug` when a bound or the disjointness of the tiers is broken. O(all blocks)."""
        for replica, holding in self._holdings.items():
            gpu, cpu, disk = holding.gpu, holding.cpu, holding.disk
            if not (gpu.isdisjoint(cpu) and gpu.isdisjoint(disk) and cpu.isdisjoint(disk)):
                raise KvistBug(f"{replica}: a block is in two tiers")
            if min(holding.room(medium) for medium in MEDIA) < 0:
                raise KvistBug(f"{replica}: more blocks than its bound")


def _even(blocks: int) -> Depth:
    """All of it on the fastest tier. Built a third as fast by its class."""
    return tuple.__new__(Depth, (blocks, blocks, blocks))


def held(deepest_first: Sequence[int], tier: set[int], *, start: int = 0) -> int:
    """End of the run of blocks in `tier` that begins at block `start` of a prompt whose hashes are given in reverse.

    The tier must hold a prefix of the prompt's rest, which is what chained hashes and a prefix-closed tier give.
    """
    total = len(deepest_first)
    return total - bisect_left(deepest_first, True, 0, total - start, key=tier.__contains__)
