"""`sticky`: consistent hashing by session, with bounded loads.

Every replica has RING_POINTS points on a ring of 64-bit hashes. A session belongs to the replica of the first point
after its own hash; when that one is full, to the next on the ring which is not. Full is a replica with
⌈BOUND · (m + 1) / n⌉ requests in flight, for m requests on n replicas: Mirrokni, Thorup and Zadimoghaddam, "Consistent
Hashing with Bounded Loads" (2018), with the bound that HAProxy's documentation, KubeAI and smg's `prefix_hash` use.
The ring has as many points as vllm-router's `consistent_hash`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import xxhash

from load_tests.baselines.tracked import Tracked
from router.errors import KvistBug

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked, ReplicaSpec

BOUND: Final = 1.25
RING_POINTS: Final = 160


class Sticky(Tracked):
    """A session stays where its hash falls, unless that replica has a quarter more than its share."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._ring_seed = seed
        self._ring: list[tuple[int, str]] = []

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """Only the sessions next to the newcomer's points move. O(all points)."""
        super().join(replica, now)
        points = [(self._hash(f"{replica.name}#{number}"), replica.name) for number in range(RING_POINTS)]
        self._ring = sorted(self._ring + points)

    def leave(self, replica: str, now: float) -> None:
        """The sessions of the one that left go to the next on the ring. O(all points)."""
        super().leave(replica, now)
        self._ring = [point for point in self._ring if point[1] != replica]

    def _choose(self, asked: Asked) -> str:
        capacity = math.ceil(BOUND * (len(self._requests) + 1) / len(self._replicas))
        first = bisect_right(self._ring, (self._hash(asked.session), ""))
        for step in range(len(self._ring)):
            name = self._ring[(first + step) % len(self._ring)][1]
            if self._in_flight[name] < capacity:
                return name
        raise KvistBug("all replicas together hold more than their bound")

    def _hash(self, text: str) -> int:
        return xxhash.xxh3_64_intdigest(text.encode(), seed=self._ring_seed)
