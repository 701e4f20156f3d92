"""What `kvist demo share` sends, reads and writes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from load_tests import demo_share
from load_tests.demo_share import BLOCK_SIZE, PROMPT_TOKENS, Answer, Pair, as_data, prompt_of, table, write

if TYPE_CHECKING:
    from pathlib import Path

CACHEABLE = (PROMPT_TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE


def pair(cold_ms: float, shared_ms: float, cached: int = CACHEABLE, tokens: tuple[str, ...] = ("a", "b")) -> Pair:
    return Pair(
        cold=Answer(replica="A", ttft_ms=cold_ms, cached_tokens=0, tokens=("a", "b")),
        shared=Answer(replica="B", ttft_ms=shared_ms, cached_tokens=cached, tokens=tokens),
    )


def test_times_are_medians_and_the_worst_prompt_counts() -> None:
    pairs = [pair(10.0, 3.0), pair(30.0, 1.0, cached=CACHEABLE // 2), pair(20.0, 2.0)]
    assert as_data(pairs) == {
        "prompt_tokens": PROMPT_TOKENS,
        "cold_ttft_ms": 20.0,
        "shared_ttft_ms": 2.0,
        "cached_fraction": 0.5,
        "token_identical": True,
    }
    assert "0.10 × cold" in table(pairs)
    assert "50.0%" in table(pairs)


def test_one_other_token_in_one_answer_is_told() -> None:
    pairs = [pair(1.0, 1.0), pair(1.0, 1.0, tokens=("a", "c"))]
    assert as_data(pairs)["token_identical"] is False
    assert [row.split()[-1] for row in table(pairs).splitlines()[2:4]] == ["yes", "no"]


def test_the_data_are_written(tmp_path: Path) -> None:
    write(as_data([pair(2.0, 1.0)]), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "share.json").read_text())["prompt_tokens"] == PROMPT_TOKENS


def test_prompts_are_their_own_and_the_same_on_every_run() -> None:
    assert prompt_of(1, 40) == prompt_of(1, 40)
    assert prompt_of(1, 40)[0] != prompt_of(2, 40)[0], "nothing of one is in another"
    assert len(prompt_of(1, PROMPT_TOKENS)) == PROMPT_TOKENS


class FakeCluster:
    """Replicas that take turns and store a file per block."""

    def __init__(self, folder: Path, replicas: list[str]) -> None:
        self.folder = folder
        self.replicas = replicas
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen = body["prompt"] in [other["prompt"] for other in self.requests]
        self.requests.append(body)
        if not seen:
            place = self.folder / "blocks" / "0" / "0"
            place.mkdir(parents=True, exist_ok=True)
            for block in range(len(body["prompt"]) // BLOCK_SIZE):
                (place / f"{len(self.requests)}-{block}").touch()
        replica = self.replicas[len(self.requests) % len(self.replicas)]
        response = web.StreamResponse(headers={"x-kvist-replica": replica})
        await response.prepare(request)
        usage = {"prompt_tokens_details": {"cached_tokens": CACHEABLE if seen else 0}}
        for event in (
            {"choices": [{"text": "", "logprobs": None}]},
            {"choices": [{"text": "hé", "logprobs": {"tokens": ["h", "é"]}}]},
            {"choices": [], "usage": usage},
        ):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


async def measured(folder: Path, replicas: list[str]) -> list[Pair]:
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/completions", FakeCluster(folder, replicas))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            return await demo_share.measure_share(http, folder)
    finally:
        await runner.cleanup()


def test_every_prompt_goes_to_one_replica_and_then_to_the_other(tmp_path: Path) -> None:
    pairs = asyncio.run(measured(tmp_path, ["A", "B"]))
    assert len(pairs) == demo_share.PROMPTS
    assert all(one.cold.replica != one.shared.replica for one in pairs)
    assert as_data(pairs)["cached_fraction"] == 1.0
    assert pairs[0].shared.tokens == ("h", "é")


def test_answers_of_one_replica_prove_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="replica A"):
        asyncio.run(measured(tmp_path, ["A"]))
