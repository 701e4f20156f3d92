"""Serve's own slots for generations that do not come through its handle. Only this module reaches into Serve's parts.

A slot taken here counts as one taken by a handle's call does: `max_ongoing_requests` bounds both together, a draining
replica waits for both, and both are in its metrics and in what it reports for autoscaling (with
`RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE=0`, cluster/ray_env.py).

Made for Ray 2.60.0. `serve_slots` looks, at start, whether all it needs is there and counts; else no data plane is
offered.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import ray
from ray.serve._private.common import RequestMetadata

from router.errors import KvistError, ReplicaBusy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RAY_VERSION: Final = "2.60.0"
NEEDED: Final = ("_can_accept_request", "_wrap_request", "_start_request", "get_num_ongoing_requests")


class SlotsUnavailable(KvistError):
    """This Serve cannot count generations that come another way. The text says why."""


class ServeSlots:
    """The slots of the replica in this process. Used on its event loop."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    @asynccontextmanager
    async def hold(self, request_id: str) -> AsyncIterator[None]:
        """See `workers.data_plane.Slots`. Logged and measured by Serve as a call of `generate`."""
        metadata = _metadata(request_id)
        if not self._replica._can_accept_request(metadata):
            raise ReplicaBusy("every slot is taken, or the replica drains")
        with self._replica._wrap_request(metadata):
            async with self._replica._start_request(metadata):  # never waits: a slot was free, and nothing ran since
                yield


async def serve_slots() -> ServeSlots:
    """The slots of this process's replica, tried once. Raises `SlotsUnavailable`."""
    if ray.__version__ != RAY_VERSION:
        raise SlotsUnavailable(f"made for Ray {RAY_VERSION}, this is {ray.__version__}")
    actors = ray._private.worker.global_worker.actors.values()
    found = [actor._replica_impl for actor in actors if hasattr(actor, "_replica_impl")]
    if len(found) != 1:
        raise SlotsUnavailable(f"{len(found)} Serve replicas in this process, not one")
    missing = [name for name in NEEDED if not callable(getattr(found[0], name, None))]
    if missing:
        raise SlotsUnavailable(f"Serve's replica has no {', '.join(missing)}")
    if getattr(found[0], "_event_loop", None) is not asyncio.get_running_loop():
        raise SlotsUnavailable("Serve runs the model's code in a thread of its own; see RAY_SERVE_THROUGHPUT_OPTIMIZED")
    if not found[0]._metrics_manager.should_collect_ongoing_requests():
        raise SlotsUnavailable(
            "Serve's autoscaler counts at handles; set RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE=0"
        )
    await _try(found[0])
    return ServeSlots(found[0])


async def _try(replica: Any) -> None:
    """Take one slot and see it counted, and given back."""
    before = replica.get_num_ongoing_requests()
    async with replica._start_request(_metadata("slot-check")):
        during = replica.get_num_ongoing_requests()
    if (during, replica.get_num_ongoing_requests()) != (before + 1, before):
        raise SlotsUnavailable("Serve does not count a slot that is taken")


def _metadata(request_id: str) -> Any:
    return RequestMetadata(
        request_id=request_id, internal_request_id=uuid.uuid4().hex, call_method="generate", is_streaming=True
    )
