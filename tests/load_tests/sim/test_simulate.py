"""A whole simulated cluster: what routers are told, who waits for whom, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from load_tests.sim.cluster import Absence
from load_tests.sim.kvist_router import KvistPlacing
from load_tests.sim.placing import Held
from load_tests.sim.scenarios import absent, joining_empty, sibling_forks, slow_replica
from load_tests.sim.work import After, Run, SimRequest
from load_tests.simulate import simulate
from router.errors import InvalidRequest, KvistBug
from router.wire import Stored, decode_frame
from tests.load_tests.sim.builders import InTurn, cluster, request, workload


def told(placing: InTurn, what: str) -> list[tuple[Any, ...]]:
    return [one for one in placing.told if one[0] == what]


def test_a_turn_comes_after_the_last_answer_and_the_think_time() -> None:
    work = workload(request("s", 1, 8, at=2.0), request("s", 1, 8, after=(After(0, 5.0),)))
    outcome = simulate(work, cluster(1), InTurn())
    first, second = outcome.fates
    assert (first.ready_at, first.first_token_at, first.ended_at) == (2.0, 5.0, 5.0)
    assert (second.ready_at, second.ended_at, second.cached_tokens) == (10.0, 11.0, 32)


def test_a_parent_waits_for_all_that_it_forked() -> None:
    work = workload(
        request("s", 1, 1),
        request("s", 100, 4, after=(After(0, 0.0),)),
        request("s", 200, 32, after=(After(0, 1.0),)),
        request("s", 1, 2, after=(After(1, 0.5), After(2, 0.5))),
    )
    fates = simulate(work, cluster(1), InTurn()).fates
    assert fates[3].ready_at == max(fates[1].ended_at, fates[2].ended_at) + 0.5


def test_routers_hear_of_blocks_late_and_of_every_end() -> None:
    placing = InTurn()
    simulate(workload(request("s", 1, 4), request("s", 50, 1, at=10.0)), cluster(1), placing)
    frames = [(at, decode_frame(data).ops) for _, _, data, at in told(placing, "frame")]
    assert next(one for one in frames if one[1]) == (1.05, (Stored("gpu", (1, 2, 3, 4)),))
    assert told(placing, "first token") == [("first token", 0, 0, 2.0), ("first token", 1, 0, 11.0)]
    assert told(placing, "finish") == [("finish", 0, 2.0), ("finish", 1, 11.0)]


def test_an_arrival_shows_in_the_gauge_within_a_heartbeat() -> None:
    placing = InTurn()
    simulate(workload(request("s", 1, 4, at=1.0)), cluster(1, step_s=4.0), placing)
    frame = decode_frame(told(placing, "frame")[0][2])
    assert (frame.ts, frame.ops, frame.load.running, frame.load.backlog_tokens) == (1.25, (), 1, 17)


def test_the_way_to_the_engine_takes_time() -> None:
    outcome = simulate(workload(request("s", 1, 1)), cluster(1, front_s=0.5), InTurn())
    assert (outcome.fates[0].started_at, outcome.fates[0].first_token_at) == (0.5, 1.5)


def test_a_held_request_is_asked_for_again() -> None:
    placing = InTurn(Held(3.0), Held(3.0))
    outcome = simulate(workload(request("s", 1, 1)), cluster(1), placing)
    assert told(placing, "place") == [("place", 0, 0.0), ("place", 0, 3.0), ("place", 0, 3.001)]
    assert (outcome.fates[0].held, outcome.fates[0].first_token_at) == (2, 3.001 + 1.0)


def test_requests_of_a_lost_replica_are_placed_again_and_it_comes_back_empty() -> None:
    plan = absent(cluster(1), 0, Absence(1.5, 10.0))
    work = workload(request("s", 1, 8), request("s", 1, 8, after=(After(0, 1.0),)))
    placing = InTurn()
    fates = simulate(work, plan, placing).fates
    assert fates[0].placed == ["r0", "r0"]
    assert (fates[0].first_token_at, fates[0].cached_tokens) == (13.0, 0)
    assert fates[1].cached_tokens == 32
    assert [one[:2] for one in placing.told if one[0] in {"join", "leave"}] == [
        ("join", "r0"), ("leave", "r0"), ("join", "r0"),
    ]  # fmt: skip


def test_a_request_underway_to_a_lost_replica_is_placed_again() -> None:
    plan = absent(cluster(2, front_s=1.0), 1, Absence(0.5, 100.0))
    fates = simulate(workload(request("s", 1, 1)), plan, InTurn()).fates
    assert (fates[0].placed, fates[0].first_token_at) == (["r1", "r0"], 2.5)


def test_a_prompt_larger_than_a_pool_is_refused_and_its_session_goes_on() -> None:
    work = workload(request("s", 1, 100), request("s", 1, 2, after=(After(0, 1.0),)))
    outcome = simulate(work, cluster(1), InTurn())
    assert (outcome.fates[0].refused, outcome.served()) == (True, [1])


def test_several_routers_share_the_requests_and_hear_all_events() -> None:
    placings = InTurn(), InTurn()
    simulate(workload(*[request("s", 10 * at + 1, 2, at=float(at)) for at in range(6)]), cluster(2), *placings)
    assert [[one[1] for one in told(placing, "place")] for placing in placings] == [[0, 2, 4], [1, 3, 5]]
    assert told(placings[0], "frame") == told(placings[1], "frame") != []


def test_the_same_again_ends_the_same() -> None:
    work, plan = sibling_forks(families=3), slow_replica(cluster(3, pool_blocks=2_000, block_size=64, step_s=0.01))
    outcomes = [simulate(work, plan, KvistPlacing(), KvistPlacing()) for _ in range(2)]
    assert outcomes[0].fates == outcomes[1].fates
    assert outcomes[0].work == outcomes[1].work


def test_a_replica_that_joins_later_gets_nothing_before() -> None:
    work = workload(*[request(f"s{at}", 10 * at + 1, 2, at=float(at)) for at in range(8)])
    fates = simulate(work, joining_empty(cluster(2), joins_at=4.0), KvistPlacing()).fates
    assert {name for fate in fates[:4] for name in fate.placed} == {"r0"}
    assert {name for fate in fates[4:] for name in fate.placed} == {"r1"}, "equal costs: its pool has more room"


def test_the_router_shows_what_the_engines_hold() -> None:
    """Frames bring the Fleet to each pool's truth; a pool that is too small keeps it busy."""
    placing = KvistPlacing()
    work = workload(*[request(f"s{at}", 10 * at + 1, 6, output_tokens=9, at=1.0 * at) for at in range(30)])
    outcome = simulate(work, cluster(2, pool_blocks=24), placing)
    placing.fleet.check_integrity()
    evicted = sum(one.evicted_blocks for one in outcome.work.values())
    shown = sum(len(placing.fleet.resident(name)["gpu"]) for name in ("r0", "r1"))
    assert evicted > 0
    assert shown + evicted == pytest.approx(30 * 8, abs=8)  # what the last frame would have told is not out yet
    assert placing.fleet.open_reservations == 0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (SimRequest("s", 0, 5, 1, (Run(1, 1),), after=(After(0, 1.0),)), "not before it"),
        (SimRequest("s", 0, 5, 0, (Run(1, 1),)), "no tokens"),
        (SimRequest("s", 0, 5, 1, (Run(1, 2),)), "name its 1 blocks"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(broken: SimRequest, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        simulate(workload(broken), cluster(1), InTurn())


def test_a_request_that_did_not_wait_is_noticed() -> None:
    outcome = simulate(workload(request("s", 1, 1), request("s", 1, 1, after=(After(0, 1.0),))), cluster(1), InTurn())
    outcome.fates[1].ready_at = 0.5
    with pytest.raises(KvistBug, match="did not wait"):
        outcome.check_integrity()
    outcome.fates[0].ended_at = -1.0
    with pytest.raises(KvistBug, match="never ended"):
        outcome.check_integrity()
