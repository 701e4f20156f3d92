"""Pictures and tables that lay several runs beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.report.bins import bins_of, curve_of
from load_tests.report.limits import MAX_DRAWN_RUNS
from load_tests.report.numbers import exact, milliseconds, percent
from load_tests.report.parts import figure, figures, table
from load_tests.report.svg_bars import Bar, Part, row_chart
from load_tests.report.svg_frame import Frame
from load_tests.report.svg_lines import Line, LinesAxes, line_chart
from load_tests.report.svg_scale import kind_for
from load_tests.swarm.summary import Percentiles
from load_tests.swarm.tables import SIDE_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.report.markup import Markup
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.summary import Summary

    Run = tuple[Summary, Sequence[Entry]]
Rows = list[tuple[str, ...]]


def headline_rows(summaries: Sequence[Summary]) -> Rows:
    """The figures of side-by-side tables, one column for each run."""
    counts: Rows = [
        ("requests", *(f"{one.requests:,}" for one in summaries)),
        ("errors", *(f"{sum(one.errors.values()):,}" for one in summaries)),
    ]
    return counts + [
        (words, *(_cell(getattr(one, field), point) for one in summaries)) for words, field, point in SIDE_ROWS
    ]


def columns_table(summaries: Sequence[Summary], rows: Rows) -> Markup:
    """Labels above."""
    return table(("", *(one.label for one in summaries)), rows)


def compared(runs: Sequence[Run]) -> Markup:
    """All pictures, of the first MAX_DRAWN_RUNS runs."""
    drawn = runs[:MAX_DRAWN_RUNS]
    summaries = [summary for summary, _ in drawn]
    return figures(
        _later_bars(summaries, "p50", "Warm turns: median TTFT"),
        _later_bars(summaries, "p99", "Warm turns: TTFT p99"),
        _curves(drawn),
        _over_time(drawn),
        _shares(summaries),
        _imbalances(summaries),
    )


def _later_bars(summaries: Sequence[Summary], point: str, caption: str) -> Markup:
    found = [(one.label, getattr(one.later_turn_ttft_ms, point, None)) for one in summaries]
    bars = [Bar(label, (value or 0.0,), milliseconds(value)) for label, value in found]
    frame = Frame(caption, "Of turns after the first of a session.", "ms")
    rows = [(label, exact(value)) for label, value in found]
    return figure(caption, row_chart(bars, (Part("ms", "c0"),), frame), table(("run", "ms"), rows))


def _shares(summaries: Sequence[Summary]) -> Markup:
    bars = [Bar(one.label, (one.hit_rate or 0.0,), percent(one.hit_rate)) for one in summaries]
    rows = [(one.label, percent(one.hit_rate), percent(one.ideal_hit_rate)) for one in summaries]
    frame = Frame("Hit rate", "Share of prompt tokens found in a cache.", "of prompt tokens")
    return figure(
        "Hit rate", row_chart(bars, (Part("hit rate", "c2"),), frame), table(("run", "hit rate", "ideal"), rows)
    )


def _imbalances(summaries: Sequence[Summary]) -> Markup:
    bars = [Bar(one.label, (one.imbalance_work or 0.0,), exact(one.imbalance_work)) for one in summaries]
    rows = [(one.label, exact(one.imbalance_work), exact(one.imbalance_requests)) for one in summaries]
    frame = Frame("Imbalance of work", "Work of the busiest replica over the mean.", "× the mean")
    drawn = row_chart(bars, (Part("imbalance", "c4"),), frame)
    return figure("Busiest replica's work", drawn, table(("run", "by work", "by requests"), rows))


def _curves(runs: Sequence[Run]) -> Markup:
    curves = [curve_of(one.ttft_ms for one in entries if one.is_measured and one.turn > 0) for _, entries in runs]
    lines = [Line(runs[at][0].label, curve, f"c{at}") for at, curve in enumerate(curves)]
    frame = Frame("Distribution of warm TTFT", "Share of later turns answered within a time.", "ms", "share of turns")
    kind = kind_for([value for curve in curves for value, _ in curve])
    drawn = line_chart(lines, frame, scaled=LinesAxes(x_kind=kind, x_low=0.0, y_high=1.0))
    points = ("count", "p50", "p90", "p99", "max")
    found = [(summary.label, summary.later_turn_ttft_ms) for summary, _ in runs]
    rows = [(label, *(exact(getattr(one, point)) for point in points)) for label, one in found if one is not None]
    return figure("Warm turns: distribution of TTFT", drawn, table(("run", *points), rows))


def _over_time(runs: Sequence[Run]) -> Markup:
    lines, rows = [], []
    for at, (summary, entries) in enumerate(runs):
        bins = bins_of(summary, entries)
        points = [(one.at_s, one.ttft_ms.p90 if one.ttft_ms else None) for one in bins.steps]
        lines.append(Line(summary.label, points, f"c{at}"))
        rows += [(summary.label, f"{at_s:.0f}", exact(value)) for at_s, value in points if value is not None]
    kind = kind_for([value for line in lines for _, value in line.points if value is not None])
    frame = Frame("TTFT p90 over time", "Of all requests, by when they were due.", "seconds since the start", "ms")
    drawn = line_chart(lines, frame, scaled=LinesAxes(y_kind=kind))
    return figure("TTFT p90 over time", drawn, table(("run", "s", "ms"), rows))


def _cell(value: Percentiles | float | None, point: str | None) -> str:
    if isinstance(value, Percentiles) and point is not None:
        return exact(getattr(value, point))
    return exact(value) if isinstance(value, float) else "–"
