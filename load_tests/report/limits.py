"""What bounds a page, whatever the run. Each limit has a test called after it."""

from __future__ import annotations

from typing import Final

MAX_PAGE_BYTES: Final = 2_000_000
"""A page of any run is smaller."""
MAX_BINS: Final = 120
"""Steps of time in a picture; longer runs have longer steps."""
MAX_CURVE_POINTS: Final = 160
"""Points of a distribution's curve."""
MAX_BARS: Final = 24
"""Bars of a picture; those in the middle become one."""
MAX_CLASSES: Final = 5
"""Classes of errors that have a colour of their own; the rest are one."""
MAX_TEXT_CHARS: Final = 300
"""Of one text that came from outside."""
MAX_TABLE_ROWS: Final = 300
"""Rows of one table."""
MAX_RUNS: Final = 24
"""Columns of a comparison."""
MAX_DRAWN_RUNS: Final = 8
"""Runs of a comparison that have a colour of their own and so are in its pictures."""
