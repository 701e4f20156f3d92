"""What a row says of an outcome, and the best that could be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from load_tests.sim.calibration import calibration_named, calibration_names
from load_tests.sim.cluster import even_cluster
from load_tests.sim.ideal import capacity_tokens, floor_s, ideal_tokens, working_set_blocks
from load_tests.sim.measure import plane_through
from load_tests.sim.replay import PoolSize, Setting, replay
from load_tests.sim.report import as_text, row_of, write, yardstick
from load_tests.sim.scenarios import cold_burst, hot_prefix
from load_tests.sim.work import After, Run, SimRequest
from load_tests.simulate import simulate
from router.errors import InvalidRequest
from tests.load_tests.sim.builders import InTurn, request, workload

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = [
    "policy", "requests", "hit_rate", "ideal_hit_rate", "capacity_ideal_hit_rate", "imbalance", "floor_ms", "ttft_ms",
    "warm_ttft_ms", "queue_ms", "requests_per_s", "goodput", "evicted_blocks", "wall_s",
]  # fmt: skip


def test_an_infinite_cache_has_all_that_was_there_before_but_the_last_token() -> None:
    work = workload(request("a", 1, 8), request("b", 1, 8), request("c", 1, 4))
    assert ideal_tokens(work) == [0, 32, 16]


def test_one_pool_forgets_what_was_used_least_recently() -> None:
    work = workload(request("a", 1, 8), request("b", 101, 8), request("a", 1, 8))
    assert capacity_tokens(work, 100) == [0, 0, 32]
    assert capacity_tokens(work, 12) == [0, 0, 16]  # tails first
    assert capacity_tokens(work, 9) == [0, 0, 4]
    assert capacity_tokens(work, 8) == [0, 0, 0]


def test_the_working_set_is_what_will_be_used_again() -> None:
    first = request("a", 1, 8, seen_at=0.0, left_at=1.0)
    between = request("b", 101, 2, seen_at=5.0, left_at=6.0)
    again = request("a", 1, 8, seen_at=9.0, left_at=10.0)
    assert working_set_blocks(workload(first, between, again)) == pytest.approx((8 + 10 + 8) / 3)


def test_the_published_case_is_reproduced() -> None:
    """52,000 tokens on a b200: 912 ms cold, 168 ms warm."""
    pace = calibration_named("b200")
    plan = even_cluster(pace, replicas=1, block_size=64, pool_blocks=2_000)
    long = SimRequest("a", 0, 52_000, 1, (Run(1, 812),))
    work = workload(long, long._replace(after=(After(0, 1.0),)))._replace(block_size=64)
    cold, warm = simulate(work, plan, InTurn()).fates
    assert (cold.first_token_at - cold.ready_at) * 1000 == pytest.approx(912, rel=0.01)
    assert (warm.first_token_at - warm.ready_at) * 1000 == pytest.approx(168, rel=0.01)
    measured = [one.first_token_at - one.ready_at for one in (cold, warm)]
    assert floor_s(work, [0, 51_968], pace) == pytest.approx(measured)


def test_h100_computes_ten_thousand_tokens_a_second_in_full_steps() -> None:
    pace = calibration_named("h100-32b")
    assert pace.step_s + pace.step_tokens * pace.prefill_token_s == pytest.approx(pace.step_tokens / 10_000, rel=1e-3)


def test_every_calibration_says_where_it_is_from() -> None:
    assert all(calibration_named(name).source and calibration_named(name).name == name for name in calibration_names())
    with pytest.raises(InvalidRequest, match="b200"):
        calibration_named("abacus")


def test_a_row_has_the_published_fields() -> None:
    work = hot_prefix(sessions=8, at_once=4)
    pace = calibration_named("h100-32b")
    plan = even_cluster(pace, replicas=2, block_size=64, pool_blocks=1_000)
    outcome = simulate(work, plan, InTurn())
    row = row_of("in turn", outcome, yardstick(work, pace, all_blocks=2_000), front_s=0.0, wall_s=1.0)
    assert list(row) == FIELDS
    assert row["requests"] == 24
    assert 0 < row["hit_rate"] < row["ideal_hit_rate"] == row["capacity_ideal_hit_rate"] < 1
    assert 1 <= row["imbalance"] <= 2
    assert row["floor_ms"]["p50"] <= row["ttft_ms"]["p50"]
    assert row["goodput"] <= row["requests_per_s"]
    assert "in turn" in as_text([row], title="a test")


def test_all_work_on_one_of_two_replicas_is_an_imbalance_of_two() -> None:
    work = workload(request("a", 1, 8), request("b", 50, 8))
    pace = calibration_named("h100-32b")
    plan = even_cluster(pace, replicas=2, block_size=4, pool_blocks=100)
    outcome = simulate(work, plan, InTurn("r0", "r0"))
    assert row_of("one", outcome, yardstick(work, pace, all_blocks=9), front_s=0.0, wall_s=0.0)["imbalance"] == 2.0


def test_policies_are_replayed_on_equal_terms(tmp_path: Path) -> None:
    setting = Setting(replicas=2, pool=PoolSize.parse("2x"), pace=calibration_named("h100-32b"), shares_steps=2)
    rows = list(replay(cold_burst(siblings=6), setting, ["round-robin", "kvist"], seed=0))
    assert [row["policy"] for row in rows] == ["round-robin", "kvist"]
    assert rows[0]["ideal_hit_rate"] == rows[1]["ideal_hit_rate"]
    write(rows, tmp_path / "deep" / "rows.json")
    assert (tmp_path / "deep" / "rows.json").read_text().startswith('{\n "rows"')


@pytest.mark.parametrize("text", ["", "x", "-3", "0x", "many"])
def test_a_pool_is_blocks_or_a_multiple_of_the_working_set(text: str) -> None:
    assert PoolSize.parse("300") == PoolSize(blocks=300)
    assert PoolSize.parse("1.5x") == PoolSize(working_sets=1.5)
    with pytest.raises(InvalidRequest, match="a pool of"):
        PoolSize.parse(text)


def test_a_pace_is_the_plane_through_its_probes() -> None:
    probes = [(0, 100), (0, 1000), (1000, 500), (4000, 1000), (2000, 100)]
    times = [0.005 + -(-new // 512) * 0.01 + new * 0.0001 + new * (cached + new / 2) * 1e-8 for cached, new in probes]
    assert list(plane_through(probes, times, step_s=0.01, step_tokens=512)) == pytest.approx([0.0001, 1e-8, 0.005])


def test_no_cost_is_below_zero() -> None:
    probes = [(0, 100), (0, 1000), (1000, 500)]
    found = plane_through(probes, [0.0099, 0.0999, 0.04], step_s=0.0, step_tokens=512)
    assert min(found) == 0.0
    assert found.prefill_token_s > 0
