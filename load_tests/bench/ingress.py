"""`kvist bench ingress`: what the way from a client to a worker and back costs, beside a peer doing the same.

Both stacks are up together and only one is asked at a time. In every round the arms (a side, with or without quick
acknowledgement) come in random order, each with conversations that nobody has seen. Times are percentiles over all
requests of an arm, CPU and rates medians over rounds. CPU of a frontend is that of all processes between client and
workers; what Ray's own services take beside them is in the rows `rest_cpu_*`.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from load_tests.bench import report
from load_tests.bench.ingress_bodies import TOOLS, Head
from load_tests.bench.ingress_streams import burst, growth_ms, paced
from load_tests.bench.ingress_warm import Agents, new_talks, warm_turns
from load_tests.bench.processes import resident_mb
from load_tests.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from load_tests.bench.ingress_sides import Side
    from load_tests.bench.ingress_warm import Stretch
    from load_tests.bench.report import Samples

FEW_TOOLS: Final = 6  # so that a conversation of 13k tokens has a few turns
FIRST_ROWS: Final = (
    "ttft_52k_c1_p50_ms",
    "ttft_52k_c16_p50_ms",
    "ttft_208k_c1_p50_ms",
    "frontend_cpu_52k_c1_ms",
    "frontend_cpu_52k_c16_ms",
    "new_conversation_52k_c1_ttft_p50_ms",
    "new_conversation_52k_c16_ttft_p50_ms",
    "cpu_per_token_us",
    "cpu_per_token_flush100_us",
    "chunks_per_s",
)
PERCENTILES: Final = (50, 99)
PER_TOKEN_STREAMS: Final = 128  # of which `cpu_per_token_us` is
GROUPS: Final = ("warm", "long", "new", "live", "streams", "burst")


class Plan(NamedTuple):
    """How much of everything. `turns` bounds the measured turns of a conversation in a round."""

    rounds: int = 5
    turns: int = 12
    live: int = 100
    streams: tuple[int, ...] = (32, 128, 200)
    stream_tokens: int = 200
    groups: tuple[str, ...] = GROUPS

    @classmethod
    def of(cls, *, rounds: int, turns: int, groups: Sequence[str]) -> Plan:
        """As asked for; one round is a smoke test and has fewer conversations and streams too."""
        chosen = tuple(groups) or GROUPS
        if rounds > 1:
            return cls(rounds=rounds, turns=turns, groups=chosen)
        return cls(rounds=1, turns=turns, live=8, streams=(16,), stream_tokens=50, groups=chosen)

    @property
    def has_slow_flush(self) -> bool:
        """Whether what a token costs at a slow flush is measured too; that takes a cluster of its own."""
        return "streams" in self.groups and self.rounds > 1

    def only_tokens(self) -> Plan:
        """What `cpu_per_token_us` needs."""
        fewest = PER_TOKEN_STREAMS if PER_TOKEN_STREAMS in self.streams else self.streams[0]
        return self._replace(groups=("streams",), streams=(fewest,))


class Warm(NamedTuple):
    """A scenario of growing conversations. `name` is part of its rows' names; `turns` and `rounds` are at most.
    It is left out of runs with fewer than `least_rounds`."""

    name: str
    group: str
    tokens: int
    at_once: int
    turns: int
    rounds: int = 100
    least_rounds: int = 1
    quick_ack: tuple[bool, ...] = (True,)
    tools: int = TOOLS


WARM: Final = (
    Warm("52k_c1", "warm", 52_000, at_once=1, turns=12, quick_ack=(True, False)),
    Warm("52k_c16", "warm", 52_000, at_once=16, turns=6, quick_ack=(True, False)),
    Warm("13k_c1", "long", 13_000, at_once=1, turns=6, tools=FEW_TOOLS),
    Warm("208k_c1", "long", 208_000, at_once=1, turns=8),
    Warm("208k_c16", "long", 208_000, at_once=16, turns=3, rounds=2, least_rounds=2),
)


class Tally:
    """Everything measured of one side: times of single requests, and values of rounds."""

    def __init__(self) -> None:
        self.times: Samples = defaultdict(list)
        self.values: Samples = defaultdict(list)

    def stretch(self, name: str, measured: Stretch) -> None:
        """Rows of one arm in one round."""
        cost, count = measured.cost, len(measured.seen)
        self.times[f"ttft_{name}"] += [one.ttft_ms for one in measured.seen]
        self.values[f"frontend_cpu_{name}_ms"].append(cost.frontend_s / count * 1e3)
        self.values[f"worker_cpu_{name}_ms"].append(cost.workers_s / count * 1e3)
        if cost.rest_s:
            self.values[f"rest_cpu_{name}_ms"].append(cost.rest_s / count * 1e3)
        self.values[f"{name}_requests_per_s"].append(count / cost.wall_s)

    def value(self, row: str, value: float | None) -> None:
        """One round's value of a row; None leaves it out."""
        if value is not None:
            self.values[row].append(value)

    def rows(self) -> Samples:
        """As `report.as_data` takes them."""
        found: Samples = {}
        for name, times in self.times.items():
            if times:
                found |= {f"{name}_p{percent}_ms": [percentile(times, percent)] for percent in PERCENTILES}
        return found | {name: [statistics.median(values)] for name, values in self.values.items()}


