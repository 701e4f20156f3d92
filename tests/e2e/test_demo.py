"""The demo's two experiments through the whole cluster, on simulated engines: what does not depend on time holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from load_tests import demo
from load_tests.demo_arms import MIN_PROMPT_TOKENS, REQUESTS_PER_ARM
from load_tests.demo_routing import pool_blocks
from tests.e2e.cluster_process import serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ray


def simulated(models: list[dict[str, Any]], *, block_size: int, pool_blocks: int) -> list[dict[str, Any]]:
    """The same models on engines that take no time."""
    settings = {"block_size": block_size, "pool_blocks": pool_blocks, "speed": 1000.0}
    return [model | {"engine": "sim", "engine_args": settings} for model in models]


def test_stripping_keeps_every_cached_token_and_kvist_finds_what_round_robin_loses(tmp_path: Path) -> None:
    """`stripped` caches what `stable` does in every request, `varying` nothing; the hit rate gains at least 0.2."""
    models = simulated(demo.arms_models(), block_size=demo.ARMS_BLOCK_SIZE, pool_blocks=8_000)
    models += simulated(
        demo.routing_models(), block_size=demo.ROUTING_BLOCK_SIZE, pool_blocks=pool_blocks(demo.ROUTING_BLOCK_SIZE)
    )
    with serving({"models": models}, tmp_path) as serve:
        arms = asyncio.run(demo.measure_arms(serve.url))
        routing = asyncio.run(demo.measure_routing(serve.url))
    cached = {arm: {sample.cached_tokens for sample in samples} for arm, samples in arms.samples.items()}
    assert arms.prompt_tokens >= MIN_PROMPT_TOKENS
    assert {len(samples) for samples in arms.samples.values()} == {REQUESTS_PER_ARM}
    assert len(cached["stable"]) == 1
    assert cached["stripped"] == cached["stable"]
    assert cached["varying"] == {0}
    assert arms.counted_with_header == arms.counted_without_header
    assert routing["kvist"].hit_rate >= routing["round_robin"].hit_rate + 0.2
