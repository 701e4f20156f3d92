"""Under every mix of faults the index is true while it is believed, and true again soon after the last fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.clock import Clock
from tests.simulation.cluster import Failure, Plan, simulate
from tests.simulation.controls import CONTROLS
from tests.simulation.faults import INTERVALS_S
from tests.simulation.world import MESSAGE_FAULTS, Violation

SEEDS = int(os.environ.get("KVIST_SIM_SEEDS", "40"))
CONTROL_SEEDS = range(5)
INCIDENTS_PER_MINUTE = 3


@pytest.mark.timeout(0)  # as long as so many seeds take
def test_no_seed_breaks_an_invariant(capfd: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, without the cost of measuring coverage. KVIST_SIM_SEEDS says how many."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    with capfd.disabled():
        print(f"\n{done.stdout.strip()}")


def test_every_kind_of_fault_is_injected_and_often() -> None:
    """Thirty in ten minutes are the least; faults of single messages come on top."""
    results = [simulate(Plan(seed, minutes=3.5)) for seed in range(3)]
    assert set().union(*(result.faults for result in results)) == INTERVALS_S.keys() | MESSAGE_FAULTS
    assert min(result.incidents for result in results) >= INCIDENTS_PER_MINUTE * 3.5
    assert min(result.events["predictions_checked"] for result in results) > 0
    assert min(result.events["pools_with_duplicates_seen"] for result in results) > 0


def test_equal_seeds_give_equal_runs_and_others_differ() -> None:
    """Else no failure could be repeated."""
    first, again, other = (simulate(Plan(seed, minutes=1.0)) for seed in (3, 3, 4))
    assert first == again
    assert first.digest != other.digest


def test_jumps_of_wall_clocks_change_no_decision() -> None:
    """Time stamps are gauges."""
    jumping, steady = (simulate(Plan(5, minutes=2.0, clock_jumps=jumps)) for jumps in (1.0, 0.0))
    assert jumping.faults["clock_jump"] > 0
    assert jumping.digest == steady.digest


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_guard_is_caught(name: str) -> None:
    """By an invariant that names what it guards, on one of a few seeds."""
    with pytest.raises(Failure, match=CONTROLS[name].caught_by) as caught:  # noqa: PT012 - whichever seed it is
        for seed in CONTROL_SEEDS:
            simulate(Plan(seed, minutes=2.0, parts=CONTROLS[name].parts))
    assert isinstance(caught.value.__cause__, Violation)


def test_a_failure_says_how_to_repeat_it() -> None:
    """The command alone is enough: it fails again, with the same words."""
    with pytest.raises(Failure, match=r"seed 2, .*\nrepeat it with: python -m tests.simulation 2 --minutes 1.5"):
        simulate(Plan(2, minutes=1.5, parts=CONTROLS["no heartbeats"].parts))


def test_the_clock_calls_in_order_of_time_then_of_asking() -> None:
    """And takes what is late at once."""
    clock = Clock()
    called: list[str] = []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "later")):
        clock.at(when, called.append, name)
    clock.at(1.5, lambda: clock.at(0.5, called.append, "late"))
    clock.run_until(2.0)
    assert called == ["a", "b", "late", "c"]
    assert clock.now == 2.0
