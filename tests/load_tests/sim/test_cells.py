"""Published cells: the best baseline of each seed is what counts, misses are named, documents keep their own words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from load_tests.sim import cells_text
from load_tests.sim.cells import BASELINES, CELLS, Task, ratios, run
from load_tests.sim.cells_svg import Bar, bars

if TYPE_CHECKING:
    from pathlib import Path

CELL = CELLS[0]


def row(policy: str, seed: int, p99: float, hit_rate: float = 0.9) -> dict[str, Any]:
    times = {"p50": 100.0, "p90": 200.0, "p99": p99}
    return {
        "cell": CELL.name,
        "policy": policy,
        "seed": seed,
        "hit_rate": hit_rate,
        "ideal_hit_rate": 0.95,
        "imbalance": 1.2,
        "requests_per_s": 1.0,
        "ttft_ms": times,
        "warm_ttft_ms": times,
        "floor_ms": times,
        "work_tokens": [1, 2],
    }


ROWS = [
    *[row("dynamo", 1, 400.0), row("dynamo-tuned", 1, 200.0, 0.8), row("kvist", 1, 100.0)],
    *[row("dynamo", 2, 300.0), row("dynamo-tuned", 2, 600.0, 0.8), row("kvist", 2, 600.0)],
]


def test_a_ratio_is_to_the_best_baseline_of_each_seed() -> None:
    """Half of one's, twice the other's: the geometric mean is 1."""
    assert ratios(ROWS, "kvist", ("ttft_ms", "p99")) == pytest.approx(1.0)
    assert ratios(ROWS, "kvist", ("hit_rate",)) == pytest.approx(1.0)
    assert math.isnan(ratios(ROWS[:1], "kvist", ("hit_rate",)))


def test_a_goal_that_is_missed_is_named_and_a_cell_that_did_not_run_too(tmp_path: Path) -> None:
    """Misses included; what is outside the markers stays."""
    file = tmp_path / "page.md"
    file.write_text(f"before\n{cells_text.BEGIN}\nold\n{cells_text.END}\nafter\n")
    cells_text.renew(file, cells_text.pages(CELLS, ROWS, ratios))
    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert f"| {CELL.name} | 2 | 1.00 (goal ≤ 0.5) | 1.00 |" in text
    assert f"Not run: {CELLS[1].name};" in text
    assert "100 ms" not in text
    assert (tmp_path / "routing_warm.svg").read_text().count("<rect") == 4


def test_bars_are_as_long_as_what_they_say() -> None:
    picture = bars("a < b", [Bar("kvist", 1.0, "1 s"), Bar("other", 2.0, "2 s")])
    assert "a &lt; b" in picture
    assert 'width="210.0"' in picture
    assert 'width="420.0"' in picture


def test_every_cell_has_its_baselines_and_a_name_of_its_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert all({*BASELINES, "kvist"} <= {*cell.policies} for cell in CELLS)


def test_a_scene_runs_without_any_trace() -> None:
    """And the row says which run it is."""
    scene = next(cell for cell in CELLS if cell.name == "fork, shared")
    made = run(Task(scene, 3, "kvist", "nowhere"))
    assert (made["cell"], made["seed"], made["policy"]) == ("fork, shared", 3, "kvist")
    assert len(made["work_tokens"]) == scene.replicas
