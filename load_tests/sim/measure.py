"""The pace of a real engine, as a calibration: probes alone and together, and the straight lines through them.

- `step_s` and `decode_s`: time between tokens of one answer, and of DECODES answers at once;
- `prefill_token_s` and `front_s`: the line through times to first token of cold prompts of PROBE_TOKENS, less the
  fixed part of their steps.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from load_tests.sim.calibration import Calibration
from load_tests.sim.real_engine import generation_of
from load_tests.sim.work import Run, SimRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.engine import Engine

PROBE_TOKENS: Final = (64, 256, 512, 1024, 1536, 2048, 3072, 4096)
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

    async def calibration(self, *, name: str, source: str, max_num_seqs: int) -> Calibration:
        """Measure it, after a first round that warms the engine up."""
        await self._first_token_s(PROBE_TOKENS[-1])
        alone_s = await self._between_tokens_s(1)
        together_s = await self._between_tokens_s(DECODES)
        decode_s = max(0.0, (together_s - alone_s) / (DECODES - 1))
        step_s = max(1e-5, alone_s - decode_s)
        times = [median([await self._first_token_s(tokens) for _ in range(ROUNDS)]) for tokens in PROBE_TOKENS]
        step_tokens = self._engine.info.step_tokens
        prefill_token_s, front_s = line_through(PROBE_TOKENS, times, step_s=step_s, step_tokens=step_tokens)
        return Calibration(
            name=name,
            source=source,
            step_s=round(step_s, 9),
            prefill_token_s=round(prefill_token_s, 9),
            decode_s=round(decode_s, 9),
            front_s=round(front_s, 9),
            step_tokens=step_tokens,
            max_num_seqs=max_num_seqs,
        )

    async def _first_token_s(self, tokens: int) -> float:
        return (await self._token_times(tokens, 1))[0]

    async def _between_tokens_s(self, answers: int) -> float:
        """Median time between the tokens of so many answers at once, once all of them are decoding."""
        all_times = await asyncio.gather(*[self._token_times(64, DECODED_TOKENS) for _ in range(answers)])
        return median(
            [
                after - before
                for times in all_times
                for before, after in itertools.pairwise(times[DECODED_TOKENS // 3 :])
            ]
        )

    async def _token_times(self, tokens: int, output_tokens: int) -> list[float]:
        number, size = next(self._numbers), self._engine.info.block_size
        runs = (Run(FIRST_PROBE_BLOCK + number * 4096, tokens // size),)
        request = SimRequest("probe", 0, tokens, output_tokens, runs)
        generation = generation_of(request, number, size)
        started_at = self._clock()
        return [self._clock() - started_at async for _ in self._engine.generate(generation)]


def line_through(
    tokens: Sequence[int], times_s: Sequence[float], *, step_s: float, step_tokens: int
) -> tuple[float, float]:
    """Seconds per token and at no tokens, by least relative squares: short prompts count as much as long ones."""
    values = np.array(times_s)
    steps = np.ceil(np.array(tokens) / step_tokens)
    design = np.stack([np.array(tokens, dtype=float), np.ones(len(tokens))], axis=1) / values[:, None]
    slope, start = np.linalg.lstsq(design, (values - steps * step_s) / values, rcond=None)[0]
    return max(0.0, float(slope)), max(0.0, float(start))
