"""What every part of a simulated cluster shares: time, chance, counts, and the parts under test."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from router.fleet import Fleet
from tests.simulation.clock import Clock
from workers.announcer import Announcer
from workers.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL: Final = "a-model"
MESSAGE_FAULTS: Final = frozenset({"drop", "duplicate", "reorder", "lost_snapshot_chunk"})


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, invariant: str) -> None:
    if not holds:
        raise Violation(invariant)


class Parts(NamedTuple):
    """What a cluster is made of. A negative control replaces one."""

    relay: type[Relay] = Relay
    announcer: type[Announcer] = Announcer
    fleet: Callable[[], Fleet] = Fleet


class World:
    """`faults` and `events` count by kind what was done to the cluster and what happened in it. Faults last no longer
    than `faults_end`; while `frozen`, engines do not step."""

    def __init__(self, seed: int, parts: Parts) -> None:
        self.seed = seed
        self.parts = parts
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.faults: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.faults_end = 0.0
        self.frozen = False
        self.digest = 0

    def note(self, *what: float | str) -> None:
        """Mix something that must repeat with the seed into the run's digest."""
        self.digest = xxhash.xxh3_64_intdigest(repr(what).encode(), self.digest)
