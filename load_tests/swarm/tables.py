"""A summary, or several side by side, for people and for spreadsheets."""

from __future__ import annotations

import csv
import io
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rich.table import Table

from load_tests.swarm.summary import Percentiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.swarm.summary import Summary

TIMES: Final = MappingProxyType(
    {
        "ttft_ms": "TTFT",
        "first_turn_ttft_ms": "first turns",
        "later_turn_ttft_ms": "later turns",
        "itl_ms": "ITL",
        "e2e_ms": "E2E",
        "send_lag_ms": "sent late",
    }
)
NUMBERS: Final = (
    "requests",
    "measured_s",
    "requests_per_s",
    "output_tokens_per_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "hit_rate",
    "ideal_hit_rate",
    "hit_of_ideal",
    "imbalance_work",
    "imbalance_requests",
)
POINTS: Final = ("count", "mean", "p50", "p90", "p95", "p99", "max")
SIDE_ROWS: Final = (
    ("TTFT p50 ms", "ttft_ms", "p50"),
    ("TTFT p90 ms", "ttft_ms", "p90"),
    ("TTFT p99 ms", "ttft_ms", "p99"),
    ("later turns, TTFT p50 ms", "later_turn_ttft_ms", "p50"),
    ("later turns, TTFT p99 ms", "later_turn_ttft_ms", "p99"),
    ("ITL p50 ms", "itl_ms", "p50"),
    ("E2E p50 ms", "e2e_ms", "p50"),
    ("E2E p99 ms", "e2e_ms", "p99"),
    ("requests/s", "requests_per_s", None),
    ("hit rate", "hit_rate", None),
    ("ideal hit rate", "ideal_hit_rate", None),
    ("hit / ideal", "hit_of_ideal", None),
    ("imbalance of work", "imbalance_work", None),
)


def times_table(summary: Summary) -> Table:
    """Percentiles in milliseconds."""
    table = Table("ms", *POINTS, title=f"{summary.label}: {summary.url} ({summary.api})")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for field, words in TIMES.items():
        values: Percentiles | None = getattr(summary, field)
        if values is not None:
            table.add_row(words, f"{values.count:,}", *(_time(getattr(values, point)) for point in POINTS[1:]))
    return table


def words_of(summary: Summary) -> list[str]:
    """What is no time, in sentences."""
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in summary.outcomes.items() if count)
    lines = [f"{summary.requests:,} requests in {summary.measured_s:.1f} s: {ends or 'none'}"]
    lines.append(f"{summary.requests_per_s:.1f} requests/s, {summary.output_tokens_per_s:,.0f} output tokens/s")
    if summary.errors:
        lines.append("errors: " + ", ".join(f"{name} {count:,}" for name, count in summary.errors.items()))
    if summary.hit_rate is None:
        lines.append("hit rate: the endpoint tells no usage")
    else:
        lines.append(
            f"hit rate {summary.hit_rate:.4f}, an infinite cache {summary.ideal_hit_rate:.4f}: "
            f"{_number(summary.hit_of_ideal)} of the ideal"
        )
    if summary.replicas:
        shares = " ".join(f"{one.requests:,}" for one in summary.replicas)
        lines.append(
            f"{len(summary.replicas)} replicas answered [{shares}]: the busiest did {_number(summary.imbalance_work)} "
            f"times the mean work, {_number(summary.imbalance_requests)} times the mean requests"
        )
    if summary.slo.ttft_ms or summary.slo.itl_ms:
        lines.append(
            f"SLO kept by {_number(summary.slo.attainment)}: goodput {summary.slo.goodput_per_s:.1f} requests/s"
        )
    return lines


def as_csv(summary: Summary) -> str:
    """A row for every metric: single numbers in `value`, times with all their percentiles."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("metric", "value", *POINTS))
    rows.writerows((name, getattr(summary, name), *[""] * len(POINTS)) for name in NUMBERS)
    counts = {f"outcome_{name}": count for name, count in summary.outcomes.items()}
    counts |= {f"error_{name}": count for name, count in summary.errors.items()}
    rows.writerows((name, count, *[""] * len(POINTS)) for name, count in counts.items())
    for name in ("slo.met", "slo.attainment", "slo.goodput_per_s"):
        rows.writerow((name, getattr(summary.slo, name.removeprefix("slo.")), *[""] * len(POINTS)))
    for name in TIMES:
        values = getattr(summary, name)
        if values is not None:
            rows.writerow((name, "", *(getattr(values, point) for point in POINTS)))
    return text.getvalue()


def side_by_side(summaries: Sequence[Summary]) -> Table:
    """One column for each."""
    table = Table("", *(summary.label for summary in summaries))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("requests", *(f"{summary.requests:,}" for summary in summaries))
    table.add_row("errors", *(f"{sum(summary.errors.values()):,}" for summary in summaries))
    for words, field, point in SIDE_ROWS:
        table.add_row(words, *(_cell(getattr(summary, field), point) for summary in summaries))
    return table


def _cell(value: Percentiles | float | None, point: str | None) -> str:
    if isinstance(value, Percentiles) and point is not None:
        return f"{getattr(value, point):,.1f}"
    return _number(value) if isinstance(value, float) else "-"


def _time(value: float) -> str:
    """Short enough for eight columns on a narrow terminal."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
