"""Two doors to one store against a model, with somebody who breaks files in between."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.workers.kv_store.support import (
    block,
    bytes_of_files,
    file_of,
    key_of,
    opened,
    payload_of,
    read,
)
from workers.kv_store.frames import BadFrame
from workers.kv_store.store import PAGE_BYTES, BlockMissing

PAGES = 6
NAMES = st.integers(0, 11)
DOORS = st.integers(0, 1)


class StoreMachine(RuleBasedStateMachine):
    """`stamps` are those of blocks that must be there unless evicted; `broken` those that somebody damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kv-model-"))
        self.doors = [opened(self.folder, pages=PAGES) for _ in range(2)]
        self.stamps: dict[int, int] = {}
        self.broken: set[int] = set()
        self.clock = itertools.count(1)

    def teardown(self) -> None:
        for door in self.doors:
            door.close()
        shutil.rmtree(self.folder)

    @rule(door=DOORS, names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
    def put(self, door: int, names: list[int]) -> None:
        stamp = next(self.clock)
        new = [name for name in names if name not in self.stamps]
        stored = self.doors[door].put([block(name, stamp) for name in names])
        assert stored == len(new), "four fit into six when the rest may go"
        before = dict(self.stamps)
        self.stamps |= dict.fromkeys(names, stamp)
        gone = {name for name in self.stamps if not file_of(self.folder, name).exists()}
        kept = set(before) - gone
        assert not gone & set(new)
        if gone and kept - set(names):
            oldest_kept = min(before[name] for name in kept - set(names))
            assert max(self.stamps[name] for name in gone) <= oldest_kept
        for name in gone:
            del self.stamps[name]
        self.broken -= gone

    @rule(door=DOORS, name=NAMES)
    def load(self, door: int, name: int) -> None:
        try:
            payload = read(self.doors[door], name)
        except BlockMissing:
            assert name not in self.stamps
        except BadFrame:
            assert name in self.broken
            self.broken.discard(name)
            del self.stamps[name]
            assert not self.doors[1 - door].contains(key_of(name))
        else:
            assert name in self.stamps
            assert name not in self.broken
            assert payload == payload_of(name)

    @rule(door=DOORS, name=NAMES)
    def touch(self, door: int, name: int) -> None:
        stamp = next(self.clock)
        assert self.doors[door].touch(key_of(name), stamp) == (name in self.stamps)
        if name in self.stamps:
            self.stamps[name] = stamp

    @rule(name=NAMES)
    def delete(self, name: int) -> None:
        file_of(self.folder, name).unlink(missing_ok=True)
        self.stamps.pop(name, None)
        self.broken.discard(name)

    @rule(name=NAMES, place=st.integers(0, PAGE_BYTES - 1))
    def flip(self, name: int, place: int) -> None:
        if name in self.stamps and name not in self.broken:
            self._keeping_stamp(name, lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

    @rule(name=NAMES, length=st.integers(0, PAGE_BYTES - 1))
    def cut(self, name: int, length: int) -> None:
        if name in self.stamps and name not in self.broken:
            self._keeping_stamp(name, lambda data: data[:length])

    def _keeping_stamp(self, name: int, change: object) -> None:
        file = file_of(self.folder, name)
        file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
        os.utime(file, ns=(self.stamps[name], self.stamps[name]))
        self.broken.add(name)

    @rule(door=DOORS)
    def clear(self, door: int) -> None:
        self.doors[door].clear()
        self.stamps.clear()
        self.broken.clear()

    @rule(door=DOORS)
    def reopen(self, door: int) -> None:
        self.doors[door].close()
        self.doors[door] = opened(self.folder, pages=PAGES)

    @invariant()
    def the_bound_holds(self) -> None:
        assert bytes_of_files(self.folder) <= PAGES * PAGE_BYTES

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not self.broken:
            self.doors[0].check_integrity()


StoreMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
TestStore = StoreMachine.TestCase
