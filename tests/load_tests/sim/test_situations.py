"""Kvist's own router in the situations that it must do well in, each on a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.sim.calibration import calibration_named
from load_tests.sim.cluster import even_cluster
from load_tests.sim.kvist_router import KvistPlacing
from load_tests.sim.scenarios import hot_prefix, joining_empty, sibling_forks, slow_replica
from load_tests.simulate import simulate

if TYPE_CHECKING:
    from load_tests.sim.cluster import ClusterPlan
    from load_tests.sim.outcome import Outcome
    from load_tests.sim.work import Workload

PACE = calibration_named("h100-32b")


def cluster(workload: Workload, *, replicas: int = 4) -> ClusterPlan:
    """Pools that hold everything; two prompts share a step."""
    return even_cluster(
        PACE,
        replicas=replicas,
        block_size=workload.block_size,
        pool_blocks=20_000,
        share_tokens=PACE.step_tokens // 2,
    )


def hit_rate(outcome: Outcome) -> float:
    """Of all prompt tokens."""
    requests = outcome.workload.requests
    return sum(fate.cached_tokens for fate in outcome.fates) / sum(one.prompt_tokens for one in requests)


def imbalance(outcome: Outcome) -> float:
    """The busiest replica's work over the mean."""
    work = [one.tokens for one in outcome.work.values()]
    return max(work) * len(work) / sum(work)


def test_a_hot_prefix_is_replicated_before_a_queue_builds() -> None:
    """64 sessions share one system prompt: hits as good as one replica's, work as even as four's."""
    workload = hot_prefix()
    outcome = simulate(workload, cluster(workload), KvistPlacing())
    assert imbalance(outcome) <= 1.3
    assert hit_rate(outcome) >= 0.94


def test_six_siblings_meet_where_their_parent_is() -> None:
    """A fork finds at least 0.8 of what one cache would hold."""
    workload = sibling_forks(families=8)
    alone = simulate(workload, cluster(workload, replicas=1), KvistPlacing())
    outcome = simulate(workload, cluster(workload), KvistPlacing())
    assert hit_rate(outcome) >= 0.8 * hit_rate(alone)


def test_a_slow_replica_gets_less_work() -> None:
    """It takes four times as long for everything; nobody says so, it is seen."""
    workload = sibling_forks(families=12)
    outcome = simulate(workload, slow_replica(cluster(workload), speed=0.25), KvistPlacing())
    names = list(outcome.work)
    others = [outcome.work[name].tokens for name in names[1:]]
    assert outcome.work[names[0]].tokens < 0.6 * sum(others) / len(others)


def test_a_replica_that_joins_empty_is_given_its_part() -> None:
    """New conversations go there; those that are cached elsewhere stay."""
    workload = hot_prefix(sessions=96)
    outcome = simulate(workload, joining_empty(cluster(workload), joins_at=3.0), KvistPlacing())
    work = [one.tokens for one in outcome.work.values()]
    assert work[-1] > 0.3 * sum(work[:-1]) / 3
    assert hit_rate(outcome) > 0.9


def test_many_routers_that_decide_at_once_share_the_work() -> None:
    """Each knows its own requests and what the gauges say: hits and balance stay."""
    workload = hot_prefix()
    outcome = simulate(workload, cluster(workload), *[KvistPlacing() for _ in range(4)])
    assert imbalance(outcome) <= 1.5
    assert hit_rate(outcome) >= 0.88
