"""What one cache without end would hold of each prompt: the measure that hit rates are held against."""

from __future__ import annotations

from typing import Final

from router.hashing import BYTES_PER_TOKEN, block_hashes

BLOCK_BYTES: Final = 64
"""About 16 tokens, the block of most engines: what is shared counts in whole blocks."""


class InfiniteCache:
    """Every block of every text seen so far, by the hash of all up to its end.

    Grows by 8 bytes and a set's slot for each new block; texts themselves are not kept. Equal hashes are taken for
    equal texts."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def __repr__(self) -> str:
        return f"<InfiniteCache of {len(self._known)} blocks>"

    def see(self, text: str) -> tuple[int, int]:
        """Take a text in. Returns how many of its leading bytes (UTF-8, whole blocks) an earlier one began with, and
        its length in bytes. O(length)."""
        data = text.encode("utf-8", "replace")
        hashes = block_hashes(data, block_size=BLOCK_BYTES // BYTES_PER_TOKEN, seed=0)
        seen = next((at for at, block in enumerate(hashes) if block not in self._known), len(hashes))
        self._known.update(hashes[seen:])
        return seen * BLOCK_BYTES, len(data)
