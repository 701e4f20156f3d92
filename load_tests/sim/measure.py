"""The pace of a real engine, as a calibration: probes alone and together, and the straight lines through them.

- `step_s` and `decode_s`: time between tokens of one answer, and of DECODES answers at once;
- `prefill_token_s`, `attention_pair_s` and `front_s`: the plane through times to first token of the PROBES, less the
  fixed part of their steps.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from load_tests.sim.calibration import Calibration
from load_tests.sim.real_engine import generation_of
from load_tests.sim.work import Run, SimRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.engine import Engine

PROBES: Final = tuple((cached, new) for cached in (0, 1024, 2048, 4096) for new in (64, 256, 512, 1024, 2048))
ROUNDS: Final = 5
DECODES: Final = 8
DECODED_TOKENS: Final = 48
FIRST_PROBE_BLOCK: Final = 1 << 40  # ids that no workload has


class Probes:
    """Probes of one started engine, each with blocks that no other has."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._numbers = itertools.count()
        self._names = itertools.count()

    async def calibration(self, *, name: str, source: str, max_num_seqs: int) -> Calibration:
        """Measure it, after a first round that warms the engine up."""
        await self._first_token_s(*PROBES[-1])
        alone_s = await self._between_tokens_s(1)
        together_s = await self._between_tokens_s(DECODES)
        decode_s = max(0.0, (together_s - alone_s) / (DECODES - 1))
        step_s = max(1e-5, alone_s - decode_s)
        times = [median([await self._first_token_s(*probe) for _ in range(ROUNDS)]) for probe in PROBES]
        step_tokens = self._engine.info.step_tokens
        plane = plane_through(PROBES, times, step_s=step_s, step_tokens=step_tokens)
        return Calibration(
            name=name,
            source=source,
            step_s=round(step_s, 9),
            prefill_token_s=round(plane.prefill_token_s, 9),
            attention_pair_s=round(plane.attention_pair_s, 12),
            decode_s=round(decode_s, 9),
            front_s=round(plane.front_s, 9),
            step_tokens=step_tokens,
            max_num_seqs=max_num_seqs,
        )

    async def _first_token_s(self, cached: int, new: int) -> float:
        """Time to first token of a prompt of which so many tokens are cached and so many are not."""
        number = next(self._numbers)
        if cached:
            await self._token_times(number, cached + 1, 1)
        return (await self._token_times(number, cached + new, 1))[0]

    async def _between_tokens_s(self, answers: int) -> float:
        """Median time between the tokens of so many answers at once, once all of them are decoding."""
        all_times = await asyncio.gather(
            *[self._token_times(next(self._numbers), 64, DECODED_TOKENS) for _ in range(answers)]
        )
        return median(
            [
                after - before
                for times in all_times
                for before, after in itertools.pairwise(times[DECODED_TOKENS // 3 :])
            ]
        )

    async def _token_times(self, number: int, tokens: int, output_tokens: int) -> list[float]:
        """When each token of the answer came. Probes of one number begin alike, others do not."""
        size = self._engine.info.block_size
        runs = (Run(FIRST_PROBE_BLOCK + number * 4096, tokens // size),)
        request = SimRequest("probe", 0, tokens, output_tokens, runs)
        generation = generation_of(request, next(self._names), size)
        started_at = self._clock()
        return [self._clock() - started_at async for _ in self._engine.generate(generation)]


class Plane(NamedTuple):
    """What a prompt's first token costs beside its steps."""

    prefill_token_s: float
    attention_pair_s: float
    front_s: float


def plane_through(
    probes: Sequence[tuple[int, int]], times_s: Sequence[float], *, step_s: float, step_tokens: int
) -> Plane:
    """By least relative squares over (cached, new) tokens: short prompts count as much as long ones. What would come
    out below zero is taken as zero, and the others again without it."""
    values = np.array(times_s)
    cached, new = np.array(probes, dtype=float).T
    left = values - np.ceil(new / step_tokens) * step_s
    columns = np.stack([new, new * (cached + new / 2), np.ones(len(new))], axis=1) / values[:, None]
    kept = [0, 1, 2]
    while kept:
        found = np.linalg.lstsq(columns[:, kept], left / values, rcond=None)[0]
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    costs = dict(zip(kept, found.tolist(), strict=True)) if kept else {}
    return Plane(costs.get(0, 0.0), costs.get(1, 0.0), costs.get(2, 0.0))
