"""What every baseline keeps: the known replicas, and which of the own requests is where.

`Tracked` knows nothing of caches. `Informed` also reads the event frames, into an exact index and the last gauges.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from router.errors import KvistBug, NoReplica
from router.index import Index
from router.wire import Load, decode_frame

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked, ReplicaSpec


class Placed(NamedTuple):
    """A request that has not ended."""

    replica: str
    asked: Asked


class Tracked(ABC):
    """A rule that counts its own unfinished requests. Subclasses say how they choose, and may keep more of each
    request by `_entered`, `_computed` and `_left`."""

    def __init__(self, *, seed: int) -> None:
        self._random = random.Random(seed)
        self._replicas: dict[str, ReplicaSpec] = {}
        self._requests: dict[int, Placed] = {}
        self._in_flight: dict[str, int] = {}  # replica → its unfinished requests

    def __repr__(self) -> str:
        return f"<{type(self).__name__} replicas={len(self._replicas)} requests={len(self._requests)}>"

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """A replica exists. A known one starts afresh, without its requests."""
        if replica.name in self._replicas:
            self.leave(replica.name, now)
        self._replicas[replica.name] = replica
        self._in_flight[replica.name] = 0

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with its requests. O(all unfinished requests). An unknown one is ignored."""
        del now
        for request in [request for request, placed in self._requests.items() if placed.replica == replica]:
            self._release(request)
        self._replicas.pop(replica, None)
        self._in_flight.pop(replica, None)

    def on_frame(self, replica: str, frame: bytes, now: float) -> None:
        """Events mean nothing to a rule that does not look at caches."""
        del replica, frame, now

    def place(self, asked: Asked, now: float) -> str:
        """Choose, and count the request there. Raises `NoReplica` without any."""
        if not self._replicas:
            raise NoReplica("no replica is known")
        self._release(asked.request)
        replica = self._choose(asked)
        self.put(asked, replica, now)
        return replica

    def put(self, asked: Asked, replica: str, now: float) -> None:
        """Count a request on a known replica, whoever chose it."""
        self._release(asked.request)
        self._requests[asked.request] = Placed(replica, asked)
        self._in_flight[replica] += 1
        self._entered(replica, asked, now)

    def first_token(self, request: int, *, cached_tokens: int, now: float) -> None:
        """The prompt is computed. An unknown request is ignored."""
        del cached_tokens, now
        placed = self._requests.get(request)
        if placed is not None:
            self._computed(placed)

    def finish(self, request: int, now: float) -> None:
        """The request has ended. An unknown one is ignored."""
        del now
        self._release(request)

    def check_integrity(self) -> None:
        """Raise `KvistBug` when the counts and the requests disagree. O(all unfinished requests)."""
        counted = dict.fromkeys(self._replicas, 0)
        for placed in self._requests.values():
            counted[placed.replica] += 1
        if counted != self._in_flight:
            raise KvistBug(f"counted {self._in_flight}, while requests say {counted}")

    @abstractmethod
    def _choose(self, asked: Asked) -> str:
        """One of the known replicas, of which there is at least one."""

    def _entered(self, replica: str, asked: Asked, now: float) -> None:
        """A request was counted on a replica."""
        del replica, asked, now

    def _computed(self, placed: Placed) -> None:
        """A request has its first token."""
        del placed

    def _left(self, request: int, placed: Placed) -> None:
        """A request is no longer counted: it has ended, or its replica has."""
        del request, placed

    def _release(self, request: int) -> None:
        placed = self._requests.pop(request, None)
        if placed is not None:
            self._in_flight[placed.replica] -= 1
            self._left(request, placed)


class Informed(Tracked):
    """A rule that is told what engines cache: their blocks in an exact index, and their last gauge."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._index = Index()
        self._gauges: dict[str, Load] = {}

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """A replica exists, empty and idle."""
        super().join(replica, now)
        self._index.add(replica.name, pool_blocks=replica.pool_blocks)
        self._gauges[replica.name] = Load(0, 0, 0, replica.pool_blocks, replica.pool_blocks)

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with its blocks and its requests."""
        super().leave(replica, now)
        self._index.drop(replica)
        self._gauges.pop(replica, None)

    def on_frame(self, replica: str, frame: bytes, now: float) -> None:
        """Take the frame's blocks and gauge. Frames of unknown replicas, such as late ones, are ignored."""
        del now
        if replica in self._replicas:
            told = decode_frame(frame)
            self._index.apply(replica, told.ops)
            self._gauges[replica] = told.load

    def check_integrity(self) -> None:
        """Raise `KvistBug` when any part contradicts itself. O(all blocks)."""
        super().check_integrity()
        self._index.check_integrity()
