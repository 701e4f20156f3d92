"""`kvist demo share`: a prompt that one replica computed, sent to the other, which loads it from the node's store.

Round robin sends every second request to the other replica, so each prompt goes out twice: cold, then shared. That they
were two replicas is read from the answers' headers. Prompts are tokens, so their length is exact and nothing of one is
in another; answers come with their tokens, so equality is that of tokens and not of a text they happen to make.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

MODEL: Final = "tiny-shared"
BLOCK_SIZE: Final = 32
PROMPT_TOKENS: Final = 15_000
PROMPTS: Final = 7
ANSWER_TOKENS: Final = 32
STORE_BYTES: Final = 512 * 2**20
SAVED_WITHIN_S: Final = 30.0
REPLICA_HEADER: Final = "x-kvist-replica"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed answer."""

    replica: str
    ttft_ms: float
    cached_tokens: int
    tokens: tuple[str, ...]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, computed here and served there."""

    cold: Answer
    shared: Answer


def share_models(folder: Path) -> list[dict[str, Any]]:
    """Config: two replicas that take turns and share the store in `folder`."""
    return [
        {
            "name": MODEL,
            "source": "tiny",
            "replicas": 2,
            "routing": "round-robin",
            "engine_args": {"block_size": BLOCK_SIZE, "kv_cache_memory_bytes": 256 * 2**20},
            "kv_store": {"folder": str(folder), "max_bytes": STORE_BYTES},
        }
    ]


def prompt_of(seed: int, tokens: int) -> list[int]:
    """Ordinary tokens of the tiny model's vocabulary."""
    rng = random.Random(seed)
    return [rng.randrange(300, 4_000) for _ in range(tokens)]


async def measure_share(http: aiohttp.ClientSession, folder: Path) -> list[Pair]:
    """Every prompt twice, one request at a time. Raises `RuntimeError` when a prompt's answers came from one replica,
    or its blocks do not get into the store."""
    for _ in range(2):  # each replica's first request is slow whatever it is
        await send(http, prompt_of(0, BLOCK_SIZE // 2))
    pairs = []
    for seed in range(1, PROMPTS + 1):
        prompt, before = prompt_of(seed, PROMPT_TOKENS), stored_blocks(folder)
        cold = await send(http, prompt)
        await _until_stored(folder, before + PROMPT_TOKENS // BLOCK_SIZE)
        shared = await send(http, prompt)
        if cold.replica == shared.replica:
            raise RuntimeError(f"both answers came from replica {cold.replica}")
        pairs.append(Pair(cold=cold, shared=shared))
        print(f"kvist demo: prompt {seed} of {PROMPTS}", file=sys.stderr, flush=True)
    return pairs


async def send(http: aiohttp.ClientSession, prompt: list[int]) -> Answer:
    """One streamed completion. Raises `RuntimeError` with the server's words."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "logprobs": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    start, first, cached = time.perf_counter(), None, 0
    tokens: list[str] = []
    async with http.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"the cluster answered {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            new = _tokens_of(event)
            first = first or (time.perf_counter() if new else None)
            tokens += new
            cached = _cached_tokens(event, cached)
    if first is None:
        raise RuntimeError("an answer without tokens")
    ttft_ms = (first - start) * 1e3
    return Answer(replica=response.headers[REPLICA_HEADER], ttft_ms=ttft_ms, cached_tokens=cached, tokens=tuple(tokens))


def as_data(pairs: list[Pair]) -> dict[str, Any]:
    """The content of share.json: medians of times, the worst prompt's share of its full blocks."""
    cacheable = (PROMPT_TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "cold_ttft_ms": round(median(pair.cold.ttft_ms for pair in pairs), 2),
        "shared_ttft_ms": round(median(pair.shared.ttft_ms for pair in pairs), 2),
        "cached_fraction": round(min(pair.shared.cached_tokens for pair in pairs) / cacheable, 4),
        "token_identical": all(pair.cold.tokens == pair.shared.tokens for pair in pairs),
    }


def table(pairs: list[Pair]) -> str:
    """What a person reads: every prompt, then the summary."""
    data = as_data(pairs)
    lines = [
        f"Prompts of {PROMPT_TOKENS:,} tokens, computed by one replica and then sent to the other",
        f"{'prompt':<8}{'cold TTFT ms':>14}{'shared TTFT ms':>16}{'cached tokens':>15}{'same tokens':>13}",
    ]
    for number, pair in enumerate(pairs, 1):
        same = "yes" if pair.cold.tokens == pair.shared.tokens else "no"
        lines.append(
            f"{number:<8}{pair.cold.ttft_ms:>14.1f}{pair.shared.ttft_ms:>16.1f}"
            f"{pair.shared.cached_tokens:>15,}{same:>13}"
        )
    ratio = data["shared_ttft_ms"] / data["cold_ttft_ms"]
    lines.append(
        f"{'median':<8}{data['cold_ttft_ms']:>14.1f}{data['shared_ttft_ms']:>16.1f}   "
        f"{ratio:.2f} × cold, {data['cached_fraction']:.1%} of full blocks cached at the least"
    )
    return "\n".join(lines)


def write(data: dict[str, Any], folder: Path) -> None:
    """Write share.json into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "share.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def stored_blocks(folder: Path) -> int:
    """Blocks in the store of this machine."""
    return sum(1 for file in (folder / "blocks").glob("*/*/*"))


async def _until_stored(folder: Path, count: int) -> None:
    deadline = time.monotonic() + SAVED_WITHIN_S
    while stored_blocks(folder) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{stored_blocks(folder)} blocks stored of {count} after {SAVED_WITHIN_S:.0f} s")
        await asyncio.sleep(0.02)


def _tokens_of(event: dict[str, Any]) -> list[str]:
    return [
        token for choice in event.get("choices") or () for token in (choice.get("logprobs") or {}).get("tokens", ())
    ]


def _cached_tokens(event: dict[str, Any], known: int) -> int:
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens", known))
