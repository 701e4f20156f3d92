"""Replicas struck in the middle of answers on real Ray Serve: what clients read is what an unbroken run says."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import pytest

from tests.e2e.cluster_process import ServeProcess, serving, simulated
from tests.e2e.stricken import kill, stop, workers_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ray

STREAMS, TOKENS, EARLY_TOKENS = 8, 400, 30
REPLICAS = 3
SLOW = {"step_s": 0.01}


class Answer(NamedTuple):
    """What one stream said, where it began, how many tokens were billed, and the longest silence in it."""

    text: str
    replica: str
    usage: dict[str, Any]
    longest_gap_s: float


async def ask(http: aiohttp.ClientSession, number: int, begun: asyncio.Event | None = None) -> Answer:
    """One streamed answer; `begun` is set when it is on its way."""
    body = {
        "model": "tiny",
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": f"Story number {number}, please."}],
    }
    said, gap_s, last_s = "", 0.0, time.monotonic()
    usage: dict[str, Any] = {}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        async for raw in response.content:
            line = raw.decode().strip()
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            now = time.monotonic()
            gap_s, last_s = max(gap_s, now - last_s) if said else 0.0, now
            for choice in event["choices"]:
                said += choice["delta"].get("content") or ""
            usage = event.get("usage") or usage
            if begun is not None and len(said) > EARLY_TOKENS:
                begun.set()
        assert usage["completion_tokens"] == TOKENS
        return Answer(said, response.headers["x-kvist-replica"], usage, gap_s)


async def routable(http: aiohttp.ClientSession) -> set[str]:
    async with http.get("/kvist/status") as response:
        rows = (await response.json())["replicas"]
    return {row["replica"] for row in rows if row["routable"]}


async def struck(serve: ServeProcess, strike: Callable[[int], None]) -> tuple[list[Answer], list[Answer], int]:
    """The answers of an unbroken run, those of a run in which a replica was struck, and how many of them it had."""
    async with aiohttp.ClientSession(serve.url, timeout=aiohttp.ClientTimeout(total=90)) as http:
        async with asyncio.timeout(90):
            while len(await routable(http)) < REPLICAS:
                await asyncio.sleep(0.2)
        whole = await asyncio.gather(*(ask(http, number) for number in range(STREAMS)))
        before = await routable(http)
        begun = [asyncio.Event() for _ in range(STREAMS)]
        running = [asyncio.create_task(ask(http, number, begun[number])) for number in range(STREAMS)]
        await asyncio.gather(*(event.wait() for event in begun))
        assert not any(task.done() for task in running)
        strike(random.Random(STREAMS).choice(sorted(workers_of(serve))))
        broken = await asyncio.gather(*running)
        lost = before - await routable(http)
        return whole, broken, sum(answer.replica in lost for answer in broken)


@pytest.mark.parametrize("data_plane", ["tcp", pytest.param("handle", marks=pytest.mark.slow)])
def test_answers_of_a_killed_replica_go_on_word_for_word(tmp_path: Path, data_plane: str) -> None:
    """SIGKILL in the middle of eight streams, on either way from the ingress: all are whole and billed once."""
    config = simulated(replicas=REPLICAS, engine_args=SLOW) | {"data_plane": data_plane}
    with serving(config, tmp_path) as serve:
        whole, broken, count = asyncio.run(struck(serve, kill))
        assert count > 0
        assert [answer.text for answer in broken] == [answer.text for answer in whole]
        assert [answer.usage["prompt_tokens"] for answer in broken] == [one.usage["prompt_tokens"] for one in whole]
        print(f"{data_plane}: {count} of {STREAMS} struck, gap {max(answer.longest_gap_s for answer in broken):.2f} s")


def test_answers_of_a_stopped_replica_go_on_elsewhere(tmp_path: Path) -> None:
    """SIGSTOP: no connection is lost and nobody says anything; the lease ends and the streams go on."""
    with serving(simulated(replicas=REPLICAS, engine_args=SLOW), tmp_path) as serve:
        stopped: list[int] = []

        def strike(pid: int) -> None:
            stop(pid)
            stopped.append(pid)

        try:
            whole, broken, count = asyncio.run(struck(serve, strike))
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
        assert count > 0
        assert [answer.text for answer in broken] == [answer.text for answer in whole]
        print(f"stopped: {count} of {STREAMS} struck, gap {max(answer.longest_gap_s for answer in broken):.2f} s")


@pytest.mark.slow
def test_without_resumes_the_answers_of_a_killed_replica_are_lost(tmp_path: Path) -> None:
    """The negative control: those of the others are whole, those that it had end with an error event."""
    config = simulated(replicas=REPLICAS, engine_args=SLOW) | {"retries": 0, "resumes": 0}
    with serving(config, tmp_path) as serve, pytest.raises(AssertionError, match="the replica failed, try again"):
        asyncio.run(struck(serve, kill))
