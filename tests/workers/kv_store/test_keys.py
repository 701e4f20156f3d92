"""Equal keys mean equal bytes: same tokens, same salt, same model, same part."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.kv_store.keys import BlockKeys

BLOCK = hashlib.sha256(b"tokens").digest()
IDENTITY = {"model": "m", "dtype": "float32", "block_size": 32}


def test_two_engines_of_one_identity_make_the_same_keys() -> None:
    one, other = BlockKeys(IDENTITY), BlockKeys(dict(reversed(IDENTITY.items())))
    assert one.key(BLOCK, rank=0) == other.key(BLOCK, rank=0)


@pytest.mark.parametrize("changed", ["model", "dtype", "block_size"])
def test_another_model_number_format_or_block_size_has_other_keys(changed: str) -> None:
    other = BlockKeys(IDENTITY | {changed: "other"})
    assert other.key(BLOCK, rank=0) != BlockKeys(IDENTITY).key(BLOCK, rank=0)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(0, 7), st.integers(0, 7))
def test_keys_differ_where_blocks_or_ranks_do(one: bytes, other: bytes, rank: int, other_rank: int) -> None:
    keys = BlockKeys(IDENTITY)
    equal = keys.key(one, rank=rank) == keys.key(other, rank=other_rank)
    assert equal == ((one, rank) == (other, other_rank))


def test_the_engines_hash_cannot_be_read_from_a_key() -> None:
    """It names a user's prompt; what stands in the folder does not."""
    assert BLOCK not in BlockKeys(IDENTITY).key(BLOCK, rank=0)
    assert BLOCK.hex() not in repr(BlockKeys(IDENTITY))


@pytest.mark.parametrize("short", [b"", b"12345678", b"x" * 16])
def test_hashes_that_can_collide_are_refused(short: bytes) -> None:
    """Two tenants' blocks would share a name."""
    with pytest.raises(ValueError, match="hashes"):
        BlockKeys(IDENTITY).key(short, rank=0)
