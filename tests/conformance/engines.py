"""The engines under the conformance suite, each with a reader of its events, on one event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import struct
from typing import TYPE_CHECKING, Any, TypeVar

from router.hashing import block_hashes, seed_of
from tests.workers.support import View
from workers.engine import Engine, Generation, Sampling, TokenDelta
from workers.relay import Relay
from workers.sim_engine import SimEngine
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

MODEL = "conformance"
BLOCK_SIZE = 32
POOL_BLOCKS = 600
MAX_MODEL_LEN = 8192
BUDGET_TOKENS = 512
VOCABULARY = 4096
END_TOKEN = 2

T = TypeVar("T")


def sim_engine(tiny: Path) -> Engine:
    arguments = {
        "block_size": BLOCK_SIZE,
        "pool_blocks": POOL_BLOCKS,
        "max_model_len": MAX_MODEL_LEN,
        "max_batched_tokens": BUDGET_TOKENS,
        "vocabulary": (0, VOCABULARY),
        "eos_token": END_TOKEN,
        "speed": float("inf"),
    }
    return SimEngine.from_settings(MODEL, tiny, arguments)


def vllm_engine(tiny: Path) -> Engine:
    arguments = {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": POOL_BLOCKS + 1,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_batched_tokens": BUDGET_TOKENS,
        "max_num_seqs": 32,
        "dtype": "float32",
    }
    return VllmEngine(model=MODEL, path=tiny, engine_args=arguments)


ENGINES = {"sim": sim_engine, "vllm": vllm_engine}


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpacked(tokens: bytes) -> list[int]:
    return [*struct.unpack(f"<{len(tokens) // 4}I", tokens)]


class Bench:
    """One engine, what its events say, and new prompts that no test before has sent."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.relay = Relay(model=MODEL)
        self.view = View()
        self.seqs: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._reader: asyncio.Task[None] | None = None
        self._random = random.Random(7)
        self._names = itertools.count()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 120.0))

    async def start(self) -> None:
        await self.engine.start()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.engine.events():
            verdict = self.relay.apply(batch.seq, batch.payload)
            assert verdict.verdict == "applied", verdict
            self.view.apply(verdict.ops)
            self.seqs.append(batch.seq)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        await self.engine.close()

    def finish(self) -> None:
        self.run(self.close())
        self._loop.close()

    def prompt(self, length: int) -> list[int]:
        return [self._random.randrange(300, VOCABULARY - 10) for _ in range(length)]

    def generation(self, tokens: list[int], *, salt: str = "", max_tokens: int = 1, **sampling: Any) -> Generation:
        chosen = {"temperature": 0.0, "ignore_eos": True} | sampling
        return Generation(
            request_id=f"request-{next(self._names)}",
            tokens=packed(tokens),
            sampling=Sampling(max_tokens=max_tokens, **chosen),
            cache_salt=salt,
        )

    async def deltas(self, generation: Generation) -> list[TokenDelta]:
        return [delta async for delta in self.engine.generate(generation)]

    async def text(self, generation: Generation) -> list[int]:
        return unpacked(b"".join([delta.tokens for delta in await self.deltas(generation)]))

    async def cached(self, tokens: list[int], salt: str = "") -> int | None:
        return (await self.deltas(self.generation(tokens, salt=salt)))[-1].cached_tokens

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the engine's events or gauges will say; the suite's timeout ends a wait in vain."""
        while not condition():
            assert self._reader is not None
            if self._reader.done():
                self._reader.result()
            await asyncio.sleep(0.02)

    def shown_prefix(self, tokens: list[int], salt: str = "") -> int:
        """Tokens that a router would count on, last-token rule included."""
        hashes = block_hashes(packed(tokens), block_size=BLOCK_SIZE, seed=seed_of(MODEL, salt=salt))
        shown = self.view.tiers["gpu"]
        depth = sum(1 for _ in itertools.takewhile(shown.__contains__, hashes))
        return min(depth, (len(tokens) - 1) // BLOCK_SIZE) * BLOCK_SIZE
