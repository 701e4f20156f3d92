"""The pictures of one run, each with its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from load_tests.report.bins import OTHER, Bins, curve_of
from load_tests.report.limits import MAX_BARS
from load_tests.report.numbers import exact, percent
from load_tests.report.parts import figure, table
from load_tests.report.svg_bars import Bar, Column, Mark, Part, column_chart, row_chart
from load_tests.report.svg_frame import Frame
from load_tests.report.svg_lines import Line, LinesAxes, Shade, line_chart
from load_tests.report.svg_scale import kind_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.report.markup import Markup
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.summary import Percentiles, ReplicaWork, Summary

Times = Literal["ttft_ms", "itl_ms", "e2e_ms"]
POINTS = (("p99", "soft2"), ("p90", "soft1"), ("p50", "soft0"))
SECONDS = "seconds since the start"


def times(bins: Bins, field: Times, caption: str, *, warmup_s: float) -> Markup:
    """Percentiles over time of one kind of latency."""
    found: list[Percentiles | None] = [getattr(one, field) for one in bins.steps]
    ats = [one.at_s + bins.step_s / 2 for one in bins.steps]
    lines = [
        Line(name, [(at, getattr(one, name) if one else None) for at, one in zip(ats, found, strict=True)], colour)
        for name, colour in POINTS
    ]
    values = [value for line in lines for _, value in line.points if value is not None]
    frame = Frame(caption, f"50th, 90th and 99th percentile of every {bins.step_s:.0f} s.", SECONDS, "ms")
    drawn = line_chart(
        lines, frame, scaled=_over_time(bins)._replace(y_kind=kind_for(values)), shades=_warmup(bins, warmup_s)
    )
    rows = [
        (f"{one.at_s:.0f}", *(exact(getattr(each, name)) for name in ("count", "p50", "p90", "p99")))
        for one, each in zip(bins.steps, found, strict=True)
        if each is not None
    ]
    return figure(caption, drawn, table(("s", "requests", "p50 ms", "p90 ms", "p99 ms"), rows))


def hits(bins: Bins, *, warmup_s: float) -> Markup:
    """Share of prompt tokens found in a cache, and what an infinite cache would have held."""
    shares = [
        (one.at_s, one.cached_tokens / one.prompt_tokens, one.ideal_tokens / one.prompt_tokens)
        for one in bins.steps
        if one.prompt_tokens
    ]
    half_s = bins.step_s / 2
    lines = [
        Line("infinite cache", [(at + half_s, ideal) for at, _, ideal in shares], "c1", "dashed"),
        Line("hit rate", [(at + half_s, hit) for at, hit, _ in shares], "c0", "filled"),
    ]
    frame = Frame("Hit rate", "Share of prompt tokens found in a cache, beside the ideal.", SECONDS, "of prompt tokens")
    drawn = line_chart(lines, frame, scaled=_over_time(bins)._replace(y_high=1.0), shades=_warmup(bins, warmup_s))
    rows = [(f"{at:.0f}", percent(hit), percent(ideal)) for at, hit, ideal in shares]
    return figure("Hit rate against the ideal", drawn, table(("s", "hit rate", "infinite cache"), rows))


def in_flight(bins: Bins, *, warmup_s: float) -> Markup:
    """How many requests were open at once."""
    points = [
        (one.at_s + bins.step_s / 2, float(peak)) for one, peak in zip(bins.steps, bins.peaks_in_flight, strict=True)
    ]
    frame = Frame("Requests in flight", "Most requests that were open at the end of a second.", SECONDS, "requests")
    line = Line("in flight", points, "c4", "filled")
    drawn = line_chart([line], frame, scaled=_over_time(bins), shades=_warmup(bins, warmup_s))
    rows = [(f"{one.at_s:.0f}", f"{peak:,}") for one, peak in zip(bins.steps, bins.peaks_in_flight, strict=True)]
    return figure("Requests in flight", drawn, table(("s", "in flight"), rows))


def outcomes(bins: Bins) -> Markup:
    """How requests ended, by when they were due, errors by their class."""
    names = sorted({name for counted in bins.classes for name in counted}, key=lambda name: (name == OTHER, name))
    labels = ["completed", "cut by the client", *(names or ["errors"])]
    values = [
        (one.completed, one.cancelled, *([counted[name] for name in names] or [one.errors]))
        for one, counted in zip(bins.steps, bins.classes, strict=True)
    ]
    colours = ["soft2", "c5", "c3", "c1", "c4", "c7", "c6", "c2"]
    parts = [Part(name, colour) for name, colour in zip(labels, colours, strict=False)]
    columns = [Column(one.at_s, one.at_s + bins.step_s, row) for one, row in zip(bins.steps, values, strict=True)]
    frame = Frame("How requests ended", f"Requests due in every {bins.step_s:.0f} s, by outcome.", SECONDS, "requests")
    rows = [(f"{one.at_s:.0f}", *(f"{value:,}" for value in row)) for one, row in zip(bins.steps, values, strict=True)]
    return figure("How requests ended", column_chart(columns, parts, frame), table(("s", *labels), rows))


def distribution(entries: Sequence[Entry], summary: Summary) -> Markup:
    """TTFT of first turns, which find little in a cache, and of later turns, which ought to find nearly all."""
    measured = [entry for entry in entries if entry.is_measured]
    later = curve_of(entry.ttft_ms for entry in measured if entry.turn > 0)
    first = curve_of(entry.ttft_ms for entry in measured if entry.turn == 0)
    lines = [Line("later turns (warm)", later, "c0"), Line("first turns (cold)", first, "c1")]
    frame = Frame("Distribution of TTFT", "Share of requests answered within a time.", "TTFT, ms", "share of requests")
    kind = kind_for([value for value, _ in later + first])
    drawn = line_chart(lines, frame, scaled=LinesAxes(x_kind=kind, x_low=0.0, y_high=1.0))
    found = (("later turns", summary.later_turn_ttft_ms), ("first turns", summary.first_turn_ttft_ms))
    names = ("count", "p50", "p90", "p95", "p99", "max")
    rows = [(name, *(exact(getattr(one, point)) for point in names)) for name, one in found if one is not None]
    return figure("TTFT, warm and cold", drawn, table(("ms", *names), rows))


def work(summary: Summary) -> Markup:
    """What every replica computed, busiest first, beside the mean."""
    parts = (Part("prompt tokens computed", "c0"), Part("tokens written", "c1"))
    bars = bars_of(summary.replicas)
    count = max(len(summary.replicas), int(summary.settings.get("replicas") or 0))
    mean = sum(one.work_tokens for one in summary.replicas) / max(1, count)
    frame = Frame("Work of every replica", "Prompt tokens not found in the cache, and tokens written.", "tokens")
    drawn = row_chart(bars, parts, frame, mark=Mark("mean", mean) if bars else None)
    rows = [
        (one.replica, f"{one.requests:,}", f"{one.work_tokens:,}", percent(one.hit_rate), exact(p99_of(one.ttft_ms)))
        for one in summary.replicas
    ]
    return figure("Work of every replica", drawn, table(("replica", "requests", "work", "hit rate", "TTFT p99"), rows))


def bars_of(replicas: Sequence[ReplicaWork]) -> list[Bar]:
    """A bar for each; beyond MAX_BARS those in the middle are one, as long as their mean."""
    bars = [Bar(one.replica, (one.prompt_tokens - one.cached_tokens, one.output_tokens)) for one in replicas]
    if len(bars) <= MAX_BARS:
        return bars
    side = (MAX_BARS - 1) // 2
    middle = bars[side : len(bars) - side]
    means = [sum(bar.values[at] for bar in middle) / len(middle) for at in range(2)]
    return [*bars[:side], Bar(f"mean of {len(middle)} others", means), *bars[-side:]]


def p99_of(times_ms: Percentiles | None) -> float | None:
    """None where nothing came."""
    return None if times_ms is None else times_ms.p99


def _over_time(bins: Bins) -> LinesAxes:
    end_s = bins.steps[-1].at_s + bins.step_s if bins.steps else 1.0
    return LinesAxes(x_low=0.0, x_high=end_s)


def _warmup(bins: Bins, warmup_s: float) -> list[Shade]:
    return [Shade("warm-up", 0.0, warmup_s)] if warmup_s > 0 and bins.steps else []
