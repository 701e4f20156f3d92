"""Processes of a real-process test, led from the test, and a router that follows them in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
import uuid
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import psutil

from router.errors import WireError
from router.fleet import Fleet
from router.hashing import block_hashes, seed_of
from router.policy import cacheable_tokens
from router.replicas import PromptBlocks, ReplicaInfo
from router.subscriber import Subscriber
from router.wire import decode_frame
from tests.real.worker_process import MARK, Answer, Command, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from router.fleet import Action

REPOSITORY = Path(__file__).parents[2]
MODEL, REPLICA = "real", "replica"
START_S, ANSWER_S, SETTLE_S = 150.0, 60.0, 10.0
LOOK_S = 0.002
SLICE_S = 0.5

T = TypeVar("T")


class LinePipe:
    """A process that speaks in lines which start with MARK. Everything it started can be killed with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str) -> LinePipe:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            cwd=REPOSITORY, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, value: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")

    async def hear(self) -> bytes:
        """The next marked line; empty at the end."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(MARK.encode()):
                return line[len(MARK) :]
        return b""

    def below(self) -> list[psutil.Process]:
        """Processes that it started and that still run."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.pid).children(recursive=True)
            return [one for one in below if not any("resource_tracker" in word for word in one.cmdline())]
        return []

    async def kill(self) -> None:
        """SIGKILL to it and to all below: a killed worker does not take its engine with it."""
        victims = self.below()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        await self._process.wait()

    async def end(self) -> None:
        """Close its input and wait; kill what does not end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 30.0)
        except TimeoutError:
            await self.kill()
            raise


class Led:
    """A process that answers commands."""

    def __init__(self, pipe: LinePipe) -> None:
        self.pipe = pipe
        self._numbers = itertools.count()
        self._owed: dict[int, asyncio.Future[Answer]] = {}
        self._reader = asyncio.create_task(self._read())

    async def ask(self, do: str, **fields: Any) -> Answer:
        number = next(self._numbers)
        future = self._owed[number] = asyncio.get_running_loop().create_future()
        self.pipe.say(Command(do=do, number=number, **fields))
        return await asyncio.wait_for(future, ANSWER_S)

    async def shown(self) -> dict[str, set[int]]:
        """What the worker's relay shows, or what a router in that process believes."""
        return {medium: set(hashes) for medium, hashes in (await self.ask("stats")).shown.items()}

    async def kill(self) -> None:
        await self.pipe.kill()
        await self._reader

    async def end(self) -> None:
        await self.pipe.end()
        await self._reader

    async def _read(self) -> None:
        while line := await self.pipe.hear():
            answer = msgspec.json.decode(line, type=Answer)
            self._owed.pop(answer.number).set_result(answer)
        for future in self._owed.values():
            future.cancel()


class Pace(NamedTuple):
    """Tokens generated per second, per second of the CPU, and per second in the best slice of the time: on a crowded
    machine, the one least disturbed."""

    per_s: float
    per_cpu_s: float
    best_per_s: float

    def against(self, *others: Pace) -> dict[str, float]:
        """Figures: this pace as a share of the mean of others, or of the best of them."""
        mean = sum(other.per_s for other in others) / len(others)
        per_cpu = sum(other.per_cpu_s for other in others) / len(others)
        best = max(other.best_per_s for other in others)
        ratios = self.per_s / mean, self.per_cpu_s / per_cpu, self.best_per_s / best
        return {f"{name}_ratio": round(ratio, 3) for name, ratio in zip(self._fields, ratios, strict=True)}


class Worker(Led):
    """A worker process."""

    def __init__(self, pipe: LinePipe, info: ReplicaInfo) -> None:
        super().__init__(pipe)
        self.info = info

    @classmethod
    async def start(cls, *, path: Path | None, engine_args: dict[str, Any], model: str = MODEL) -> Worker:
        settings = WorkerProcess(
            model=model,
            replica=REPLICA,
            incarnation=uuid.uuid4().hex,
            path=str(path or ""),
            engine_args=engine_args,
        )
        pipe = await LinePipe.start("tests.real.worker_process", msgspec.json.encode(settings).decode())
        try:
            line = await asyncio.wait_for(pipe.hear(), START_S)
            return cls(pipe, msgspec.json.decode(line, type=ReplicaInfo))
        except BaseException:
            await pipe.kill()
            raise

    async def pace(self, seconds: float) -> Pace:
        """What its background requests generate, over a while."""
        cpu_s, marks = self._cpu_s(), [(time.monotonic(), (await self.ask("stats")).produced)]
        while marks[-1][0] - marks[0][0] < seconds:
            await asyncio.sleep(SLICE_S)
            marks.append((time.monotonic(), (await self.ask("stats")).produced))
        best = max((later[1] - mark[1]) / (later[0] - mark[0]) for mark, later in itertools.pairwise(marks))
        (began, before), (ended, after) = marks[0], marks[-1]
        return Pace((after - before) / (ended - began), (after - before) / (self._cpu_s() - cpu_s), best)

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in [psutil.Process(self.pipe.pid), *self.pipe.below()]]
        return float(sum(one.user + one.system for one in times))


class Follower(Led):
    """A router in a process of its own."""

    @classmethod
    async def start(cls, info: ReplicaInfo) -> Follower:
        return cls(await LinePipe.start("tests.real.subscriber_process", msgspec.json.encode(info).decode()))

    async def agrees_with(self, worker: Worker) -> None:
        """Wait until it believes exactly what the worker's relay shows."""

        async def agrees() -> bool:
            answer = await self.ask("stats")
            return answer.done and await self.shown() == await worker.shown()

        await until_true(agrees)


