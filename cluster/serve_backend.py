"""The backend on Ray Serve: choose with the fleet, call through the handle, account for what happened."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from cluster.backend import Job, Routed
from router.errors import KvistError, NoReplica, ReplicaDied
from router.fleet import Fleet, PromptBlocks, ReplicaInfo
from router.hashing import block_hashes, seed_of
from router.membership import MEMBERSHIP
from router.serve_router import ROUTE_KWARG, Route
from router.subscriber import Subscriber
from workers.engine import Generation, TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ray.serve.handle import DeploymentHandle

    from router.fleet import Decision
    from router.membership import Metadata

logger = logging.getLogger("ray.serve")


class ModelPlane:
    """One model deployment as this ingress reaches it: its fleet, its event subscriber, its handle."""

    def __init__(
        self, *, model: str, deployment: str, fleet: Fleet, handle: DeploymentHandle, clock: Callable[[], float]
    ) -> None:
        self.model = model
        self.fleet = fleet
        self._deployment = deployment
        self._handle = handle.options(stream=True)
        self._clock = clock
        self._subscriber = Subscriber(fleet, clock)
        self._known: dict[str, ReplicaInfo] = {}
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow membership and events from now on. Needs a running loop."""
        self._running = asyncio.create_task(self._subscriber.run())
        MEMBERSHIP.watch(self._deployment, self._on_members)
        if not self._handle.is_initialized:
            self._handle._init()  # noqa: SLF001 - else the router, and so membership, exists only after a first call

    async def close(self) -> None:
        await self._subscriber.close()
        if self._running is not None:
            self._running.cancel()

    def _on_members(self, replicas: Mapping[str, Metadata]) -> None:
        for replica in self._known.keys() - replicas.keys():
            del self._known[replica]
            self._subscriber.remove(replica)
        for replica, metadata in replicas.items():
            if replica not in self._known and metadata:
                self._known[replica] = info = ReplicaInfo.from_metadata(dict(metadata))
                self._subscriber.add(info)

    def start_stream(self, job: Job) -> ServeStream:
        """Choose, reserve and call. Raises `NoReplica` when nothing is routable."""
        seed = seed_of(self.model, salt=job.tenant.salt)
        hashes = {size: block_hashes(job.tokens, block_size=size, seed=seed) for size in self.fleet.block_sizes}
        prompt = PromptBlocks(prompt_tokens=len(job.tokens) // 4, hashes=hashes)
        decision = self.fleet.choose(prompt, self._clock())
        return ServeStream(plane=self, job=job, decision=decision)

    def call(self, generation: Generation, route: Route) -> Any:
        """Send one generation to the replicas that `route` names; an asynchronous iterator of deltas."""
        return self._handle.generate.remote(generation, **{ROUTE_KWARG: route})

    def now(self) -> float:
        return self._clock()


class ServeStream:
    """One running generation. Its reservation is given back exactly once, however the stream ends."""

    def __init__(self, *, plane: ModelPlane, job: Job, decision: Decision) -> None:
        self._plane = plane
        self._decision = decision
        self.routed = Routed(replica=decision.candidates[0], predicted_cached_tokens=decision.predicted_cached_tokens)
        self._call = plane.call(
            Generation(
                request_id=job.request_id,
                tokens=job.tokens,
                sampling=job.sampling,
                cache_salt=job.tenant.salt,
                session_id=job.session,
            ),
            Route(candidates=decision.candidates, on_routed=self._on_routed),
        )
        self._deltas = self._run()

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

    async def aclose(self) -> None:
        """Abort the generation, wherever it is."""
        await self._deltas.aclose()
        self._release()

    def _on_routed(self, replica: str) -> None:
        if replica != self.routed.replica:
            self._plane.fleet.moved(self._decision.reservation, replica, self._plane.now())
            self.routed = Routed(replica=replica, predicted_cached_tokens=0)

    async def _run(self) -> AsyncIterator[TokenDelta]:
        first = True
        try:
            async for delta in self._call:
                if first and delta.cached_tokens is not None:
                    first = False
                    self._plane.fleet.first_token(self._decision.reservation, delta.cached_tokens, self._plane.now())
                yield delta
        except BaseException as fault:
            self._call.cancel()
            raise _mapped(fault) from fault
        finally:
            self._release()

    def _release(self) -> None:
        self._plane.fleet.finish(self._decision.reservation, self._plane.now())


def _mapped(fault: BaseException) -> BaseException:
    """Ray's exceptions as ours; everything else unchanged."""
    if isinstance(fault, RayTaskError) and isinstance(fault.cause, KvistError):
        return fault.cause
    if isinstance(fault, RayActorError | RayTaskError):
        return ReplicaDied("the replica failed while serving the request")
    if isinstance(fault, BackPressureError | DeploymentUnavailableError):
        return NoReplica("every replica is full or unavailable")
    return fault


class ServeBackend:
    """Implements `cluster.backend.Backend` over the planes of all configured models."""

    def __init__(self, planes: Mapping[str, ModelPlane], *, expected: Mapping[str, int]) -> None:
        self._planes = planes
        self._expected = expected

    async def start_planes(self) -> None:
        for plane in self._planes.values():
            await plane.start()

    def start(self, job: Job) -> ServeStream:
        return self._planes[job.model].start_stream(job)

    def ready(self) -> bool:
        """Every model has a routable replica."""
        return all(plane.fleet.routable for plane in self._planes.values())
