"""Sends samples through Ray's own metrics, which export them from every process without ports of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.util.metrics import Counter, Gauge

from cluster.status_metrics import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.status_metrics import Sample


class RayMetrics:
    """Ray's instruments for the whole catalogue. A counter that starts anew, as a rejoined replica's, counts on."""

    def __init__(self) -> None:
        kinds: dict[str, Any] = {"gauge": Gauge, "counter": Counter}
        self._instruments = {
            metric: kinds[metric.kind](metric.name, description=metric.help, tag_keys=metric.labels)
            for metric in CATALOGUE
        }
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}

    def send(self, samples: Iterable[Sample]) -> None:
        """Record every sample."""
        for sample in samples:
            tags = dict(zip(sample.metric.labels, sample.labels, strict=True))
            if sample.metric.kind == "gauge":
                self._instruments[sample.metric].set(sample.value, tags=tags)
            else:
                self._count(sample, tags)

    def _count(self, sample: Sample, tags: dict[str, str]) -> None:
        key = (sample.metric.name, sample.labels)
        before = self._totals.get(key, 0.0)
        self._totals[key] = sample.value
        new = sample.value - before if sample.value >= before else sample.value
        if new > 0:
            self._instruments[sample.metric].inc(new, tags=tags)
