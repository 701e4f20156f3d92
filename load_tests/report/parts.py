"""Pieces of a page: tables, tiles, figures, and the page around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.report.limits import MAX_TABLE_ROWS
from load_tests.report.markup import Markup, join, tag
from load_tests.report.style import PAGE_CSS, TIPS_JS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def page(title: str, *body: Markup) -> str:
    """A whole document that asks no network for anything."""
    head = join(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Markup(PAGE_CSS)),
    )
    tip = Markup('<div id="tip" role="status" hidden></div>')
    document = tag(
        "html", tag("head", head), tag("body", tag("main", *body), tip, tag("script", Markup(TIPS_JS))), lang="en"
    )
    return f"<!doctype html>\n{document}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """The first cell of a row names it. At most MAX_TABLE_ROWS rows; how many are missing is said."""
    shown = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows[:MAX_TABLE_ROWS]
    ]
    if len(rows) > MAX_TABLE_ROWS:
        shown.append(tag("tr", tag("th", f"and {len(rows) - MAX_TABLE_ROWS:,} more", scope="row", colspan=len(head))))
    columns = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    return tag("table", columns, tag("tbody", *shown))


def pairs(values: Mapping[str, object]) -> Markup:
    """Names and values below each other, those that are None left out."""
    known = [(name, value) for name, value in values.items() if value is not None]
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in known[:MAX_TABLE_ROWS]]
    return tag("table", tag("tbody", *rows), class_="pairs")


def tiles(told: Iterable[tuple[str, str, str]]) -> Markup:
    """Name, figure, and a smaller word about it."""
    boxes = (
        tag("div", tag("dt", name), tag("dd", figure, tag("small", more)), class_="tile") for name, figure, more in told
    )
    return tag("dl", *boxes, class_="tiles")


def figure(caption: str, picture: Markup, values: Markup) -> Markup:
    """A picture, and the same as a table for who cannot see it."""
    more = tag("details", tag("summary", "As a table"), tag("div", values, class_="wide", tabindex="0"))
    return tag("figure", tag("figcaption", caption), picture, more)


def section(heading: str, words: str, *body: Markup) -> Markup:
    """A heading, a sentence, and what follows."""
    return tag("section", tag("h2", heading), tag("p", words), *body)


def figures(*all_of_them: Markup) -> Markup:
    """Two beside each other, one on a phone."""
    return tag("div", *all_of_them, class_="figures")
