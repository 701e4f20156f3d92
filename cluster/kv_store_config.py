"""The `kv_store` of a model in the cluster's file: KV blocks that its replicas on one node share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from router.limits import KV_LOAD_DEADLINE_S, KV_STORE_BYTES, LEAST_KV_STORE_BYTES

SHARED_MEMORY: Final = "/dev/shm/kvist-kv"  # noqa: S108 - the store refuses a folder that others can open


class KvStore(BaseModel):
    """`folder` is on each node itself, in shared memory or on a disk, for this user alone. Its files never take more
    than `max_bytes`. A load that takes longer than `load_deadline_s` (more for many bytes) is computed instead."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = SHARED_MEMORY
    max_bytes: Annotated[int, Field(ge=LEAST_KV_STORE_BYTES)] = KV_STORE_BYTES
    load_deadline_s: Annotated[float, Field(gt=0)] = KV_LOAD_DEADLINE_S

    @field_validator("folder")
    @classmethod
    def _is_absolute(cls, folder: str) -> str:
        if not folder.startswith("/"):
            raise ValueError(f"must be an absolute path, the same on every node, not {folder!r}")
        return folder
