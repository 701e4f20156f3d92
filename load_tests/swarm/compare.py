"""Several endpoints under the same workload in one run: phases in turn, so that none has the quiet hour to itself."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import xxhash

from load_tests.stats import machine, versions
from load_tests.swarm.run import Result, Target, run_swarm
from load_tests.swarm.settings import Settings
from load_tests.swarm.summarise import About, summarise
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from load_tests.client import Api
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.settings import Preamble
    from load_tests.swarm.summary import Summary

MAX_PHASES: Final = 1_000
"""Sides × preambles × rounds of one run."""


class Side(NamedTuple):
    """An endpoint to compare. An empty `model` is the first that it lists; `replicas` as in `Settings`."""

    label: str
    url: str
    api: Api
    model: str = ""
    key: str = ""
    replicas: int | None = None


class Phase(NamedTuple):
    """One side's turn in one round."""

    side: Side
    preamble: Preamble
    round: int

    @property
    def label(self) -> str:
        """Names its column."""
        return f"{self.side.label}-{self.preamble}"

    def settings(self, base: Settings) -> Settings:
        """The same sessions for every side and preamble of a round, in texts of their own: no phase finds what another
        left in a cache. Salts have one length, so texts do too."""
        salt = xxhash.xxh3_64_hexdigest(f"{base.salt}/{self.label}/{self.round}".encode())
        return msgspec.structs.replace(
            base,
            api=self.side.api,
            model=self.side.model,
            preamble=self.preamble,
            replicas=self.side.replicas or base.replicas,
            seed=base.seed + self.round,
            salt=salt,
        )


def phases_of(sides: Sequence[Side], preambles: Sequence[Preamble], *, rounds: int, seed: int) -> list[Phase]:
    """All phases: round by round, each round in an order of its own. Raises `InvalidRequest` beyond MAX_PHASES."""
    if len(sides) * len(preambles) * rounds > MAX_PHASES:
        raise InvalidRequest(f"more than {MAX_PHASES} phases: fewer sides, preambles or rounds")
    rng = random.Random(f"phases/{seed}")
    phases: list[Phase] = []
    for number in range(rounds):
        one = [Phase(side, preamble, number) for side, preamble in itertools.product(sides, preambles)]
        phases += rng.sample(one, len(one))
    return phases


async def compare(phases: Sequence[Phase], settings: Settings, *, console: Console | None = None) -> dict[str, Result]:
    """Play all phases; what each column came to, in the order of `columns_of`."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    for number, phase in enumerate(phases, start=1):
        if console is not None:
            console.print(f"kvist swarm: phase {number} of {len(phases)}: {phase.label}", highlight=False)
        target = Target(phase.side.url, phase.side.key, phase.label)
        results[phase.label].append(await run_swarm(phase.settings(settings), target, console=console))
    return {label: merged(results[label]) for label in columns_of(phases)}


def columns_of(phases: Sequence[Phase]) -> list[str]:
    """Labels: the sides of one preamble beside each other."""
    return list(dict.fromkeys(phase.label for phase in sorted(phases, key=lambda phase: phase.preamble)))


def merged(results: Sequence[Result]) -> Result:
    """Several runs of one column as if they had followed each other: sums and percentiles over all requests."""
    first, offset_s = results[0].summary, 0.0
    entries: list[Entry] = []
    for result in results:
        entries += [_shifted(entry, offset_s) for entry in result.entries]
        offset_s = float(int(max((entry.last_token_s for entry in entries), default=offset_s)) + 1)
    about = About(
        settings=msgspec.convert(first.settings, Settings),
        url=first.url,
        started_at=first.started_at,
        ended_s=offset_s,
        versions=versions(),
        machine=machine(),
        label=first.label,
        measured_s=sum(result.summary.measured_s for result in results),
    )
    return Result(summarise(entries, about), entries)


def _shifted(entry: Entry, offset_s: float) -> Entry:
    first_s = None if entry.first_token_s is None else entry.first_token_s + offset_s
    return msgspec.structs.replace(
        entry,
        due_s=entry.due_s + offset_s,
        sent_s=entry.sent_s + offset_s,
        first_token_s=first_s,
        last_token_s=entry.last_token_s + offset_s,
    )


def as_data(results: Mapping[str, Result]) -> dict[str, object]:
    """The content of side_by_side.json."""
    columns: list[Summary] = [result.summary for result in results.values()]
    return {"columns": [msgspec.to_builtins(column) for column in columns]}
