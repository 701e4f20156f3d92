"""The index knows exactly what it was told, within its bounds, and finds the exact longest prefix."""

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router import index as index_module
from router.errors import KvistBug
from router.index import Depth, Index, IndexOverflow
from router.limits import INDEX_MARGIN_BLOCKS
from router.wire import MEDIA, Cleared, Removed, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable

REPLICAS = ("a", "b", "c")
# A small forest of prompts: three branches that share a trunk, as chained hashes do.
TRUNK = list(range(100, 106))
PROMPTS = [TRUNK + list(range(start, start + 6)) for start in (200, 300, 400)] + [list(range(500, 509))]
PARENT = {block: (prompt[at - 1] if at else None) for prompt in PROMPTS for at, block in enumerate(prompt)}


class IndexAgainstModel(RuleBasedStateMachine):
    """Any sequence of operations leaves the index equal to a dictionary of (replica, block) → medium."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.model: dict[str, dict[int, str]] = {}

    @initialize()
    def start(self) -> None:
        for replica in REPLICAS:
            self.index.add(replica, pool_blocks=50)
            self.model[replica] = {}

    def shown(self, replica: str, block: int | None) -> int:
        """Rank of a block's tier: its chain's slowest, so 0 for the missing parent of a root."""
        return 0 if block is None else MEDIA.index(self.model[replica][block])

    @rule(replica=st.sampled_from(REPLICAS), prompt=st.sampled_from(PROMPTS), data=st.data())
    def store_along_a_prompt(self, replica: str, prompt: list[int], data: st.DataObject) -> None:
        """A run that continues what is held, in tiers that never get faster along the chain."""
        if replica not in self.model:
            return
        held = self.model[replica]
        start = next((at for at, block in enumerate(prompt) if block not in held), len(prompt))
        end = data.draw(st.integers(start, len(prompt)))
        low = self.shown(replica, PARENT[prompt[start]] if start < len(prompt) else None)
        medium = MEDIA[data.draw(st.integers(low, 2))]
        self.index.apply(replica, [Stored(medium, tuple(prompt[start:end]))])
        held.update(dict.fromkeys(prompt[start:end], medium))

    @rule(replica=st.sampled_from(REPLICAS), data=st.data())
    def remove_leaves(self, replica: str, data: st.DataObject) -> None:
        """Evicting from the end keeps the rest prefix-closed."""
        held = self.model.get(replica, {})
        leaves = sorted(set(held) - {PARENT[block] for block in held})
        if leaves:
            block = data.draw(st.sampled_from(leaves))
            self.index.apply(replica, [Removed(held.pop(block), (block, 999_999))])

    @rule(replica=st.sampled_from(REPLICAS), data=st.data())
    def move_a_leaf_to_a_slower_tier(self, replica: str, data: st.DataObject) -> None:
        """Offloading: removed from one medium, stored in another, in one frame."""
        held = self.model.get(replica, {})
        leaves = sorted(set(held) - {PARENT[block] for block in held})
        if leaves:
            block = data.draw(st.sampled_from(leaves))
            slower = MEDIA[data.draw(st.integers(self.shown(replica, block), 2))]
            self.index.apply(replica, [Removed(held[block], (block,)), Stored(slower, (block,))])
            held[block] = slower

    @rule(replica=st.sampled_from(REPLICAS))
    @precondition(lambda self: len(self.model) > 1)
    def drop(self, replica: str) -> None:
        self.index.drop(replica)
        self.model.pop(replica, None)

    @rule(replica=st.sampled_from(REPLICAS))
    def add_again(self, replica: str) -> None:
        self.index.add(replica, pool_blocks=50)
        self.model[replica] = {}

    @rule(replica=st.sampled_from(REPLICAS))
    def clear(self, replica: str) -> None:
        if replica in self.model:
            self.index.apply(replica, [Cleared()])
            self.model[replica].clear()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        self.index.check_integrity()
        for replica, held in self.model.items():
            for medium in MEDIA:
                expected = {block for block, where in held.items() if where == medium}
                assert self.index.resident(replica)[medium] == expected
                assert self.index.blocks(replica)[medium] == len(expected)

    @invariant()
    def finds_the_exact_longest_prefix(self) -> None:
        for prompt in PROMPTS:
            found = self.index.match(prompt, (*REPLICAS, "stranger"))
            assert found == self.expected(prompt)

    def expected(self, prompt: list[int]) -> dict[str, Depth]:
        depths = {}
        for replica, held in self.model.items():
            run: Iterable[int] = (len(MEDIA) if block not in held else MEDIA.index(held[block]) for block in prompt)
            counts = [0, 0, 0]
            for rank in run:
                if rank == len(MEDIA):
                    break
                for slower in range(rank, 3):
                    counts[slower] += 1
            if counts[2]:
                depths[replica] = Depth(*counts)
        return depths


TestIndexAgainstModel = IndexAgainstModel.TestCase
TestIndexAgainstModel.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)


def test_index_margin_blocks_stops_a_replica_that_claims_more_than_its_pool() -> None:
    """The run that does not fit is refused whole; what fits stays; a repeated block is not counted twice."""
    index = Index()
    index.add("a", pool_blocks=10)
    full = range(10 + INDEX_MARGIN_BLOCKS)
    index.store("a", "gpu", full)
    index.store("a", "gpu", [3, 4])
    with pytest.raises(IndexOverflow, match="a claims more gpu blocks"):
        index.store("a", "gpu", [3, 5_000])
    assert index.resident("a")["gpu"] == frozenset(full)
    index.check_integrity()


def test_index_offloaded_blocks_stops_endless_host_and_disk_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory and disk share one bound."""
    monkeypatch.setattr(index_module, "INDEX_OFFLOADED_BLOCKS", 5)
    index = Index()
    index.add("a", pool_blocks=10)
    index.store("a", "cpu", [1, 2, 3])
    with pytest.raises(IndexOverflow):
        index.store("a", "disk", [4, 5, 6])
    index.store("a", "disk", [4, 5])
    assert index.blocks("a") == {"gpu": 0, "cpu": 3, "disk": 2}


