"""Names of stored blocks.

A key is a keyed BLAKE2b of the engine's own block hash, under the identity of model, numbers and layout, and of the
worker's rank. The engine's hash (SHA-256) chains every token from the start of the prompt, the adapter, the images and
the tenant's `cache_salt`, so the salt is in the key already: who does not know a tenant's salt can neither name its
blocks nor ask whether they are there.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from workers.kv_store.frames import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINE_HASH_BYTES: Final = 32  # SHA-256; shorter hashes can be made to collide, and would mix tenants
SECRET_BYTES: Final = 64  # the most that BLAKE2b takes


class BlockKeys:
    """Makes the keys of one model on one kind of engine. `identity` holds everything that changes a block's bytes."""

    def __init__(self, identity: Mapping[str, object]) -> None:
        text = json.dumps(identity, sort_keys=True, default=str)
        self._secret = hashlib.blake2b(text.encode(), digest_size=SECRET_BYTES).digest()

    def __repr__(self) -> str:
        return f"<BlockKeys {self._secret[:4].hex()}>"

    def key(self, block_hash: bytes, *, rank: int) -> bytes:
        """The key of one rank's part of the block. Raises `ValueError` for a hash that is not SHA-256's."""
        if len(block_hash) != ENGINE_HASH_BYTES:
            raise ValueError(f"the engine's block hashes have {len(block_hash)} bytes, not {ENGINE_HASH_BYTES}")
        named = block_hash + rank.to_bytes(4, "little")
        return hashlib.blake2b(named, key=self._secret, digest_size=KEY_BYTES).digest()
