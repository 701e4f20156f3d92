"""The documents say what is there: every module has its line, every link its target."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.protocol.behaviours import ALL
from tests.conformance.protocol.readme import block_of, with_block

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_every_module_has_a_line_in_the_architecture() -> None:
    """Named in backquotes, with its folder below the package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+)`", text))
    for package in ("router", "workers", "cluster"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "__init__.py":
                assert path.relative_to(ROOT / package).with_suffix("").as_posix() in named, path


def test_every_relative_link_leads_to_a_file() -> None:
    """README, changelog and all of docs."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_make_target_that_the_readme_names_exists() -> None:
    """And every `kvist` command."""
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    commands = (ROOT / "cluster" / "cli.py").read_text()
    for command in re.findall(r"`kvist ([a-z]+)", readme):
        assert re.search(rf"def {command}\(|\({command}\)|name=\"{command}\"", commands), command


def test_the_readmes_table_is_that_of_the_page_of_behaviours() -> None:
    """A row a behaviour, written by the command that measures them."""
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_block(readme, page) == readme
    assert block_of(page).count("\n") == len(ALL) + 3
