"""The Ray Serve deployment around one engine: it serves tokens, relays KV events, and says who it is."""

from __future__ import annotations

import asyncio
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import ray
from ray import serve

from router.errors import ReplicaDied
from router.event_keys import EventKeys
from router.replicas import DataEndpoint, ReplicaInfo
from workers.chat_template import HeadLayout  # noqa: TC001 - msgspec reads the annotation at run time
from workers.data_plane import DataServer
from workers.event_pump import EventPump
from workers.kv_store.settings import KvStoreSettings  # noqa: TC001 - msgspec reads the annotation at run time
from workers.models import resolve_model
from workers.serve_slots import SlotsUnavailable, serve_slots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workers.engine import Engine, Generation, TokenDelta

logger = logging.getLogger("ray.serve")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica needs to start; plain data, so that it travels in a Serve config.

    `model` is the identity that block hashes are seeded with; `source` says where the weights come from. A `data_plane`
    "handle" means none: generations come through Serve's handle only. With an `event_keys_file` only ingresses with its
    keys hear of this replica's blocks.
    """

    model: str
    source: str
    template: HeadLayout
    engine: str
    engine_args: dict[str, Any]
    cache_dir: str
    data_plane: Literal["tcp", "handle"]
    event_keys_file: str | None = None
    kv_store: KvStoreSettings | None = None


def create_engine(settings: WorkerSettings, path: Path) -> Engine:
    """The engine that the settings name, not started."""
    if settings.engine == "sim":
        from workers.sim_engine import SimEngine  # noqa: PLC0415 - each engine is imported where it runs

        return SimEngine.from_settings(settings.model, path, settings.engine_args)
    from workers.vllm_engine import VllmEngine  # noqa: PLC0415 - importing vLLM takes seconds and sets up devices

    return VllmEngine(model=settings.model, path=path, engine_args=settings.engine_args, kv_store=settings.kv_store)


class Worker:
    """One engine with its relay and publisher. Serve creates, health-checks, drains and stops it."""

    # Serve awaits the constructor of a deployment.
    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]
        parsed = msgspec.convert(settings, WorkerSettings)
        path = await asyncio.to_thread(resolve_model, parsed.source, Path(parsed.cache_dir), template=parsed.template)
        self._engine = create_engine(parsed, path)
        await self._engine.start()
        self._replica = str(serve.get_replica_context().replica_id.unique_id)
        self._incarnation = uuid.uuid4().hex
        host = str(ray.util.get_node_ip_address())  # where other nodes reach this one; loopback on a local cluster
        self._pump = EventPump(
            engine=self._engine,
            model=parsed.model,
            host=host,
            replica=self._replica,
            incarnation=self._incarnation,
            curve=EventKeys.read(Path(parsed.event_keys_file)).for_replicas if parsed.event_keys_file else None,
        )
        self._pump.start()
        self._data: DataServer | None = None
        self._endpoint: DataEndpoint | None = None
        self._data_fault = ""
        if parsed.data_plane == "tcp":
            await self._start_data(host)

    async def _start_data(self, host: str) -> None:
        """Offer the data plane, or say why there is none."""
        try:
            self._data = DataServer(generate=self._engine.generate, slots=await serve_slots())
            self._endpoint = await self._data.start(host)
        except (SlotsUnavailable, OSError) as fault:
            self._data_fault = str(fault)
            logger.warning("no data plane, Serve's handle is used: %s", fault)

    async def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        """Stream one generation. Leaving the iterator early aborts it in the engine."""
        stream = self._engine.generate(generation)
        try:
            async for delta in stream:
                yield delta
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached block, and say so to the routers even while the engine is idle."""
        return await self._pump.reset()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Who this replica is and where its events are; routers get it with the first broadcast."""
        info = self._engine.info
        events, snapshots = self._pump.endpoints
        return ReplicaInfo(
            replica=self._replica,
            incarnation=self._incarnation,
            model=info.model,
            block_size=info.block_size,
            pool_blocks=info.pool_blocks,
            max_model_len=info.max_model_len,
            optimistic=info.optimistic,
            step_tokens=info.step_tokens,
            share_tokens=info.share_tokens,
            events=events,
            snapshots=snapshots,
            data=self._endpoint,
            data_fault=self._data_fault,
        ).to_metadata()

    async def check_health(self) -> None:
        """Raise when the engine is dead or its events no longer flow; Serve then replaces this replica."""
        await self._engine.check_health()
        fault = self._pump.fault
        if fault is not None:
            raise ReplicaDied(f"KV events stopped: {fault}")

    async def __del__(self) -> None:
        data: DataServer | None = getattr(self, "_data", None)
        if data is not None:
            await data.close()
        pump: EventPump | None = getattr(self, "_pump", None)
        if pump is not None:
            await pump.close()
        engine: Engine | None = getattr(self, "_engine", None)
        if engine is not None:
            await engine.close()
