"""Bars of parts: rows by name, or columns over time. Values in, one SVG picture out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.report.markup import Markup, join, tag
from load_tests.report.numbers import short
from load_tests.report.svg_frame import CHAR_PX, Frame, axes, label, legend, names, picture
from load_tests.report.svg_lines import hit
from load_tests.report.svg_scale import Scale, fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_PX: Final = 22.0


class Bar(NamedTuple):
    """A row: one value for each part, and what is written at its end instead of the sum."""

    label: str
    values: Sequence[float]
    note: str = ""

    @property
    def written(self) -> str:
        """At the bar's end."""
        return self.note or short(sum(self.values))


class Mark(NamedTuple):
    """A line across all rows at `value`."""

    label: str
    value: float


class Part(NamedTuple):
    """What the values at one place of all bars are; `colour` as in svg_lines."""

    label: str
    colour: str


class Column(NamedTuple):
    """A column of time: where it begins and ends, one value for each part."""

    low: float
    high: float
    values: Sequence[float]


def row_chart(bars: Sequence[Bar], parts: Sequence[Part], frame: Frame, *, mark: Mark | None = None) -> Markup:
    """Lying bars, the first on top. The picture is as high as its rows need: `frame.height` is not looked at."""
    shown = [part.label for part in parts] if len(parts) > 1 else []
    longest = max((len(label(bar.label)) for bar in bars), default=0)
    note_px = 12.0 + CHAR_PX * max((len(bar.written) for bar in bars), default=0)
    top = frame.top(shown) + (14.0 if mark else 0.0)
    height = top + ROW_PX * len(bars) + frame.bottom
    frame = frame._replace(height=height, left=14.0 + CHAR_PX * longest)
    left, right = frame.x_ends()
    ends = [sum(bar.values) for bar in bars] + ([mark.value] if mark else [])
    x = fitting(ends, start=left, end=max(left + 40.0, right - note_px))
    y = Scale(0.0, 1.0, height - frame.bottom, top)
    return picture(
        frame,
        legend(shown, [part.colour for part in parts], frame),
        *(_upright(x, y, value) for value in x.ticks(4)),
        names(frame._replace(y_label=""), x, y),
        *(_row(bar, parts, x, top + ROW_PX * at) for at, bar in enumerate(bars)),
        _mark(mark, x, y) if mark else Markup(),
    )


def column_chart(columns: Sequence[Column], parts: Sequence[Part], frame: Frame) -> Markup:
    """Columns over a common x axis, the first part at the bottom. O(columns × parts)."""
    labels = [part.label for part in parts]
    start, end = frame.x_ends()
    low, high = min((one.low for one in columns), default=0.0), max((one.high for one in columns), default=1.0)
    x = Scale(low, high if high > low else low + 1.0, start, end)
    y_start, y_end = frame.y_ends(labels)
    y = fitting((sum(one.values) for one in columns), start=y_start, end=y_end)
    return picture(
        frame,
        legend(labels, [part.colour for part in parts], frame),
        axes(frame, x, y),
        *(tag("path", class_=f"bar {part.colour}", d=_stack(columns, at, x, y)) for at, part in enumerate(parts)),
        *(_column_hit(column, labels, x, y) for column in columns),
    )


def _stack(columns: Sequence[Column], at: int, x: Scale, y: Scale) -> str:
    """Path data of the part `at` of all columns."""
    boxes = []
    for one in columns:
        below = sum(one.values[:at])
        if one.values[at] > 0:
            gap = min(1.0, (x.at(one.high) - x.at(one.low)) / 4)
            left, right = x.at(one.low), x.at(one.high) - gap
            low, high = y.at(below), y.at(below + one.values[at])
            boxes.append(f"M{left:.1f} {low:.1f}H{right:.1f}V{high:.1f}H{left:.1f}Z")
    return "".join(boxes)


def _column_hit(column: Column, labels: Sequence[str], x: Scale, y: Scale) -> Markup:
    words = ", ".join(f"{name} {short(value)}" for name, value in zip(labels, column.values, strict=True) if value)
    box = (x.at(column.low), y.end, x.at(column.high) - x.at(column.low), y.start - y.end)
    return hit(box, f"{short(column.low)}: {words or 'none'}")


def _row(bar: Bar, parts: Sequence[Part], x: Scale, top: float) -> Markup:
    drawn: list[Markup] = []
    done = 0.0
    for value, part in zip(bar.values, parts, strict=True):
        left, right = x.at(done), x.at(done + value)
        done += value
        d = f"M{left:.1f} {top + 4:.1f}H{right:.1f}v{ROW_PX - 8:.1f}H{left:.1f}Z"
        drawn.append(tag("path", class_=f"bar {part.colour}", d=d))
    words = ", ".join(f"{part.label} {short(value)}" for value, part in zip(bar.values, parts, strict=True))
    middle = top + ROW_PX / 2 + 4.0
    return join(
        tag("text", label(bar.label), x=x.start - 8.0, y=middle, text_anchor="end"),
        *drawn,
        tag("text", bar.written, class_="tick", x=x.at(done) + 6.0, y=middle),
        hit((x.start, top, x.end - x.start, ROW_PX), f"{bar.label}: {words}"),
    )


def _upright(x: Scale, y: Scale, value: float) -> Markup:
    at = x.at(value)
    return join(
        tag("path", class_="grid", d=f"M{at:.1f} {y.end:.1f}V{y.start:.1f}"),
        tag("text", short(value), class_="tick", x=at, y=y.start + 16.0, text_anchor="middle"),
    )


def _mark(mark: Mark, x: Scale, y: Scale) -> Markup:
    at = x.at(mark.value)
    return join(
        tag("path", class_="mark", d=f"M{at:.1f} {y.end - 2:.1f}V{y.start:.1f}"),
        tag("text", mark.label, class_="tick", x=at, y=y.end - 6.0, text_anchor="middle"),
    )
