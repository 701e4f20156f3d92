"""The report in a real browser that has no network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from load_tests.report.html import render, render_comparison
from tests.load_tests.report.chromium import Opened, colours, open_page
from tests.load_tests.report.runs import run_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one run."""
    path = tmp_path_factory.mktemp("report") / "swarm.html"
    path.write_text(render(*run_of(2_000)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(page: Path) -> Opened:
    """It, loaded."""
    return open_page(page, page.parent)


def test_every_plot_is_there_and_drawn_with_finite_coordinates(opened: Opened) -> None:
    """Eight pictures, each with a title, a description and paths of numbers."""
    pictures = re.findall(r"<svg.*?</svg>", opened.dom, flags=re.DOTALL)
    assert len(pictures) == 8
    for picture in pictures:
        assert "<title>" in picture
        assert "<desc>" in picture
        drawn = re.findall(r'<path class="(?:line|bar)[^"]*" d="([^"]+)"', picture)
        assert drawn
        assert all(re.fullmatch(r"[MLHVZhv0-9. -]+", d) for d in drawn)


def test_scripts_run_without_a_complaint_and_take_the_tips_over(opened: Opened) -> None:
    """A column tells its values by the page's own tip; the browser's would lie over it."""
    assert opened.console == []
    assert 'class="hit"' in opened.dom
    assert opened.dom.count("data-tip=") == opened.dom.count('class="hit"')


def test_nothing_is_asked_of_a_network(opened: Opened, page: Path) -> None:
    """Chromium logs every name it looks up and every request it begins: none."""
    assert '"constants"' in opened.requested
    assert not re.findall(r'"url":"(?:https?|wss?)://[^"]*', opened.requested)
    assert not re.findall(r'(?:src|href)="(?!data:)|url\(|@import', page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, 1), (1280, 0), (390, 1)], ids=["light", "dark", "phone"])
def test_the_page_is_seen_on_light_and_dark_screens_and_on_a_phone(page: Path, width: int, scheme: int) -> None:
    """Not blank, on paper of the scheme."""
    image, different = colours(page, page.parent, width=width, height=1800, scheme=scheme)
    corner = image.getpixel((2, 2))
    assert isinstance(corner, tuple)
    assert image.width == width
    assert different > 50
    assert (sum(corner) > 600) == (scheme == 1)


def test_a_comparison_opens_too(tmp_path: Path) -> None:
    """Six pictures of two runs."""
    path = tmp_path / "side_by_side.html"
    path.write_text(render_comparison([run_of(600, label="kvist"), run_of(600, label="other")]), encoding="utf-8")
    shown = open_page(path, tmp_path)
    assert shown.console == []
    assert shown.dom.count("<svg") == 6
