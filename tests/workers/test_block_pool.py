"""The reference pool keeps vLLM's rules: LRU, tails first, copies, and never a block in use."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import KvistBug
from workers.block_pool import QUEUE_SLACK, BlockPool, CachedRun


def fill(pool: BlockPool, hashes: list[int], *, parent: int | None = None, salt: str = "") -> list[int]:
    blocks = pool.take(len(hashes))
    tokens = list(range(len(hashes) * pool.block_size))
    pool.cache(CachedRun(blocks=blocks, hashes=hashes, parent=parent, tokens=tokens, salt=salt, session_id=""))
    return blocks


def kinds(pool: BlockPool) -> list[tuple[str, list[int]]]:
    return [(event["type"], event.get("block_hashes", [])) for event in pool.take_events()]


def test_a_freed_prompt_is_hit_until_its_space_is_taken_tail_first() -> None:
    pool = BlockPool(pool_blocks=4, block_size=2)
    pool.release(fill(pool, [1, 2, 3]))
    assert (pool.free_blocks, len(pool.match([1, 2, 3, 4]))) == (4, 3)
    pool.take_events()
    pool.take(2)
    assert kinds(pool) == [("BlockRemoved", [3])], "the empty block went first, then the tail"
    assert len(pool.match([1, 2, 3])) == 2


def test_a_block_without_content_goes_before_all_others() -> None:
    pool = BlockPool(pool_blocks=3, block_size=2)
    pool.release(fill(pool, [1, 2]))
    pool.release(pool.take(1))
    assert kinds(pool)[1:] == []
    assert pool.take(1) == [2]
    assert kinds(pool) == []


def test_a_hit_makes_a_prefix_younger() -> None:
    pool = BlockPool(pool_blocks=4, block_size=2)
    pool.release(fill(pool, [1, 2]))
    pool.release(fill(pool, [7, 8]))
    again = pool.match([1, 2])
    pool.use(again)
    pool.release(again)
    pool.take_events()
    pool.take(2)
    assert kinds(pool) == [("BlockRemoved", [8]), ("BlockRemoved", [7])]


def test_a_block_in_use_is_not_evicted() -> None:
    pool = BlockPool(pool_blocks=2, block_size=2)
    held = fill(pool, [1])
    assert pool.can_take(1)
    assert not pool.can_take(2)
    with pytest.raises(KvistBug):
        pool.take(2)
    pool.release(held)
    assert not pool.can_take(2, beside=held), "a cached block to be reused is not room for new ones"


def test_two_copies_of_one_hash_leave_one_by_one() -> None:
    """The last block of a prompt of whole blocks is computed again each time it is sent."""
    pool = BlockPool(pool_blocks=2, block_size=2)
    first, second = fill(pool, [5]), fill(pool, [5])
    assert pool.resident() == {5: 2}
    pool.release(first)
    pool.take(1)
    assert pool.resident() == {5: 1}
    assert pool.match([5]) == second
    assert kinds(pool)[2:] == [("BlockRemoved", [5])]


def test_events_have_the_engines_form() -> None:
    pool = BlockPool(pool_blocks=4, block_size=2)
    fill(pool, [1, 2], salt="s")
    fill(pool, [3], parent=2, salt="s")
    first, second = pool.take_events()
    assert first["extra_keys"] == [["s"], None]
    assert second["extra_keys"] == [None]
    assert second["parent_block_hash"] == 2
    assert "session_id" not in first


def test_reset_needs_an_idle_pool() -> None:
    pool = BlockPool(pool_blocks=2, block_size=2)
    held = fill(pool, [1])
    assert not pool.reset()
    pool.release(held)
    assert pool.reset()
    assert (pool.resident(), kinds(pool)[-1]) == ({}, ("AllBlocksCleared", []))
    assert repr(pool) == "BlockPool(0 used, 0 cached of 2)"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["fill", "hit", "release", "reset"]), st.integers(0, 5)), max_size=60))
def test_users_and_cache_always_agree_and_events_tell_the_truth(steps: list[tuple[str, int]]) -> None:
    """Replaying the events gives the pool's own content after any sequence of steps."""
    pool = BlockPool(pool_blocks=6, block_size=1)
    held: list[list[int]] = []
    told: dict[int, int] = {}
    for kind, pick in steps:
        if kind == "fill" and pool.can_take(pick):
            held.append(fill(pool, [100 * pick + at for at in range(pick)]))
        elif kind == "hit":
            found = pool.match([100 * pick + at for at in range(pick)])
            pool.use(found)
            held.append(found)
        elif kind == "release" and held:
            pool.release(held.pop(pick % len(held)))
        elif kind == "reset":
            pool.reset()
        for event in pool.take_events():
            if event["type"] == "AllBlocksCleared":
                told.clear()
            for block_hash in event.get("block_hashes", []):
                told[block_hash] = told.get(block_hash, 0) + (1 if event["type"] == "BlockStored" else -1)
        pool.check_integrity()
        assert pool.resident() == {block_hash: copies for block_hash, copies in told.items() if copies}


def test_a_prompt_that_is_hit_again_and_again_keeps_its_place_in_a_bounded_queue() -> None:
    """Each use leaves an old entry behind; what is evicted next stays what was freed longest ago."""
    pool = BlockPool(pool_blocks=4, block_size=1)
    pool.release(fill(pool, [1, 2]))
    pool.release(fill(pool, [7, 8]))
    for _ in range(50):
        found = pool.match([1, 2])
        pool.use(found)
        pool.release(found)
        pool.check_integrity()
        assert len(pool._queue) <= QUEUE_SLACK * pool.pool_blocks + len(found)
    pool.take_events()
    pool.take(3)
    assert [hashes for _, hashes in kinds(pool)] == [[8], [7], [2]]
