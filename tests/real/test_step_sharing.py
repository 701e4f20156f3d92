"""A warm turn behind somebody's cold prompt, on a real engine: which of the two is answered first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.engines import BLOCK_SIZE, MODEL, Bench
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

STEP_TOKENS = 2_048
COLD_TOKENS = 16 * STEP_TOKENS  # whole steps: nobody fits beside the last of them
KNOWN_TOKENS, NEW_TOKENS = 4_000, 500
STARTED_BLOCKS = 2 * STEP_TOKENS // BLOCK_SIZE
ENGINE_ARGS: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "num_gpu_blocks_override": 1_500,
    "max_model_len": COLD_TOKENS + BLOCK_SIZE,
    "max_num_batched_tokens": STEP_TOKENS,
    "max_num_seqs": 8,
}


async def answered_in_order(bench: Bench) -> list[str]:
    """Who got a first token, in order: a cold prompt, and a turn of a known conversation that came while the engine was
    at its first steps."""
    known, order = bench.prompt(KNOWN_TOKENS), []

    async def ask(name: str, tokens: list[int]) -> int | None:
        (delta,) = await bench.deltas(bench.generation(tokens))
        order.append(name)
        return delta.cached_tokens

    await ask("known", known)
    before = len(bench.view.tiers["gpu"])
    cold = asyncio.create_task(ask("cold", bench.prompt(COLD_TOKENS)))
    await bench.until(lambda: len(bench.view.tiers["gpu"]) >= before + STARTED_BLOCKS)
    assert await ask("warm", known + bench.prompt(NEW_TOKENS)) == KNOWN_TOKENS // BLOCK_SIZE * BLOCK_SIZE
    assert await cold == 0
    return order


@pytest.mark.parametrize(
    ("given", "share_tokens", "order"),
    [
        pytest.param({}, STEP_TOKENS // 2, ["known", "warm", "cold"], id="shared, by default"),
        pytest.param({"long_prefill_token_threshold": 0}, 0, ["known", "cold", "warm"], id="first come first served"),
    ],
)
def test_a_warm_turn_overtakes_a_cold_prompt_where_steps_are_shared(
    tiny_model: Path, given: dict[str, int], share_tokens: int, order: list[str]
) -> None:
    """500 new tokens behind 32k: the engine says which rule it follows, and follows it."""
    bench = Bench(VllmEngine(model=MODEL, path=tiny_model, engine_args=ENGINE_ARGS | given))
    bench.run(bench.start())
    try:
        info = bench.engine.info
        assert (info.step_tokens, info.share_tokens) == (STEP_TOKENS, share_tokens)
        assert bench.run(answered_in_order(bench)) == order
    finally:
        bench.finish()
