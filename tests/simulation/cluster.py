"""A whole cluster in one process: phases of faults, each followed by quiet in which everything must become true again.

In the quiet: no faults, no new requests, engines frozen. Within SETTLE_S every router must show exactly what every
relay shows. Then engines go on until all requests are over; now the relays must show exactly what the pools hold, and
no reservation is left.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.faults import Faults
from tests.simulation.replica import SimReplica
from tests.simulation.router import SimRouter
from tests.simulation.workload import Workload
from tests.simulation.world import MESSAGE_FAULTS, Parts, Violation, World, require

if TYPE_CHECKING:
    from collections import Counter

PHASE_S: Final = 200.0
SETTLE_S: Final = 2.0
DRAIN_S: Final = 8.0
LOOK_S: Final = 0.05
SAMPLE_S: Final = 2.0


class Plan(NamedTuple):
    """What to run. `clock_jumps` scales the jumps of wall clocks."""

    seed: int
    minutes: float = 10.0
    clock_jumps: float = 1.0
    parts: Parts = Parts()


class Result(NamedTuple):
    """What a run did. `settled_s` is the longest time from the end of a phase of faults until all was true again;
    equal plans give equal digests."""

    replicas: int
    routers: int
    faults: Counter[str]
    events: Counter[str]
    settled_s: float
    digest: int

    @property
    def incidents(self) -> int:
        """Faults, those of single messages not counted."""
        return sum(count for kind, count in self.faults.items() if kind not in MESSAGE_FAULTS)


class Cluster:
    """8 to 64 replicas, mostly few, with pools of 40 to 160 blocks; 2 or 3 routers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed, plan.parts)
        rng = self.world.rng
        self._numbers = itertools.count()
        self._block_sizes = rng.choice(((4,), (4,), (8,), (4, 8)))
        count = round(8 * 8 ** (rng.random() ** 5))
        self.replicas = [self.new_replica() for _ in range(count)]
        self.routers = [SimRouter(self.world, f"router{at}") for at in range(rng.choice((2, 3)))]
        for replica in self.replicas:
            replica.start()
            for router in self.routers:
                router.join(replica)
        self._faults = Faults(self)
        self._workload = Workload(self.world, self.routers, self.replicas)
        self._settled_s = 0.0
        self._sample()

    def new_replica(self) -> SimReplica:
        """One more, under a name of its own; it has yet to start."""
        rng = self.world.rng
        return SimReplica(
            self.world,
            f"r{next(self._numbers)}",
            block_size=rng.choice(self._block_sizes),
            pool_blocks=rng.randint(40, 160),
        )

    def run(self) -> Result:
        """All phases. Raises `Violation`, or what the code under test raises."""
        end = self.plan.minutes * 60
        while self.world.clock.now < end:
            self._phase(min(PHASE_S, end - self.world.clock.now) - SETTLE_S - DRAIN_S)
        world = self.world
        return Result(len(self.replicas), len(self.routers), world.faults, world.events, self._settled_s, world.digest)

    def _phase(self, faulty_s: float) -> None:
        clock = self.world.clock
        quiet_at = clock.now + faulty_s
        self._faults.start(quiet_at)
        self._workload.start()
        clock.run_until(quiet_at)
        self._workload.runs = False
        self.world.frozen = True
        self._settle(quiet_at)
        self.world.frozen = False
        for replica in self.replicas:
            replica.thaw()
        clock.run_until(quiet_at + SETTLE_S + DRAIN_S)
        self._check_quiet()

    def _settle(self, quiet_at: float) -> None:
        clock = self.world.clock
        true_since: float | None = None
        while clock.now < quiet_at + SETTLE_S:
            clock.run_until(clock.now + LOOK_S)
            if self._untrue():
                true_since = None
            elif true_since is None:
                true_since = clock.now
        if true_since is None:
            raise Violation(f"{SETTLE_S} s after the last fault, not true: {', '.join(self._untrue())}")
        self._settled_s = max(self._settled_s, true_since - quiet_at)
        self._check_members()

    def _untrue(self) -> list[str]:
        return [
            f"{router.name}: {router.fleet._members[replica.name].feed!r} against {replica!r}"
            if replica.name in router.fleet._members
            else f"{router.name} does not know {replica!r}"
            for router in self.routers
            for replica in self.replicas
            if not router.shows(replica)
        ]

    def _check_members(self) -> None:
        """Every router shows every replica's own blocks, and nobody else's."""
        names = {replica.name for replica in self.replicas}
        for router in self.routers:
            require(set(router.fleet.routable) == names, f"{router!r} routes to others than the replicas that live")
            for replica in self.replicas:
                shown = {run.medium: frozenset(run.hashes) for run in replica.relay.snapshot()}
                held = {tier: blocks for tier, blocks in router.fleet.resident(replica.name).items() if blocks}
                require(held == shown, f"{router!r} shows other blocks of {replica!r} than its relay")

    def _check_quiet(self) -> None:
        for replica in self.replicas:
            require(replica.is_idle and not replica.requests, f"{replica!r} does not come to an end")
            replica.check_integrity()
            replica.check_relay()
        self._check_members()
        for router in self.routers:
            router.fleet.check_integrity()
            require(router.fleet.open_reservations == 0, f"{router!r} keeps reservations of requests that are over")
            for replica in self.replicas:
                load = router.fleet._members[replica.name].load
                left = load.inflight, load.inflight_blocks, load.fresh, load.prefill_tokens, load.fresh_tokens
                require(not any(left), f"{router!r} keeps load of requests that are over: {left}")

    def _sample(self) -> None:
        """Look into one part of each kind."""
        rng, clock = self.world.rng, self.world.clock
        router, replica = rng.choice(self.routers), rng.choice(self.replicas)
        router.fleet.check_integrity()
        if replica.is_up:
            replica.check_integrity()
            if any(copies > 1 for copies in replica.simulator.pool.resident().values()):
                self.world.events["pools_with_duplicates_seen"] += 1
        clock.at(clock.now + SAMPLE_S, self._sample)


class Failure(AssertionError):
    """A run failed; the message says how to repeat it."""


def simulate(plan: Plan) -> Result:
    """Run a plan. Raises `Failure` when anything goes wrong."""
    cluster = Cluster(plan)
    try:
        return cluster.run()
    except Exception as error:
        when, what = f"{cluster.world.clock.now:.3f} s", f"{type(error).__name__}: {error}"
        again = f"python -m tests.simulation {plan.seed} --minutes {plan.minutes:g}"
        raise Failure(f"seed {plan.seed}, {when}: {what}\nrepeat it with: {again}") from error
