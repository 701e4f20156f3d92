"""The demo's second half: nine growing conversations on two replicas whose pools hold five each.

The same turns, in the same shuffled order, once with round robin and once with Kvist's choice. What the pools could
hold together is enough for all nine, so every miss after a first turn is the router's.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from load_tests.client import Prompt, Sample, Turn, stream
from load_tests.prose import sentences
from load_tests.stats import percentile

if TYPE_CHECKING:
    import aiohttp

CONVERSATIONS: Final = 9
TURNS: Final = 5
POOL_CONVERSATIONS: Final = 5
SYSTEM_SENTENCES: Final = 150
TURN_SENTENCES: Final = 12
ANSWER_TOKENS: Final = 8
ORDER_SEED: Final = 7
CONVERSATION_TOKENS: Final = 5_000
"""Upper bound of one conversation after its last turn, and close to it."""


class RoutingSummary(msgspec.Struct, frozen=True):
    """One router's numbers over all turns."""

    hit_rate: float
    ttft_ms_p50: float
    ttft_ms_p99: float


async def run_routing(http: aiohttp.ClientSession, *, model: str) -> RoutingSummary:
    """Play all conversations against `model`, one request at a time."""
    prompts = [_opening(number) for number in range(CONVERSATIONS)]
    samples: list[Sample] = []
    for number in turn_order():
        sample = await stream(http, api="messages", model=model, prompt=prompts[number], max_tokens=ANSWER_TOKENS)
        samples.append(sample)
        if sample.prompt_tokens > CONVERSATION_TOKENS:
            raise RuntimeError(
                f"a conversation grew to {sample.prompt_tokens} tokens, more than the pools were cut for"
            )
        prompts[number] = _grown(prompts[number], sample.text, seed=len(samples))
    ttfts = [sample.ttft_ms for sample in samples]
    cached, total = sum(s.cached_tokens for s in samples), sum(s.prompt_tokens for s in samples)
    return RoutingSummary(
        hit_rate=round(cached / total, 4),
        ttft_ms_p50=round(percentile(ttfts, 50), 2),
        ttft_ms_p99=round(percentile(ttfts, 99), 2),
    )


def turn_order() -> list[int]:
    """Which conversation speaks next: in each of TURNS rounds every one once, shuffled, the same on every run."""
    rng = random.Random(ORDER_SEED)
    return [number for _ in range(TURNS) for number in rng.sample(range(CONVERSATIONS), CONVERSATIONS)]


def pool_blocks(block_size: int) -> int:
    """Blocks of a pool that holds POOL_CONVERSATIONS full conversations."""
    return POOL_CONVERSATIONS * -(-CONVERSATION_TOKENS // block_size)


def _opening(number: int) -> Prompt:
    system = f"You look after project {number}.\n{sentences(1000 + number, SYSTEM_SENTENCES)}"
    return Prompt(system=(system,), turns=(_question(100 * number),))


def _grown(prompt: Prompt, answer: str, *, seed: int) -> Prompt:
    turns = (*prompt.turns, Turn("assistant", answer or "."), _question(10_000 + seed))
    return Prompt(system=prompt.system, turns=turns)


def _question(seed: int) -> Turn:
    return Turn("user", f"What does this do?\n{sentences(seed, TURN_SENTENCES)}")
