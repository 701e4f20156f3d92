"""The output side: many streams of short prompts, at an engine's pace or as fast as they go."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.bench.ingress_bodies import short_body
from load_tests.bench.ingress_client import Caller, Seen
from load_tests.bench.ingress_sides import BURST, PACED
from load_tests.bench.ingress_warm import measuring
from load_tests.bench.processes import cpu_s
from load_tests.stats import percentile
from workers.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.bench.ingress_sides import Side
    from workers.journal import Journey

SAMPLE_S: Final = 0.2
CpuSamples = list[tuple[float, float, float]]  # when, and CPU seconds until then of frontend and workers


class Paced(NamedTuple):
    """Streams while all of them ran. `tokens` and events count over that time only, and so does CPU."""

    streams: int
    window_s: float
    tokens: float
    frontend_s: float
    workers_s: float
    deltas: float
    lag_first_ms: list[float]
    lag_last_ms: list[float]


async def burst(side: Side, *, streams: int, max_tokens: int) -> tuple[float, float]:
    """Tokens and events with text per second, from engines that take no time."""
    seen, wall_s = [], 0.0
    with measuring(side) as cost:
        seen = await _all(side, streams=streams, max_tokens=max_tokens, model=BURST)
    wall_s = cost[0].wall_s
    return streams * max_tokens / wall_s, sum(one.deltas for one in seen) / wall_s


async def paced(side: Side, *, streams: int, max_tokens: int) -> Paced:
    """All streams begin together and end together, as a batching engine steps them."""
    samples: CpuSamples = []
    sampling = asyncio.create_task(_sample(side, samples))
    try:
        seen = await _all(side, streams=streams, max_tokens=max_tokens, model=PACED)
    finally:
        sampling.cancel()
    journal = side.journals.get(PACED)
    journeys = read_journal(journal) if journal else []
    return steady(seen, samples, max_tokens=max_tokens, journeys=journeys)


def steady(seen: Sequence[Seen], samples: CpuSamples, *, max_tokens: int, journeys: Sequence[Journey] = ()) -> Paced:
    """What happened between the last first token and the first last one; each stream has a steady pace of its own."""
    start, end = max(one.first_s for one in seen), min(one.ended_s for one in seen)
    if end <= start:
        raise ValueError("streams were too short: the first had ended before the last began")
    window_s = end - start
    spans = [one.ended_s - one.first_s for one in seen]
    frontend, workers = ([(when, sample[kind]) for when, *sample in samples] for kind in (0, 1))
    lags = lags_ms(seen, journeys)
    return Paced(
        streams=len(seen),
        window_s=window_s,
        tokens=sum((max_tokens - 1) / span for span in spans) * window_s,
        frontend_s=at(frontend, end) - at(frontend, start),
        workers_s=at(workers, end) - at(workers, start),
        deltas=sum((one.deltas - 1) / span for one, span in zip(seen, spans, strict=True)) * window_s,
        lag_first_ms=[first for first, _ in lags],
        lag_last_ms=[last for _, last in lags],
    )


def lags_ms(seen: Sequence[Seen], journeys: Sequence[Journey]) -> list[tuple[float, float]]:
    """For each stream how long after the engine had made them its first and its last token were at the client."""
    known = {journey.request_id.removeprefix("req_"): journey for journey in journeys}
    lags = []
    for one in seen:
        journey = known.get(one.request_id)
        if journey is not None and journey.first_token_s is not None and journey.last_token_s is not None:
            lags.append(((one.first_s - journey.first_token_s) * 1e3, (one.ended_s - journey.last_token_s) * 1e3))
    return lags


def growth_ms(run: Paced) -> float | None:
    """By how much the slowest twentieth of all streams fell behind from its first token to its last; None: unknown."""
    if not run.lag_last_ms:
        return None
    return percentile(run.lag_last_ms, 95) - percentile(run.lag_first_ms, 95)


def at(samples: Sequence[tuple[float, float]], when: float) -> float:
    """The value at `when`, straight lines between samples; outside of them the nearest."""
    for (left, before), (right, after) in itertools.pairwise(samples):
        if left <= when <= right:
            return before + (after - before) * (when - left) / (right - left)
    return samples[0][1] if when < samples[0][0] else samples[-1][1]


async def _all(side: Side, *, streams: int, max_tokens: int, model: str) -> list[Seen]:
    callers = [Caller(side.address, quick_ack=True) for _ in range(streams)]
    bodies = [short_body(seed, model=model, max_tokens=max_tokens) for seed in range(streams)]
    try:
        return list(await asyncio.gather(*(caller.ask(body) for caller, body in zip(callers, bodies, strict=True))))
    finally:
        for caller in callers:
            caller.close()


async def _sample(side: Side, samples: CpuSamples) -> None:
    frontend, workers, _ = side.processes()
    while True:
        samples.append((time.monotonic(), sum(cpu_s(frontend).values()), sum(cpu_s(workers).values())))
        await asyncio.sleep(SAMPLE_S)
