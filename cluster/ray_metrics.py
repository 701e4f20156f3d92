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
        self._gauges: set[Sample] = set()
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}

    def send(self, samples: Iterable[Sample]) -> None:
        """Record gauges as they are, and totals of counters as what they grew by. `samples` are all there are: a gauge
        that was there before and is not any more falls to zero, as a replica that has left."""
        gauges = set()
        for sample in samples:
            if sample.metric.kind == "gauge":
                gauges.add(sample._replace(value=0.0))
                self._instruments[sample.metric].set(sample.value, tags=_tags(sample))
            else:
                self.add([sample._replace(value=self._growth(sample))])
        for gone in self._gauges - gauges:
            self._instruments[gone.metric].set(0.0, tags=_tags(gone))
        self._gauges = gauges

    def add(self, increments: Iterable[Sample]) -> None:
        """Add to counters."""
        for sample in increments:
            if sample.value > 0:
                self._instruments[sample.metric].inc(sample.value, tags=_tags(sample))

    def _growth(self, sample: Sample) -> float:
        key = (sample.metric.name, sample.labels)
        before = self._totals.get(key, 0.0)
        self._totals[key] = sample.value
        return sample.value - before if sample.value >= before else sample.value


def _tags(sample: Sample) -> dict[str, str]:
    return dict(zip(sample.metric.labels, sample.labels, strict=True))
