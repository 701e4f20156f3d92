"""The published experiment and a team of agents against a running cluster, over the Messages API."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvloop

from load_tests.article_report import Arms, Team
from load_tests.bench.ingress_client import Address, Caller, Seen, StreamFailed
from load_tests.client import Prompt, Turn, stream
from load_tests.demo_arms import ARMS
from load_tests.prose import attribution_header, sentences
from load_tests.swarm.run import Target, run_swarm
from load_tests.swarm.settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load_tests.demo_arms import Arm
    from load_tests.peers.running import Running

REQUESTS_PER_ARM: Final = 15
SYSTEM_SENTENCES: Final = 2_445
"""52,000 tokens of the tiny model's tokenizer, within a hundred."""
QUESTION: Final = "Which module keeps the index?"
ANSWER_TOKENS: Final = 4
ATTEMPTS: Final = 4
RETRY_S: Final = 1.0
"""On a machine with too much to do connections break; how many did is in the table."""
TEAM_AGENTS: Final = 4
TEAM: Final[Mapping[str, Any]] = {
    "agents": TEAM_AGENTS,
    "sessions": TEAM_AGENTS,
    "heads": 1,
    "system_chars": 40_000,
    "turns": 42,
    "result_chars": 2_000,
    "answer_tokens": 16,
    "think_s": 0.5,
    "max_think_s": 2.0,
    "fork_share": 0.0,
    "cancel_share": 0.0,
    "warmup_s": 0.0,
    "ramp_s": 2.0,
    "duration_s": 400.0,
    "preamble": "changing",
}
"""Four agents of one kind with 42 calls each on average, and a new attribution header on every request."""


def front_line(arm: Arm, number: int) -> str:
    """What stands before the system text: as in the published experiment the line that varies is one that nobody
    strips, and the one that is stripped an attribution header."""
    if arm == "stripped":
        return attribution_header(number)
    return f"Session context: {number if arm == 'varying' else 0:032x}"


def measure_arms(running: Running) -> Arms:
    """Interleaved, one at a time, over one connection."""
    return asyncio.run(_arms(running))


def measure_team(running: Running, *, model: str = "") -> Team:
    """All calls of the team, its first ones included."""
    settings = make_settings(model=model or running.model, salt=f"{time.time_ns():x}", **TEAM)
    summary = uvloop.run(run_swarm(settings, Target(running.url, label=running.name))).summary
    return Team.of(
        agents=TEAM_AGENTS,
        calls=summary.requests,
        prompt_tokens=summary.prompt_tokens,
        cached_tokens=summary.cached_tokens,
    )


async def _arms(running: Running) -> Arms:
    at = urlsplit(running.url)
    caller = Caller(Address(str(at.hostname), at.port or 0), quick_ack=True)
    system, ttft_ms = sentences(1, SYSTEM_SENTENCES), {arm: list[float]() for arm in ARMS}
    again = 0
    for arm in ("stable", "stripped"):  # the first request of a prompt is cold for everybody
        _, failed = await _asked(caller, body(running.model, front_line(arm, 0), system))
        again += failed
    for number in range(REQUESTS_PER_ARM):
        for arm in ARMS[number % 3 :] + ARMS[: number % 3]:
            seen, failed = await _asked(caller, body(running.model, front_line(arm, 1 + number), system))
            ttft_ms[arm].append(seen.ttft_ms)
            again += failed
    caller.close()
    return Arms.of(ttft_ms, prompt_tokens=await _prompt_tokens(running, system), asked_again=again)


async def _asked(caller: Caller, sent: bytes) -> tuple[Seen, int]:
    """What the request showed, and how often it failed before: ATTEMPTS in all. Raises `StreamFailed` for the last."""
    for failed in range(ATTEMPTS - 1):
        with contextlib.suppress(StreamFailed):
            return await caller.ask(sent), failed
        await asyncio.sleep(RETRY_S)
    return await caller.ask(sent), ATTEMPTS - 1


def body(model: str, line: str, system: str) -> bytes:
    """A streamed request of the Messages API."""
    blocks = [{"type": "text", "text": text} for text in (line, system)]
    messages = [{"role": "user", "content": QUESTION}]
    fields = {"model": model, "system": blocks, "messages": messages, "max_tokens": ANSWER_TOKENS, "stream": True}
    return msgspec.json.encode(fields)


async def _prompt_tokens(running: Running, system: str) -> int:
    """As the server counts them in its usage, without a line before."""
    prompt = Prompt(system=(system,), turns=(Turn("user", QUESTION),))
    async with aiohttp.ClientSession(running.url, read_bufsize=2**20) as http:
        sample = await stream(http, api="messages", model=running.model, prompt=prompt, max_tokens=1)
    return sample.prompt_tokens
