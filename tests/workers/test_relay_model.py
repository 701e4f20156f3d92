"""The relay against a plain model, for any order of stores, copies, removals, clears and restarts on three tiers."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.hashing import block_hashes
from tests.workers.support import CLEARED, MODEL, View, chain, payload, removed, stored
from workers.relay import Relay

MEDIA = ("GPU", "CPU", "STORAGE")
TIERS = ("gpu", "cpu", "disk")
HIDDEN = 3
Path = tuple[int, ...]  # a block is named by the tokens of its whole prompt, two per block


def engine_hash(path: Path) -> int:
    packed = struct.pack(f"<{len(path)}I", *path)
    return block_hashes(packed, block_size=2, seed=77)[-1]


def blocks_of(path: Path) -> list[Path]:
    return [path[: end + 2] for end in range(0, len(path), 2)]


class PlainModel:
    """Says what must be shown by the definition alone, without any table that could go stale."""

    def __init__(self) -> None:
        self.copies: dict[tuple[int, Path], int] = {}
        self.linked: set[Path] = set()
        self.waiting: list[list[Path]] = []

    def held(self, block: Path) -> bool:
        return any(path == block for _, path in self.copies)

    def store(self, rank: int, blocks: list[Path]) -> None:
        for block in blocks:
            self.copies[rank, block] = self.copies.get((rank, block), 0) + 1
        parent = blocks[0][:-2]
        if parent and parent not in self.linked:
            if not self.linked >= set(blocks):
                self.waiting.append(blocks)
            return
        self.link(blocks)

    def link(self, blocks: list[Path]) -> None:
        self.linked |= {block for block in blocks if self.held(block)}
        ready = [run for run in self.waiting if run[0][:-2] in blocks and run[0][:-2] in self.linked]
        self.waiting = [run for run in self.waiting if run not in ready]
        for run in ready:
            self.link(run)

    def remove(self, rank: int, block: Path) -> None:
        if (rank, block) in self.copies:
            self.copies[rank, block] -= 1
            if not self.copies[rank, block]:
                del self.copies[rank, block]
        if not self.held(block):
            self.linked.discard(block)

    def clear(self) -> None:
        self.copies = {key: copies for key, copies in self.copies.items() if key[0] != 0}
        self.linked = {block for block in self.linked if self.held(block)}
        self.waiting = []

    def tier(self, block: Path) -> int:
        if not block:
            return 0
        if block not in self.linked:
            return HIDDEN
        return max(self.tier(block[:-2]), min(rank for rank, path in self.copies if path == block))

    def shown(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for block in self.linked:
            if (rank := self.tier(block)) < HIDDEN:
                found.setdefault(TIERS[rank], set()).add(chain(list(block))[-1])
        return found


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(lambda steps: tuple(t for s in steps for t in (s, 9)))
stores = st.tuples(st.just("store"), st.integers(0, 2), tokens, st.integers(0, 3))
removals = st.tuples(st.just("remove"), st.integers(0, 2), tokens, st.just(0))
clears = st.tuples(st.just("clear"), st.just(0), st.just((0, 9)), st.just(0))
restarts = st.tuples(st.just("restart"), st.just(0), st.just((0, 9)), st.just(0))
steps = st.one_of(stores, stores, stores, removals, removals, removals, clears, restarts)


def event_of(kind: str, rank: int, path: Path, first: int, model: PlainModel) -> Any:
    if kind == "clear":
        model.clear()
        return CLEARED
    if kind == "remove":
        model.remove(rank, path)
        return removed([engine_hash(path)], medium=MEDIA[rank])
    blocks = blocks_of(path)[first:] or blocks_of(path)[-1:]
    parent = blocks[0][:-2]
    model.store(rank, blocks)
    return stored(
        [engine_hash(block) for block in blocks],
        [token for block in blocks for token in block[-2:]],
        parent_block_hash=engine_hash(parent) if parent else None,
        medium=MEDIA[rank],
    )


@settings(deadline=None, max_examples=400)
@given(st.lists(st.lists(steps, min_size=1, max_size=3), max_size=30))
def test_what_is_shown_follows_from_the_copies_alone(batches: list[list[tuple[str, int, Path, int]]]) -> None:
    """Tier rule, prefix-closure, duplicates, orphans that return, parents that come late: as the model says."""
    relay, view, model, seq = Relay(model=MODEL, block_size=2), View(), PlainModel(), 0
    for batch in batches:
        if any(kind == "restart" for kind, *_ in batch):
            model, seq = PlainModel(), 0
        events = [event_of(*step, model) for step in batch if step[0] != "restart"]
        view.apply(relay.apply(seq, payload(*events)).ops)
        seq += 1
        relay.check_integrity()
        assert {tier: held for tier, held in view.tiers.items() if held} == model.shown()
        assert view.equals(relay.snapshot())
        assert relay.resident() == {
            TIERS[rank]: {
                engine_hash(path): copies
                for (r, path), copies in model.copies.items()
                if r == rank and path in model.linked
            }
            for rank in range(3)
            if TIERS[rank] in relay.resident()
        }


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(steps, min_size=1, max_size=3), max_size=30))
def test_every_tier_and_all_faster_ones_are_prefix_closed(batches: list[list[tuple[str, int, Path, int]]]) -> None:
    """A router matches by binary search: a shown block's parent is shown under the same or a faster tier."""
    relay, model = Relay(model=MODEL, block_size=2), PlainModel()
    for seq, batch in enumerate(batches):
        relay.apply(seq, payload(*[event_of(*step, model) for step in batch if step[0] != "restart"]))
        rank_of = {ours: TIERS.index(run.medium) for run in relay.snapshot() for ours in run.hashes}
        for path in model.linked:
            *above, last = chain(list(path))
            if above and last in rank_of:
                assert rank_of[above[-1]] <= rank_of[last]
