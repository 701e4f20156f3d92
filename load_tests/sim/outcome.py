"""What became of a simulated workload: times of every request, work of every replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.errors import KvistBug

if TYPE_CHECKING:
    from load_tests.sim.work import Workload


@dataclass(slots=True)
class Fate:
    """What became of one request; times in seconds, -1.0 for what did not happen. `placed` lists its replicas in turn:
    more than one when a replica left. `refused` requests are larger than a pool or a context and never ran."""

    ready_at: float = -1.0
    started_at: float = -1.0
    first_token_at: float = -1.0
    ended_at: float = -1.0
    cached_tokens: int = 0
    placed: list[str] = field(default_factory=list)
    held: int = 0
    refused: bool = False


@dataclass(slots=True)
class ReplicaWork:
    """What one replica did in all its lives."""

    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    evicted_blocks: int = 0

    @property
    def tokens(self) -> int:
        """Tokens computed: the measure of work."""
        return self.prefilled_tokens + self.decoded_tokens


@dataclass(slots=True)
class Outcome:
    """A finished simulation. `wall_s` is left to who measures it."""

    workload: Workload
    fates: list[Fate]
    work: dict[str, ReplicaWork]

    def served(self) -> list[int]:
        """Requests that ran, by their place in the workload."""
        return [index for index, fate in enumerate(self.fates) if not fate.refused]

    def check_integrity(self) -> None:
        """Raise `KvistBug` unless every request ended once, in order, after all that it waited for."""
        for index, (request, fate) in enumerate(zip(self.workload.requests, self.fates, strict=True)):
            if fate.ended_at < 0 or (not fate.refused and not fate.placed):
                raise KvistBug(f"request {index} never ended: {fate}")
            if not fate.refused and not fate.ready_at <= fate.started_at <= fate.first_token_at <= fate.ended_at:
                raise KvistBug(f"request {index} went back in time: {fate}")
            if any(self.fates[dep.request].ended_at > fate.ready_at + 1e-6 for dep in request.after):
                raise KvistBug(f"request {index} did not wait for what it needs: {fate}")