class LaggedFleet(Fleet):
    """A fleet that notes how long after its frame each operation was applied."""

    def __init__(self, *, model: str) -> None:
        super().__init__(model=model)
        self.lags_s: list[float] = []

    def on_frame(self, replica: str, data: bytes, now: float) -> list[Action]:
        actions = super().on_frame(replica, data, now)
        applied_at = time.time()
        with contextlib.suppress(WireError):  # counted by the fleet
            frame = decode_frame(data)
            if frame.ops:
                self.lags_s.append(applied_at - frame.ts)
        return actions


class Prediction(NamedTuple):
    """What the router said of a prompt, what the engine counted, what the index showed, and what was generated."""

    predicted: int
    counted: int
    shown: int
    tokens: list[int]


class Router:
    """The real subscriber and fleet, on the running loop."""

    def __init__(self, *, model: str = MODEL) -> None:
        self.fleet = LaggedFleet(model=model)
        self.subscriber = Subscriber(self.fleet, time.monotonic)
        self._model = model
        self._running = asyncio.create_task(self.subscriber.run())
        self._pauses = asyncio.create_task(self._watch_pauses())
        self._longest_pause_s = 0.0

    def longest_pause_s(self) -> float:
        """The longest time that this process did not run, since this was last asked."""
        longest, self._longest_pause_s = self._longest_pause_s, 0.0
        return longest

    def follow(self, info: ReplicaInfo) -> None:
        self.subscriber.add(info)

    async def close(self) -> None:
        self._pauses.cancel()
        await self.subscriber.close()
        await self._running

    def shown(self) -> dict[str, set[int]]:
        """What the router believes, none of it while it is fenced."""
        if REPLICA not in self.fleet.routable or self.fleet.fenced(REPLICA):
            return {}
        return {medium: set(held) for medium, held in self.fleet.resident(REPLICA).items() if held}

    def holds(self) -> bool:
        """Whether the replica may get credit for anything."""
        return bool(self.shown())

    def _hashes(self, tokens: list[int], block_size: int, salt: str) -> list[int]:
        seed = seed_of(self._model, salt=salt)
        return block_hashes(array("I", tokens).tobytes(), block_size=block_size, seed=seed)

    async def _watch_pauses(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            self._longest_pause_s = max(self._longest_pause_s, now - last)
            last = now

    async def agrees_with(self, worker: Worker) -> None:
        """Wait until it believes exactly what the worker's relay shows."""

        async def agrees() -> bool:
            shown = await worker.shown()
            return not self.fleet.fenced(REPLICA) and self.shown() == shown

        await until_true(agrees)
        self.fleet.check_integrity()

    async def generate(self, worker: Worker, tokens: list[int], *, salt: str = "", **fields: Any) -> Prediction:
        """Choose with all news in, generate, tell the fleet what the engine counted, and wait for the news of it.

        The engine's events may come later than its answer, but tell of every block of it; a generation that was left
        is waited for by nobody."""
        await self.agrees_with(worker)
        size = worker.info.block_size
        hashes = self._hashes(tokens, size, salt)
        decision = self.fleet.choose(PromptBlocks(len(tokens), {size: hashes}), time.monotonic())
        held = set().union(*self.shown().values())
        depth = sum(1 for _ in itertools.takewhile(held.__contains__, hashes))
        answer = await worker.ask("generate", tokens=tokens, salt=salt, **fields)
        assert answer.fault is None, answer.fault
        self.fleet.first_token(decision.reservation, answer.cached_tokens, time.monotonic())
        self.fleet.finish(decision.reservation, time.monotonic())
        computed = [*tokens, *answer.tokens][:-1]
        if not fields.get("leave_after"):
            await seconds_until(lambda: set(self._hashes(computed, size, salt)) <= set().union(*self.shown().values()))
        await self.agrees_with(worker)
        shown = min(depth * size, cacheable_tokens(len(tokens), size))
        return Prediction(decision.predicted_cached_tokens, answer.cached_tokens, shown, answer.tokens)


async def until_true(condition: Callable[[], Awaitable[bool]], *, within_s: float = SETTLE_S) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.01)


async def seconds_until(condition: Callable[[], bool], *, within_s: float = SETTLE_S) -> float:
    """How long it took to come true."""
    began = time.monotonic()
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(LOOK_S)
    return time.monotonic() - began


class Stage:
    """One event loop for a module's tests, with a router and a worker that is started when one is asked for."""

    def __init__(self, *, path: Path | None, engine_args: dict[str, Any], model: str = MODEL) -> None:
        self._start_worker = partial(Worker.start, path=path, engine_args=engine_args, model=model)
        self._loop = asyncio.new_event_loop()
        self._worker: Worker | None = None
        self.router: Router = self.run(self._new_router(model))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 200.0))

    async def worker(self) -> Worker:
        """The living worker, followed by the router."""
        if self._worker is None:
            self._worker = await self._start_worker()
            self.router.follow(self._worker.info)
            await self.router.agrees_with(self._worker)
        return self._worker

    async def kill_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()

    def close(self) -> None:
        self.run(self._close())
        self._loop.close()

    async def _new_router(self, model: str) -> Router:
        return Router(model=model)

    async def _close(self) -> None:
        await self.router.close()
        if self._worker is not None:
            await self._worker.end()
