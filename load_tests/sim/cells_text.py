"""The tables and pictures of `load_tests.sim.cells`, written between markers of a document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from load_tests.sim import cells_svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from load_tests.sim.cells import Cell

    Rows = Sequence[dict[str, Any]]
    Ratio = Callable[[Rows, str, tuple[str, ...]], float]

BEGIN, END = "<!-- cells: begin -->", "<!-- cells: end -->"
PARTS: Final = {
    1: "Claude Code sessions, pools twice the working set, steps shared",
    2: "The same, first come first served",
    3: "Mooncake conversation, open loop",
    4: "Thrash: pools no larger than the working set",
    5: "Scenes: one hot prefix, forks of six siblings",
}
METRICS: Final = {
    "warm p99": ("warm_ttft_ms", "p99"),
    "p99": ("ttft_ms", "p99"),
    "p90": ("ttft_ms", "p90"),
    "p50": ("ttft_ms", "p50"),
    "hit": ("hit_rate",),
    "requests/s": ("requests_per_s",),
}


class Goal(NamedTuple):
    """What a ratio to the best baseline should be."""

    at_most: float = math.inf
    at_least: float = 0.0

    def words(self, value: float) -> str:
        """A ratio, and its goal where it misses that."""
        if self.at_least <= value <= self.at_most:
            return f"{value:.2f}"
        return f"{value:.2f} (goal {'≥' if self.at_least else '≤'} {self.at_least or self.at_most:g})"


GOALS: Final[dict[int, dict[str, Goal]]] = {
    1: {"warm p99": Goal(0.5), "p90": Goal(0.7), "p99": Goal(1.03), "hit": Goal(at_least=0.99)},
    2: {"p99": Goal(1.05), "p90": Goal(0.9), "hit": Goal(at_least=0.98)},
    3: {"p99": Goal(0.7), "p50": Goal(0.5)},
    4: {"requests/s": Goal(at_least=1.1), "p50": Goal(0.2)},
}


def pages(cells: Sequence[Cell], rows: Rows, ratio: Ratio) -> tuple[str, dict[str, str]]:
    """The text between the markers, and pictures by file name."""
    lines: list[str] = []
    for part, title in PARTS.items():
        chosen = [(cell, [row for row in rows if row["cell"] == cell.name]) for cell in cells if cell.part == part]
        ran = [(cell, its) for cell, its in chosen if its]
        lines += [f"### {title}", ""]
        lines += _scenes(ran) if part == 5 else _ratios(part, ran, ratio)
        left_out = [cell.name for cell, its in chosen if not its]
        lines += [f"Not run: {'; '.join(left_out)}.", ""] if left_out else []
    return "\n".join(lines), cells_svg.pictures(cells, rows)


def renew(file: Path, made: tuple[str, dict[str, str]]) -> None:
    """Replace what is between the markers of a document, and the pictures beside it."""
    text, pictures = made
    head, _, rest = file.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    file.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}")
    for name, picture in pictures.items():
        (file.parent / name).write_text(picture)


def _ratios(part: int, ran: Sequence[tuple[Cell, Rows]], ratio: Ratio) -> list[str]:
    lines = [f"| cell | seeds | {' | '.join(METRICS)} | imbalance | p99 ÷ floor |", "|---" * (len(METRICS) + 4) + "|"]
    for cell, rows in ran:
        goals = GOALS[part] | ({"p99": Goal(1.10)} if part == 2 and cell.replicas > 8 else {})
        mine = [row for row in rows if row["policy"] == "kvist"]
        if not any(row["policy"] == "kvist" for row in rows):
            continue
        cells = [goals.get(name, Goal()).words(ratio(rows, "kvist", path)) for name, path in METRICS.items()]
        floor = _mean([row["ttft_ms"]["p99"] / row["floor_ms"]["p99"] for row in mine])
        lines.append(
            f"| {cell.name} | {len(mine)} | {' | '.join(cells)} "
            f"| {_mean([row['imbalance'] for row in mine]):.2f} | {floor:.2f} |"
        )
    return [*lines, ""]


def _scenes(ran: Sequence[tuple[Cell, Rows]]) -> list[str]:
    lines = ["| scene | policy | hit | of ideal | imbalance | p50 ms | p99 ms |", "|---" * 7 + "|"]
    for cell, rows in ran:
        for policy in cell.policies:
            its = [row for row in rows if row["policy"] == policy]
            numbers = [
                f"{_mean([row['hit_rate'] for row in its]):.3f}",
                f"{_mean([row['hit_rate'] / row['ideal_hit_rate'] for row in its]):.3f}",
                f"{_mean([row['imbalance'] for row in its]):.2f}",
                *[f"{_mean([row['ttft_ms'][name] for row in its]):.0f}" for name in ("p50", "p99")],
            ]
            lines.append(f"| {cell.name} | {policy} | {' | '.join(numbers)} |")
    return [*lines, ""]


def _mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(math.log(max(value, 1e-9)) for value in values) / len(values)) if values else math.nan
