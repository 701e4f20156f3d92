"""The backend on Ray Serve: every served name leads to the plane of its model."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import msgspec

from cluster.backend import Health
from cluster.status_metrics import held_samples, samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.backend import Job, TokenStream
    from cluster.ray_metrics import RayMetrics
    from cluster.serve_plane import ModelPlane
    from router.policy import Score
    from router.replicas import ReplicaStatus

logger = logging.getLogger("ray.serve")

REPORT_INTERVAL_S: Final = 5.0


class ServeBackend:
    """Implements `cluster.backend.Backend`. `planes` maps every served name; names of one model share a plane."""

    def __init__(self, planes: Mapping[str, ModelPlane], *, expected_replicas: int) -> None:
        self._planes = planes
        self._distinct = list({id(plane): plane for plane in planes.values()}.values())
        self._expected_replicas = expected_replicas

        self._reporting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ServeBackend {self._distinct!r}>"

    async def start_planes(self, metrics: RayMetrics) -> None:
        """Follow replicas and their events from now on, and report how they are."""
        for plane in self._distinct:
            plane.start()
        self._reporting = asyncio.create_task(self._report(metrics))

    async def close(self) -> None:
        """Leave no socket and no task behind."""
        if self._reporting is not None:
            self._reporting.cancel()
        for plane in self._distinct:
            await plane.close()

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> TokenStream:
        """Choose, reserve and call, or hold. Raises `NoReplica` when nothing is routable."""
        return self._planes[job.model].start_stream(job, exclude=exclude)

    def preview(self, job: Job) -> tuple[Score, ...]:
        """See `Backend`."""
        return self._planes[job.model].preview(job)

    @property
    def fault(self) -> str | None:
        """Why this ingress should be replaced; None while all is well."""
        return next((plane.fault for plane in self._distinct if plane.fault), None)

    def health(self) -> Health:
        """Ready with one routable replica per model, warm with all of them believed."""
        statuses = self._statuses()
        warm = sum(status.routable and not status.fenced for status in statuses)
        return Health(
            ready=all(plane.fleet.routable for plane in self._distinct),
            warm=warm == self._expected_replicas,
            detail="; ".join([f"{warm} of {self._expected_replicas} replicas warm", *self._held_words()]),
            replicas=[_row(status) for status in statuses],
        )

    def _held_words(self) -> list[str]:
        return [f"{plane.fleet.model}: {why}" for plane in self._distinct if (why := plane.fleet.why_held)]

    def _statuses(self) -> list[ReplicaStatus]:
        now = time.monotonic()
        return [status for plane in self._distinct for status in plane.fleet.status(now)]

    async def _report(self, metrics: RayMetrics) -> None:
        while True:
            try:
                held = {plane.fleet.model: plane.fleet.held for plane in self._distinct}
                metrics.send([*samples(self._statuses()), *held_samples(held)])
            except Exception:
                logger.exception("metrics were not reported")
            await asyncio.sleep(REPORT_INTERVAL_S)


def _row(status: ReplicaStatus) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(status)
    return row
