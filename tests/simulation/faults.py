"""What goes wrong, and how often: each kind comes at random times and hits somebody at random.

kind              every (s)     what
engine_restart    30-120  *     the process dies, and comes back empty under a new incarnation
replica_restart   40-160  *     the same, and routers are told: of the old name again, or of a new one
router_restart    60-240        a router process dies, and comes back knowing nothing
clear             5-20          an engine's cache is reset (an idle engine says nothing of it itself)
replica_pause     10-40         the process stops for up to 10 s
router_pause      20-80         the process stops for up to 10 s
partition         20-80         a router hears nothing, of all or of half of the replicas, for up to 20 s
snapshot_outage   15-45         a router gets no snapshots for up to 5 s
late_snapshots    15-45         a router gets snapshots late, after it gave them up, for up to 5 s
clock_jump        15-45         a replica's wall clock jumps by an hour
batch_loss        20-60         a batch of engine events is lost on its way to the relay

* per eight replicas. All the while links drop 0-20 % of the messages, repeat 5 % and delay 5 % by up to 1 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import Cluster
    from tests.simulation.replica import SimReplica

INTERVALS_S: Final = {
    "engine_restart": (30, 120),
    "replica_restart": (40, 160),
    "router_restart": (60, 240),
    "clear": (5, 20),
    "replica_pause": (10, 40),
    "router_pause": (20, 80),
    "partition": (20, 80),
    "snapshot_outage": (15, 45),
    "late_snapshots": (15, 45),
    "clock_jump": (15, 45),
    "batch_loss": (20, 60),
}
PER_EIGHT_REPLICAS: Final = {"engine_restart", "replica_restart"}
DROP_SHARES: Final = (0.0, 0.01, 0.05, 0.1, 0.2)
JUMP_S: Final = 3_600.0


class Faults:
    """Does wrong until `World.faults_end`. Everything that is down or stopped then comes back at that very time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._inject: dict[str, Callable[[], bool]] = {kind: getattr(self, f"_{kind}") for kind in INTERVALS_S}

    def start(self, end: float) -> None:
        """Begin a phase of faults."""
        self._world.faults_end = end
        for router in self._cluster.routers:
            router.drop_share = self._world.rng.choice(DROP_SHARES)
            for link in router.links.values():
                link.drop_share = router.drop_share
        for kind in INTERVALS_S:
            self._plan(kind)

    def _plan(self, kind: str) -> None:
        low, high = INTERVALS_S[kind]
        interval_s = self._world.rng.uniform(low, high)
        if kind in PER_EIGHT_REPLICAS:
            interval_s *= 8 / len(self._cluster.replicas)
        when = self._world.clock.now + interval_s
        if when < self._world.faults_end:
            self._world.clock.at(when, self._fire, kind)

    def _fire(self, kind: str) -> None:
        if self._inject[kind]():
            self._world.faults[kind] += 1
        self._plan(kind)

    def _until(self, low: float, high: float) -> float:
        return min(self._world.clock.now + self._world.rng.uniform(low, high), self._world.faults_end)

    def _running(self) -> SimReplica | None:
        running = [one for one in self._cluster.replicas if one.is_up and not one.is_paused]
        return self._world.rng.choice(running) if running else None

    def _engine_restart(self) -> bool:
        replica = self._running()
        if replica is None:
            return False
        replica.kill()
        self._world.clock.at(self._until(0.05, 5.0), replica.start)
        return True

    def _replica_restart(self) -> bool:
        replica = self._running()
        if replica is None:
            return False
        replica.kill()
        news_at = self._until(0.0, 1.0)
        if self._world.rng.random() < 0.5:
            self._world.clock.at(self._until(0.05, 5.0), self._return, replica)
        else:
            replica.is_gone = True
            for router in self._cluster.routers:
                self._world.clock.at(news_at, router.leave, replica)
            self._world.clock.at(self._until(0.5, 5.0), self._replace, replica)
        return True

    def _return(self, replica: SimReplica) -> None:
        replica.start()
        self._tell(replica)

    def _replace(self, replica: SimReplica) -> None:
        successor = self._cluster.new_replica()
        self._cluster.replicas[self._cluster.replicas.index(replica)] = successor
        successor.start()
        self._tell(successor)

    def _tell(self, replica: SimReplica) -> None:
        for router in self._cluster.routers:
            self._world.clock.at(self._until(0.0, 1.0), router.join, replica)

    def _router_restart(self) -> bool:
        router = self._world.rng.choice(self._cluster.routers)
        router.restart([replica for replica in self._cluster.replicas if not replica.is_gone])
        return True

    def _clear(self) -> bool:
        running = [one for one in self._cluster.replicas if one.is_up and not one.is_paused]
        busy = [one for one in running if not one.simulator.is_idle]
        replica = self._world.rng.choice(busy) if busy else self._running()
        if replica is not None:
            replica.clear_soon()
        return False  # counts itself when it happens

    def _replica_pause(self) -> bool:
        replica = self._running()
        if replica is None:
            return False
        replica.pause(self._until(0.5, 10.0))
        return True

    def _router_pause(self) -> bool:
        router = self._world.rng.choice(self._cluster.routers)
        if router.is_paused:
            return False
        router.pause(self._until(0.5, 10.0))
        return True

    def _partition(self) -> bool:
        links = list(self._world.rng.choice(self._cluster.routers).links.values())
        until = self._until(1.0, 20.0)
        for link in links[:: self._world.rng.choice((1, 2))]:
            link.cut_until = until
        return bool(links)

    def _snapshot_outage(self) -> bool:
        links = self._world.rng.choice(self._cluster.routers).links.values()
        until = self._until(0.5, 5.0)
        for link in links:
            link.snapshots_lost_until = until
        return bool(links)

    def _late_snapshots(self) -> bool:
        links = self._world.rng.choice(self._cluster.routers).links.values()
        until = self._until(0.5, 5.0)
        for link in links:
            link.snapshots_late_until = until
        return bool(links)

    def _clock_jump(self) -> bool:
        jump_s = self._world.rng.choice((-JUMP_S, JUMP_S)) * self._cluster.plan.clock_jumps
        self._world.rng.choice(self._cluster.replicas).ts_offset_s += jump_s
        return True

    def _batch_loss(self) -> bool:
        replica = self._running()
        if replica is not None:
            replica.lose_batches = 1
        return False  # counts itself when it happens
