"""The report of a swarm as one page that needs nothing else: no network, no clock, no other file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from load_tests.report import plots
from load_tests.report.bins import bins_of
from load_tests.report.comparison import columns_table, compared, headline_rows
from load_tests.report.limits import MAX_RUNS
from load_tests.report.markup import Markup, join, tag
from load_tests.report.numbers import exact, milliseconds, percent, short
from load_tests.report.parts import figures, page, pairs, section, table, tiles
from load_tests.swarm.tables import POINTS, TIMES
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load_tests.report.comparison import Run
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.summary import Percentiles, Summary

MEANING = Markup(
    "TTFT and E2E count from the moment a request was due, so an endpoint that keeps the client waiting does not look "
    "fast. ITL is each answer's mean gap between tokens. The infinite cache is what one cache that never forgets would "
    "have found of the same prompts. All figures leave the warm-up out; pictures over time show it."
)


def render(summary: Summary, ledger: Sequence[Entry]) -> str:
    """The page of one run, below MAX_PAGE_BYTES whatever its length. Pure; O(n log n) in the ledger's length."""
    bins = bins_of(summary, ledger)
    warm = {"warmup_s": summary.warmup_s}
    felt = figures(
        plots.times(bins, "ttft_ms", "Time to first token", **warm),
        plots.distribution(ledger, summary),
        plots.times(bins, "itl_ms", "Time between tokens", **warm),
        plots.times(bins, "e2e_ms", "Whole answers", **warm),
    )
    did = [plots.hits(bins, **warm)] if summary.prompt_tokens else []
    did += [plots.in_flight(bins, **warm), plots.outcomes(bins)]
    did += [plots.work(summary)] if summary.replicas else []
    return page(
        f"{summary.label} · kvist swarm",
        _head(summary),
        tiles(headline(summary)),
        section("What agents felt", "Latencies by the time at which requests were due.", felt),
        section("What the cluster did", "Cache hits, shared work, and how requests ended.", figures(*did)),
        section("All figures", MEANING, tag("div", _percentiles(summary), class_="wide whole"), _errors(summary)),
        section("How it was measured", "The same settings and seed ask for the same things again.", _about(summary)),
    )


def render_comparison(runs: Sequence[Run]) -> str:
    """Several runs side by side, each named by its summary's label. Raises `InvalidRequest` for none, or more than
    MAX_RUNS. Pure; O(n log n)."""
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InvalidRequest(f"a comparison has 1 to {MAX_RUNS} runs, not {len(runs)}")
    summaries = [summary for summary, _ in runs]
    names = " · ".join(summary.label for summary in summaries)
    return page(
        f"{names} · kvist swarm",
        tag("header", tag("h1", "The same swarm, side by side"), tag("p", names)),
        section(
            "Figures", MEANING, tag("div", columns_table(summaries, headline_rows(summaries)), class_="wide whole")
        ),
        section("Pictures", "Later turns are those that ought to find nearly all of their prompt.", compared(runs)),
        section(
            "How it was measured", "Settings, versions and machine of every run.", *(_of_run(one) for one in summaries)
        ),
    )


def headline(summary: Summary) -> list[tuple[str, str, str]]:
    """What a slide would say."""
    ttft, later = summary.ttft_ms, summary.later_turn_ttft_ms
    failed = sum(summary.errors.values())
    told = [
        ("TTFT p50", milliseconds(_point(ttft, "p50")), f"p99 {milliseconds(_point(ttft, 'p99'))}"),
        ("Warm turns, p99", milliseconds(_point(later, "p99")), f"p50 {milliseconds(_point(later, 'p50'))}"),
        ("Hit rate", percent(summary.hit_rate), f"infinite cache {percent(summary.ideal_hit_rate)}"),
        ("Requests/s", short(summary.requests_per_s), f"{summary.output_tokens_per_s:,.0f} output tokens/s"),
        ("Errors", f"{failed:,}", f"of {summary.requests:,} requests"),
    ]
    if summary.imbalance_work is not None:
        told.append(("Busiest replica", f"{summary.imbalance_work:.2f} ×", f"the mean work of {_replicas(summary)}"))
    if summary.slo.ttft_ms or summary.slo.itl_ms:
        told.append(
            ("SLO kept", percent(summary.slo.attainment), f"goodput {summary.slo.goodput_per_s:.1f} requests/s")
        )
    return told


def _point(times: Percentiles | None, name: str) -> float | None:
    return None if times is None else float(getattr(times, name))


def _replicas(summary: Summary) -> int:
    return max(len(summary.replicas), int(summary.settings.get("replicas") or 0))


def _head(summary: Summary) -> Markup:
    words = (
        f"{summary.requests:,} requests in {summary.measured_s:.0f} s against {summary.url} "
        f"({summary.api}, {summary.model or 'its first model'}), {summary.started_at}"
    )
    return tag("header", tag("h1", summary.label), tag("p", words))


def _percentiles(summary: Summary) -> Markup:
    found = [(words, getattr(summary, field)) for field, words in TIMES.items()]
    rows = [(words, *(exact(getattr(one, point)) for point in POINTS)) for words, one in found if one is not None]
    return table(("ms", *POINTS), rows)


def _errors(summary: Summary) -> Markup:
    counts = [(name, f"{count:,}") for name, count in summary.outcomes.items() if count]
    parts = [table(("outcome", "requests"), counts)]
    if summary.errors:
        parts.append(
            table(("class of error", "requests"), [(name, f"{count:,}") for name, count in summary.errors.items()])
        )
    return join(*parts)


def _about(summary: Summary) -> Markup:
    return join(*(tag("details", tag("summary", name), pairs(_flat(values))) for name, values in _told(summary)))


def _of_run(summary: Summary) -> Markup:
    return tag("details", tag("summary", summary.label), *(pairs(_flat(values)) for _, values in _told(summary)))


def _told(summary: Summary) -> list[tuple[str, Mapping[str, Any]]]:
    seed = summary.settings.get("seed", "unknown")
    named = {"url": summary.url, "api": summary.api, "model": summary.model, "started": summary.started_at}
    return [
        (f"Settings (seed {seed})", named | summary.settings),
        ("Versions", summary.versions),
        ("Machine", summary.machine),
    ]


def _flat(values: Mapping[str, Any]) -> dict[str, object]:
    return {str(name): value for name, value in values.items() if value != ""}
