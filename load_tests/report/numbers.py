"""Numbers as people read them."""

from __future__ import annotations


def short(value: float) -> str:
    """At most three digits and a letter: 0.25, 12.5, 340, 1.2k, 3.4M."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{_three(value / limit if letter != 'k' else value / 1e3)}{letter}"
    return f"{value:,.0f}" if size >= 1e3 else _three(value)


def milliseconds(value: float | None) -> str:
    """With its unit: 840 ms, 1.25 s; a dash for none."""
    if value is None:
        return "–"
    return f"{_three(value / 1e3)} s" if abs(value) >= 1e3 else f"{_three(value)} ms"


def percent(value: float | None) -> str:
    """A share as 93.4 %; a dash for none."""
    return "–" if value is None else f"{value * 100:.1f} %"


def exact(value: float | None) -> str:
    """For tables: whole numbers with their thousands, others to a thousandth; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,d}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def _three(value: float) -> str:
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    written = f"{value:.{digits}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written
