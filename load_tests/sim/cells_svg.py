"""Bar pictures as SVG text: a few rectangles with words, readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.sim.cells import Cell

LEFT, WIDTH, BAR, GAP = 190, 420, 16, 6
OURS, THEIRS = "#0b7285", "#adb5bd"


class Bar(NamedTuple):
    """One bar: what it stands for, how long it is, and what is written behind it."""

    label: str
    value: float
    words: str


PICTURED: Final = "8 replicas, h100-32b, shared"


def pictures(cells: Sequence[Cell], rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The pictures of docs/routing.md, by file name; those without rows are left out."""
    found = {}
    warm = _median_bars(rows, PICTURED, "warm_ttft_ms")
    if warm:
        found["routing_warm.svg"] = bars("p99 of warm turns, 8 replicas, steps shared", warm)
    for cell in cells:
        if cell.part == 3 and (median := _median_bars(rows, cell.name, "ttft_ms")):
            found["routing_open.svg"] = bars(f"p99 of {cell.name}, open loop", median)
            break
    hot = [row for row in rows if row["cell"] == "hot prefix, shared" and row["seed"] == 1]
    if hot:
        found["routing_hot.svg"] = bars("Work per replica, one hot prefix", _work(hot))
    return found


def bars(title: str, given: Sequence[Bar]) -> str:
    """Horizontal bars, longest as wide as there is room."""
    longest = max(bar.value for bar in given) or 1.0
    height = 34 + len(given) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="8" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for at, bar in enumerate(given):
        y, colour = 30 + at * (BAR + GAP), OURS if bar.label.startswith("kvist") else THEIRS
        long = max(bar.value / longest * WIDTH, 1.0)
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR}" fill="{colour}"/>'
            f'<text x="{LEFT + long + 6:.1f}" y="{y + 12}">{escape(bar.words)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _median_bars(rows: Sequence[dict[str, Any]], cell: str, metric: str) -> list[Bar]:
    by_policy: dict[str, list[float]] = {}
    for row in rows:
        if row["cell"] == cell:
            by_policy.setdefault(row["policy"], []).append(row[metric]["p99"] / 1e3)
    medians = {policy: sorted(values)[len(values) // 2] for policy, values in by_policy.items()}
    return [Bar(policy, value, f"{value:.1f} s") for policy, value in medians.items()]


def _work(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    return [
        Bar(f"{row['policy']}, replica {number}", tokens, f"{tokens:,} tokens")
        for row in rows
        if row["policy"] in {"sglang", "dynamo", "kvist"}
        for number, tokens in enumerate(row["work_tokens"])
    ]
