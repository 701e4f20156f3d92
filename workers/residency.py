"""What one engine holds, as chains of our own hashes, and which of it a router may be told.

Theory of operation. The engine names a block by its own hash and may hold several physical copies of it, per tier and
attention group. A block of which a copy is left and whose place in a prompt is known is *linked*: it stands in a *run*,
a stretch of consecutive blocks, each the parent of the next. A linked block is *shown* under the slowest tier that its
chain needs,

    tier(block) = max(tier(parent), fastest tier that holds the block)

and hidden while an ancestor is missing. So for each tier t the blocks shown under t or faster are prefix-closed, which
is what lets a router match by binary search. A change of one block's tier travels down to its children.

Nearly every block has one copy on the GPU and a shown parent. Only what differs from that is written down per block, so
that a long prompt costs one dictionary entry per block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.hashing import BYTES_PER_TOKEN, block_hashes, extended
from router.limits import MAX_RELAY_BLOCKS
from router.wire import Cleared, Op, Removed, Stored
from workers.kv_events import TIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workers.kv_events import StoredBlocks

HIDDEN: Final = len(TIERS)  # the rank of a block whose chain is broken; below it stand the ranks of the tiers
PoolKey = tuple[int, int]  # (tier's rank, attention group)


class OpLog:
    """Operations in order; neighbours of one kind and tier become one."""

    __slots__ = ("_cleared", "_runs")

    def __init__(self) -> None:
        self._cleared = False
        self._runs: list[tuple[type[Stored | Removed], int, list[int]]] = []

    def add(self, kind: type[Stored | Removed], rank: int, hashes: Iterable[int]) -> None:
        if self._runs and self._runs[-1][:2] == (kind, rank):
            self._runs[-1][2].extend(hashes)
        else:
            self._runs.append((kind, rank, list(hashes)))

    def clear(self) -> None:
        """Nothing before it matters any more."""
        self._cleared = True
        self._runs = []

    def ops(self) -> tuple[Op, ...]:
        runs: list[Op] = [kind(TIERS[rank], tuple(hashes)) for kind, rank, hashes in self._runs]
        return (Cleared(), *runs) if self._cleared else tuple(runs)


class Run:
    """Consecutive linked blocks; `hashes` are the engine's, `ours` ours. `parent` is the block before the first."""

    __slots__ = ("hashes", "ours", "parent")

    def __init__(self, parent: int | None) -> None:
        self.parent = parent
        self.hashes: list[int] = []
        self.ours: list[int] = []

    def place(self, engine_hash: int) -> int:
        """Where the block stands. O(1) for the last one, else O(run)."""
        return len(self.hashes) - 1 if self.hashes[-1] == engine_hash else self.hashes.index(engine_hash)


