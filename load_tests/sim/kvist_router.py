"""Kvist's own router behind the seam: the real Fleet, fed with real frames."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from load_tests.sim.placing import Held
from router.errors import KvistBug, NoReplica
from router.fleet import Action, Fleet
from router.limits import TICK_INTERVAL_S
from router.replicas import PromptBlocks, ReplicaInfo
from router.wire import SnapshotChunk, decode_snapshot_request, encode_chunk

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked, ReplicaSpec
    from router.policy import Policy

NOWHERE = "tcp://127.0.0.1:1"  # simulated replicas have no sockets


class KvistPlacing:
    """A `Placing` of `router.fleet.Fleet`. `policy` is the Fleet's own unless given."""

    def __init__(self, *, policy: Policy | None = None) -> None:
        self.fleet = Fleet(model="simulated", policy=policy)
        self._lives: Counter[str] = Counter()
        self._reservations: dict[int, int] = {}
        self._swept_at = -TICK_INTERVAL_S

    def __repr__(self) -> str:
        return f"<KvistPlacing {self.fleet!r}>"

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """Know a replica; its first snapshot, which is empty, is there at once."""
        self._lives[replica.name] += 1
        info = ReplicaInfo(
            replica=replica.name,
            incarnation=incarnation_of(replica.name, self._lives[replica.name]),
            model="simulated",
            block_size=replica.block_size,
            pool_blocks=replica.pool_blocks,
            max_model_len=replica.pool_blocks * replica.block_size,
            events=NOWHERE,
            snapshots=NOWHERE,
            step_tokens=replica.step_tokens,
            share_tokens=replica.share_tokens,
        )
        for action in self.fleet.join(info, now):
            self.fleet.on_chunk(replica.name, _empty_snapshot(info, action), now)

    def leave(self, replica: str, now: float) -> None:
        """Forget a replica. Its requests are placed again, under new reservations."""
        self.fleet.leave(replica, now)

    def on_frame(self, replica: str, frame: bytes, now: float) -> None:
        """Take what a replica tells. Nothing is ever lost on the way, so nothing is to be asked."""
        if self.fleet.on_frame(replica, frame, now):
            raise KvistBug(f"{replica}: the stream of a simulated replica has a hole")

    def place(self, asked: Asked, now: float) -> str | Held:
        """Choose and reserve. While no replica is routable, ask again after a tick."""
        self._release(asked.request, now)
        self._sweep(now)
        prompt = PromptBlocks(asked.prompt_tokens, dict.fromkeys(self.fleet.block_sizes, asked.hashes), asked.session)
        hold = self.fleet.hold(prompt, now)
        if hold is not None:
            return Held(now + hold.again_in_s)
        try:
            decision = self.fleet.choose(prompt, now)
        except NoReplica:
            return Held(now + TICK_INTERVAL_S)
        self._reservations[asked.request] = decision.reservation
        return decision.candidates[0]

    def first_token(self, request: int, *, cached_tokens: int, now: float) -> None:
        """Learn what the engine found."""
        self.fleet.first_token(self._reservations[request], cached_tokens, now)

    def finish(self, request: int, now: float) -> None:
        """Release the reservation."""
        self._release(request, now)

    def _sweep(self, now: float) -> None:
        """Time passes for a fleet in ticks, here as in an ingress."""
        if now >= self._swept_at + TICK_INTERVAL_S:
            self._swept_at = now
            self.fleet.sweep(now)

    def _release(self, request: int, now: float) -> None:
        reservation = self._reservations.pop(request, None)
        if reservation is not None:
            self.fleet.finish(reservation, now)


def incarnation_of(replica: str, life: int) -> str:
    """How the `life`-th process of a simulated replica calls itself, counted from 1."""
    return f"{replica}.{life}"


def _empty_snapshot(info: ReplicaInfo, action: Action) -> bytes:
    nonce = decode_snapshot_request(action.request)
    return encode_chunk(SnapshotChunk(info.replica, info.incarnation, -1, 0, 1, info.block_size, ()), nonce=nonce)
