"""`kvist replay`: traces through simulated clusters, one row per trace and policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from load_tests.policies import policy_named
from load_tests.sim.cluster import ClusterPlan, even_cluster
from load_tests.sim.ideal import working_set_blocks
from load_tests.sim.report import Row, Yardstick, row_of, yardstick
from load_tests.simulate import simulate
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from load_tests.sim.calibration import Calibration
    from load_tests.sim.work import Workload

SHARED_PARTS = 2  # a shared step gives one prompt this part of it, as Kvist's workers set vLLM


class PoolSize(NamedTuple):
    """Blocks of each replica's pool, or all pools together as a multiple of the working set."""

    blocks: int = 0
    working_sets: float = 0.0

    @classmethod
    def parse(cls, text: str) -> PoolSize:
        """`50000` blocks, or `2x` the working set. Raises `InvalidRequest` for anything else."""
        try:
            size = cls(working_sets=float(text[:-1])) if text.endswith("x") else cls(blocks=int(text))
        except ValueError:
            size = cls()
        if max(size) <= 0:
            raise InvalidRequest(f"a pool of {text!r}: give blocks per replica, or the working set's multiple as 2x")
        return size

    def per_replica(self, workload: Workload, replicas: int) -> int:
        """Blocks of one pool."""
        return self.blocks or max(1, round(self.working_sets * working_set_blocks(workload) / replicas))


class Setting(NamedTuple):
    """The cluster that a workload is replayed on."""

    replicas: int
    pool: PoolSize
    pace: Calibration
    shares_steps: int  # 0: first come first served; otherwise the parts a step is shared in

    def cluster(self, workload: Workload) -> ClusterPlan:
        """So many equal replicas."""
        share_tokens = self.pace.step_tokens // self.shares_steps if self.shares_steps else 0
        return even_cluster(
            self.pace,
            replicas=self.replicas,
            block_size=workload.block_size,
            pool_blocks=self.pool.per_replica(workload, self.replicas),
            share_tokens=share_tokens,
        )


def replay(workload: Workload, setting: Setting, policies: Sequence[str], *, seed: int) -> Iterator[Row]:
    """A row for each policy, each as soon as it is there. What is the same for all is computed once."""
    cluster = setting.cluster(workload)
    best = yardstick(workload, setting.pace, all_blocks=sum(one.parameters.pool_blocks for one in cluster.replicas))
    for policy in policies:
        yield _one(workload, cluster, best, policy, seed)


def _one(workload: Workload, cluster: ClusterPlan, best: Yardstick, policy: str, seed: int) -> Row:
    started_at = time.perf_counter()
    outcome = simulate(workload, cluster, policy_named(policy, seed=seed))
    wall_s = time.perf_counter() - started_at
    return row_of(policy, outcome, best, front_s=cluster.front_s, wall_s=wall_s)
