"""All measures, round by round, Kvist and the peer in turn, everything measured on one CPU.

Times are medians of calls by the clock. Rates count CPU time of the process, so that other work on the machine, which
takes more from a side with one thread than from a side with many, does not decide.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from load_tests.bench import report
from load_tests.bench.choice import Choosing
from load_tests.bench.index import Hashing, Matching, Memory, Updating
from load_tests.bench.ingest import Ingesting
from load_tests.bench.peer import Peer
from load_tests.bench.timing import one_cpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from load_tests.bench.report import Samples
    from load_tests.bench.timing import Group
    from load_tests.bench.workload import Sizes

GROUPS: Final[tuple[type[Hashing | Matching | Updating | Memory | Choosing | Ingesting], ...]] = (
    Hashing,
    Matching,
    Updating,
    Memory,
    Choosing,
    Ingesting,
)


def bench_router(*, rounds: int, sizes: Sizes, peer: str | None = None, lab: Path | None = None) -> dict[str, Any]:
    """Measure everything `rounds` times and return the report's data.

    With `peer`, its environment is `lab/peer`; raises `PeerMissing` before anything was measured, `PeerFailed` later.
    Set-up of a group stays in memory until its last round, so the groups come one after the other.
    """
    ours: Samples = defaultdict(list)
    theirs: Samples = defaultdict(list)
    with one_cpu(), contextlib.ExitStack() as stack:
        other = stack.enter_context(Peer(peer, lab=lab)) if peer and lab else None
        peer_versions = other.ask("hello") if other else {}
        for make in GROUPS:
            _say(make.__name__.lower())
            group = make(sizes)
            for number in range(rounds):
                _round(group, other, ours, theirs, number=number)
    return report.as_data(ours, theirs, peer_versions)


def _round(group: Group, other: Peer | None, ours: Samples, theirs: Samples, *, number: int) -> None:
    """One round of each side; who goes first alternates."""
    sides: list[tuple[Samples, Callable[[], dict[str, float]]]] = [(ours, group.kvist)]
    if other is not None:
        sides.append((theirs, lambda: group.peer(other)))
    if number % 2:
        sides.reverse()
    for samples, measure in sides:
        for row, value in measure().items():
            samples[row].append(value)


def _say(what: str) -> None:
    print(f"kvist bench: {what}", file=sys.stderr, flush=True)
