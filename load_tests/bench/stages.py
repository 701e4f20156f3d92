"""`kvist bench stages`: where the time of a warm turn goes, each step beside its budget.

hash, match, choose    function calls, as in `kvist bench router`; match in its slowest case
prompt_warm            what the ingress itself says of requests (`server-timing`): from the parsed body to block hashes
http_in_to_worker      from the client's first byte to the engine's hand, by one clock: the client notes when it sends,
                       the simulated engine when it is given the tokens
in_engine              from there to its first token; it takes no time for tokens, but finds and counts blocks
engine_to_client       from the first token to the first text
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from load_tests.bench import report
from load_tests.bench.choice import Choosing
from load_tests.bench.index import HASH_ROW, Hashing, Matching
from load_tests.bench.ingress_bodies import Head
from load_tests.bench.ingress_sides import BURST
from load_tests.bench.ingress_streams import lags_ms
from load_tests.bench.ingress_warm import Agents, warm_turns
from load_tests.bench.timing import one_cpu
from load_tests.bench.workload import Sizes
from load_tests.stats import percentile
from workers.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load_tests.bench.ingress_client import Seen
    from load_tests.bench.ingress_sides import Side
    from load_tests.bench.report import Samples
    from workers.journal import Journey

BUDGETS_MS: Final = {
    "prompt_warm_ms": 1.5,
    "hash_cold_ms": 0.7,
    "match_ms": 0.05,
    "choose_ms": 0.2,
    "http_in_to_worker_p50_ms": 3.0,
    "http_in_to_worker_p99_ms": 10.0,
    "http_in_to_worker_208k_p50_ms": 6.0,
}
OF_PROMPT: Final = ("canonical", "template", "tokenize", "hash")  # of the stages that an ingress tells of
JOURNAL_S: Final = 0.2  # until the last line is written


def bench_stages(side: Side, *, rounds: int, turns: int) -> dict[str, Any]:
    """Measure everything; rows with `budget` and whether each is `met`."""
    samples = _calls(rounds)
    warm, long = (_turns(side, tokens=tokens, rounds=rounds, turns=turns) for tokens in (52_000, 208_000))
    journeys = read_journal(side.journals[BURST])
    ways, long_ways = to_worker_ms(warm, journeys), to_worker_ms(long, journeys)
    samples["prompt_warm_ms"] = [prompt_ms(one.stages_ms) for one in warm]
    samples["http_in_to_worker_p50_ms"] = [percentile(ways, 50)]
    samples["http_in_to_worker_p99_ms"] = [percentile(ways, 99)]
    samples["http_in_to_worker_208k_p50_ms"] = [percentile(long_ways, 50)]
    samples["in_engine_ms"] = in_engine_ms(warm, journeys)
    samples["in_engine_208k_ms"] = in_engine_ms(long, journeys)
    samples["engine_to_client_ms"] = [first for first, _ in lags_ms(warm, journeys)]
    samples["engine_to_client_208k_ms"] = [first for first, _ in lags_ms(long, journeys)]
    samples["prompt_warm_208k_ms"] = [prompt_ms(one.stages_ms) for one in long]
    for stage in warm[0].stages_ms:
        samples[f"stage_{stage}_ms"] = [one.stages_ms[stage] for one in warm]
        samples[f"stage_{stage}_208k_ms"] = [one.stages_ms[stage] for one in long]
    return with_budgets(report.as_data(samples, {}, {}))


def with_budgets(data: dict[str, Any]) -> dict[str, Any]:
    """Rows that have a budget come first and say it."""
    rows = [row | {"budget": BUDGETS_MS.get(row["name"])} for row in data["rows"]]
    return data | {
        "rows": sorted(
            rows, key=lambda row: (row["budget"] is None, list(BUDGETS_MS).index(row["name"]) if row["budget"] else 0)
        )
    }


def prompt_ms(stages: Mapping[str, float]) -> float:
    """Of one request: what turned its conversation into tokens and their hashes."""
    return sum(spent for stage, spent in stages.items() if stage in OF_PROMPT)


def in_engine_ms(seen: Sequence[Seen], journeys: Sequence[Journey]) -> list[float]:
    """For each request: from its arrival at the engine to its first token there."""
    asked = {one.request_id for one in seen}
    return [
        (one.first_token_s - one.arrived_s) * 1e3
        for one in journeys
        if one.first_token_s is not None and one.request_id.removeprefix("req_") in asked
    ]


def to_worker_ms(seen: Sequence[Seen], journeys: Sequence[Journey]) -> list[float]:
    """For each request that an engine has written down: from its first byte to its arrival there."""
    sent = {one.request_id: one.sent_s for one in seen}
    arrived = ((one.request_id.removeprefix("req_"), one.arrived_s) for one in journeys)
    return [(when - sent[request]) * 1e3 for request, when in arrived if request in sent]


def _calls(rounds: int) -> Samples:
    with one_cpu():
        hashing, matching, choosing = Hashing(Sizes()), Matching(Sizes()), Choosing(Sizes())
        found = [hashing.kvist() | matching.kvist() | choosing.kvist() for _ in range(rounds)]
    return {
        "hash_cold_ms": [values[HASH_ROW] / 1e3 for values in found],
        "match_ms": [max(_of_matches(values)) / 1e3 for values in found],
        "choose_ms": [values["choose_64_replicas_us"] / 1e3 for values in found],
    }


def _of_matches(values: Mapping[str, float]) -> list[float]:
    """3,250 blocks, however the replicas hold them."""
    return [value for row, value in values.items() if row.startswith("match_3250_blocks_64_replicas")]


def _turns(side: Side, *, tokens: int, rounds: int, turns: int) -> list[Seen]:
    agents = Agents.measured(side, Head.make())
    seen: list[Seen] = []
    for _ in range(rounds):
        bodies = agents.bodies(tokens=tokens, talks=1, turns=turns)
        seen += asyncio.run(warm_turns(side, bodies, at_once=1, quick_ack=True)).seen
    time.sleep(JOURNAL_S)
    return seen
