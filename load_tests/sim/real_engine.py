"""The same workload on a real engine: prompts with the workload's blocks, sent when their requests are ready."""

from __future__ import annotations

import asyncio
import struct
import time
from random import Random
from typing import TYPE_CHECKING

from load_tests.sim.outcome import Fate, Outcome
from workers.engine import Generation, Sampling

if TYPE_CHECKING:
    from load_tests.sim.work import SimRequest, Workload
    from workers.engine import Engine

VOCABULARY = (300, 4000)  # tokens that prompts are made of: the tiny model's, without its marks
REAL = "real"


class RealRun:
    """One run on one engine, on one event loop. Answers are as long as the workload says, whatever they are."""

    def __init__(self, workload: Workload, engine: Engine) -> None:
        self._workload = workload
        self._engine = engine
        self._fates = [Fate() for _ in workload.requests]
        self._ended = [asyncio.Event() for _ in workload.requests]
        size = workload.block_size
        self._generations = [generation_of(one, index, size) for index, one in enumerate(workload.requests)]
        self._started_at = 0.0

    async def run(self) -> Outcome:
        """Everything, until the last request has ended."""
        self._started_at = time.perf_counter()
        await asyncio.gather(*[self._request(index) for index in range(len(self._fates))])
        return Outcome(self._workload, self._fates, {})

    async def _request(self, index: int) -> None:
        request, fate = self._workload.requests[index], self._fates[index]
        ready_at = request.at
        for dep in request.after:
            await self._ended[dep.request].wait()
            ready_at = max(ready_at, self._fates[dep.request].ended_at + dep.gap_s)
        await asyncio.sleep(max(0.0, ready_at - self._now()))
        fate.ready_at = fate.started_at = self._now()
        fate.placed.append(REAL)
        async for delta in self._engine.generate(self._generations[index]):
            if fate.first_token_at < 0:
                fate.first_token_at, fate.cached_tokens = self._now(), delta.cached_tokens or 0
        fate.ended_at = self._now()
        self._ended[index].set()

    def _now(self) -> float:
        return time.perf_counter() - self._started_at


def generation_of(request: SimRequest, index: int, block_size: int) -> Generation:
    """A prompt with the tokens that its block ids stand for; the rest is the request's own."""
    full = request.prompt_tokens // block_size
    tokens = [token for block in request.hashes()[:full] for token in block_tokens(block, block_size)]
    tokens += block_tokens(-1 - index, block_size)[: request.prompt_tokens - len(tokens)]
    return Generation(
        request_id=f"{request.session}-{index}",
        tokens=struct.pack(f"<{len(tokens)}I", *tokens),
        sampling=Sampling(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True),
        session_id=request.session,
    )


def block_tokens(block: int, block_size: int) -> list[int]:
    """The tokens of one block id: always the same."""
    low, high = VOCABULARY
    random = Random(block)
    return [random.randrange(low, high) for _ in range(block_size)]
