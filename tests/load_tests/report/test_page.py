"""What a page holds, whatever the run."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.report import limits, svg_bars, svg_scale
from load_tests.report.bins import bins_of, curve_of
from load_tests.report.html import render, render_comparison
from load_tests.report.markup import number, tag, text
from load_tests.report.plots import bars_of
from load_tests.report.svg_frame import Frame, standalone
from load_tests.report.svg_lines import Line, LinesAxes, line_chart
from router.errors import InvalidRequest
from tests.load_tests.report.runs import run_of, summary_of
from tests.load_tests.swarm.entries import CALM, entries, entry

FRAME = Frame("A title", "A description.", "x", "y")


def test_max_page_bytes_a_hundred_thousand_requests_in_hours_make_a_page_below_it() -> None:
    """Steps of time grow with the run; 300 replicas are as many bars as 24."""
    summary, ledger = run_of(100_000, seconds=20_000.0, replicas=300)
    assert len(render(summary, ledger).encode()) < limits.MAX_PAGE_BYTES
    assert len(bins_of(summary, ledger).steps) <= limits.MAX_BINS


def test_max_bars_the_middle_becomes_one_bar_as_long_as_its_mean() -> None:
    """The busiest and the idlest stay."""
    summary, _ = run_of(3_000, replicas=100)
    bars = bars_of(summary.replicas)
    assert len(bars) <= limits.MAX_BARS
    assert (bars[0].label, bars[-1].label) == (summary.replicas[0].replica, summary.replicas[-1].replica)
    assert sum("others" in bar.label for bar in bars) == 1


def test_max_classes_rare_errors_are_counted_together() -> None:
    """However many classes an endpoint invents."""
    failed = [
        entry(
            outcome="failed",
            error=f"class_{at % 40}",
            due_s=float(at),
            last_token_s=at + 1.0,
            sent_s=float(at),
            first_token_s=None,
        )
        for at in range(80)
    ]
    counted = bins_of(summary_of(failed), failed).classes
    assert len({name for one in counted for name in one}) == limits.MAX_CLASSES + 1
    assert sum(one.total() for one in counted) == 80


def test_a_hostile_text_never_becomes_markup() -> None:
    """An error, a replica, a model, a label, a setting: all are shown as text."""
    evil = "</script></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    ledger = [entry(is_measured=True, replica=evil, due_s=12.0, sent_s=12.0, first_token_s=12.5, last_token_s=13.0)]
    ledger.append(entry(outcome="refused", error=evil, due_s=12.0, sent_s=12.0, first_token_s=None, last_token_s=13.0))
    summary = summary_of(ledger, label=evil)
    summary = msgspec.structs.replace(summary, model=evil, url=evil, machine={evil: [evil]}, versions={evil: evil})
    for page in (render(summary, ledger), render_comparison([(summary, ledger)])):
        assert page.count("<script>") == 1
        assert "<img" not in page
        assert "&lt;script&gt;" in page


@given(st.text())
@CALM
def test_any_text_can_be_written_and_read_back_as_xml(value: str) -> None:
    """Control characters and lone surrogates included."""
    written = tag("p", value, title=value)
    assert ElementTree.fromstring(written.encode("utf-8")).tag == "p"


def test_max_text_chars_a_long_text_is_cut() -> None:
    """With a mark that it was."""
    assert text("x" * 10_000) == "x" * limits.MAX_TEXT_CHARS + "…"


def test_a_coordinate_that_is_not_finite_is_refused() -> None:
    """Rather than drawn nowhere."""
    with pytest.raises(ValueError, match="no coordinate"):
        number(float("nan"))


@given(st.lists(entries(), max_size=30))
@CALM
def test_any_ledger_makes_a_page_of_well_formed_pictures(ledger: list) -> None:  # type: ignore[type-arg]
    """Empty ones too, and the same page each time."""
    summary = summary_of(ledger)
    page = render(summary, ledger)
    assert page == render(summary, ledger)
    for picture in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(picture)
        assert "nan" not in "".join(re.findall(r' d="([^"]*)"', picture))


def test_max_runs_more_are_refused_in_words() -> None:
    """And none at all."""
    one = run_of(10)
    with pytest.raises(InvalidRequest, match="1 to 24 runs"):
        render_comparison([one] * (limits.MAX_RUNS + 1))
    with pytest.raises(InvalidRequest):
        render_comparison([])
    assert "run-23" in render_comparison([run_of(10, label=f"run-{at}") for at in range(limits.MAX_RUNS)])


def test_max_curve_points_a_distribution_keeps_its_ends() -> None:
    """And rises from left to right."""
    curve = curve_of([*map(float, range(5_000)), None])
    assert len(curve) <= limits.MAX_CURVE_POINTS
    assert curve[0] == (0.0, 1 / 5_000)
    assert curve[-1] == (4_999.0, 1.0)
    assert curve == sorted(curve)


def test_a_line_is_broken_where_nothing_was_measured_and_a_lone_point_is_a_dot() -> None:
    """No line is drawn through seconds without requests."""
    drawn = line_chart([Line("a", [(0, 1.0), (1, 2.0), (2, None), (3, 1.0)], "c0")], FRAME)
    path = re.findall(r'class="line c0" d="([^"]+)"', drawn)[0]
    assert path.count("M") == 2
    assert path.endswith("h0")


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20), st.sampled_from(["linear", "log"]))
@CALM
def test_a_scale_holds_all_values_and_names_a_few_round_ones(values: list[float], kind: svg_scale.Kind) -> None:
    """Ticks ascend and lie within; greater values never lie further left."""
    scale = svg_scale.fitting(values, start=0.0, end=100.0, kind=kind)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 100
    ticks = scale.ticks()
    assert ticks == sorted(set(ticks))
    assert all(scale.low * 0.99 <= tick <= scale.high * 1.01 for tick in ticks)


def test_a_picture_alone_is_a_file_with_both_schemes_in_it() -> None:
    """For documents: well-formed XML, sized, light and dark."""
    bars = [svg_bars.Bar("one", (1.0,)), svg_bars.Bar("two", (3.0,))]
    for drawn in (
        svg_bars.row_chart(bars, (svg_bars.Part("work", "c0"),), FRAME),
        line_chart([Line("a", [(0.1, 1.0), (9.0, 2.0)], "c1")], FRAME, scaled=LinesAxes(x_kind="log")),
    ):
        alone = standalone(drawn)
        root = ElementTree.fromstring(alone)
        assert root.attrib["width"] == "480"
        assert "prefers-color-scheme:dark" in alone
