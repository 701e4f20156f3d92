"""A cluster in virtual time: the router's real core, real event frames, and engines that only do arithmetic.

`simulate` is pure and deterministic: an equal workload, cluster and placings in their first state end equally.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.sim.world import World

if TYPE_CHECKING:
    from load_tests.sim.cluster import ClusterPlan
    from load_tests.sim.outcome import Outcome
    from load_tests.sim.placing import Placing
    from load_tests.sim.work import Workload


def simulate(workload: Workload, cluster: ClusterPlan, *placings: Placing) -> Outcome:
    """Serve the workload. With several placings each is a router of its own: requests are dealt to them in turn, events
    go to all. Raises `KvistBug` when a request or a block was lost, `InvalidRequest` for a workload that cannot be."""
    workload.check_integrity()
    return World(workload, cluster, placings).run()
