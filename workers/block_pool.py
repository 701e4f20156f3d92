"""A paged KV pool with prefix caching and LRU eviction, as vLLM runs one; the reference that simulations stand on.

Rules kept:
- only full blocks have a hash; a hit is the longest run of cached blocks from the start of the prompt;
- one hash may have several physical blocks (each is announced, and each eviction too);
- a block in use is never evicted; a freed one keeps its content until its space is taken;
- blocks with a hash are taken in the order they were freed, tails first; blocks without one before all others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from router.errors import KvistBug

if TYPE_CHECKING:
    from collections.abc import Sequence


class CachedRun(NamedTuple):
    """Full blocks of one prompt to be announced: physical blocks, their hashes, what comes before, and their tokens."""

    blocks: Sequence[int]
    hashes: Sequence[int]
    parent: int | None
    tokens: Sequence[int]
    salt: str
    session_id: str


class BlockPool:
    """`pool_blocks` usable blocks of `block_size` tokens, numbered from 0. All operations are O(blocks touched).

    Events collect in vLLM 0.32's form until `take_events`."""

    def __init__(self, *, pool_blocks: int, block_size: int) -> None:
        self.pool_blocks = pool_blocks
        self.block_size = block_size
        self._users = [0] * pool_blocks
        self._hash_of: list[int | None] = [None] * pool_blocks
        self._cached: dict[int, list[int]] = {}  # hash -> its physical blocks, oldest first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(pool_blocks))  # next to be taken first
        self._events: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"BlockPool({self.used_blocks} used, {len(self._cached)} cached of {self.pool_blocks})"

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody uses, cached ones included."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.pool_blocks - len(self._free)

    def match(self, hashes: Sequence[int]) -> list[int]:
        """Physical blocks of the longest cached prefix. The caller leaves out the block of the last token, which is
        always computed."""
        found: list[int] = []
        for block_hash in hashes:
            copies = self._cached.get(block_hash)
            if copies is None:
                break
            found.append(copies[0])
        return found

    def can_take(self, count: int, *, beside: Sequence[int] = ()) -> bool:
        """Whether `count` new blocks are left once the blocks `beside` are in use too."""
        return count <= len(self._free) - sum(self._users[block] == 0 for block in set(beside))

    def use(self, blocks: Sequence[int]) -> None:
        """One more user of each; they leave the free list."""
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """New blocks for one user, evicting the least recently used content. The caller asked `can_take`."""
        if count > len(self._free):
            raise KvistBug(f"{count} blocks asked of {self!r}")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._evict(block)
            self._users[block] = 1
        return taken

    def cache(self, run: CachedRun) -> None:
        """Name full blocks, which others may then hit, and announce them as one event."""
        for block, block_hash in zip(run.blocks, run.hashes, strict=True):
            self._hash_of[block] = block_hash
            self._cached.setdefault(block_hash, []).append(block)
        salted = run.salt and run.parent is None
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": list(run.hashes),
            "parent_block_hash": run.parent,
            "token_ids": list(run.tokens),
            "block_size": self.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[run.salt] if salted and at == 0 else None for at in range(len(run.hashes))],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        self._events.append(event | ({"session_id": run.session_id} if run.session_id else {}))

    def release(self, blocks: Sequence[int]) -> None:
        """One user less of each block of one prompt, given in prompt order."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all content; false (and nothing done) while a block is in use."""
        if self.used_blocks:
            return False
        self._hash_of = [None] * self.pool_blocks
        self._cached.clear()
        self._events.append({"type": "AllBlocksCleared"})
        return True

    def take_events(self) -> list[dict[str, Any]]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def resident(self) -> dict[int, int]:
        """Hash -> physical copies: the truth that a relay must arrive at."""
        return {block_hash: len(copies) for block_hash, copies in self._cached.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError when users, free list and cache disagree. O(pool)."""
        assert set(self._free) == {block for block, users in enumerate(self._users) if users == 0}
        assert min(self._users) >= 0
        named: dict[int, set[int]] = {}
        for block, block_hash in enumerate(self._hash_of):
            if block_hash is not None:
                named.setdefault(block_hash, set()).add(block)
        assert named == {block_hash: set(copies) for block_hash, copies in self._cached.items()}

    def _evict(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is None:
            return
        self._hash_of[block] = None
        copies = self._cached[block_hash]
        copies.remove(block)
        if not copies:
            del self._cached[block_hash]
        self._events.append({"type": "BlockRemoved", "block_hashes": [block_hash], "medium": "GPU", "group_idx": 0})
