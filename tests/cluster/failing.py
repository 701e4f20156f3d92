"""A small cluster in one process: simulated engines behind real data planes or a stand-in for Serve's handle, whose
first generation fails where a test wants it to, behind the whole app."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import httpx
from ray.exceptions import RayActorError, RayTaskError

from cluster.durable import DurableBackend
from cluster.ingress import build_app
from cluster.serve_backend import ServeBackend
from cluster.serve_plane import ModelPlane
from cluster.tenants import Tenants
from router.errors import ReplicaGone
from router.fleet import Fleet
from router.membership import MEMBERSHIP
from router.replicas import ReplicaInfo
from router.serve_router import ROUTE_KWARG, Route
from tests.cluster.support import CALM, TENACITY
from tests.workers.data_support import CountingSlots, until
from workers.data_plane import DataServer
from workers.engine import Generation, TokenDelta
from workers.sim_engine import SimEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.api.outcomes import Report
    from cluster.models.served import ServedModel
    from router.replicas import DataEndpoint
    from router.retry import Tenacity

Way = Literal["tcp", "handle"]
How = Literal["lost", "engine gone", "engine fault", "engine error"]
DEPLOYMENT = "Worker-failing"
NAMES = ("a", "b", "c")


class Plot:
    """The next generations fail after these many tokens each, in that way, wherever they run."""

    how: How = "lost"
    after: list[int]

    def __init__(self) -> None:
        self.after = []


class FailingReplica:
    """A simulated engine with a data plane, and the plot."""

    def __init__(self, engine: SimEngine, plot: Plot) -> None:
        self.engine = engine
        self.plot = plot
        self.slots = CountingSlots()
        self.server = DataServer(generate=self.generate, slots=self.slots)
        self.asked: list[Generation] = []

    async def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        """One token per delta."""
        self.asked.append(generation)
        last = self.plot.after.pop(0) if self.plot.after else None
        made = 0
        stream = self.engine.generate(generation)
        try:
            async for delta in stream:
                for token in _single(delta):
                    if made == last:
                        yield await self._fail()
                        return
                    yield token
                    made += 1
                    await asyncio.sleep(0)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def _fail(self) -> TokenDelta:
        """Or raise, or fall silent."""
        if self.plot.how == "engine error":
            return TokenDelta(finish_reason="error")
        if self.plot.how == "engine fault":
            raise RuntimeError("secret detail")
        if self.plot.how == "engine gone":
            raise ReplicaGone("the engine is gone")
        for connection in list(self.server.connections):
            connection.abort()
        raise RayActorError


def _single(delta: TokenDelta) -> list[TokenDelta]:
    parts = [delta.tokens[at : at + 4] for at in range(0, len(delta.tokens), 4)] or [b""]
    reasons = [None] * (len(parts) - 1) + [delta.finish_reason]
    return [
        TokenDelta(
            tokens=part, cached_tokens=delta.cached_tokens, finish_reason=reason, logprobs=delta.logprobs[i : i + 1]
        )
        for i, (part, reason) in enumerate(zip(parts, reasons, strict=True))
    ]


class Handle:
    """Serve's handle: a call goes to the first candidate at once."""

    is_initialized = True

    def __init__(self, replicas: dict[str, FailingReplica]) -> None:
        self._replicas = replicas
        self.generate = self

    def options(self, *, stream: bool) -> Handle:
        return self

    def remote(self, generation: Generation, **kwargs: Any) -> Response:
        route: Route = kwargs[ROUTE_KWARG]
        assert route.on_routed is not None
        route.on_routed(route.candidates[0])
        return Response(self._replicas[route.candidates[0]].generate(generation))


class Response:
    """What the handle returns. What a replica raises comes as Ray wraps it."""

    def __init__(self, deltas: AsyncIterator[TokenDelta]) -> None:
        self._deltas = deltas

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        try:
            async for delta in self._deltas:
                yield delta
        except (RuntimeError, ReplicaGone) as fault:
            raise RayTaskError("generate", "secret traceback", fault) from fault
        finally:
            await self._deltas.aclose()  # type: ignore[attr-defined]

    def cancel(self) -> None:
        """Serve does it; here the reader's own cancellation reaches the generator."""


