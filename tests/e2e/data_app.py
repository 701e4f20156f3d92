"""A small Serve application around real workers with simulated engines: the data plane seen from inside an ingress."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from starlette.responses import StreamingResponse

from cluster.backend import Job
from cluster.serve_plane import ModelPlane
from cluster.tenants import Tenant
from router.errors import ReplicaError
from router.fleet import Fleet
from workers.engine import Sampling
from workers.replica import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ray.serve.handle import DeploymentHandle

APPLICATION, DEPLOYMENT = "data", "Elastic"
SLOTS, FEWEST, MOST = 4, 2, 3
TOKEN_S = 0.02


class CountingPlane(ModelPlane):
    """Counts the calls that go through Serve's handle."""

    handle_calls = 0

    def call(self, *args: Any) -> Any:
        self.handle_calls += 1
        return super().call(*args)


class DataFront:
    """An ingress without protocols: tokens in, tokens out."""

    def __init__(self, workers: DeploymentHandle) -> None:
        self._fleet = Fleet(model="m")
        self._plane = CountingPlane(deployment=DEPLOYMENT, fleet=self._fleet, handle=workers, clock=time.monotonic)
        self._is_started = False

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = FastAPI()
        for route in (self.state, self.generate, self.ongoing, self.drain, self.kill):
            app.add_api_route(f"/{route.__name__}", route)
        return app

    async def state(self) -> dict[str, Any]:
        if not self._is_started:
            self._is_started = True
            self._plane.start()
        return {
            "replicas": [name for name in self._fleet.routable if self._plane.data.reaches(name)],
            "reservations": self._fleet.open_reservations,
            "streams": self._plane.data.streams,
            "queued": self._plane.queued,
            "handle_calls": self._plane.handle_calls,
        }

    async def generate(self, tokens: int, prompt: int = 0) -> StreamingResponse:
        """A line per delta, then how it ended."""
        job = Job(
            request_id="req",
            model="m",
            tokens=prompt.to_bytes(4, "little") * 8,
            sampling=Sampling(max_tokens=tokens, ignore_eos=True),
            tenant=Tenant(id="t", salt=""),
        )
        stream = self._plane.start_stream(job)

        async def body() -> AsyncIterator[str]:
            try:
                async for delta in stream:
                    assert stream.routed is not None
                    yield f"{len(delta.tokens) // 4} {stream.routed.replica}\n"
                yield "whole\n"
            except ReplicaError as fault:
                yield f"{type(fault).__name__}\n"
            finally:
                await stream.aclose()

        return StreamingResponse(body(), media_type="text/plain")

    async def ongoing(self) -> dict[str, int]:
        """Slots in use, as each replica's Serve counts them."""
        found = {}
        for name in self._fleet.routable:
            with contextlib.suppress(ValueError, RayActorError):  # one that was killed is believed for a moment
                found[name] = int(await actor(name).get_num_ongoing_requests.remote())
        return found

    async def drain(self, replica: str) -> None:
        """What the controller calls on a replica that is to stop."""
        actor(replica).perform_graceful_shutdown.remote()

    async def kill(self, replica: str) -> None:
        ray.kill(actor(replica), no_restart=True)


def actor(replica: str) -> Any:
    return ray.get_actor(f"SERVE_REPLICA::{APPLICATION}#{DEPLOYMENT}#{replica}", namespace="serve")


def build() -> Any:
    workers = serve.deployment(
        Worker,
        name=DEPLOYMENT,
        max_ongoing_requests=SLOTS,
        ray_actor_options={"num_cpus": 0.05},
        health_check_period_s=1,
        graceful_shutdown_timeout_s=60,
        request_router_config=RequestRouterConfig(request_router_class="router.serve_router:KvistRouter"),
        autoscaling_config=AutoscalingConfig(
            min_replicas=FEWEST,
            max_replicas=MOST,
            target_ongoing_requests=1,
            metrics_interval_s=0.5,
            look_back_period_s=1.0,
            upscale_delay_s=0.5,
            downscale_delay_s=3600,
        ),
    )
    settings = {
        "model": "m",
        "source": "simulated/model",
        "template": "system-first",
        "engine": "sim",
        "engine_args": {"step_s": TOKEN_S},
        "cache_dir": "/nowhere",
        "data_plane": "tcp",
    }
    front = serve.deployment(
        serve.ingress(None)(DataFront), name="DataFront", max_ongoing_requests=200, ray_actor_options={"num_cpus": 0.05}
    )
    return front.bind(workers.bind(settings))
