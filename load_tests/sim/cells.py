"""`python -m load_tests.sim.cells`: the published comparisons of routing policies, all by one command.

A cell is a trace on a cluster. Every policy runs it on the same engines with the same seeds; sessions are those of the
half that nothing was tuned on. Rows that a JSON file has already are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from load_tests.policies import policy_named
from load_tests.sim import cells_text
from load_tests.sim.calibration import calibration_named
from load_tests.sim.closed_loop import Layout
from load_tests.sim.cluster import even_cluster
from load_tests.sim.replay import SHARED_PARTS, PoolSize, Setting
from load_tests.sim.report import row_of, yardstick
from load_tests.sim.scenarios import hot_prefix, sibling_forks
from load_tests.sim.traces import Half, workload_of
from load_tests.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.sim.cluster import ClusterPlan
    from load_tests.sim.work import Workload

SESSIONS: Final = "claude_code_sessions_a.jsonl.gz"
MOONCAKE: Final = "mooncake_conversation.jsonl.gz"
HOT, FORK = "hot prefix", "fork"
MOONCAKE_LOADS: Final = ((0.65, 2.0), (0.75, 2.3), (0.8, 2.45))  # with every possible hit, and the trace's haste
BASELINES: Final = ("dynamo", "dynamo-tuned")
AGENTS_PER_REPLICA: Final = 12
HASTE: Final = {"h100-32b": 1.0, "b200": 4.0}  # of agents: a replica that computes 7 times as fast would idle else
SCENE_POOL_BLOCKS: Final = 20_000  # more than a scene needs


class Cell(NamedTuple):
    """One comparison. `scale` divides times between arrivals; `parts` share a step (0: first come first served)."""

    name: str
    part: int  # of docs/routing.md's list
    trace: str
    replicas: int
    pool: str
    pace: str
    parts: int
    requests: int
    scale: float = 1.0
    policies: tuple[str, ...] = (*BASELINES, "kvist")


def _session_cells() -> list[Cell]:
    found = []
    for parts, replicas, pace in itertools.product((SHARED_PARTS, 0), (8, 32), ("h100-32b", "b200")):
        step, part = ("shared", 1) if parts else ("fcfs", 2)
        policies = (*BASELINES, *(("sticky",) if parts else ()), "kvist")
        name = f"{replicas} replicas, {pace}, {step}"
        requests = 1_500 + 80 * replicas
        found.append(Cell(name, part, SESSIONS, replicas, "2x", pace, parts, requests, HASTE[pace], policies))
    return found


CELLS: Final = (
    *_session_cells(),
    *[
        Cell(f"Mooncake, prefill load {load}", 3, MOONCAKE, 8, "8x", "h100-32b", 0, 4_000, scale)
        for load, scale in MOONCAKE_LOADS
    ],
    *[
        Cell(f"pools {pool} of the working set", 4, SESSIONS, 8, pool, "h100-32b", SHARED_PARTS, 2_000)
        for pool in ("1x", "0.5x")
    ],
    *[
        Cell(f"{scene}, {step}", 5, scene, 4, str(SCENE_POOL_BLOCKS), "h100-32b", parts, 0, 1.0, policies)
        for scene, (step, parts) in itertools.product((HOT, FORK), (("shared", SHARED_PARTS), ("fcfs", 0)))
        for policies in [(*BASELINES, "sglang", "kvist")]
    ],
)


class Task(NamedTuple):
    """One run."""

    cell: Cell
    seed: int
    policy: str
    traces: str

    @property
    def key(self) -> str:
        """Its name in the JSON file."""
        return f"{self.cell.name}/{self.seed}/{self.policy}"


def run(task: Task) -> dict[str, Any]:
    """The row of one run."""
    workload, cluster = _laid_out(task)
    pace = calibration_named(task.cell.pace)
    best = yardstick(workload, pace, all_blocks=sum(one.parameters.pool_blocks for one in cluster.replicas))
    outcome = simulate(workload, cluster, policy_named(task.policy, seed=task.seed))
    row = row_of(task.policy, outcome, best, front_s=cluster.front_s, wall_s=0.0)
    work = [one.tokens for one in outcome.work.values()]
    return row | {"cell": task.cell.name, "seed": task.seed, "work_tokens": work}


def _laid_out(task: Task) -> tuple[Workload, ClusterPlan]:
    cell, pace = task.cell, calibration_named(task.cell.pace)
    share_tokens = pace.step_tokens // cell.parts if cell.parts else 0
    if cell.trace in {HOT, FORK}:
        workload = hot_prefix(seed=task.seed) if cell.trace == HOT else sibling_forks(seed=task.seed)
        blocks = int(cell.pool)
        return workload, even_cluster(
            pace,
            replicas=cell.replicas,
            block_size=workload.block_size,
            pool_blocks=blocks,
            share_tokens=share_tokens,
        )
    layout = Layout(AGENTS_PER_REPLICA * cell.replicas, cell.requests, cell.scale, task.seed)
    workload = workload_of(Path(task.traces) / cell.trace, layout, Half.REPORT)
    return workload, Setting(cell.replicas, PoolSize.parse(cell.pool), pace, cell.parts).cluster(workload)


def ratios(rows: Sequence[dict[str, Any]], policy: str, metric: tuple[str, ...]) -> float:
    """Geometric mean over seeds of a policy's number, each against the best baseline's of that seed."""
    found = []
    for seed in {row["seed"] for row in rows}:
        of_seed = {row["policy"]: value_of(row, metric) for row in rows if row["seed"] == seed}
        if policy in of_seed and all(name in of_seed for name in BASELINES):
            best = max if metric[0] in {"hit_rate", "requests_per_s"} else min
            found.append(of_seed[policy] / best(of_seed[name] for name in BASELINES))
    return math.exp(sum(map(math.log, found)) / len(found)) if found else math.nan


def value_of(row: dict[str, Any], metric: tuple[str, ...]) -> float:
    """A number of a row, by its path."""
    value: Any = row
    for name in metric:
        value = value[name]
    return max(float(value), 1e-9)


def _write(file: Path, text: str) -> None:
    """In one rename: who reads meanwhile finds the file before or after."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def main() -> None:
    """Run what is asked for and missing, then write the tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, and clusters of 8 at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--traces", type=Path, default=Path("traces"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("out/cells.json"))
    parser.add_argument("--markdown", type=Path, help="a file with markers, whose tables and pictures are renewed")
    asked = parser.parse_args()
    rows: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.is_file() else {}
    seeds = range(1, 2 if asked.quick else asked.seeds + 1)
    cells = [cell for cell in CELLS if asked.only in cell.name and not (asked.quick and cell.replicas > 8)]
    tasks = [
        Task(cell, seed, policy, str(asked.traces)) for seed in seeds for cell in cells for policy in cell.policies
    ]
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    missing = [task for task in tasks if task.key not in rows]
    with get_context("spawn").Pool(asked.jobs) as pool:
        for task, row in zip(missing, pool.imap(run, missing), strict=True):
            rows[task.key] = row
            _write(asked.json, json.dumps(rows, indent=0))
            print(task.key, flush=True)
    if asked.markdown is not None:
        cells_text.renew(asked.markdown, cells_text.pages(CELLS, list(rows.values()), ratios))


if __name__ == "__main__":
    main()