class Clock:
    """Of budget and quarantine; the replicas' own stands still, or their leases would end."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """What a test talks to."""

    def __init__(self, http: httpx.AsyncClient, replicas: dict[str, FailingReplica], plot: Plot) -> None:
        self.http = http
        self.replicas = replicas
        self.plot = plot
        self.reports: list[Report] = []
        self.clock = Clock()

    @property
    def asked(self) -> list[Generation]:
        """Of all replicas."""
        return [generation for one in self.replicas.values() for generation in one.asked]

    async def forget(self, how: How = "lost", *after: int) -> None:
        """Nothing is cached or held against anybody; the next generations fail as told."""
        self.clock.now += 1000.0
        self.plot.how, self.plot.after = how, list(after)
        for one in self.replicas.values():
            await until(lambda one=one: one.engine.load().running == one.slots.held == 0)  # type: ignore[misc]
            assert await one.engine.reset_prefix_cache()

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """One request to its end, and its report."""
        count = len(self.reports)
        response = await self.http.post(path, json=body)
        assert len(self.reports) == count + 1
        return response


@asynccontextmanager
async def failing_cluster(
    served: ServedModel, model: Path, *, way: Way = "tcp", tenacity: Tenacity = TENACITY, **settings: Any
) -> AsyncIterator[Cluster]:
    """Fresh engines; on the way out nothing that a request held is left."""
    engines = {"speed": float("inf"), "block_size": 16, "max_model_len": served.max_model_len, **settings}
    plot = Plot()
    async with AsyncExitStack() as stack:
        replicas: dict[str, FailingReplica] = {}
        metadata: dict[str, Any] = {}
        for name in NAMES:
            engine = SimEngine.from_settings("tiny", model, dict(engines))
            await engine.start()
            stack.push_async_callback(engine.close)
            one = replicas[name] = FailingReplica(engine, plot)
            endpoint = await one.server.start("127.0.0.1")
            stack.push_async_callback(one.server.close)
            metadata[name] = _info(name, endpoint if way == "tcp" else None)
        fleet = Fleet(model="tiny")
        plane = ModelPlane(deployment=DEPLOYMENT, fleet=fleet, handle=Handle(replicas), clock=lambda: 1.0)
        MEMBERSHIP.update(DEPLOYMENT, metadata)
        plane.start()
        stack.push_async_callback(plane.close)
        stack.callback(MEMBERSHIP._listeners.pop, DEPLOYMENT)
        stack.callback(MEMBERSHIP._replicas.pop, DEPLOYMENT)
        await until(lambda: way == "handle" or all(one.server.connections for one in replicas.values()))
        backend = ServeBackend({"tiny": plane}, expected_replicas=len(NAMES))
        http = httpx.AsyncClient(base_url="http://kvist", timeout=60)
        cluster = Cluster(http, replicas, plot)
        durable = DurableBackend(backend, tenacity=tenacity, clock=cluster.clock)
        app = build_app(
            models={"tiny": served}, backend=durable, tenants=Tenants(), on_outcome=cluster.reports.append, pacing=CALM
        )
        http._transport = httpx.ASGITransport(app=app)
        await stack.enter_async_context(http)
        yield cluster
        assert (fleet.open_reservations, plane.queued, plane.data.streams, len(plane.streams)) == (0, 0, 0, 0)
        assert durable.budget.running == 0
        await until(lambda: not any(one.engine.load().running or one.slots.held for one in replicas.values()))


def _info(name: str, endpoint: DataEndpoint | None) -> dict[str, Any]:
    return ReplicaInfo(
        replica=name,
        incarnation="i",
        model="tiny",
        block_size=16,
        pool_blocks=4096,
        max_model_len=4096,
        events="tcp://127.0.0.1:9",
        snapshots="tcp://127.0.0.1:9",
        data=endpoint,
    ).to_metadata()


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every event, `[DONE]` aside."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
