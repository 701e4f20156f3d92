"""Which replica was sent which prompts: the approximate tree of routers that see no events."""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING

from router.errors import KvistBug

if TYPE_CHECKING:
    from collections.abc import Sequence


class PromptTree:
    """The prompts one replica was sent, as block hashes with the time they were last sent. It never learns what the
    engine evicted; it forgets its own least recent blocks, children first, when `evict` is called.

    Chained hashes make a dictionary a tree: a block is found only below its parents. All work per block is done in C.
    """

    __slots__ = ("_sent_at", "max_blocks")

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._sent_at: dict[int, float] = {}  # parents before their children, and never older than them

    def __len__(self) -> int:
        return len(self._sent_at)

    def __repr__(self) -> str:
        return f"<PromptTree {len(self)} of {self.max_blocks}>"

    def matched(self, hashes: Sequence[int]) -> int:
        """Blocks of a prompt that were sent before, from its start on. O(log prompt)."""
        sent_at = self._sent_at
        if not hashes or hashes[0] not in sent_at:
            return 0
        if hashes[-1] in sent_at:
            return len(hashes)
        return bisect_left(range(len(hashes)), True, key=lambda block: hashes[block] not in sent_at)

    def insert(self, hashes: Sequence[int], now: float) -> None:
        """A prompt was sent. May go over the bound until the next `evict`. O(blocks)."""
        self._sent_at.update(zip(hashes, repeat(now)))

    def evict(self) -> None:
        """Forget the least recent blocks above the bound. O(blocks · log blocks) when there are any."""
        above = len(self._sent_at) - self.max_blocks
        if above > 0:
            # Sorting is stable: among blocks of one time the last inserted, hence the children, go first.
            oldest_first = list(self._sent_at.items())
            oldest_first.reverse()
            oldest_first.sort(key=itemgetter(1))
            for block, _ in oldest_first[:above]:
                del self._sent_at[block]

    def check_integrity(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise `KvistBug` when a prompt is known with a hole. O(all prompts)."""
        for hashes in prompts:
            if any(block in self._sent_at for block in hashes[self.matched(hashes) :]):
                raise KvistBug("a block is known without its parent")
