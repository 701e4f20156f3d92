"""What one cache without end would hold of each prompt: the measure that hit rates are held against."""

from __future__ import annotations

from typing import Final, NamedTuple

from router.hashing import BYTES_PER_TOKEN, block_hashes

BLOCK_BYTES: Final = 64
"""About 16 tokens, the block of most engines: what is shared counts in whole blocks."""


class Sight(NamedTuple):
    """What was seen of a text before: so many of its leading bytes (UTF-8, whole blocks), of so many in all."""

    seen: int
    size: int
    hashes: tuple[int, ...]


class InfiniteCache:
    """Every block of every text seen so far, by the hash of all up to its end.

    Grows by 8 bytes and a set's slot for each new block; texts themselves are not kept. Equal hashes are taken for
    equal texts."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def __repr__(self) -> str:
        return f"<InfiniteCache of {len(self._known)} blocks>"

    def see(self, text: str, begun: Sight | None = None) -> Sight:
        """Take a text in: what of it an earlier one began with. With `begun`, which the text starts with, only what
        came after it is hashed. O(length)."""
        data = text.encode("utf-8", "replace")
        hashes = begun.hashes if begun else ()
        parent = hashes[-1] if hashes else None
        more = block_hashes(data, block_size=BLOCK_BYTES // BYTES_PER_TOKEN, seed=0, start=len(hashes), parent=parent)
        hashes = (*hashes, *more)
        seen = next((at for at, block in enumerate(hashes) if block not in self._known), len(hashes))
        self._known.update(hashes[seen:])
        return Sight(seen * BLOCK_BYTES, len(data), hashes)
