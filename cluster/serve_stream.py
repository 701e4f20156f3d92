"""One running generation on Ray Serve: its reservation, its call, and whose fault it was when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from cluster.backend import Job, Routed
from cluster.handle_call import HandleCall
from router.errors import KvistError, NoReplica, ReplicaBusy, ReplicaDied, ReplicaGone
from router.serve_router import Route
from workers.engine import Generation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from cluster.data_plane import DataCall
    from cluster.serve_plane import Asked, ModelPlane
    from router.fleet import Decision
    from workers.engine import TokenDelta


class ServeStream:
    """One running generation. Its reservation is given back exactly once, however the stream ends."""

    def __init__(self, *, plane: ModelPlane, job: Job, decision: Decision, asked: Asked) -> None:
        self._plane = plane
        self._decision = decision
        self._routed = Routed(
            replica=decision.candidates[0],
            predicted_cached_tokens=decision.predicted_cached_tokens,
            hash_s=asked.hash_s,
        )
        self._started_s = asked.at_s + asked.hash_s
        self._generation = Generation(
            request_id=job.request_id,
            tokens=job.tokens,
            sampling=job.sampling,
            cache_salt=job.tenant.salt,
            session_id=job.session,
            expected_cached_tokens=decision.predicted_cached_tokens,
            resumed_tokens=job.resumed_tokens,
        )
        self._call: DataCall | HandleCall | None = None
        self.heard = 0  # deltas
        self._is_queued = False
        self._is_counted = False
        self._deltas = self._run()
        plane.streams.add(self)

    @property
    def routed(self) -> Routed:
        """The choice; after it had to go elsewhere, that replica, with no cached tokens promised."""
        return self._routed

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

    @property
    def replica(self) -> str | None:
        """Who works on it now; None before it was sent, and while it waits in Serve's queue."""
        return None if self._call is None or self._is_queued else self._routed.replica

    def abandon(self, fault: ReplicaGone) -> None:
        """Give the replica up that works on it now; the stream ends with `fault`, after the deltas before it."""
        if self._call is not None:
            self._call.abandon(fault)

    async def aclose(self) -> None:
        """Abort the generation, wherever it is."""
        if self._call is not None:
            self._call.cancel()
        self._close()
        await self._deltas.aclose()

    async def _run(self) -> AsyncGenerator[TokenDelta, None]:
        try:
            for replica in self._plane.direct(self._decision):
                self._on_routed(replica)
                self._call = self._plane.data.call(replica, self._generation)
                try:
                    async for delta in self._call:
                        yield self._noted(delta)
                except ReplicaBusy:
                    continue
                return
            self._call = self._queue()
            async for delta in self._call:
                yield self._noted(delta)
        except Exception as fault:
            mapped = _mapped(fault)
            if isinstance(mapped, ReplicaGone) and self.replica is not None:
                self._plane.lost(self.replica)
            raise mapped from fault
        finally:
            self._close()

    def _queue(self) -> HandleCall:
        """Through Serve, which finds a slot or waits for one."""
        self._is_queued = True
        self._plane.queued += 1
        route = Route(candidates=self._decision.candidates, on_routed=self._on_accepted)
        return HandleCall(self._plane.call(self._generation, route))

    def _on_accepted(self, replica: str) -> None:
        self._leave_queue()
        self._on_routed(replica)

    def _on_routed(self, replica: str) -> None:
        if replica != self._routed.replica:
            self._plane.moved(self._decision, replica)
            self._routed = msgspec.structs.replace(self._routed, replica=replica, predicted_cached_tokens=0)
        self._routed = msgspec.structs.replace(self._routed, queue_s=self._plane.clock() - self._started_s)

    def _noted(self, delta: TokenDelta) -> TokenDelta:
        self.heard += 1
        if delta.cached_tokens is not None and not self._is_counted:
            self._is_counted = True
            self._plane.first_token(self._decision, delta.cached_tokens)
        return delta

    def _leave_queue(self) -> None:
        if self._is_queued:
            self._is_queued = False
            self._plane.queued -= 1

    def _close(self) -> None:
        self._leave_queue()
        self._plane.streams.discard(self)
        self._plane.finish(self._decision)


def _mapped(fault: Exception) -> Exception:
    """Ray's exceptions as ours, without their text: it may hold a traceback."""
    if isinstance(fault, RayTaskError) and isinstance(fault.cause, KvistError):
        return fault.cause
    if isinstance(fault, BackPressureError | DeploymentUnavailableError):
        return NoReplica("every replica is full or unavailable")
    if isinstance(fault, RayActorError):
        return ReplicaGone("the replica's process has ended")
    if isinstance(fault, RayTaskError):
        return ReplicaDied("the replica failed while serving the request")
    return fault
