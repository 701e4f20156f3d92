"""`python -m load_tests.peers.compare --peer NAME`: Kvist and a peer under the same swarm, in one run and one table.

Starts both on this machine and ends them. Phases of both come in turn, with the same sessions and texts of their own.
Each API is asked with a header line that changes with every request, and without any.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop
from rich.console import Console

from load_tests.peers.children import scratch
from load_tests.peers.environment import lab_folder, versions_of
from load_tests.peers.pairs import PAIRS
from load_tests.stats import machine, versions
from load_tests.swarm.compare import Side, as_data, compare, phases_of
from load_tests.swarm.settings import make_settings
from load_tests.swarm.tables import side_by_side
from router.errors import KvistError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load_tests.peers.pairs import Pair
    from load_tests.peers.running import Running
    from load_tests.swarm.run import Result
    from load_tests.swarm.settings import Preamble

PREAMBLES: Final[tuple[Preamble, ...]] = ("changing", "none")
TABLE_WIDTH: Final = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 2 when the peer is missing or fails."""
    options = parser().parse_args(arguments)
    try:
        data, text = compare_with(options.peer, lab=options.lab.expanduser(), rounds=options.rounds)
    except KvistError as fault:
        Console(stderr=True).print(f"compare: {fault}", highlight=False, soft_wrap=True)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 0


def compare_with(peer: str, *, lab: Path, rounds: int) -> tuple[dict[str, Any], str]:
    """Measure; the data of the JSON file and what a person reads. Raises `PeerMissing` before anything starts."""
    pair = PAIRS[peer]
    found = versions() | {f"{peer}: {name}": version for name, version in versions_of(peer, lab).items()}
    about = {"peer": peer, "engines": pair.engines, "machine": machine(), "versions": found}
    settings = make_settings(salt=f"{time.time_ns():x}", **pair.swarm)
    with scratch("compare") as folder, pair.start(folder, lab) as sides:
        phases = phases_of(sides_of(pair, *sides), PREAMBLES, rounds=rounds, seed=settings.seed)
        results = uvloop.run(compare(phases, settings, console=Console(stderr=True)))
    return {**about, **as_data(results)}, as_text(results, about)


def sides_of(pair: Pair, *running: Running) -> list[Side]:
    """Each cluster with each API that both have."""
    return [
        Side(f"{one.name}-{api}", one.url, api, one.model, replicas=pair.replicas)
        for api in pair.apis
        for one in running
    ]


def as_text(results: Mapping[str, Result], about: Mapping[str, Any]) -> str:
    """The table, and what it was measured with."""
    console = Console(width=TABLE_WIDTH)
    with console.capture() as capture:
        console.print(side_by_side([result.summary for result in results.values()]))
    where = about["machine"]
    lines = [
        capture.get().rstrip(),
        about["engines"],
        f"{where['cpu']}, {where['cores']} cores, {where['system']}, load average at the start {where['load_1min']}",
        ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    ]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog="compare", description="Kvist beside a peer, under the same swarm.")
    made.add_argument("--peer", choices=tuple(PAIRS), required=True)
    made.add_argument("--json", type=Path, required=True, help="file for the numbers")
    made.add_argument("--rounds", type=int, default=1, help="phases of each column")
    made.add_argument("--lab", type=Path, default=lab_folder(), help="folder of the peers' environments")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
