"""A run in few steps of time, however long it was, and a distribution in few points."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from load_tests.report.limits import MAX_BINS, MAX_CLASSES, MAX_CURVE_POINTS
from load_tests.swarm.series import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.summary import Second, Summary

OTHER: str = "others"


class Bins(NamedTuple):
    """Steps of equal length; `classes` counts errors by class, one counter for each step, by the time they were due."""

    step_s: float
    steps: Sequence[Second]
    peaks_in_flight: Sequence[int]
    classes: Sequence[Counter[str]]


def bins_of(summary: Summary, entries: Sequence[Entry]) -> Bins:
    """At most MAX_BINS steps of whole seconds. Percentiles are those of the step's own requests, not means of
    percentiles. Without a ledger the summary's series is told as it is, at most its first MAX_BINS steps."""
    if not entries:
        steps = summary.series[:MAX_BINS]
        empty: list[Counter[str]] = [Counter() for _ in steps]
        return Bins(summary.series_step_s, steps, [one.in_flight for one in steps], empty)
    ended_s = max(max(entry.due_s, entry.last_token_s) for entry in entries)
    step_s = float(max(1, int(ended_s) // MAX_BINS + 1))
    steps = seconds_of(entries, step_s=step_s, warmup_s=summary.warmup_s)
    peaks = [one.in_flight for one in steps]
    for one in summary.series:
        at = int(one.at_s // step_s)
        if at < len(peaks):
            peaks[at] = max(peaks[at], one.in_flight)
    return Bins(step_s, steps, peaks, _classes(entries, step_s, len(steps)))


def _classes(entries: Iterable[Entry], step_s: float, steps: int) -> list[Counter[str]]:
    failed = [entry for entry in entries if entry.error is not None]
    common = {name for name, _ in Counter(entry.error for entry in failed).most_common(MAX_CLASSES)}
    counted: list[Counter[str]] = [Counter() for _ in range(steps)]
    for entry in failed:
        counted[int(entry.due_s // step_s)][entry.error if entry.error in common and entry.error else OTHER] += 1
    return counted


def curve_of(values: Iterable[float | None]) -> list[tuple[float, float]]:
    """Share of values at or below each of at most MAX_CURVE_POINTS values, ascending; the first and last are among
    them. O(n log n)."""
    ranked = sorted(value for value in values if value is not None)
    n = len(ranked)
    if n <= MAX_CURVE_POINTS:
        return [(value, (at + 1) / n) for at, value in enumerate(ranked)]
    ranks = sorted({round(at * (n - 1) / (MAX_CURVE_POINTS - 1)) for at in range(MAX_CURVE_POINTS)})
    return [(ranked[rank], (rank + 1) / n) for rank in ranks]
