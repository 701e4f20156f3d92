"""From a ledger to a summary: pure arithmetic, the same for a run that just ended and a ledger read from a file."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from load_tests.swarm.ledger import Outcome
from load_tests.swarm.series import seconds_of, step_s_for
from load_tests.swarm.summary import Percentiles, ReplicaWork, Slo, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.settings import Settings


class About(NamedTuple):
    """What a summary tells besides numbers. `ended_s` is when the run was over, from its start; `measured_s` is given
    where the ledger is one of several runs."""

    settings: Settings
    url: str
    started_at: str
    ended_s: float
    versions: dict[str, str]
    machine: dict[str, Any]
    label: str = "swarm"
    measured_s: float | None = None


def summarise(entries: Sequence[Entry], about: About) -> Summary:
    """All figures. O(n log n) in the number of entries."""
    settings = about.settings
    measured = [entry for entry in entries if entry.is_measured]
    measured_s = _measured_s(measured, about)
    replicas = replica_work(measured)
    tokens = _Tokens.of(measured)
    step_s = step_s_for(about.ended_s)
    completed = sum(entry.outcome == "completed" for entry in measured)
    return Summary(
        label=about.label,
        url=about.url,
        api=settings.api,
        model=settings.model,
        started_at=about.started_at,
        settings=msgspec.to_builtins(settings),
        versions=about.versions,
        machine=about.machine,
        warmup_s=settings.warmup_s,
        measured_s=round(measured_s, 3),
        requests=len(measured),
        outcomes=_outcomes(measured),
        errors=dict(Counter(entry.error for entry in measured if entry.error is not None).most_common()),
        ttft_ms=_percentiles(entry.ttft_ms for entry in measured),
        first_turn_ttft_ms=_percentiles(entry.ttft_ms for entry in measured if entry.turn == 0),
        later_turn_ttft_ms=_percentiles(entry.ttft_ms for entry in measured if entry.turn > 0),
        itl_ms=_percentiles(entry.itl_ms for entry in measured),
        e2e_ms=_percentiles(entry.e2e_ms for entry in measured if entry.outcome == "completed"),
        send_lag_ms=_percentiles((entry.sent_s - entry.due_s) * 1e3 for entry in measured),
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
        requests_per_s=_rate(completed, measured_s),
        output_tokens_per_s=_rate(tokens.output, measured_s),
        hit_rate=tokens.hit_rate,
        ideal_hit_rate=tokens.ideal_hit_rate,
        hit_of_ideal=tokens.hit_of_ideal,
        slo=slo_of(measured, settings, measured_s=measured_s),
        replicas=replicas,
        imbalance_work=imbalance([one.work_tokens for one in replicas], replicas=settings.replicas),
        imbalance_requests=imbalance([one.requests for one in replicas], replicas=settings.replicas),
        series_step_s=step_s,
        series=seconds_of(entries, step_s=step_s, warmup_s=settings.warmup_s),
    )


def slo_of(entries: Sequence[Entry], settings: Settings, *, measured_s: float) -> Slo:
    """A request meets the SLO when it completed within both limits; what the client cut promised nothing."""
    limits = (settings.slo_ttft_ms, settings.slo_itl_ms)
    asked = [entry for entry in entries if entry.outcome != "cancelled"]
    met = sum(_meets(entry, *limits) for entry in asked)
    share = round(met / len(asked), 4) if asked else None
    return Slo(ttft_ms=limits[0], itl_ms=limits[1], met=met, attainment=share, goodput_per_s=_rate(met, measured_s))


def _meets(entry: Entry, ttft_ms: float | None, itl_ms: float | None) -> bool:
    if entry.outcome != "completed":
        return False
    is_soon = ttft_ms is None or (entry.ttft_ms is not None and entry.ttft_ms <= ttft_ms)
    return is_soon and (itl_ms is None or entry.itl_ms is None or entry.itl_ms <= itl_ms)


def replica_work(entries: Iterable[Entry]) -> list[ReplicaWork]:
    """By replica, busiest first. Requests that did not tell their replica are left out."""
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.replica is not None:
            groups[entry.replica].append(entry)
    found = [_work(replica, group) for replica, group in groups.items()]
    return sorted(found, key=lambda one: (-one.work_tokens, one.replica))


def _work(replica: str, entries: Sequence[Entry]) -> ReplicaWork:
    tokens = _Tokens.of(entries)
    return ReplicaWork(
        replica=replica,
        requests=len(entries),
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
        work_tokens=tokens.prompt - tokens.cached + tokens.output,
        hit_rate=tokens.hit_rate,
        ttft_ms=_percentiles(entry.ttft_ms for entry in entries),
    )


def imbalance(work: Sequence[int], *, replicas: int | None) -> float | None:
    """The largest over the mean of all `replicas`, those that did nothing included. None without any work."""
    count = max(len(work), replicas or 0)
    return round(max(work) * count / sum(work), 4) if sum(work) else None


class _Tokens(NamedTuple):
    """Sums. `ideal` are those of the prompts' tokens that their `seen_chars` stand for."""

    prompt: int
    cached: int
    output: int
    ideal: float

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> _Tokens:
        told = list(entries)
        return cls(
            sum(entry.prompt_tokens or 0 for entry in told),
            sum(entry.cached_tokens or 0 for entry in told),
            sum(entry.output_tokens or 0 for entry in told),
            sum(entry.ideal_tokens for entry in told),
        )

    @property
    def hit_rate(self) -> float | None:
        return round(self.cached / self.prompt, 4) if self.prompt else None

    @property
    def ideal_hit_rate(self) -> float | None:
        return round(self.ideal / self.prompt, 4) if self.prompt else None

    @property
    def hit_of_ideal(self) -> float | None:
        return round(self.cached / self.ideal, 4) if self.prompt and self.ideal else None


def _outcomes(entries: Sequence[Entry]) -> dict[Outcome, int]:
    counted = Counter(entry.outcome for entry in entries)
    return {outcome: counted[outcome] for outcome in get_args(Outcome)}


def _measured_s(measured: Sequence[Entry], about: About) -> float:
    """From the warm-up's end to the end of sending, or to the last answer when the workload ended before."""
    if about.measured_s is not None:
        return about.measured_s
    settings = about.settings
    last_s = max((entry.last_token_s for entry in measured), default=settings.warmup_s)
    return max(0.0, min(settings.end_s, about.ended_s, last_s) - settings.warmup_s)


def _percentiles(values: Iterable[float | None]) -> Percentiles | None:
    return Percentiles.of(value for value in values if value is not None)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
