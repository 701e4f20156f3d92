"""Which blocks are loaded and which are saved, step by step."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from workers.kv_store.planner import Load, Plan, Planner, Save, Touch

SIZE = 4
NOW = 1_000


def name_of(place: int) -> bytes:
    return hashlib.sha256(str(place).encode()).digest()


def request_of(tokens: int, request_id: str = "r") -> Any:
    hashes = [name_of(place) for place in range(tokens // SIZE)]
    return SimpleNamespace(request_id=request_id, num_tokens=tokens, block_hashes=hashes)


class Bench:
    """A planner over a set of stored places."""

    def __init__(self, *stored: int) -> None:
        self.stored = set(stored)
        self.asked = 0
        self.planner = Planner(block_size=SIZE, find=self._find, now_ns=lambda: NOW)

    def _find(self, block_hash: bytes) -> bool:
        self.asked += 1
        return block_hash in {name_of(place) for place in self.stored}

    def step(self, *, new: dict[str, int], known: dict[str, int], scheduled: dict[str, int], resumed: set[str]) -> Plan:
        """Computed tokens of new and known requests, tokens scheduled; block ids are 100 and up."""
        step = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=r, num_computed_tokens=n) for r, n in new.items()],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[*known], num_computed_tokens=[*known.values()], resumed_req_ids=resumed
            ),
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: ([*range(100, 200)],)),
        )
        return self.planner.take(step)

    def first(self, computed: int, scheduled: int) -> Plan:
        return self.step(new={"r": computed}, known={}, scheduled={"r": scheduled}, resumed=set())

    def next(self, computed: int, scheduled: int, resumed: frozenset[str] = frozenset()) -> Plan:
        return self.step(new={}, known={"r": computed}, scheduled={"r": scheduled}, resumed=set(resumed))


def blocks(start: int, end: int) -> list[tuple[bytes, int]]:
    return [(name_of(place), 100 + place) for place in range(start, end)]


@pytest.mark.parametrize(
    ("tokens", "computed", "stored", "found"),
    [
        (20, 0, (0, 1, 2, 3, 4), 16),  # the last token is always computed
        (21, 0, (0, 1, 2, 3, 4), 20),
        (21, 8, (0, 1, 2, 3), 8),
        (21, 0, (0, 1, 3), 8),  # nothing beyond a hole
        (21, 0, (1, 2), 0),
        (21, 8, (2, 3, 4), 12),  # what the engine has itself is not asked for
        (3, 0, (), 0),
        (21, 20, (0, 1, 2, 3, 4), 0),
    ],
)
def test_full_blocks_in_a_row_are_loadable(tokens: int, computed: int, stored: tuple[int, ...], found: int) -> None:
    bench = Bench(*stored)
    for _ in range(3):  # a request that waits is asked about again
        assert bench.planner.loadable_tokens(request_of(tokens), computed) == found


def test_a_waiting_request_is_looked_up_at_two_blocks_only() -> None:
    """Its head of the queue may wait for hundreds of steps."""
    bench = Bench(*range(100))
    request = request_of(1_000)
    assert bench.planner.loadable_tokens(request, 0) == 400
    bench.asked = 0
    assert bench.planner.loadable_tokens(request, 0) == 400
    assert bench.asked == 2
    bench.stored = set()
    assert bench.planner.loadable_tokens(request, 0) < 400


def test_loads_go_where_the_engine_has_made_room() -> None:
    bench = Bench(1, 2, 3)
    request = request_of(21)
    assert bench.planner.loadable_tokens(request, 4) == 12
    bench.planner.allocated(request, [*range(100, 106)], 12)
    assert bench.step(new={}, known={}, scheduled={}, resumed=set()) == Plan([Load("r", blocks(1, 4))], [], [])
    bench.planner.allocated(request, [*range(100, 106)], 0)
    assert bench.step(new={}, known={}, scheduled={}, resumed=set()) == Plan([], [], [])


def test_every_block_is_saved_once_in_the_step_that_fills_it() -> None:
    bench = Bench()
    request = request_of(21)
    bench.planner.loadable_tokens(request, 0)
    plans = [bench.first(0, 7), bench.next(7, 4), bench.next(11, 9), bench.next(20, 1), bench.next(21, 1)]
    saves = [[*plan.saves] for plan in plans]
    assert saves == [
        [Save(NOW, 0, blocks(0, 1))],
        [Save(NOW, 1, blocks(1, 2))],
        [Save(NOW, 2, blocks(2, 5))],
        [],
        [],
    ]


def test_what_was_found_is_not_saved_but_stamped() -> None:
    bench = Bench(1, 2)
    bench.planner.loadable_tokens(request_of(21), 4)
    plan = bench.first(12, 9)
    assert plan.saves == [Save(NOW, 3, blocks(3, 5))]
    assert plan.touches == [Touch(NOW, [name_of(0), name_of(1), name_of(2)])]


def test_tokens_that_are_only_guessed_are_not_saved() -> None:
    """Drafts are computed before it is known whether they stand: their blocks have no hash yet."""
    bench = Bench()
    request = request_of(7)
    bench.planner.loadable_tokens(request, 0)
    assert bench.first(0, 12).saves == [Save(NOW, 0, blocks(0, 1))]
    request.block_hashes.append(name_of(1))
    assert bench.next(8, 1).saves == [Save(NOW, 1, blocks(1, 2))]


def test_a_failed_load_is_not_tried_again_and_its_blocks_are_saved_anew() -> None:
    """Else a file that cannot be read would be asked for without end."""
    bench = Bench(0, 1, 2)
    request = request_of(21)
    assert bench.planner.loadable_tokens(request, 0) == 12
    bench.planner.allocated(request, [*range(100, 106)], 12)
    assert bench.planner.loaded({"r"}, {101, 102, 7}) == [(request, 4)]
    assert bench.planner.loadable_tokens(request, 0) == 0
    assert bench.first(4, 17).saves == [Save(NOW, 1, blocks(1, 5))]


def test_after_a_good_load_a_preempted_request_may_load_again() -> None:
    bench = Bench(0, 1, 2)
    request = request_of(21)
    bench.planner.loadable_tokens(request, 0)
    bench.planner.allocated(request, [*range(100, 106)], 12)
    assert bench.planner.loadable_tokens(request, 0) == 0, "one load at a time"
    assert bench.planner.loaded({"r"}, set()) == []
    bench.first(12, 9)
    assert bench.planner.loadable_tokens(request, 0) == 12
    assert bench.next(8, 8, frozenset({"r"})).saves == [Save(NOW, 2, blocks(2, 4))]


def test_requests_that_left_are_forgotten() -> None:
    bench = Bench(0)
    request = request_of(21)
    bench.planner.loadable_tokens(request, 0)
    bench.planner.allocated(request, [100], 4)
    bench.planner.forget("r")
    bench.planner.forget("r")
    assert bench.planner.loaded({"r", "other"}, {100}) == []
    assert repr(bench.planner) == "<Planner 0 requests, 0 loading>"
