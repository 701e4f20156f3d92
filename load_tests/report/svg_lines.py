"""Lines over time, or over anything else: values in, one SVG picture out."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal, NamedTuple

from load_tests.report.markup import Markup, join, tag
from load_tests.report.numbers import short
from load_tests.report.svg_frame import Frame, axes, legend, picture
from load_tests.report.svg_scale import Kind, Scale, fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Point = tuple[float, float | None]
"""x and y; a line is broken where y is None."""


class Line(NamedTuple):
    """One line. `colour` is a class of style.py: c0 to c7, or soft0 to soft2 for shades of one colour."""

    label: str
    points: Sequence[Point]
    colour: str
    look: Literal["solid", "dashed", "filled"] = "solid"


class Shade(NamedTuple):
    """A part of the x axis that is set apart, as a warm-up."""

    label: str
    low: float
    high: float


class LinesAxes(NamedTuple):
    """How a picture of lines is scaled. An end that is None follows from the values."""

    x_kind: Kind = "linear"
    y_kind: Kind = "linear"
    x_low: float | None = None
    x_high: float | None = None
    y_high: float | None = None


def line_chart(
    lines: Sequence[Line], frame: Frame, *, scaled: LinesAxes | None = None, shades: Sequence[Shade] = ()
) -> Markup:
    """The picture. Points under the pointer tell their values. O(points)."""
    scaled = scaled or LinesAxes()
    labels = [line.label for line in lines]
    x = _x_scale(lines, frame, scaled)
    y = _y_scale(lines, frame, scaled)
    return picture(
        frame,
        legend(labels, [line.colour for line in lines], frame),
        *(_shade(shade, x, y) for shade in shades),
        axes(frame, x, y),
        *(_drawn(line, x, y) for line in lines),
        _hits(lines, x, y),
    )


def path_of(points: Iterable[Point], x: Scale, y: Scale) -> str:
    """The line's path data; a point that stands alone becomes a dot."""
    parts: list[str] = []
    for run in _runs(points):
        first, *rest = [f"{x.at(at):.1f} {y.at(value):.1f}" for at, value in run]
        parts.append(f"M{first}" + ("L" + " ".join(rest) if rest else "h0"))
    return "".join(parts)


def area_of(points: Iterable[Point], x: Scale, y: Scale) -> str:
    """Path data of what lies below the line."""
    parts: list[str] = []
    for run in _runs(points):
        line = " ".join(f"{x.at(at):.1f} {y.at(value):.1f}" for at, value in run)
        parts.append(f"M{x.at(run[0][0]):.1f} {y.start:.1f}L{line}V{y.start:.1f}Z")
    return "".join(parts)


def _runs(points: Iterable[Point]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for at, value in points:
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _x_scale(lines: Sequence[Line], frame: Frame, scaled: LinesAxes) -> Scale:
    start, end = frame.x_ends()
    values = [at for line in lines for at, _ in line.points]
    if scaled.x_kind == "log":
        return fitting(values, start=start, end=end, kind="log")
    low = min(values, default=0.0) if scaled.x_low is None else scaled.x_low
    high = max(values, default=1.0) if scaled.x_high is None else scaled.x_high
    return Scale(low, high if high > low else low + 1.0, start, end)


def _y_scale(lines: Sequence[Line], frame: Frame, scaled: LinesAxes) -> Scale:
    start, end = frame.y_ends([line.label for line in lines])
    if scaled.y_high is not None and scaled.y_kind == "linear":
        return Scale(0.0, scaled.y_high, start, end)
    values = [value for line in lines for _, value in line.points if value is not None]
    return fitting(values, start=start, end=end, kind=scaled.y_kind)


def _drawn(line: Line, x: Scale, y: Scale) -> Markup:
    area = ""
    if line.look == "filled":
        area = tag("path", class_=f"area {line.colour}", d=area_of(line.points, x, y))
    look = "line dashed" if line.look == "dashed" else "line"
    return join(area, tag("path", class_=f"{look} {line.colour}", d=path_of(line.points, x, y)))


def _shade(shade: Shade, x: Scale, y: Scale) -> Markup:
    low, high = x.at(shade.low), x.at(shade.high)
    return join(
        tag("rect", class_="shade", x=low, y=y.end, width=high - low, height=y.start - y.end),
        tag("text", f"shaded: {shade.label}", class_="tick", x=x.end, y=y.end - 12.0, text_anchor="end"),
    )


def _hits(lines: Sequence[Line], x: Scale, y: Scale) -> Markup:
    """One column for every x, as wide as half the way to its neighbours."""
    told: dict[float, list[str]] = {}
    for line in lines:
        for at, value in line.points:
            if value is not None:
                told.setdefault(at, []).append(f"{line.label} {short(value)}")
    ats = sorted(told)
    edges = [x.at(at) for at in ats]
    cuts = [x.start, *((one + other) / 2 for one, other in itertools.pairwise(edges)), x.end]
    columns = zip(ats, cuts, cuts[1:], strict=False)
    return join(
        *(
            hit((low, y.end, high - low, y.start - y.end), f"{short(at)}: " + ", ".join(told[at]))
            for at, low, high in columns
        )
    )


def hit(box: tuple[float, float, float, float], words: str) -> Markup:
    """An invisible rectangle (x, y, width, height) that tells `words` under the pointer."""
    x, y, width, height = box
    return tag("rect", tag("title", words), class_="hit", x=x, y=y, width=max(0.0, width), height=max(0.0, height))
