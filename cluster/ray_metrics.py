"""Sends samples through Ray's own metrics, which export them from every process without ports of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.util.metrics import Counter, Gauge, Histogram

from cluster.status_metrics import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.status_metrics import Metric, Sample


class RayMetrics:
    """Ray's instruments for the whole catalogue. A counter that starts anew, as a rejoined replica's, counts on."""

    def __init__(self) -> None:
        self._instruments = {metric: _instrument(metric) for metric in CATALOGUE}
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
        """Add to counters and histograms."""
        for sample in increments:
            if sample.metric.kind == "histogram":
                self._instruments[sample.metric].observe(sample.value, tags=_tags(sample))
            elif sample.value > 0:
                self._instruments[sample.metric].inc(sample.value, tags=_tags(sample))

    def _growth(self, sample: Sample) -> float:
        key = (sample.metric.name, sample.labels)
        before = self._totals.get(key, 0.0)
        self._totals[key] = sample.value
        return sample.value - before if sample.value >= before else sample.value


def _instrument(metric: Metric) -> Any:
    named: dict[str, Any] = {"description": metric.help, "tag_keys": metric.labels}
    match metric.kind:
        case "gauge":
            return Gauge(metric.name, **named)
        case "counter":
            return Counter(metric.name, **named)
        case "histogram":
            return Histogram(metric.name, boundaries=list(metric.bounds), **named)


def _tags(sample: Sample) -> dict[str, str]:
    return dict(zip(sample.metric.labels, sample.labels, strict=True))
