"""`kvist demo`: both experiments against running clusters, then the report. Starting clusters is the caller's part."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from load_tests import demo_arms, demo_report, demo_routing

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.demo_arms import ArmsResult
    from load_tests.demo_routing import RoutingSummary

STRIPPING, RAW = "tiny", "tiny-raw"
ROUTERS: Final = {"round_robin": "tiny-round-robin", "kvist": "tiny-kvist"}
ARMS_BLOCK_SIZE: Final = 128
ROUTING_BLOCK_SIZE: Final = 32
REQUEST_LIMIT_S: Final = 120.0


def arms_models() -> list[dict[str, Any]]:
    """Config of the first experiment: one model under two names, a pool that holds every prompt of every arm."""
    return [
        {
            "name": STRIPPING,
            "source": "tiny",
            "replicas": 2,
            "engine_args": {"block_size": ARMS_BLOCK_SIZE, "kv_cache_memory_bytes": 512 * 2**20},
            "variants": {RAW: {"strip_anthropic_preamble": False}},
        }
    ]


def routing_models() -> list[dict[str, Any]]:
    """Config of the second: the same model twice, with small pools, once per router."""
    engine_args = {
        "block_size": ROUTING_BLOCK_SIZE,
        "max_model_len": 8192,
        "num_gpu_blocks_override": demo_routing.pool_blocks(ROUTING_BLOCK_SIZE) + 1,
    }
    return [
        {"name": name, "source": "tiny", "replicas": 2, "engine_args": engine_args, "routing": router}
        for router, name in (("round-robin", ROUTERS["round_robin"]), ("kvist", ROUTERS["kvist"]))
    ]


async def measure_arms(url: str) -> ArmsResult:
    _say("three arms: stable, varying, stripped")
    async with _client(url) as http:
        return await demo_arms.run_arms(http, stripping=STRIPPING, raw=RAW, block_size=ARMS_BLOCK_SIZE)


async def measure_routing(url: str) -> dict[str, RoutingSummary]:
    summaries = {}
    async with _client(url) as http:
        for router, model in ROUTERS.items():
            _say(f"nine conversations, {router}")
            summaries[router] = await demo_routing.run_routing(http, model=model)
    return summaries


def report(arms: ArmsResult, routing: dict[str, RoutingSummary], folder: Path) -> dict[str, Any]:
    """Write demo.json and demo.png; return the data."""
    data = demo_report.as_data(arms, routing)
    demo_report.write(data, arms, folder)
    return data


def _client(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=REQUEST_LIMIT_S), read_bufsize=2**20)


def _say(what: str) -> None:
    print(f"kvist demo: {what}", file=sys.stderr, flush=True)
