"""Run seeds of the simulation: given ones, or the first so many. Ends with 1 at the first that fails."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.cluster import Failure, Plan, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.cluster import Result


class Totals:
    """Sums over seeds."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.incidents = 0
        self.settled_s = 0.0
        self._began = time.monotonic(), time.process_time()

    def add(self, result: Result) -> None:
        self.faults += result.faults
        self.events += result.events
        self.incidents += result.incidents
        self.settled_s = max(self.settled_s, result.settled_s)

    def report(self, seeds: int, minutes: float) -> str:
        wall_s, cpu_s = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        virtual = seeds * minutes
        return (
            f"{seeds} seeds, {virtual:g} virtual minutes in {wall_s:.0f} s"
            f" ({virtual / wall_s:.1f} per second; {cpu_s:.0f} s of CPU time, {virtual / cpu_s:.1f} per second)\n"
            f"{self.incidents} incidents, with faults of single messages {self.faults.total()}: {_list(self.faults)}\n"
            f"all was true again {self.settled_s:.2f} s after the last fault or sooner; {_list(self.events)}"
        )


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def run(seeds: Sequence[int], *, minutes: float) -> int:
    """All seeds, and what they did; 1 at the first that fails."""
    totals = Totals()
    gc.disable()  # it would walk through live pools again and again; one cluster's garbage goes before the next
    for seed in seeds:
        try:
            result = simulate(Plan(seed, minutes=minutes))
        except Failure as failure:
            traceback.print_exception(failure.__cause__)
            print(failure)
            return 1
        totals.add(result)
        print(
            f"seed {seed}: {result.replicas} replicas, {result.routers} routers, {result.incidents} incidents,"
            f" true again in {result.settled_s:.2f} s, digest {result.digest:016x}",
            file=sys.stderr,
            flush=True,
        )
        gc.collect()
    print(totals.report(len(seeds), minutes))
    return 0


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    options.add_argument("seed", nargs="*", type=int)
    options.add_argument("--seeds", type=int, default=1, help="how many, without given ones")
    options.add_argument("--first", type=int, default=0, help="the first of them")
    options.add_argument("--minutes", type=float, default=10.0, help="virtual minutes per seed")
    chosen = options.parse_args()
    return run(chosen.seed or range(chosen.first, chosen.first + chosen.seeds), minutes=chosen.minutes)


if __name__ == "__main__":
    sys.exit(main())
