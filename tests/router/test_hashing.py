"""Block hashes name a block together with everything before it."""

import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.hashing import block_hashes, canonical_bytes, extended, seed_of

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
SEEDS = st.integers(0, 2**64 - 1)
FIELDS = st.lists(st.one_of(st.text(max_size=4), st.integers(-9, 99), st.binary(max_size=4)), max_size=3)


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


@given(TOKENS, st.integers(1, 9), SEEDS)
@settings(deadline=None)
def test_hashes_follow_the_published_chain_rule_over_full_blocks_only(
    tokens: list[int], block_size: int, seed: int
) -> None:
    """h_0 = xxh3_64(block_0, seed), h_i = xxh3_64(block_i, h_{i-1}); a partial last block has no hash."""
    expected, link = [], seed
    for at in range(0, len(tokens) - block_size + 1, block_size):
        link = xxhash.xxh3_64_intdigest(packed(tokens[at : at + block_size]), link)
        expected.append(link)
    assert block_hashes(packed(tokens), block_size=block_size, seed=seed) == expected
    assert block_hashes(memoryview(packed(tokens)), block_size=block_size, seed=seed) == expected


@given(TOKENS, st.integers(1, 9), st.data())
@settings(deadline=None)
def test_hashing_on_from_any_block_gives_the_same_hashes(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    """A prompt that grows needs only its new blocks hashed."""
    whole = block_hashes(packed(tokens), block_size=block_size, seed=7)
    start = data.draw(st.integers(0, len(whole)))
    parent = whole[start - 1] if start else None
    assert block_hashes(packed(tokens), block_size=block_size, seed=7, start=start, parent=parent) == whole[start:]


def test_a_changed_token_changes_every_hash_from_its_block_on() -> None:
    """Equal hashes mean equal prefixes."""
    one, other = list(range(64)), list(range(64))
    other[20] = 999
    first = block_hashes(packed(one), block_size=16, seed=1)
    second = block_hashes(packed(other), block_size=16, seed=1)
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])


@pytest.mark.parametrize(("block_size", "start", "parent"), [(0, 0, None), (16, -1, 5), (16, 1, None), (16, 0, 5)])
def test_a_start_without_its_parent_is_refused(block_size: int, start: int, parent: int | None) -> None:
    """A chain continued from nowhere would name other blocks."""
    with pytest.raises(ValueError, match="parent exactly when"):
        block_hashes(bytes(256), block_size=block_size, seed=1, start=start, parent=parent)


def test_model_adapter_and_salt_each_have_roots_of_their_own() -> None:
    """Fields are length-prefixed, so moving text between them is another root."""
    seeds = {seed_of("m"), seed_of("m", lora="a"), seed_of("m", salt="a"), seed_of("ma"), seed_of("", lora="ma")}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_text_that_moves_from_one_field_to_the_next_makes_another_root() -> None:
    """Without a length before it, no mark of a field is safe from a text that looks like it."""
    assert canonical_bytes(("a", "sb")) != canonical_bytes(("as", "b"))
    assert seed_of("a", lora="sb") != seed_of("as", lora="b")


@given(FIELDS, FIELDS)
@settings(deadline=None)
def test_canonical_bytes_never_confuse_two_lists_of_fields(
    one: list[str | int | bytes], two: list[str | int | bytes]
) -> None:
    """The encoding is injective, types included."""
    assert (canonical_bytes(one) == canonical_bytes(two)) == (
        [(type(x), x) for x in one] == [(type(x), x) for x in two]
    )


def test_extra_keys_are_hashed_in_after_the_tokens() -> None:
    """The same tokens under different images are different blocks; without keys the hash is the plain one."""
    block = packed(list(range(16)))
    assert extended(block, parent=9, extra_keys=()) == block_hashes(block, block_size=16, seed=9)[0]
    assert extended(block, parent=9, extra_keys=("img1", 0)) == xxhash.xxh3_64_intdigest(
        block + canonical_bytes(("img1", 0)), 9
    )
    assert (
        len({extended(block, parent=9, extra_keys=keys) for keys in ((), ("a",), ("b",), ("a", "b"), ("b", "a"))}) == 5
    )
