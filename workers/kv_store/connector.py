"""vLLM's connector to the block store. vLLM imports this module by its path, once beside its scheduler and once in
every worker.

Loads run beside the engine's steps: vLLM puts loaded blocks into its prefix cache only when all of them have arrived,
so a block that could not be read is never found by anybody. A step that reads blocks itself would publish them before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from router.errors import ModelUnusable
from workers.kv_store.identity import engine_identity
from workers.kv_store.keys import BlockKeys
from workers.kv_store.layout import KvLayout
from workers.kv_store.planner import Plan, Planner
from workers.kv_store.settings import KvStoreSettings
from workers.kv_store.store import BlockStore, stamps
from workers.kv_store.transfer import Loader, LoadJob, Saver

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_BYTES_PER_S = 256 * 2**20  # a store that is slower than that is late
NO_LAYOUT = bytes(16)  # the scheduler's side reads no block


class PlanMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """A step's plan on its way to the workers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class KvStoreConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Both sides in one class, as vLLM wants it; `role` says which one this is."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        _check_dense(kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._settings = msgspec.convert(extra, KvStoreSettings)
        self._keys = BlockKeys(engine_identity(vllm_config))
        self._worker: WorkerSide | None = None
        self._scheduler: SchedulerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(self._settings, self._keys, vllm_config)

    # Scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self._scheduling.planner.loadable_tokens(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduling.planner.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> PlanMetadata:
        return PlanMetadata(self._scheduling.planner.take(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        side = self._scheduling
        side.failed |= set(connector_output.invalid_block_ids or ())  # of one worker, maybe before the others are done
        done = set(connector_output.finished_recving or ())
        if not done:
            return
        for request, arrived in side.planner.loaded(done, side.failed):
            _correct_cached_tokens(request, arrived)
        if not side.planner.loading:
            side.failed.clear()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        del block_ids
        self._scheduling.planner.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        self._scheduling.store.clear()
        return True

    # Worker's side.

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        layout = KvLayout(kv_caches, blocks=int(self._kv_cache_config.num_blocks))
        rank = int(self._vllm_config.parallel_config.rank)
        self._worker = WorkerSide(self._settings, self._keys, layout, rank)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        del forward_context, kwargs
        if self._worker is not None:
            self._worker.begin_loads(self._bound_plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No request runs before all of its blocks are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """A block is saved as a whole, after the step."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save(self._bound_plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        del finished_req_ids
        return None, (self._worker.ended_loads() or None) if self._worker is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed() if self._worker is not None else set()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.store.close()

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not saved is computed again."""
        return False

    @property
    def _scheduling(self) -> SchedulerSide:
        assert self._scheduler is not None, "asked in a worker"
        return self._scheduler

    def _bound_plan(self) -> Plan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PlanMetadata)
        return metadata.plan


class SchedulerSide:
    """Knows what is stored: a block is there when every worker's part of it is."""

    def __init__(self, settings: KvStoreSettings, keys: BlockKeys, vllm_config: Any) -> None:
        self.store = BlockStore(Path(settings.folder), max_bytes=settings.max_bytes, layout=NO_LAYOUT)
        self.failed: set[int] = set()  # blocks of loads that have not ended in every worker
        self._keys = keys
        self._ranks = range(vllm_config.parallel_config.world_size)
        self.planner = Planner(
            block_size=int(vllm_config.cache_config.block_size), find=self._find, now_ns=time.time_ns
        )

    def _find(self, block_hash: bytes) -> bool:
        return all(self.store.contains(self._keys.key(block_hash, rank=rank)) for rank in self._ranks)


class WorkerSide:
    """Moves one worker's parts of blocks."""

    def __init__(self, settings: KvStoreSettings, keys: BlockKeys, layout: KvLayout, rank: int) -> None:
        self._store = BlockStore(Path(settings.folder), max_bytes=settings.max_bytes, layout=layout.fingerprint)
        self._keys = keys
        self._rank = rank
        self._deadline_s = settings.load_deadline_s
        self._block_bytes = layout.block_bytes
        self._loader = Loader(self._store, layout)
        self._saver = Saver(self._store, layout)
        self._failed: set[int] = set()

    def begin_loads(self, plan: Plan) -> None:
        for load in plan.loads:
            blocks = [(self._key(block_hash), block_id) for block_hash, block_id in load.blocks]
            patience_s = self._deadline_s + len(blocks) * self._block_bytes / LEAST_BYTES_PER_S
            self._loader.submit(LoadJob(load.request_id, blocks, deadline=time.monotonic() + patience_s))

    def save(self, plan: Plan) -> None:
        for save in plan.saves:
            times = stamps(save.used_at_ns, save.depth, len(save.blocks))
            self._saver.save(
                [(self._key(name), stamp, block) for (name, block), stamp in zip(save.blocks, times, strict=True)]
            )
        for touch in plan.touches:
            times = stamps(touch.used_at_ns, 0, len(touch.hashes))
            self._saver.touch([(self._key(name), stamp) for name, stamp in zip(touch.hashes, times, strict=True)])

    def ended_loads(self) -> set[str]:
        """Requests whose loads have ended; what failed of them is taken next."""
        done, failed = self._loader.collect(time.monotonic())
        self._failed |= failed
        return done

    def take_failed(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def close(self) -> None:
        self._loader.close()
        self._saver.close()
        self._store.close()

    def _key(self, block_hash: bytes) -> bytes:
        return self._keys.key(block_hash, rank=self._rank)


def _check_dense(kv_cache_config: Any) -> None:
    """One group of full attention: blocks that are all a prefix needs, under hashes that name all of it."""
    groups = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if len(groups) != 1 or not isinstance(groups[0], FullAttentionSpec | MLAAttentionSpec):
        kinds = ", ".join(type(spec).__name__ for spec in groups)
        raise ModelUnusable(f"kv_store serves models with full attention in every layer; this one has {kinds}")


def _correct_cached_tokens(request: Any, arrived: int) -> None:
    """vLLM counted the tokens of this request's load as cached when it began, and does not look again."""
    stats = request.prefill_stats
    if stats is not None and 0 < arrived < stats.num_cached_tokens:
        local = min(stats.num_local_cached_tokens, arrived)
        stats.set(stats.num_prompt_tokens, local, arrived - local)
