"""The paged pool of `workers.block_pool`, by the same rules, for whole runs of blocks at once.

A free block without content is like any other, so they are counted only. Blocks with content have a slot; what was
released stays in groups, least recently used first and tails first inside, and a slot counts only in the last group
that it came to. What leaves and enters is told as a relay would tell it: a block is stored with its first copy and
removed with its last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from router.errors import KvistBug
from router.wire import MEDIA, Op, Removed, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

NO_SLOTS: Final[Ints] = np.empty(0, np.int64)


class RunPool:
    """`pool_blocks` blocks. Operations take O(blocks touched) inside numpy and sets, and O(1) Python beside."""

    def __init__(self, pool_blocks: int) -> None:
        self.pool_blocks = pool_blocks
        self.free_blocks = pool_blocks
        self.evicted_blocks = 0
        self._blank = pool_blocks  # free and without content
        self._hash_of: Hashes = np.zeros(pool_blocks, np.uint64)
        self._users: Ints = np.zeros(pool_blocks, np.int64)
        self._group_of: Ints = np.full(pool_blocks, -1, np.int64)
        self._is_first = np.zeros(pool_blocks, np.bool_)  # the copy of its hash that hits use
        self._slots: list[int] = list(range(pool_blocks))  # not in use by any content
        self._first: dict[int, int] = {}  # hash → the slot of its oldest copy
        self._copies: dict[int, list[int]] = {}  # hash → slots of the others, oldest first
        self._groups: deque[tuple[int, Ints]] = deque()
        self._oldest = NO_SLOTS  # the group that is being used up, up to `_at`
        self._oldest_group = -1
        self._at = 0
        self._next_group = 0
        self._trails: dict[int, Ints] = {}  # last block of a released prompt → its slots
        self._ops: list[Op] = []

    def __repr__(self) -> str:
        return f"RunPool({self.pool_blocks - self.free_blocks} used, {len(self._first)} cached of {self.pool_blocks})"

    def match(self, hashes: Sequence[int], packed: Hashes, limit: int) -> Ints:
        """Slots of the longest cached prefix of at most `limit` blocks; `packed` are the hashes as an array.

        What is cached is closed under prefixes, so its end is found by bisection."""
        first = self._first
        depth = bisect_left(range(limit), True, key=lambda at: hashes[at] not in first)
        if not depth:
            return NO_SLOTS
        known = self._trails.get(hashes[depth - 1])
        if known is not None and self._is_current(known, packed[:depth]):
            return known
        return np.fromiter(map(first.__getitem__, hashes[:depth]), np.int64, depth)

    def can_take(self, count: int, *, beside: Ints = NO_SLOTS) -> bool:
        """Whether `count` new blocks are left once the slots `beside` are in use too."""
        if count + len(beside) <= self.free_blocks:
            return True
        return count <= self.free_blocks - int(np.count_nonzero(self._users[beside] == 0))

    def use(self, slots: Ints) -> None:
        """One more user of each; they cannot be evicted any more."""
        users = self._users[slots]
        self.free_blocks -= len(slots) - int(np.count_nonzero(users))
        self._users[slots] = users + 1

    def take(self, count: int) -> None:
        """`count` new blocks without content, evicting the least recently used. The caller asked `can_take`."""
        if count > self.free_blocks:
            raise KvistBug(f"{count} blocks asked of {self!r}")
        self.free_blocks -= count
        blank = min(count, self._blank)
        self._blank -= blank
        if count > blank:
            self._evict(count - blank)

    def name(self, hashes: Sequence[int], packed: Hashes) -> Ints:
        """Give content to so many blocks that were taken; returns their slots, in use once."""
        taken = self._slots[-len(hashes) :]
        del self._slots[-len(hashes) :]
        slots = np.array(taken, np.int64)
        self._hash_of[slots] = packed
        self._users[slots] = 1
        self._is_first[slots] = True
        if self._first.keys().isdisjoint(hashes):
            self._first.update(zip(hashes, taken, strict=True))
            self._tell(Stored, hashes)
        else:
            self._name_beside_others(hashes, taken)
        return slots

    def name_one(self, key: int) -> Ints:
        """As `name`, for the one block that an answer fills now and then."""
        slot = self._slots.pop()
        self._hash_of[slot] = key
        self._users[slot] = 1
        self._is_first[slot] = is_new = key not in self._first
        if is_new:
            self._first[key] = slot
            self._tell(Stored, (key,))
        else:
            self._copies.setdefault(key, []).append(slot)
        return np.array([slot], np.int64)

    def release(self, slots: Ints, *, unnamed: int = 0, found: int = 0) -> None:
        """One user less of each slot of one prompt, given in its order, and of its last blocks without content. The
        first `found` of the slots were a hit."""
        self.free_blocks += unnamed
        self._blank += unnamed
        if not len(slots):
            return
        users = self._users[slots] - 1
        self._users[slots] = users
        freed = slots[users == 0]
        self.free_blocks += len(freed)
        if len(freed):
            self._group_of[freed] = self._next_group
            self._groups.append((self._next_group, freed[::-1]))
            self._next_group += 1
        if found:  # the next turn continues this one, not what it continued
            self._trails.pop(int(self._hash_of[slots[found - 1]]), None)
        self._trails[int(self._hash_of[slots[-1]])] = slots

    def take_ops(self) -> list[Op]:
        """What was stored and removed since the last call, oldest first."""
        ops, self._ops = self._ops, []
        return ops

    def resident(self) -> dict[int, int]:
        """Hash → copies, as `BlockPool.resident` counts them."""
        return {block_hash: 1 + len(self._copies.get(block_hash, ())) for block_hash in self._first}

    def check_integrity(self) -> None:
        """Raise `KvistBug` when slots, users and contents disagree. O(pool)."""
        named = {*self._first.values(), *(slot for more in self._copies.values() for slot in more)}
        rules = {
            "a slot has content or is spare": len(named) + len(self._slots) == self.pool_blocks
            and named.isdisjoint(self._slots),
            "slots hold what the index says": all(self._hash_of[slot] == key for key, slot in self._first.items()),
            "spare slots have no users": not self._users[self._slots].any(),
            "free blocks are counted": self.free_blocks
            == self._blank + sum(1 for slot in named if not self._users[slot]),
            "nobody uses less than nothing": bool((self._users >= 0).all()),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise KvistBug(f"{self!r}: {'; '.join(broken)}")

    def _is_current(self, slots: Ints, packed: Hashes) -> bool:
        return (
            len(slots) == len(packed)
            and bool((self._hash_of[slots] == packed).all())
            and bool(self._is_first[slots].all())
        )

    def _evict(self, count: int) -> None:
        while count:
            if self._at == len(self._oldest):
                self._oldest_group, slots = self._groups.popleft()
                self._oldest, self._at = slots[self._is_evictable(slots)], 0
            asked = self._oldest[self._at : self._at + count]
            self._at += len(asked)
            victims = asked[self._is_evictable(asked)]
            count -= len(victims)
            if len(victims) == 1:
                self._forget_one(int(victims[0]))
            elif len(victims):
                self._forget(victims)

    def _is_evictable(self, slots: Ints) -> NDArray[np.bool_]:
        """Which slots of the oldest group nobody uses or has used since. Who falls out once never comes back to it."""
        found: NDArray[np.bool_] = (self._users[slots] == 0) & (self._group_of[slots] == self._oldest_group)
        return found

    def _forget_one(self, slot: int) -> None:
        """As `_forget`, for the one block that an answer needs now and then."""
        key = int(self._hash_of[slot])
        self._group_of[slot] = -1
        self._slots.append(slot)
        is_gone = self._is_last_copy(key, slot)
        self._is_first[slot] = False
        if is_gone:
            self._trails.pop(key, None)
            self.evicted_blocks += 1
            self._tell(Removed, (key,))

    def _forget(self, victims: Ints) -> None:
        hashes: list[int] = self._hash_of[victims].tolist()
        slots: list[int] = victims.tolist()
        self._group_of[victims] = -1
        self._slots += slots
        if self._copies.keys().isdisjoint(hashes):
            gone = hashes
            deque(map(self._first.__delitem__, hashes), maxlen=0)  # in C
        else:
            gone = [key for key, slot in zip(hashes, slots, strict=True) if self._is_last_copy(key, slot)]
        self._is_first[victims] = False
        for key in self._trails.keys() & gone:
            del self._trails[key]
        self.evicted_blocks += len(gone)
        self._tell(Removed, gone)

    def _is_last_copy(self, key: int, slot: int) -> bool:
        """Take one copy away; the oldest of the others takes the place of the first."""
        others = self._copies.get(key)
        if others is None:
            del self._first[key]
            return True
        if self._first[key] == slot:
            self._first[key] = heir = others.pop(0)
            self._is_first[heir] = True
        else:
            others.remove(slot)
        if not others:
            del self._copies[key]
        return False

    def _name_beside_others(self, hashes: Sequence[int], taken: list[int]) -> None:
        new: list[int] = []
        for key, slot in zip(hashes, taken, strict=True):
            if key in self._first:
                self._copies.setdefault(key, []).append(slot)
                self._is_first[slot] = False
            else:
                self._first[key] = slot
                new.append(key)
        self._tell(Stored, new)

    def _tell(self, kind: type[Stored | Removed], hashes: Sequence[int]) -> None:
        if hashes:
            self._ops.append(kind(MEDIA[0], tuple(hashes)))


def packed_of(hashes: Sequence[int]) -> Hashes:
    """Block hashes as an array."""
    return np.fromiter(hashes, np.uint64, len(hashes))
