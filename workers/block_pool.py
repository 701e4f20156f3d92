"""A paged KV pool with prefix caching and LRU eviction, as vLLM runs one; the reference that simulations stand on.

Rules kept:
- only full blocks have a hash; a hit is the longest run of cached blocks from the start of the prompt;
- one hash may have several physical blocks (each is announced, and each eviction too);
- a block in use is never evicted; a freed one keeps its content until its space is taken;
- blocks with a hash are taken in the order they were freed, tails first; blocks without one before all others.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from router.errors import KvistBug

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE_SLACK: Final = 3  # entries of the free queue per block before old ones are cleared away


class CachedRun(NamedTuple):
    """Full blocks of one prompt to be announced: physical blocks, their hashes, what comes before, and their tokens."""

    blocks: Sequence[int]
    hashes: Sequence[int]
    parent: int | None
    tokens: Sequence[int]
    salt: str
    session_id: str


class BlockPool:
    """`pool_blocks` usable blocks of `block_size` tokens, numbered from 0. Operations take O(blocks touched).

    Events collect in vLLM 0.32's form until `take_events`."""

    def __init__(self, *, pool_blocks: int, block_size: int) -> None:
        self.pool_blocks = pool_blocks
        self.block_size = block_size
        self._users = [0] * pool_blocks
        self._hash_of: list[int | None] = [None] * pool_blocks
        self._cached: dict[int, list[int]] = {}  # hash -> its physical blocks, oldest first
        # Next to be taken first. Entries of blocks that were used again stay until they are come upon: for each block
        # only the last of its entries counts.
        self._queue: deque[int] = deque(range(pool_blocks))
        self._entries = [1] * pool_blocks
        self._free = pool_blocks
        self._events: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"BlockPool({self.used_blocks} used, {len(self._cached)} cached of {self.pool_blocks})"

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody uses, cached ones included."""
        return self._free

    @property
    def used_blocks(self) -> int:
        return self.pool_blocks - self._free

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
        if count + len(beside) <= self._free:
            return True
        return count <= self._free - sum(self._users[block] == 0 for block in set(beside))

    def use(self, blocks: Sequence[int]) -> None:
        """One more user of each; they leave the free list."""
        users = self._users
        for block in blocks:
            if not users[block]:
                self._free -= 1
            users[block] += 1

    def take(self, count: int) -> list[int]:
        """New blocks for one user, evicting the least recently used content. The caller asked `can_take`."""
        if count > self._free:
            raise KvistBug(f"{count} blocks asked of {self!r}")
        taken = [self._next_free() for _ in range(count)]
        for block in taken:
            self._evict(block)
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
        users, entries, queue = self._users, self._entries, self._queue
        for block in reversed(blocks):
            users[block] -= 1
            if not users[block]:
                self._free += 1
                entries[block] += 1
                if self._hash_of[block] is None:
                    queue.appendleft(block)
                else:
                    queue.append(block)
        if len(queue) > QUEUE_SLACK * self.pool_blocks:
            self._forget_old_entries()

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
        assert self._free == self._users.count(0)
        entries = Counter(self._queue)
        assert self._entries == [entries[block] for block in range(self.pool_blocks)]
        assert all(self._entries[block] for block, users in enumerate(self._users) if users == 0)
        assert min(self._users) >= 0
        named: dict[int, set[int]] = {}
        for block, block_hash in enumerate(self._hash_of):
            if block_hash is not None:
                named.setdefault(block_hash, set()).add(block)
        assert named == {block_hash: set(copies) for block_hash, copies in self._cached.items()}

    def _next_free(self) -> int:
        while True:
            block = self._queue.popleft()
            self._entries[block] -= 1
            if not self._entries[block] and not self._users[block]:
                self._users[block] = 1
                self._free -= 1
                return block

    def _forget_old_entries(self) -> None:
        kept: deque[int] = deque()
        for block in self._queue:
            self._entries[block] -= 1
            if not self._entries[block] and not self._users[block]:
                kept.append(block)
        for block in kept:
            self._entries[block] = 1
        self._queue = kept

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
