"""A scripted engine, a backend over any engine, and the app on a real socket."""

from __future__ import annotations

import asyncio
import socket
import time
from array import array
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import uvicorn

from cluster.backend import Health, Routed
from cluster.durable import DurableBackend
from cluster.exchange import Pacing
from cluster.ingress import build_app
from router.errors import NoReplica
from router.policy import Score
from router.retry import Tenacity
from workers.engine import EngineInfo, EngineLoad, Generation, TokenDelta, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cluster.api.outcomes import Report
    from cluster.backend import Backend, Job
    from cluster.models.served import ServedModel
    from cluster.tenants import Tenants
    from workers.engine import Engine, EventBatch, FinishReason

REPLICA = "replica-1"
CALM = Pacing(ping_interval_s=30.0)
TENACITY = Tenacity()


def packed(tokens: Sequence[int]) -> bytes:
    """Packed u32."""
    return array("I", tokens).tobytes()


def spoken(served: ServedModel, text: str) -> list[bytes]:
    """One delta per token of `text`."""
    tokens = served._segmenter.plan(text).encode()
    return [tokens[i : i + 4] for i in range(0, len(tokens), 4)]


def scores_of(tokens: bytes, alternatives: int | None) -> tuple[TokenLogprob, ...]:
    """See `ScriptedEngine`."""
    if alternatives is None:
        return ()
    return tuple(
        TokenLogprob(token, -0.25, tuple((token - i, -0.25 - i) for i in range(alternatives)))
        for token in array("I", tokens)
    )


class ScriptedEngine:
    """Says `script` to every prompt, a delta per entry, cut at `max_tokens`. `gate` holds the first delta back.

    When log probabilities are wanted, every token has -0.25, and its alternatives are itself and the tokens before it.
    """

    def __init__(self) -> None:
        self.script: list[bytes] = [packed([300]), packed([301, 302])]
        self.ending: FinishReason | None = "stop"
        self.error: Exception | None = None
        self.cached_tokens = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.endless = False
        self.generations: list[Generation] = []
        self.begun = asyncio.Event()
        self.aborted = asyncio.Event()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(model="tiny", block_size=32, pool_blocks=64, max_model_len=4096)

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        self.generations.append(generation)
        self.begun.set()
        left = generation.sampling.max_tokens
        try:
            await self.gate.wait()
            for tokens in self.script:
                said, left = tokens[: left * 4], left - len(tokens) // 4
                scores = scores_of(said, generation.sampling.logprobs)
                yield TokenDelta(tokens=said, cached_tokens=self.cached_tokens, logprobs=scores)
                if left <= 0:
                    yield TokenDelta(finish_reason="length")
                    return
            while self.endless:
                await asyncio.sleep(0.005)
                yield TokenDelta(tokens=packed([400]))
            if self.error is not None:
                raise self.error
            if self.ending is not None:
                yield TokenDelta(finish_reason=self.ending, cached_tokens=self.cached_tokens)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.set()
            raise

    async def events(self) -> AsyncIterator[EventBatch]:
        return
        yield

    async def reset_prefix_cache(self) -> bool:
        return True

    def load(self) -> EngineLoad:
        return EngineLoad()

    async def check_health(self) -> None:
        """Always well."""

    async def close(self) -> None:
        """Nothing to stop."""


class EngineStream:
    """One generation of an engine, as the ingress sees it."""

    def __init__(self, generation: AsyncIterator[TokenDelta], routed: Routed) -> None:
        self._generation = generation
        self.routed = routed

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._generation

    async def aclose(self) -> None:
        await self._generation.aclose()  # type: ignore[attr-defined]


class EngineBackend:
    """A cluster of one engine."""

    def __init__(self, engine: Engine, *, predicted_cached_tokens: int = 0) -> None:
        self._engine = engine
        self.predicted_cached_tokens = predicted_cached_tokens
        self.routable = True
        self.jobs: list[Job] = []

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> EngineStream:
        if not self.routable or REPLICA in exclude:
            raise NoReplica("secret detail")
        self.jobs.append(job)
        generation = Generation(request_id=job.request_id, tokens=job.tokens, sampling=job.sampling)
        routed = Routed(replica=REPLICA, predicted_cached_tokens=self.predicted_cached_tokens)
        return EngineStream(self._engine.generate(generation), routed)

    def preview(self, job: Job) -> tuple[Score, ...]:
        if not self.routable:
            raise NoReplica("secret detail")
        return (Score(REPLICA, 0.5, self.predicted_cached_tokens, 7),)

    def health(self) -> Health:
        return Health(ready=self.routable, warm=self.routable, detail="one engine")


class Service(NamedTuple):
    """A running app and what is behind it."""

    url: str
    engine: ScriptedEngine
    backend: EngineBackend
    reports: list[Report]

    async def ended(self, count: int = 1) -> Report:
        """The `count`th report, when it has come."""
        async with asyncio.timeout(20):
            while len(self.reports) < count:
                await asyncio.sleep(0.005)
        return self.reports[count - 1]


@asynccontextmanager
async def serving(
    models: Mapping[str, ServedModel], tenants: Tenants, *, pacing: Pacing = CALM
) -> AsyncIterator[Service]:
    """The app over a scripted engine, until the block ends."""
    engine = ScriptedEngine()
    backend = EngineBackend(engine, predicted_cached_tokens=8)
    async with serving_over(backend, models, tenants, pacing=pacing) as (url, reports):
        try:
            yield Service(url, engine, backend, reports)
        finally:
            engine.gate.set()
            engine.endless = False


@asynccontextmanager
async def serving_over(
    backend: Backend,
    models: Mapping[str, ServedModel],
    tenants: Tenants,
    *,
    pacing: Pacing = CALM,
    tenacity: Tenacity = TENACITY,
    aliases: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[str, list[Report]]]:
    """The app on a loopback port: its URL and the reports of ended requests."""
    reports: list[Report] = []
    app = build_app(
        models=models,
        aliases=aliases,
        backend=DurableBackend(backend, tenacity=tenacity, clock=time.monotonic),
        tenants=tenants,
        on_outcome=reports.append,
        pacing=pacing,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", reports
    finally:
        server.should_exit = True
        await task
        listener.close()
