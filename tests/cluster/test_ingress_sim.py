"""The ingress over a simulated engine with a real paged cache."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from cluster.tenants import Tenants
from tests.cluster.support import EngineBackend, serving_over
from workers.sim_engine import SimEngine
from workers.simulator import SimParameters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.models.served import ServedModel

pytestmark = pytest.mark.anyio
HEADER = "x-anthropic-billing-header: cc_version=2.1.114.{n}; cch={n};"
BLOCK_SIZE = 16


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    parameters = SimParameters(block_size=BLOCK_SIZE, pool_blocks=512, max_model_len=4096)
    engine = SimEngine(model="tiny", parameters=parameters, speed=100.0)
    await engine.start()
    yield engine
    await engine.close()


async def test_every_turn_finds_the_blocks_of_the_last_whatever_its_header_says(
    engine: SimEngine, served: ServedModel
) -> None:
    backend = EngineBackend(engine)
    messages: list[Any] = []
    before = 0
    async with (
        serving_over(backend, {"tiny": served}, Tenants()) as (url, _),
        anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as sdk,
    ):
        for n in range(4):
            messages.append({"role": "user", "content": f"Question {n}: " + "which sensors failed last night? " * 8})
            answer = await sdk.messages.create(
                model="tiny", max_tokens=20, system=f"{HEADER.format(n=n)}\nBe brief.", messages=messages
            )
            messages.append({"role": "assistant", "content": answer.content})
            cached = answer.usage.cache_read_input_tokens or 0
            assert cached >= before // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE
            assert answer.usage.input_tokens + cached == len(backend.jobs[n].tokens) // 4
            before = len(backend.jobs[n].tokens) // 4
    assert before > 10 * BLOCK_SIZE


async def test_a_stop_sequence_frees_what_the_generation_held(engine: SimEngine, served: ServedModel) -> None:
    encoded = served._segmenter.plan("one two three").encode()
    engine.script([int.from_bytes(encoded[i : i + 4], "little") for i in range(0, len(encoded), 4)] + [300] * 2000)
    backend = EngineBackend(engine)
    async with (
        serving_over(backend, {"tiny": served}, Tenants()) as (url, _),
        anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as sdk,
    ):
        answer = await sdk.messages.create(
            model="tiny", max_tokens=3000, stop_sequences=[" three"], messages=[{"role": "user", "content": "Count."}]
        )
        assert answer.content[0].text == "one two"  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while engine.load().running:
                await asyncio.sleep(0.005)
