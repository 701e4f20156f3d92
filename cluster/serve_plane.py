"""One model deployment as one ingress reaches it: choose with the fleet, call the replica, account for it.

A call goes over the data plane to the first candidate that has a slot. Serve's handle takes it where there is no data
plane, and when every candidate is busy: there it waits for its turn, and while any waits, so do those that come later.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.data_plane import DataPlane
from cluster.held_stream import HeldStream
from cluster.serve_stream import ServeStream
from router.errors import ReplicaGone, WireError
from router.hashing import BYTES_PER_TOKEN, block_hashes, seed_of
from router.limits import STALL_CHECK_S
from router.membership import MEMBERSHIP
from router.replicas import PromptBlocks, ReplicaInfo
from router.serve_router import ROUTE_KWARG
from router.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ray.serve.handle import DeploymentHandle

    from cluster.backend import Job
    from router.curve import ClientCurve
    from router.fleet import Decision, Fleet
    from router.membership import Metadata
    from router.policy import Score
    from router.serve_router import Route
    from workers.engine import Generation

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
        self.data = DataPlane(clock, self.lost)
        self.queued = 0  # calls that wait in Serve's queue for a slot
        self.streams: set[ServeStream] = set()  # that run
        self._quiet: dict[ServeStream, int] = {}  # of silent replicas, and what had been heard when last looked at
        self._known: dict[str, ReplicaInfo] = {}
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._fault: str | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<ModelPlane {self.fleet!r}>"

    def start(self) -> None:
        """Follow membership and events from now on. Needs a running loop."""
        self._running = asyncio.create_task(self._subscriber.run())
        self._running.add_done_callback(self._on_ended)
        self._watching = asyncio.create_task(self._watch())
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
        if self._watching is not None:
            self._watching.cancel()
        await self._subscriber.close()
        await self.data.close()
        if self._running is not None:
            await self._running

    def start_stream(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> ServeStream | HeldStream:
        """Choose and reserve, in one synchronous step, then call; or hold what must wait. What replicas in `exclude`
        failed to finish goes elsewhere at once. Raises `NoReplica` when nothing is routable."""
        began_s = self.clock()
        prompt, hashed_s = self._hashed(job), self.clock()
        asked = Asked(prompt, began_s, hashed_s - began_s)
        if not exclude and self.fleet.hold(prompt, hashed_s) is not None:
            return HeldStream(self, job, asked)
        return self.begin(job, asked, exclude=exclude)

    def begin(self, job: Job, asked: Asked, *, exclude: frozenset[str] = frozenset()) -> ServeStream:
        """Choose and reserve now. Raises `NoReplica`."""
        decision = self.fleet.choose(asked.prompt, self.clock(), exclude=exclude)
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

    def lost(self, replica: str) -> None:
        """Nothing reaches it any more: it is chosen no further, before its lease says so."""
        self.fleet.suspect(replica, self.clock())

    def give_up_stalled(self) -> None:
        """End every stream that has brought nothing since the last call, where its replica has fallen silent and
        another is there to go on. Call every STALL_CHECK_S. O(streams), while any replica is silent."""
        silent = self.fleet.silent
        quiet, self._quiet = self._quiet, {}
        if not silent or not self.fleet.routable:
            return
        for stream in tuple(self.streams):
            if stream.replica not in silent:
                continue
            if quiet.get(stream) == stream.heard:
                stream.abandon(ReplicaGone("it has fallen silent in the middle of a generation"))
            else:
                self._quiet[stream] = stream.heard

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(STALL_CHECK_S)
            self.give_up_stalled()

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
