"""A replica without Ray: one engine with its event pump, led by lines of JSON on standard input.

`python -m tests.real.worker_process SETTINGS` with `WorkerProcess` as JSON prints its `ReplicaInfo` when it is ready,
then one answer per command, each a line that starts with MARK. Commands run at once, so that an answer may overtake
another; `number` says which is which. The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from router.errors import ReplicaDied
from router.replicas import ReplicaInfo
from workers.engine import Generation, Sampling
from workers.event_pump import EventPump
from workers.sim_engine import SimEngine
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workers.engine import Engine, EngineInfo, EngineLoad, EventBatch, TokenDelta

MARK = "@"
VOCABULARY = (300, 4000)


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to be. `path` is the model's folder, empty for a simulated engine."""

    model: str
    replica: str
    incarnation: str
    path: str = ""
    engine_args: dict[str, Any] = {}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """`do` is generate, reset, busy (background requests from now on), idle (no more of them), lags or stats."""

    do: str
    number: int
    tokens: list[int] = []
    salt: str = ""
    max_tokens: int = 1
    leave_after: int = 0  # tokens; 0: stay to the end
    at_once: int = 0
    prompt_tokens: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command; each fills in its own."""

    number: int
    cached_tokens: int = 0
    tokens: list[int] = []
    shown: dict[str, list[int]] = {}
    done: bool = True
    produced: int = 0  # tokens that background requests have computed or generated so far
    relay_lags_s: list[float] = []  # since the last time they were asked for
    counters: dict[str, int] = {}
    fault: str | None = None
    optimistic: bool = False  # as the relay saw from events


class TimedEngine:
    """An engine, and how long after its step each of its batches was published."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lags_s: list[float] = []
        self.generate = engine.generate
        self.reset_prefix_cache = engine.reset_prefix_cache
        self.check_health = engine.check_health
        self.close = engine.close
        self.start = engine.start

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def load(self) -> EngineLoad:
        return self._engine.load()

    async def events(self) -> AsyncIterator[EventBatch]:
        async for batch in self._engine.events():
            yield batch
            self.lags_s.append(time.time() - float(msgspec.msgpack.decode(batch.payload)[0]))


class Replica:
    """Carries out commands."""

    def __init__(self, settings: WorkerProcess, engine: TimedEngine) -> None:
        self._engine = engine
        self._pump = EventPump(
            engine=engine,
            model=settings.model,
            host="127.0.0.1",
            replica=settings.replica,
            incarnation=settings.incarnation,
        )
        self._pump.start()
        self._settings = settings
        self._names = itertools.count()
        self._background: set[asyncio.Task[None]] = set()
        self._produced = 0
        self._random = random.Random(settings.incarnation)

    def info(self) -> ReplicaInfo:
        info, (events, snapshots) = self._engine.info, self._pump.endpoints
        return ReplicaInfo(
            replica=self._settings.replica,
            incarnation=self._settings.incarnation,
            model=info.model,
            block_size=info.block_size,
            pool_blocks=info.pool_blocks,
            max_model_len=info.max_model_len,
            events=events,
            snapshots=snapshots,
            optimistic=info.optimistic,
            step_tokens=info.step_tokens,
            share_tokens=info.share_tokens,
        )

    async def answer(self, command: Command) -> Answer:
        match command.do:
            case "generate":
                return await self._generate(command)
            case "reset":
                return Answer(number=command.number, done=await self._pump.reset())
            case "busy":
                self._background = {asyncio.create_task(self._work(command)) for _ in range(command.at_once)}
                return Answer(number=command.number)
            case "idle":
                for task in self._background:
                    task.cancel()
                await asyncio.gather(*self._background, return_exceptions=True)
                return Answer(number=command.number)
            case "lags":
                lags, self._engine.lags_s = self._engine.lags_s, []
                return Answer(number=command.number, relay_lags_s=lags)
            case _:
                return self._state(command.number)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await self._pump.close()
        await self._engine.close()

    def _state(self, number: int) -> Answer:
        return Answer(
            number=number,
            shown={run.medium: [*run.hashes] for run in self._pump._relay.snapshot()},
            produced=self._produced,
            counters=dict(self._pump.counters),
            fault=self._pump.fault,
            optimistic=self._pump._relay.optimistic,
        )

    def _stream(self, command: Command, tokens: list[int]) -> AsyncIterator[TokenDelta]:
        return self._engine.generate(
            Generation(
                request_id=f"request-{next(self._names)}",
                tokens=array("I", tokens).tobytes(),
                sampling=Sampling(max_tokens=command.max_tokens, temperature=0.0, ignore_eos=True),
                cache_salt=command.salt,
            )
        )

    async def _generate(self, command: Command) -> Answer:
        found: list[int] = []
        cached = 0
        try:
            async with contextlib.aclosing(self._stream(command, command.tokens)) as stream:  # type: ignore[type-var]
                async for delta in stream:
                    found += struct.unpack(f"<{len(delta.tokens) // 4}I", delta.tokens)
                    cached = delta.cached_tokens or 0
                    if 0 < command.leave_after <= len(found):
                        break
        except ReplicaDied as fault:
            return Answer(number=command.number, fault=str(fault))
        return Answer(number=command.number, cached_tokens=cached, tokens=found)

    async def _work(self, command: Command) -> None:
        """One request after the other, each new, for as long as the task lives."""
        while True:
            tokens = [self._random.randrange(*VOCABULARY) for _ in range(command.prompt_tokens)]
            async for delta in self._stream(command, tokens):
                self._produced += len(delta.tokens) // 4


async def serve(settings: WorkerProcess) -> None:
    """Until the input ends."""
    engine: Engine
    if settings.path:
        engine = VllmEngine(model=settings.model, path=Path(settings.path), engine_args=settings.engine_args)
    else:
        engine = SimEngine.from_settings(settings.model, Path("/nowhere"), settings.engine_args)
    await engine.start()
    replica = Replica(settings, TimedEngine(engine))
    say(replica.info())
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: set[asyncio.Task[None]] = set()

    async def carry_out(command: Command) -> None:
        say(await replica.answer(command))

    while line := await reader.readline():
        task = asyncio.create_task(carry_out(msgspec.json.decode(line, type=Command)))
        running.add(task)
        task.add_done_callback(running.discard)
    await replica.close()


def say(value: msgspec.Struct) -> None:
    """One line for whoever leads this process; libraries print as they like."""
    os.write(sys.stdout.fileno(), f"\n{MARK}{msgspec.json.encode(value).decode()}\n".encode())


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=WorkerProcess)))
