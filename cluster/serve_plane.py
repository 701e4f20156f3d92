"""One model deployment as one ingress reaches it: choose with the fleet, call the replica, account for it.

A call goes over the data plane to the first candidate that has a slot. Serve's handle takes it where there is no data
plane, and when every candidate is busy: there it waits for its turn, and while any waits, so do those that come later.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from cluster.backend import Job, Routed
from cluster.data_plane import DataPlane
from cluster.held_stream import HeldStream
from router.errors import KvistError, NoReplica, ReplicaBusy, ReplicaDied, WireError
from router.hashing import BYTES_PER_TOKEN, block_hashes, seed_of
from router.membership import MEMBERSHIP
from router.replicas import PromptBlocks, ReplicaInfo
from router.serve_router import ROUTE_KWARG, Route
from router.subscriber import Subscriber
from workers.engine import Generation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from ray.serve.handle import DeploymentHandle

    from router.curve import ClientCurve
    from router.fleet import Decision, Fleet
    from router.membership import Metadata
    from router.policy import Score
    from workers.engine import TokenDelta

logger = logging.getLogger("ray.serve")


class ModelPlane:
    """A fleet, the subscriber that feeds it, and the handle that reaches its replicas. Used on one event loop."""

    def __init__(
        self,
        *,
        deployment: str,
        fleet: Fleet,
        handle: DeploymentHandle,
        clock: Callable[[], float],
        curve: ClientCurve | None = None,
    ) -> None:
        self.fleet = fleet
        self._deployment = deployment
        self._streaming = handle.options(stream=True)
        self.clock = clock
        self._subscriber = Subscriber(fleet, clock, curve=curve)
        self.data = DataPlane(clock)
        self.queued = 0  # calls that wait in Serve's queue for a slot
        self._known: dict[str, ReplicaInfo] = {}
        self._running: asyncio.Task[None] | None = None
        self._fault: str | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<ModelPlane {self.fleet!r}>"

    def start(self) -> None:
        """Follow membership and events from now on. Needs a running loop."""
        self._running = asyncio.create_task(self._subscriber.run())
        self._running.add_done_callback(self._on_ended)
        MEMBERSHIP.watch(self._deployment, self._on_members)
        if not self._streaming.is_initialized:
            self._streaming._init()  # noqa: SLF001 - else the router, hence membership, exists only after a first call

    @property
    def fault(self) -> str | None:
        """Why events no longer arrive; None while they do."""
        return self._fault

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        if not self._closing:
            self._fault = f"the event subscriber ended: {task.exception() if not task.cancelled() else 'cancelled'}"
            logger.error(self._fault)

    async def close(self) -> None:
        """Leave no socket and no task behind."""
        self._closing = True
        await self._subscriber.close()
        await self.data.close()
        if self._running is not None:
            await self._running

    def start_stream(self, job: Job) -> ServeStream | HeldStream:
        """Choose and reserve, in one synchronous step, then call; or hold what must wait. Raises `NoReplica` when
        nothing is routable."""
        began_s = self.clock()
        prompt, hashed_s = self._hashed(job), self.clock()
        asked = Asked(prompt, began_s, hashed_s - began_s)
        if self.fleet.hold(prompt, hashed_s) is not None:
            return HeldStream(self, job, asked)
        return self.begin(job, asked)

    def begin(self, job: Job, asked: Asked) -> ServeStream:
        """Choose and reserve now. Raises `NoReplica`."""
        decision = self.fleet.choose(asked.prompt, self.clock())
        try:
            return ServeStream(plane=self, job=job, decision=decision, asked=asked)
        except BaseException:
            self.finish(decision)
            raise

    def preview(self, job: Job) -> tuple[Score, ...]:
        """How every routable replica stands for a job, best first; nothing is reserved. Raises `NoReplica`."""
        return self.fleet.preview(self._hashed(job), self.clock())

    def direct(self, decision: Decision) -> tuple[str, ...]:
        """The candidates to ask over the data plane, in order, before Serve's handle is used."""
        if self.queued:
            return ()
        return tuple(itertools.takewhile(self.data.reaches, decision.candidates))

    def call(self, generation: Generation, route: Route) -> Any:
        """Send a generation through Serve to the replicas that `route` names; iterate the result for its deltas."""
        return self._streaming.generate.remote(generation, **{ROUTE_KWARG: route})

    def moved(self, decision: Decision, replica: str) -> None:
        """Serve sent the request elsewhere."""
        self.fleet.moved(decision.reservation, replica, self.clock())

    def first_token(self, decision: Decision, cached_tokens: int) -> None:
        """The prompt is computed, all but what the engine found in its cache."""
        self.fleet.first_token(decision.reservation, cached_tokens, self.clock())

    def finish(self, decision: Decision) -> None:
        """The request has ended, in whatever way. Safe to call again."""
        self.fleet.finish(decision.reservation, self.clock())

    def _hashed(self, job: Job) -> PromptBlocks:
        seed = seed_of(self.fleet.model, salt=job.tenant.salt)
        hashed = block_hashes if job.prefix is None else job.prefix.hashes
        hashes = {size: hashed(job.tokens, block_size=size, seed=seed) for size in self.fleet.block_sizes}
        session = f"{job.tenant.id}/{job.session}" if job.session else ""
        return PromptBlocks(len(job.tokens) // BYTES_PER_TOKEN, hashes, session)

    def _on_members(self, replicas: Mapping[str, Metadata]) -> None:
        for replica in self._known.keys() - replicas.keys():
            del self._known[replica]
            self._subscriber.remove(replica)
            self.data.remove(replica)
        for replica, metadata in replicas.items():
            if replica in self._known or not metadata:
                continue
            try:
                info = ReplicaInfo.from_metadata(dict(metadata))
            except WireError:
                logger.exception("replica %s is left out", replica)
                continue
            self._known[replica] = info
            self._subscriber.add(info)
            if info.data is not None:
                self.data.add(replica, info.data)


class Asked(NamedTuple):
    """A prompt with its hashes, when it was asked for, and how long hashing took."""

    prompt: PromptBlocks
    at_s: float
    hash_s: float


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
        )
        self._call: Any = None
        self._is_queued = False
        self._is_counted = False
        self._deltas = self._run()

    @property
    def routed(self) -> Routed:
        """The choice; after it had to go elsewhere, that replica, with no cached tokens promised."""
        return self._routed

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

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
            raise _mapped(fault) from fault
        finally:
            self._close()

    def _queue(self) -> Any:
        """Through Serve, which finds a slot or waits for one."""
        self._is_queued = True
        self._plane.queued += 1
        return self._plane.call(
            self._generation, Route(candidates=self._decision.candidates, on_routed=self._on_accepted)
        )

    def _on_accepted(self, replica: str) -> None:
        self._leave_queue()
        self._on_routed(replica)

    def _on_routed(self, replica: str) -> None:
        if replica != self._routed.replica:
            self._plane.moved(self._decision, replica)
            self._routed = msgspec.structs.replace(self._routed, replica=replica, predicted_cached_tokens=0)
        self._routed = msgspec.structs.replace(self._routed, queue_s=self._plane.clock() - self._started_s)

    def _noted(self, delta: TokenDelta) -> TokenDelta:
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
        self._plane.finish(self._decision)


def _mapped(fault: Exception) -> Exception:
    """Ray's exceptions as ours, without their text: it may hold a traceback."""
    if isinstance(fault, RayTaskError) and isinstance(fault.cause, KvistError):
        return fault.cause
    if isinstance(fault, BackPressureError | DeploymentUnavailableError):
        return NoReplica("every replica is full or unavailable")
    if isinstance(fault, RayActorError | RayTaskError):
        return ReplicaDied("the replica failed while serving the request")
    return fault
