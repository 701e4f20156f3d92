"""What an operator says about a model's store, and how vLLM is told."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from router.limits import KV_LOAD_DEADLINE_S, KV_STORE_BYTES

CONNECTOR: Final = "KvStoreConnector"


class KvStoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` is on the replica's own node, in shared memory (/dev/shm) or on a disk."""

    folder: str
    max_bytes: int = KV_STORE_BYTES
    load_deadline_s: float = KV_LOAD_DEADLINE_S


def transfer_config(settings: KvStoreSettings) -> dict[str, Any]:
    """The `kv_transfer_config` of an engine that uses the store: what cannot be loaded is computed."""
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": "workers.kv_store.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": msgspec.to_builtins(settings),
    }