class Ingress:
    """One run over one or two sides."""

    def __init__(self, sides: Sequence[Side], plan: Plan) -> None:
        self._sides = sides
        self._plan = plan
        self._rng = random.Random(0)
        self._agents: dict[int, Agents] = {}
        self.tallies: Mapping[str, Tally] = {side.name: Tally() for side in sides}

    def run(self) -> None:
        """All groups of the plan, scenario by scenario, round by round."""
        for scenario in WARM:
            if scenario.group in self._plan.groups and self._plan.rounds >= scenario.least_rounds:
                self._rounds(scenario.name, partial(self._warm, scenario), most=scenario.rounds)
        groups: dict[str, Callable[[Side], None]] = {
            "new": self._new,
            "live": self._live,
            "streams": self._streams,
            "burst": self._burst,
        }
        for name, measure in groups.items():
            if name in self._plan.groups:
                self._rounds(name, measure, most=1 if name == "live" else self._plan.rounds)
        for side in self._sides:
            self.tallies[side.name].value("rss_frontend_mb", resident_mb(side.processes().frontend))

    def _rounds(self, name: str, measure: Callable[[Side], None], *, most: int) -> None:
        for number in range(min(most, self._plan.rounds)):
            _say(f"{name}, round {number + 1}, load {os.getloadavg()[0]:.1f}")
            for side in self._rng.sample(self._sides, len(self._sides)):
                measure(side)

    def _of(self, tools: int) -> Agents:
        if tools not in self._agents:
            self._agents[tools] = Agents.measured(self._sides[0], Head.make(tools=tools))
        return self._agents[tools]

    def _warm(self, scenario: Warm, side: Side) -> None:
        turns = min(scenario.turns, self._plan.turns)
        for quick_ack in self._rng.sample(scenario.quick_ack, len(scenario.quick_ack)):
            name = scenario.name if quick_ack else f"{scenario.name}_no_quickack"
            bodies = self._of(scenario.tools).bodies(tokens=scenario.tokens, talks=scenario.at_once, turns=turns)
            measured = asyncio.run(warm_turns(side, bodies, at_once=scenario.at_once, quick_ack=quick_ack))
            self.tallies[side.name].stretch(name, measured)

    def _new(self, side: Side) -> None:
        for at_once, talks in ((1, 5), (16, 16)):
            bodies = [one[0] for one in self._of(TOOLS).bodies(tokens=52_000, talks=talks, turns=0)]
            measured = asyncio.run(new_talks(side, bodies, at_once=at_once))
            name = f"new_conversation_52k_c{at_once}"
            tally = self.tallies[side.name]
            tally.times[f"{name}_ttft"] += [one.ttft_ms for one in measured.seen]
            tally.value(f"{name}_frontend_cpu_ms", measured.cost.frontend_s / talks * 1e3)

    def _live(self, side: Side) -> None:
        talks, tally = self._plan.live, self.tallies[side.name]
        bodies = self._of(TOOLS).bodies(tokens=46_000, talks=talks, turns=2)
        tally.stretch(f"live{talks}_46k_c4", asyncio.run(warm_turns(side, bodies, at_once=4, quick_ack=True)))
        tally.value(f"rss_live{talks}_mb", resident_mb(side.processes().frontend))

    def _streams(self, side: Side) -> None:
        tally = self.tallies[side.name]
        for streams in self._plan.streams:
            run = asyncio.run(paced(side, streams=streams, max_tokens=self._plan.stream_tokens))
            per_token = run.frontend_s / run.tokens * 1e6
            tally.value(f"streams{streams}_cpu_us_per_token", per_token)
            if streams == PER_TOKEN_STREAMS or PER_TOKEN_STREAMS not in self._plan.streams:
                tally.value("cpu_per_token_us", per_token)
            tally.value(f"streams{streams}_worker_cpu_us_per_token", run.workers_s / run.tokens * 1e6)
            tally.value(f"streams{streams}_tokens_per_s", run.tokens / run.window_s)
            tally.value(f"streams{streams}_events_per_s", run.deltas / run.window_s)
            tally.value(f"streams{streams}_lag_growth_p95_ms", growth_ms(run))
            tally.times |= {f"streams{streams}_lag": tally.times[f"streams{streams}_lag"] + run.lag_last_ms}

    def _burst(self, side: Side) -> None:
        tokens, events = asyncio.run(burst(side, streams=64, max_tokens=256))
        self.tallies[side.name].value("chunks_per_s", tokens)
        self.tallies[side.name].value("burst_events_per_s", events)


class Measured(NamedTuple):
    """Rows of both sides."""

    ours: Samples
    theirs: Samples

    def beside(self, flushed: Measured) -> Measured:
        """With what a token costs at a slower flush, out of a run of its own."""
        row, name = "cpu_per_token_us", "cpu_per_token_flush100_us"
        ours, theirs = ({name: rows[row]} if row in rows else {} for rows in flushed)
        return Measured(self.ours | ours, self.theirs | theirs)

    def data(self, peer_versions: dict[str, str]) -> dict[str, Any]:
        """The report's, the rows that are asked for first."""
        names = [*(name for name in FIRST_ROWS if name in self.ours), *sorted(self.ours.keys() - set(FIRST_ROWS))]
        return report.as_data({name: self.ours[name] for name in names}, self.theirs, peer_versions)


def bench_ingress(sides: Sequence[Side], plan: Plan) -> Measured:
    """Measure the first side, and the second beside it."""
    run = Ingress(sides, plan)
    run.run()
    ours, *theirs = (run.tallies[side.name].rows() for side in sides)
    return Measured(ours, theirs[0] if theirs else {})


def _say(what: str) -> None:
    print(f"kvist bench: {what}", file=sys.stderr, flush=True)
