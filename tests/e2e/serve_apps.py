"""Small Serve applications for the router's regression tests; importable by replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.responses import StreamingResponse

from router.membership import MEMBERSHIP
from router.serve_router import ROUTE_KWARG, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ray.serve.handle import DeploymentHandle

CHUNKS, CHUNK_GAP_S = 80, 0.05
REPLICAS, SLOTS = 3, 4


class Who:
    """A replica that says who it is, at once or slowly."""

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"name": serve.get_replica_context().replica_id.unique_id}

    async def call(self, **seen: Any) -> dict[str, Any]:
        return {"replica": serve.get_replica_context().replica_id.unique_id, "kwargs": sorted(seen)}

    async def tokens(self) -> AsyncIterator[str]:
        for i in range(CHUNKS):
            yield f"{i}\n"
            await asyncio.sleep(CHUNK_GAP_S)


class Front:
    """An ingress with one route per regression."""

    def __init__(self, who: DeploymentHandle) -> None:
        self._who = who
        self._members: list[str] = []
        who._init()
        MEMBERSHIP.watch("Who", self._on_members)

    def _on_members(self, replicas: Any) -> None:
        self._members = sorted(uid for uid, metadata in replicas.items() if metadata.get("name") == uid)

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/members", self.members)
        app.add_api_route("/call", self.call)
        app.add_api_route("/siblings", self.siblings)
        app.add_api_route("/stream", self.stream)
        app.add_api_route("/ongoing", self.ongoing)
        return app

    async def members(self) -> list[str]:
        return self._members

    async def ongoing(self) -> list[int]:
        """Slots in use, as each replica itself counts them."""
        names = [f"SERVE_REPLICA::regressions#Who#{uid}" for uid in self._members]
        actors = [ray.get_actor(name, namespace="serve") for name in names]
        return [int(await actor.get_num_ongoing_requests.remote()) for actor in actors]

    async def call(self, target: str) -> dict[str, Any]:
        routed: list[str] = []
        route = Route(candidates=tuple(target.split(",")), on_routed=routed.append)
        answer = await self._who.call.remote(**{ROUTE_KWARG: route})
        return {**answer, "routed": routed}

    async def siblings(self, count: int, target: str) -> int:
        async def one() -> bool:
            try:
                route = Route(candidates=(target,))
                answer = await asyncio.wait_for(self._who.call.remote(**{ROUTE_KWARG: route}), 10)
            except TimeoutError:
                return False
            return bool(answer["replica"] == target)

        return sum(await asyncio.gather(*(asyncio.create_task(one()) for _ in range(count))))

    async def stream(self, target: str) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            route = Route(candidates=(target,))
            async for part in self._who.options(stream=True).tokens.remote(**{ROUTE_KWARG: route}):
                yield part

        return StreamingResponse(body(), media_type="text/plain")


def build() -> Any:
    who = serve.deployment(
        Who,
        name="Who",
        num_replicas=REPLICAS,
        max_ongoing_requests=SLOTS,
        ray_actor_options={"num_cpus": 0.05},
        request_router_config=RequestRouterConfig(request_router_class="router.serve_router:KvistRouter"),
    )
    front = serve.deployment(
        serve.ingress(None)(Front), name="Front", max_ongoing_requests=200, ray_actor_options={"num_cpus": 0.05}
    )
    return front.bind(who.bind())