class Residency:
    """Blocks of one engine. Every method that changes what is shown says so in the log it is given.

    Amortised O(1) per block while chains leave tail first, as an LRU pool evicts them; a block that leaves from the
    middle also costs O(its run), and a change of tier its descendants."""

    __slots__ = ("_base", "_heads", "_owner_of", "_pools", "_rank_of", "_run_of", "_unindexed", "twins")

    def __init__(self) -> None:
        self.twins = 0  # blocks left out because a block of another engine hash has the same content
        self._unindexed: set[int] = set()  # groups
        self.forget()

    def forget(self) -> None:
        """Hold nothing. What is known about groups stays."""
        self._run_of: dict[int, Run] = {}  # linked blocks
        self._heads: dict[int, set[int]] = {}  # block -> first blocks of the runs that hang from it
        self._rank_of: dict[int, int] = {}  # linked blocks not shown on the GPU
        self._owner_of: dict[int, int] = {}  # adapters only: our hash -> the engine's
        # Copies, except the one copy that each linked block has in the base pool unless written otherwise (in a sparse
        # group, all copies are written).
        self._base: PoolKey = (0, 0)
        self._pools: dict[PoolKey, dict[int, int]] = {self._base: {}}

    def __repr__(self) -> str:
        hidden = sum(rank == HIDDEN for rank in self._rank_of.values())
        return f"Residency({len(self._run_of)} blocks, {hidden} hidden, {len(self._pools)} pools)"

    @property
    def optimistic(self) -> bool:
        """The engine also has groups whose blocks come and go on their own: what is shown is an upper bound."""
        return bool(self._unindexed)

    def follows(self, blocks: StoredBlocks) -> bool:
        """Whether these blocks' group says something about whole prefixes."""
        return blocks.indexed and blocks.group not in self._unindexed

    def turns_sparse(self, blocks: StoredBlocks) -> bool:
        """Whether these blocks show that a group which was followed so far must not be."""
        is_news = not blocks.indexed and blocks.group not in self._unindexed
        return is_news and any(group == blocks.group and self.copies((rank, group)) for rank, group in self._pools)

    def is_full(self, blocks: StoredBlocks) -> bool:
        """Whether these blocks would exceed MAX_RELAY_BLOCKS."""
        held = len(self._run_of) + sum(map(len, self._pools.values()))
        return held + len(blocks.hashes) > MAX_RELAY_BLOCKS

    def store_plain(self, blocks: StoredBlocks, seed: int, log: OpLog) -> bool:
        """Count and link in bulk when that is all there is to do: new blocks in the base pool under a shown parent.
        False (and nothing done) otherwise."""
        hashes, parent = blocks.hashes, blocks.parent
        if (blocks.rank, blocks.group) != self._base or not (hashes and self.follows(blocks)):
            return False
        if blocks.lora or blocks.extra_keys or not self._is_new(hashes):
            return False
        if parent is None:
            run, root = Run(None), seed
        elif parent in self._run_of and parent not in self._rank_of:
            run = self._run_of[parent]
            place = run.place(parent)
            root = run.ours[place]
            run = run if place == len(run.hashes) - 1 else Run(parent)
        else:
            return False
        fresh = dict.fromkeys(hashes, run)
        if len(fresh) != len(hashes):
            return False
        if not run.hashes and parent is not None:
            self._heads.setdefault(parent, set()).add(hashes[0])
        ours = block_hashes(blocks.tokens, block_size=blocks.block_size, seed=root)
        run.hashes += hashes
        run.ours += ours
        self._run_of.update(fresh)
        log.add(Stored, 0, ours)
        return True

    def count(self, blocks: StoredBlocks) -> None:
        """One more physical copy of each block."""
        if not blocks.indexed and blocks.group not in self._unindexed:
            written_out = self.copies(self._base)  # in a sparse group no copy is usual
            self._unindexed.add(blocks.group)
            if blocks.group == self._base[1]:
                self._pools[self._base] = written_out
        key = blocks.rank, blocks.group
        for engine_hash in blocks.hashes:
            self._set_copies(key, engine_hash, self._copies(key, engine_hash) + 1)

    def link(self, blocks: StoredBlocks, seed: int, log: OpLog) -> bool:
        """Link counted blocks. False when the parent is unknown and so their hashes cannot be computed."""
        parent = blocks.parent
        if parent is not None and parent not in self._run_of:
            known = [engine_hash for engine_hash in blocks.hashes if engine_hash in self._run_of]
            for engine_hash in known:  # another copy, maybe on a faster tier
                self._after_gain(engine_hash, log)
            return len(known) == len(blocks.hashes)
        root = seed if parent is None else self._ours(parent)
        for engine_hash, ours in zip(blocks.hashes, _chain(blocks, root), strict=True):
            if engine_hash not in self._run_of and self._fastest(engine_hash) < HIDDEN:
                self._attach(engine_hash, ours, parent, lora=blocks.lora)
            self._after_gain(engine_hash, log)
            parent = engine_hash
        return True

    def remove(self, key: PoolKey, hashes: Sequence[int], log: OpLog) -> int:
        """One copy less of each in one pool. Returns how many it did not hold."""
        unknown, is_base = 0, self._is_base(key)
        for engine_hash in hashes:
            if is_base and self._drop_plain(engine_hash, log):
                continue
            copies = self._copies(key, engine_hash)
            if copies:
                self._set_copies(key, engine_hash, copies - 1)
                if copies == 1:
                    self._after_loss(engine_hash, log)
            else:
                unknown += 1
        return unknown

    def clear_tier(self, rank: int, log: OpLog) -> None:
        """The engine forgot all pools of one tier; blocks on other tiers stay."""
        if not any(self.copies(key) for key in self._pools if key[0] != rank):
            self.forget()
            log.clear()
            return
        for key in [key for key in self._pools if key[0] == rank]:
            for engine_hash in self.copies(key):
                self._set_copies(key, engine_hash, 0)
                self._after_loss(engine_hash, log)

    def shown(self) -> tuple[Stored, ...]:
        """All shown blocks, one entry per tier."""
        by_rank: list[list[int]] = [[] for _ in range(HIDDEN + 1)]
        for run in self._runs():
            for engine_hash, ours in zip(run.hashes, run.ours, strict=True):
                by_rank[self._rank_of.get(engine_hash, 0)].append(ours)
        return tuple(Stored(tier, tuple(hashes)) for tier, hashes in zip(TIERS, by_rank, strict=False) if hashes)

    def resident(self) -> dict[str, dict[int, int]]:
        """Tier -> engine hash -> copies, of linked blocks, hidden ones too."""
        found: dict[str, dict[int, int]] = {}
        for rank, group in self._pools:
            if group not in self._unindexed:
                total = found.setdefault(TIERS[rank], {})
                for engine_hash, copies in self.copies((rank, group)).items():
                    if engine_hash in self._run_of:
                        total[engine_hash] = total.get(engine_hash, 0) + copies
        return found

    def copies(self, key: PoolKey) -> dict[int, int]:
        """Engine hash -> physical copies in one pool. O(blocks)."""
        found = dict.fromkeys(self._run_of, 1) if self._is_base(key) else {}
        found.update(self._pools[key])
        return {engine_hash: copies for engine_hash, copies in found.items() if copies}

    def pools(self) -> list[PoolKey]:
        return [*self._pools]

    def holds(self, engine_hash: int) -> bool:
        """Whether any pool has a copy."""
        return any(self._copies(key, engine_hash) for key in self._pools)

    def check_integrity(self) -> None:
        """Raise AssertionError unless runs, copies and tiers agree. O(blocks)."""
        heads: dict[int, set[int]] = {}
        for run in self._runs():
            assert len(run.hashes) == len(run.ours) > 0
            assert all(self._run_of[engine_hash] is run for engine_hash in run.hashes)
            if run.parent is not None:
                heads.setdefault(run.parent, set()).add(run.hashes[0])
            above = run.parent
            for engine_hash in run.hashes:
                assert self._fastest(engine_hash) < HIDDEN
                assert self._rank(engine_hash) == max(self._rank(above), self._fastest(engine_hash))
                above = engine_hash
        assert sum(len(run.hashes) for run in self._runs()) == len(self._run_of)
        assert heads == self._heads
        assert self._rank_of.keys() <= self._run_of.keys()
        assert 0 not in self._rank_of.values()
        assert all(self._ours(engine_hash) == ours for ours, engine_hash in self._owner_of.items())
        for key, pool in self._pools.items():
            assert all(copies != self._usual(key, engine_hash) for engine_hash, copies in pool.items())

    def _drop_plain(self, engine_hash: int, log: OpLog) -> bool:
        """Remove the only copy of a shown block that ends its run and has no children, the way an LRU pool evicts.
        False (and nothing done) for any other block."""
        run = self._run_of.get(engine_hash)
        if run is None or run.hashes[-1] != engine_hash or engine_hash in self._heads or engine_hash in self._rank_of:
            return False
        if self._owner_of or any(engine_hash in pool for pool in self._pools.values()):
            return False
        del self._run_of[engine_hash]
        run.hashes.pop()
        log.add(Removed, 0, (run.ours.pop(),))
        if not run.hashes:
            self._drop_head(run.parent, engine_hash)
        return True

    def _runs(self) -> Iterable[Run]:
        return {id(run): run for run in self._run_of.values()}.values()

    def _is_new(self, hashes: list[int]) -> bool:
        """Nothing at all is known of these blocks: no link, no copy, no orphan that waits under one."""
        return (
            self._run_of.keys().isdisjoint(hashes)
            and (not self._rank_of or self._heads.keys().isdisjoint(hashes))
            and all(not pool or pool.keys().isdisjoint(hashes) for pool in self._pools.values())
        )

    def _is_base(self, key: PoolKey) -> bool:
        return key == self._base and key[1] not in self._unindexed

    def _usual(self, key: PoolKey, engine_hash: int) -> int:
        return 1 if self._is_base(key) and engine_hash in self._run_of else 0

    def _copies(self, key: PoolKey, engine_hash: int) -> int:
        copies = self._pools[key].get(engine_hash) if key in self._pools else 0
        return self._usual(key, engine_hash) if copies is None else copies

    def _set_copies(self, key: PoolKey, engine_hash: int, copies: int) -> None:
        pool = self._pools.setdefault(key, {})
        if copies == self._usual(key, engine_hash):
            pool.pop(engine_hash, None)
        else:
            pool[engine_hash] = copies

    def _fastest(self, engine_hash: int) -> int:
        if self._usual(self._base, engine_hash) and engine_hash not in self._pools[self._base]:
            return 0
        ranks = [
            rank
            for (rank, group), pool in self._pools.items()
            if group not in self._unindexed and pool.get(engine_hash)
        ]
        return min(ranks, default=HIDDEN)

    def _rank(self, engine_hash: int | None) -> int:
        if engine_hash is None:
            return 0
        return self._rank_of.get(engine_hash, 0) if engine_hash in self._run_of else HIDDEN

    def _ours(self, engine_hash: int) -> int:
        run = self._run_of[engine_hash]
        return run.ours[run.place(engine_hash)]

    def _attach(self, engine_hash: int, ours: int, parent: int | None, *, lora: str) -> None:
        if lora:  # its path is in the engine's hash and not in its events
            if ours in self._owner_of:
                self.twins += 1
                return
            self._owner_of[ours] = engine_hash
        base_copies = self._copies(self._base, engine_hash)
        run = self._run_of.get(parent) if parent is not None else None
        if run is None or run.hashes[-1] != parent:
            run = Run(parent)
            if parent is not None:
                self._heads.setdefault(parent, set()).add(engine_hash)
        run.hashes.append(engine_hash)
        run.ours.append(ours)
        self._run_of[engine_hash] = run
        self._rank_of[engine_hash] = HIDDEN
        self._set_copies(self._base, engine_hash, base_copies)

    def _after_gain(self, engine_hash: int, log: OpLog) -> None:
        if self._fastest(engine_hash) < self._rank(engine_hash):  # else it was shown as fast already
            self._refresh(engine_hash, log)

    def _after_loss(self, engine_hash: int, log: OpLog) -> None:
        fastest = self._fastest(engine_hash)
        if fastest < HIDDEN:
            if fastest > self._rank(engine_hash):  # else the block is shown as slow for its ancestors' sake
                self._refresh(engine_hash, log)
        elif engine_hash in self._run_of:
            self._detach(engine_hash, log)

    def _detach(self, engine_hash: int, log: OpLog) -> None:
        children = self._children_of(engine_hash)
        run = self._run_of[engine_hash]
        place = run.place(engine_hash)
        self._cut(run, place + 1)
        run.hashes.pop()
        ours = run.ours.pop()
        if not run.hashes:
            self._drop_head(run.parent, engine_hash)
        base_copies = self._copies(self._base, engine_hash)
        del self._run_of[engine_hash]
        self._set_copies(self._base, engine_hash, base_copies)
        self._owner_of.pop(ours, None)
        rank = self._rank_of.pop(engine_hash, 0)
        if rank < HIDDEN:
            log.add(Removed, rank, (ours,))
        for child in children:
            self._refresh(child, log)

    def _cut(self, run: Run, place: int) -> None:
        """Make the blocks from `place` on a run of their own."""
        if place == len(run.hashes):
            return
        rest = Run(run.hashes[place - 1])
        rest.hashes, rest.ours = run.hashes[place:], run.ours[place:]
        del run.hashes[place:], run.ours[place:]
        self._run_of.update(dict.fromkeys(rest.hashes, rest))
        self._heads.setdefault(run.hashes[-1], set()).add(rest.hashes[0])

    def _drop_head(self, parent: int | None, head: int) -> None:
        if parent is not None:
            heads = self._heads[parent]
            heads.discard(head)
            if not heads:
                del self._heads[parent]

    def _children_of(self, engine_hash: int) -> list[int]:
        run = self._run_of[engine_hash]
        after = run.place(engine_hash) + 1
        return [*run.hashes[after : after + 1], *self._heads.get(engine_hash, ())]

    def _refresh(self, engine_hash: int, log: OpLog) -> None:
        """Bring one block's tier up to date, and its descendants' while theirs change."""
        found = self._run_of.get(engine_hash)
        stack = [] if found is None else [(found, found.place(engine_hash))]
        while stack:
            run, place = stack.pop()
            block, ours = run.hashes[place], (run.ours[place],)
            above = run.hashes[place - 1] if place else run.parent
            old, new = self._rank(block), max(self._rank(above), self._fastest(block))
            if new == old:
                continue
            if old < HIDDEN:
                log.add(Removed, old, ours)
            if new < HIDDEN:
                log.add(Stored, new, ours)
            if new:
                self._rank_of[block] = new
            else:
                del self._rank_of[block]
            if place + 1 < len(run.hashes):
                stack.append((run, place + 1))
            stack.extend((self._run_of[head], 0) for head in self._heads.get(block, ()))


def _chain(blocks: StoredBlocks, root: int) -> list[int]:
    if not blocks.extra_keys:
        return block_hashes(blocks.tokens, block_size=blocks.block_size, seed=root)
    width = blocks.block_size * BYTES_PER_TOKEN
    link = root
    return [
        link := extended(blocks.tokens[at * width : (at + 1) * width], parent=link, extra_keys=keys)
        for at, keys in enumerate(blocks.extra_keys)
    ]
