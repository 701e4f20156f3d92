"""The way between one router and one replica: it drops, repeats, delays and cuts, and remembers what it delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

FRAME_S: Final = 0.002
SNAPSHOT_S: Final = 0.008  # slower than frames, so that these overtake it
DUPLICATE_SHARE: Final = 0.05
REORDER_SHARE: Final = 0.05
LONGEST_DELAY_S: Final = 1.0
LATE_S: Final = (0.5, 2.5)


class Message(NamedTuple):
    """An event frame, and what is in it: the replica's incarnation by its place in time, and the frame's number."""

    data: bytes
    ordinal: int
    seq: int


class Link:
    """`drop_share` holds while faults do. `heard_*` is what the router was told, whatever it made of it: the newest
    incarnation, the highest number of it, and when anything came at all."""

    def __init__(self, world: World, replica: SimReplica) -> None:
        self.replica = replica
        self.drop_share = 0.0
        self.cut_until = 0.0
        self.snapshots_lost_until = 0.0
        self.snapshots_late_until = 0.0
        self.heard_ordinal = -1
        self.heard_seq = -1
        self.heard_at = world.clock.now
        self.checked: tuple[int, int] | None = None
        self._world = world

    def hear(self, message: Message, now: float) -> None:
        """The router gets this frame now."""
        self.heard_at = now
        if message.ordinal > self.heard_ordinal:
            self.heard_ordinal, self.heard_seq = message.ordinal, message.seq
        elif message.ordinal == self.heard_ordinal:
            self.heard_seq = max(self.heard_seq, message.seq)

    def snapshot_takes_s(self) -> float:
        """How long the next snapshot is on its way."""
        world = self._world
        if world.clock.now >= self.snapshots_late_until:
            return SNAPSHOT_S
        return max(SNAPSHOT_S, min(world.rng.uniform(*LATE_S), world.faults_end - world.clock.now))

    def carry(self, deliver: Callable[..., Any], *args: Any, takes_s: float) -> None:
        """Deliver a message, perhaps: not at all, twice, or late."""
        world = self._world
        clock, now = world.clock, world.clock.now
        if now >= world.faults_end:
            clock.at(now + takes_s, deliver, *args)
            return
        if now < self.cut_until:
            world.events["messages_cut_off"] += 1
            return
        chance = world.rng.random() - self.drop_share
        if chance < 0:
            world.faults["drop"] += 1
            return
        if chance < DUPLICATE_SHARE:
            world.faults["duplicate"] += 1
            clock.at(self._later(takes_s), deliver, *args)
        elif chance < DUPLICATE_SHARE + REORDER_SHARE:
            world.faults["reorder"] += 1
            clock.at(self._later(takes_s), deliver, *args)
            return
        clock.at(now + takes_s, deliver, *args)

    def _later(self, takes_s: float) -> float:
        world = self._world
        now = world.clock.now
        return max(now + takes_s, min(now + takes_s + world.rng.random() * LONGEST_DELAY_S, world.faults_end))
