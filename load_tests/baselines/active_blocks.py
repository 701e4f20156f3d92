"""How many different blocks the unfinished requests of one replica use."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from router.errors import KvistBug
from router.index import held

if TYPE_CHECKING:
    from collections.abc import Sequence


class ActiveBlocks:
    """`union` are the blocks of all prompts, to be read only; two prompts share a prefix or nothing.

    Adding is O(blocks) in C. Removing also compares with the requests that begin alike, by bisection.
    """

    __slots__ = ("_alike", "union")

    def __init__(self) -> None:
        self.union: set[int] = set()
        self._alike: dict[int, dict[int, Sequence[int]]] = {}  # first block → the requests that begin with it

    def __len__(self) -> int:
        return len(self.union)

    def __repr__(self) -> str:
        return f"<ActiveBlocks {len(self)}>"

    def with_prompt(self, hashes: Sequence[int]) -> int:
        """How many they would be with a prompt. O(log prompt)."""
        blocks = self.union
        if not hashes or hashes[0] not in blocks:
            return len(blocks) + len(hashes)
        if hashes[-1] in blocks:
            return len(blocks)
        return len(blocks) + len(hashes) - held(hashes[::-1], blocks)

    def add(self, request: int, hashes: Sequence[int]) -> None:
        """A request uses these blocks. Its number must be new."""
        if hashes:
            self._alike.setdefault(hashes[0], {})[request] = hashes
            self.union.update(hashes)

    def remove(self, request: int, hashes: Sequence[int]) -> None:
        """A request that was added with these blocks uses them no more."""
        if not hashes:
            return
        alike = self._alike[hashes[0]]
        del alike[request]
        if not alike:
            del self._alike[hashes[0]]
        kept = max([shared_blocks(hashes, other) for other in alike.values()], default=0)
        self.union.difference_update(hashes[kept:])

    def check_integrity(self) -> None:
        """Raise `KvistBug` when the blocks are not those of the requests. O(all blocks)."""
        used = {block for alike in self._alike.values() for hashes in alike.values() for block in hashes}
        if used != self.union:
            raise KvistBug(f"{len(self.union)} blocks in use, while the requests have {len(used)}")


def shared_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix of two sequences of chained hashes. O(log blocks)."""
    shorter = min(len(one), len(other))
    if one[shorter - 1] == other[shorter - 1]:
        return shorter
    return bisect_left(range(shorter), True, key=lambda block: one[block] != other[block])
