"""A guard, and how it is broken."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One guard broken: `source`, which stands in `path` exactly once, becomes `replacement`."""

    name: str
    path: str
    source: str
    replacement: str
    test_file: str
    tests: tuple[str, ...]
