"""What a run of a swarm came to: the data of swarm.json, and of every table and picture made from it.

Names and units of these fields are what other tools read. How they follow from a ledger is `summarise.py`'s part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from load_tests.swarm.ledger import Outcome  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Nearest-rank percentiles of `count` values, in milliseconds where the field says so."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """None when there are no values. O(n log n)."""
        ranked = sorted(values)
        if not ranked:
            return None
        n = len(ranked)
        p50, p90, p95, p99 = (round(ranked[max(0, -(-n * percent // 100) - 1)], 3) for percent in (50, 90, 95, 99))
        mean, most = round(sum(ranked) / n, 3), round(ranked[-1], 3)
        return cls(count=n, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=most)


class Second(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the series: requests by the time they were due, from `at_s` for `Summary.series_step_s` seconds.

    Warm-up is in the series (`is_measured` False), and in no other figure."""

    at_s: float
    is_measured: bool
    requests: int
    completed: int
    cancelled: int
    errors: int
    in_flight: int
    """Requests due before the step's end that had not ended then."""
    prompt_tokens: int
    cached_tokens: int
    ideal_tokens: float
    output_tokens: int
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None


class ReplicaWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica did. `work_tokens` are prompt tokens that were not cached, and output tokens."""

    replica: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    work_tokens: int
    hit_rate: float | None
    ttft_ms: Percentiles | None


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised and kept. `attainment` is the share of measured requests, those cut by the client left out,
    that completed within both limits; `goodput_per_s` is how many of these came in a second."""

    ttft_ms: float | None
    itl_ms: float | None
    met: int
    attainment: float | None
    goodput_per_s: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers. All but `series` leave the warm-up out.

    TTFT and E2E count from the time a request was due. ITL is the mean gap of each answer. `hit_rate` is cached over
    prompt tokens of all requests that told their usage; `ideal_hit_rate` is what one infinite cache would have held
    of the same prompts, and both are None when the endpoint tells no usage. The ideal counts the prompts' text: where
    a model's template adds much to short prompts, a hit rate may be a little above it."""

    label: str
    url: str
    api: str
    model: str
    started_at: str
    """UTC, ISO 8601."""
    settings: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    warmup_s: float
    measured_s: float
    requests: int
    outcomes: dict[Outcome, int]
    errors: dict[str, int]
    """Number of requests by class of error."""
    ttft_ms: Percentiles | None
    first_turn_ttft_ms: Percentiles | None
    later_turn_ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None
    send_lag_ms: Percentiles | None
    """How much later than due the client sent: large values mean that the client was the bottleneck."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    """Completed requests in a second."""
    output_tokens_per_s: float
    hit_rate: float | None
    ideal_hit_rate: float | None
    hit_of_ideal: float | None
    """Share of the possible hits that were had."""
    slo: Slo
    replicas: list[ReplicaWork]
    """Busiest first; empty when the endpoint does not tell who answered."""
    imbalance_work: float | None
    """Work of the busiest replica over the mean of all, those without any request included."""
    imbalance_requests: float | None
    series_step_s: float
    series: list[Second]


def write_summary(summary: Summary, path: Path) -> None:
    """Write JSON; the folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")


def read_summary(path: Path) -> Summary:
    """Raises msgspec.DecodeError for what is no summary."""
    return msgspec.json.decode(path.read_bytes(), type=Summary)
