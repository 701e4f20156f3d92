"""What every picture has: its place, title, axes, grid and legend. A picture takes its colours from the page's scheme;
`standalone` makes one a file of its own, light or dark as the reader's screen is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.report.markup import Markup, join, tag
from load_tests.report.numbers import short
from load_tests.report.style import CHART_CSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.report.svg_scale import Scale

CHAR_PX: Final = 7.8
"""Mean width of a character at the size that pictures are labelled with, in wide fonts."""
LEGEND_LINE_PX: Final = 20.0
MAX_LABEL_CHARS: Final = 24


class Frame(NamedTuple):
    """A picture's words and size in pixels. `title` and `desc` are read aloud in place of the picture."""

    title: str
    desc: str
    x_label: str = ""
    y_label: str = ""
    width: float = 480.0
    height: float = 280.0
    left: float = 50.0
    right: float = 14.0
    bottom: float = 42.0

    def top(self, labels: Sequence[str] = ()) -> float:
        """Where the plot begins, below the y axis's name and a legend of `labels`."""
        return 12.0 + (16.0 if self.y_label else 0.0) + LEGEND_LINE_PX * len(legend_lines(labels, self))

    def x_ends(self) -> tuple[float, float]:
        """Coordinates of the left and the right edge of the plot."""
        return self.left, self.width - self.right

    def y_ends(self, labels: Sequence[str] = ()) -> tuple[float, float]:
        """Coordinates of the bottom and the top edge of the plot."""
        return self.height - self.bottom, self.top(labels)


def picture(frame: Frame, *children: Markup) -> Markup:
    """The svg element."""
    return tag(
        "svg",
        tag("title", frame.title),
        tag("desc", frame.desc),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        class_="chart",
        role="img",
        aria_label=f"{frame.title}. {frame.desc}",
        viewBox=f"0 0 {frame.width:.0f} {frame.height:.0f}",
    )


def standalone(svg: Markup) -> str:
    """The picture as the text of an .svg file, with its own colours for light and dark screens."""
    head, _, rest = svg.partition("<title>")
    width, height = head.rpartition('viewBox="0 0 ')[2].removesuffix('">').split()
    sized = f'{head.removesuffix(">")} width="{width}" height="{height}">'
    return f"{sized}<style>{CHART_CSS}</style><title>{rest}\n"


def label(words: str) -> str:
    """Cut to MAX_LABEL_CHARS."""
    return words if len(words) <= MAX_LABEL_CHARS else f"{words[: MAX_LABEL_CHARS - 1]}…"


def axes(frame: Frame, x: Scale, y: Scale) -> Markup:
    """Grid lines across, tick labels on both axes, names of the axes."""
    return join(
        *(_across(frame, y, value) for value in y.ticks()),
        *(_below(x, y, value) for value in x.ticks(6)),
        tag("path", class_="axis", d=f"M{x.start:.1f} {y.start:.1f}H{x.end:.1f}"),
        names(frame, x, y),
    )


def names(frame: Frame, x: Scale, y: Scale) -> Markup:
    """What the axes count."""
    middle = (x.start + x.end) / 2
    return join(
        tag("text", frame.x_label, class_="name", x=middle, y=y.start + 34.0, text_anchor="middle"),
        tag("text", frame.y_label, class_="name", x=2.0, y=y.end - 12.0) if frame.y_label else "",
    )


def legend(labels: Sequence[str], classes: Sequence[str], frame: Frame) -> Markup:
    """A swatch and a name for each, in as many lines as they need. `classes` colour them."""
    parts: list[Markup] = []
    colours = iter(classes)
    for row, line in enumerate(legend_lines(labels, frame)):
        x, y = 2.0, 12.0 + row * LEGEND_LINE_PX
        for words in line:
            parts.append(tag("rect", class_=f"swatch {next(colours)}", x=x, y=y - 8.0, width=12.0, height=8.0, rx=2.0))
            parts.append(tag("text", label(words), x=x + 18.0, y=y))
            x += _legend_width(words)
    return join(*parts)


def legend_lines(labels: Sequence[str], frame: Frame) -> list[list[str]]:
    """Labels by the line that they fit into."""
    lines: list[list[str]] = []
    used = frame.width
    for words in labels:
        width = _legend_width(words)
        if used + width > frame.width - frame.right:
            lines.append([])
            used = 0.0
        lines[-1].append(words)
        used += width
    return lines


def _legend_width(words: str) -> float:
    return 34.0 + CHAR_PX * len(label(words))


def _across(frame: Frame, y: Scale, value: float) -> Markup:
    at = y.at(value)
    left, right = frame.x_ends()
    return join(
        tag("path", class_="grid", d=f"M{left:.1f} {at:.1f}H{right:.1f}"),
        tag("text", short(value), class_="tick", x=left - 7.0, y=at + 4.0, text_anchor="end"),
    )


def _below(x: Scale, y: Scale, value: float) -> Markup:
    return tag("text", short(value), class_="tick", x=x.at(value), y=y.start + 17.0, text_anchor="middle")
