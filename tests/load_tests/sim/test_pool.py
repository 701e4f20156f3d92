"""The pool of runs by examples, and that its own check sees what is wrong; the engine's model test covers its order."""

from __future__ import annotations

import pytest

from load_tests.sim.pool import NO_SLOTS, RunPool, packed_of
from router.errors import KvistBug
from router.wire import Removed, Stored


def put(pool: RunPool, *hashes: int) -> None:
    """A prompt of these blocks comes and goes."""
    known = pool.match(hashes, packed_of(hashes), len(hashes))
    pool.use(known)
    new = hashes[len(known) :]
    pool.take(len(new))
    named = pool.name(new, packed_of(new)) if new else NO_SLOTS
    pool.release(known)
    pool.release(named)


def test_what_was_used_least_recently_goes_first_and_tails_before_heads() -> None:
    pool = RunPool(6)
    put(pool, 1, 2, 3)
    put(pool, 11, 12, 13)
    put(pool, 1)
    pool.take_ops()
    put(pool, 21, 22)
    assert pool.take_ops() == [Removed("gpu", (3, 2)), Stored("gpu", (21, 22))]
    assert pool.resident() == dict.fromkeys((1, 11, 12, 13, 21, 22), 1)
    assert pool.evicted_blocks == 2


def test_a_block_in_use_is_never_evicted() -> None:
    pool = RunPool(3)
    put(pool, 1, 2)
    pool.use(pool.match((1, 2), packed_of((1, 2)), 2))
    assert not pool.can_take(2)
    pool.take(1)
    with pytest.raises(KvistBug, match="1 blocks asked"):
        pool.take(1)


def test_room_beside_a_hit_is_counted_without_the_hit() -> None:
    pool = RunPool(3)
    put(pool, 1, 2)
    hit = pool.match((1, 2), packed_of((1, 2)), 2)
    assert pool.can_take(1, beside=hit)
    assert not pool.can_take(2, beside=hit)


def test_a_second_copy_is_not_announced_and_outlives_the_first() -> None:
    pool = RunPool(4)
    pool.take(2)
    slots = [pool.name((7,), packed_of((7,))), pool.name((7,), packed_of((7,)))]
    assert pool.take_ops() == [Stored("gpu", (7,))]
    assert pool.resident() == {7: 2}
    for one in slots:
        pool.release(one)
    put(pool, 1, 2, 3)
    assert pool.resident() == {7: 1, 1: 1, 2: 1, 3: 1}
    assert pool.take_ops() == [Stored("gpu", (1, 2, 3))]
    assert pool.match((7,), packed_of((7,)), 1).tolist() == slots[1].tolist()
    pool.check_integrity()


def test_an_uncounted_block_is_noticed() -> None:
    pool = RunPool(4)
    put(pool, 1, 2)
    pool.check_integrity()
    pool.free_blocks -= 1
    with pytest.raises(KvistBug, match="free blocks are counted"):
        pool.check_integrity()
