"""A simulated cluster: its replicas, their paces and their absences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from load_tests.sim.placing import ReplicaSpec
from load_tests.sim.relay import EVENT_DELAY_S

if TYPE_CHECKING:
    from load_tests.sim.calibration import Calibration
    from workers.simulator import SimParameters


class Absence(NamedTuple):
    """A replica is lost at one time and is back, empty, at another; both in seconds."""

    from_s: float
    until_s: float


class ReplicaPlan(NamedTuple):
    """One replica. `speed` divides all its durations; absences do not overlap and are in order."""

    name: str
    parameters: SimParameters
    speed: float = 1.0
    absences: tuple[Absence, ...] = ()

    @property
    def spec(self) -> ReplicaSpec:
        """What routers are told of it."""
        own = self.parameters
        return ReplicaSpec(
            self.name, own.block_size, own.pool_blocks, own.max_batched_tokens, own.long_prefill_token_threshold
        )


class ClusterPlan(NamedTuple):
    """All replicas. A request is `front_s` under way from its choice to the engine; routers hear of blocks
    `event_delay_s` late at most."""

    replicas: tuple[ReplicaPlan, ...]
    front_s: float = 0.0
    event_delay_s: float = EVENT_DELAY_S


def even_cluster(
    calibration: Calibration, *, replicas: int, block_size: int, pool_blocks: int, share_tokens: int = 0
) -> ClusterPlan:
    """So many equal replicas, with `pool_blocks` each."""
    parameters = calibration.parameters(block_size=block_size, pool_blocks=pool_blocks, share_tokens=share_tokens)
    width = len(str(replicas - 1))
    names = [f"r{index:0{width}}" for index in range(replicas)]
    return ClusterPlan(tuple(ReplicaPlan(name, parameters) for name in names), front_s=calibration.front_s)
