"""One row of numbers for one policy's outcome, and the table of all rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from load_tests.sim.ideal import capacity_tokens, floor_s, ideal_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from load_tests.sim.calibration import Calibration
    from load_tests.sim.outcome import Outcome
    from load_tests.sim.work import Workload

PERCENTILES: Final = (50, 90, 99)
WARM_SHARE: Final = 0.5  # of a prompt that an infinite cache would serve, from which on a request is warm
GOOD_FLOORS: Final = 3.0  # goodput counts requests whose first token came within so many times its floor,
GOOD_S: Final = 1.0  # or within so many seconds

Row = dict[str, Any]


class Yardstick(NamedTuple):
    """What a workload could reach at best; the same for all policies. Tokens and seconds for each request."""

    ideal: list[int]
    capacity_hit_rate: float
    floor_s: list[float]


def yardstick(workload: Workload, pace: Calibration, *, all_blocks: int) -> Yardstick:
    """O(all blocks), with one pool of `all_blocks` for the capacity."""
    ideal = ideal_tokens(workload)
    prompts = sum(request.prompt_tokens for request in workload.requests)
    capacity = sum(capacity_tokens(workload, all_blocks)) / max(prompts, 1)
    return Yardstick(ideal, capacity, floor_s(workload, ideal, pace))


def row_of(policy: str, outcome: Outcome, best: Yardstick, *, front_s: float, wall_s: float) -> Row:
    """The published row of one policy. Rates of hits are tokens over tokens; work is tokens computed; `goodput` is
    requests per second whose first token came within GOOD_S or GOOD_FLOORS times the floor."""
    served = outcome.served()
    requests, fates = outcome.workload.requests, outcome.fates
    prompts = sum(requests[at].prompt_tokens for at in served)
    ttft_s = {at: fates[at].first_token_at - fates[at].ready_at for at in served}
    warm = [at for at in served if best.ideal[at] >= WARM_SHARE * requests[at].prompt_tokens]
    good = sum(ttft_s[at] <= max(GOOD_S, GOOD_FLOORS * best.floor_s[at]) for at in served)
    span_s = max((fates[at].ended_at for at in served), default=0.0) - min(
        (fates[at].ready_at for at in served), default=0.0
    )
    work = [one.tokens for one in outcome.work.values()]
    return {
        "policy": policy,
        "requests": len(served),
        "hit_rate": _ratio(sum(fates[at].cached_tokens for at in served), prompts),
        "ideal_hit_rate": _ratio(sum(best.ideal[at] for at in served), prompts),
        "capacity_ideal_hit_rate": round(best.capacity_hit_rate, 4),
        "imbalance": _ratio(max(work, default=0) * len(work), sum(work)),
        "floor_ms": percentiles_ms([best.floor_s[at] for at in served]),
        "ttft_ms": percentiles_ms(list(ttft_s.values())),
        "warm_ttft_ms": percentiles_ms([ttft_s[at] for at in warm]),
        "queue_ms": percentiles_ms([fates[at].started_at - fates[at].ready_at - front_s for at in served]),
        "requests_per_s": _ratio(len(served), span_s),
        "goodput": _ratio(good, span_s),
        "evicted_blocks": sum(one.evicted_blocks for one in outcome.work.values()),
        "wall_s": round(wall_s, 2),
    }


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99 in milliseconds; zero without any."""
    values = np.percentile(seconds, PERCENTILES) if len(seconds) else np.zeros(len(PERCENTILES))
    return {f"p{name}": round(float(value) * 1000, 1) for name, value in zip(PERCENTILES, values, strict=True)}


def write(rows: Sequence[Row], path: Path) -> None:
    """The rows as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n")


def as_text(rows: Sequence[Row], *, title: str, width: int = 160) -> str:
    """The rows as a table."""
    table = Table(title=title)
    columns = ("policy", "n", "hit", "of", "pooled", "imb.", "TTFT p50/p90/p99 ms", "warm p50/p90/p99 ms",
               "queue p99", "floor p99", "req/s", "good/s", "evicted", "wall s")  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def _cells(row: Row) -> list[str]:
    return [
        row["policy"],
        str(row["requests"]),
        f"{row['hit_rate']:.3f}",
        f"{row['ideal_hit_rate']:.3f}",
        f"{row['capacity_ideal_hit_rate']:.3f}",
        f"{row['imbalance']:.2f}",
        _spread(row["ttft_ms"]),
        _spread(row["warm_ttft_ms"]),
        f"{row['queue_ms']['p99']:.0f}",
        f"{row['floor_ms']['p99']:.0f}",
        f"{row['requests_per_s']:.2f}",
        f"{row['goodput']:.2f}",
        str(row["evicted_blocks"]),
        f"{row['wall_s']:.1f}",
    ]


def _spread(values: dict[str, float]) -> str:
    return " ".join(f"{values[f'p{name}']:.0f}" for name in PERCENTILES)


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0