def test_a_block_stored_under_another_medium_leaves_the_first() -> None:
    """The last word counts, so the tiers stay disjoint whatever a relay sends."""
    index = Index()
    index.add("a", pool_blocks=10)
    index.store("a", "gpu", [1, 2])
    index.store("a", "cpu", [2])
    assert index.resident("a") == {"gpu": {1}, "cpu": {2}, "disk": frozenset()}
    assert index.match([1, 2], ["a"]) == {"a": Depth(1, 2, 2)}


def test_an_empty_prompt_matches_nothing() -> None:
    """A prompt shorter than one block has no hashes."""
    index = Index()
    index.add("a", pool_blocks=10)
    assert index.match([], ["a"]) == {}


def test_unknown_replicas_hold_nothing_and_can_be_dropped() -> None:
    """Membership changes race with everything else."""
    index = Index()
    index.drop("a")
    assert index.blocks("a") == {"gpu": 0, "cpu": 0, "disk": 0}
    assert repr(index) == "<Index replicas=0 blocks=0>"


@pytest.mark.parametrize("damage", ["twice", "bound"])
def test_check_integrity_notices_damage(damage: str) -> None:
    """The check is one that can fail."""
    index = Index()
    index.add("a", pool_blocks=10)
    index.store("a", "gpu", [1, 2])
    if damage == "twice":
        index._holdings["a"].tiers["disk"].add(1)
    else:
        index._holdings["a"].gpu_cap = 1
    with pytest.raises(KvistBug):
        index.check_integrity()


def test_a_block_costs_at_most_150_bytes_and_a_dropped_replica_costs_nothing() -> None:
    """Memory per (replica, block), the u64 objects that decoding makes included."""
    gc.collect()
    tracemalloc.start()
    index = Index()
    index.add("a", pool_blocks=200_000)
    before = tracemalloc.get_traced_memory()[0]
    for start in range(0, 200_000, 1_000):
        index.store("a", "gpu", tuple(2**63 + start + at for at in range(1_000)))
    per_block = (tracemalloc.get_traced_memory()[0] - before) / 200_000
    index.drop("a")
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 30 < per_block <= 150
    assert left < 10_000
