"""The simulated engine behind the `Engine` contract: many replicas on two cores, with the same events as a real one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import time
from array import array
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import InvalidRequest, ModelUnusable, ReplicaGone
from router.limits import ENGINE_PENDING_BATCHES
from workers.answers import Answers, Speech
from workers.engine import EngineInfo, EngineLoad, EventBatch, TokenDelta, TokenLogprob
from workers.journal import Journal
from workers.simulator import SimParameters, Simulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from workers.answers import Said
    from workers.engine import Generation
    from workers.simulator import SimDelta

_PACE: Final = ("step_s", "prefill_token_s", "attention_pair_s", "decode_s")
_HIGHEST_TOKEN: Final = 4000  # below the marks of small demo vocabularies


class SimEngine:
    """One `Simulator` on the event loop. `speed` divides all engine time (`inf`: none passes, steps only take turns on
    the loop). `clock` and `sleep` are the loop's view of time in seconds.

    `speech` is what it says in words: under a constraint (json or choice), or where an answer is scripted."""

    def __init__(
        self,
        *,
        model: str,
        parameters: SimParameters,
        speed: float = 1.0,
        speech: Speech | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._info = EngineInfo(
            model=model,
            block_size=parameters.block_size,
            pool_blocks=parameters.pool_blocks,
            max_model_len=parameters.max_model_len,
            step_tokens=parameters.max_batched_tokens,
            share_tokens=parameters.long_prefill_token_threshold,
        )
        pace = {name: getattr(parameters, name) / speed for name in _PACE}
        self._simulator = Simulator(msgspec.structs.replace(parameters, **pace))
        self._speech = speech
        self._journal: Journal | None = None
        self._clock = clock
        self._sleep = sleep
        self._ids = itertools.count()
        self._streams: dict[str, asyncio.Queue[SimDelta | None]] = {}
        self._batches: deque[EventBatch] = deque(maxlen=ENGINE_PENDING_BATCHES)
        self._work = asyncio.Event()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    @classmethod
    def from_settings(cls, model: str, path: Path, engine_args: dict[str, Any]) -> SimEngine:
        """An engine in the place of the model at `path`: its context window, its vocabulary, its end token.
        `engine_args` are `SimParameters`, `speed`, `answers` and `journal` (a path), and win. Raises
        msgspec.ValidationError for anything else, `ModelUnusable` for answers without a tokenizer.json."""
        defaults: dict[str, Any] = {}
        config_file = path / "config.json"
        if config_file.is_file():
            config = json.loads(config_file.read_text(encoding="utf-8"))
            defaults["max_model_len"] = config["max_position_embeddings"]
            defaults["vocabulary"] = (256, min(_HIGHEST_TOKEN, config["vocab_size"]))
            if isinstance(config.get("eos_token_id"), int):
                defaults["eos_token"] = config["eos_token_id"]
        settings = defaults | engine_args
        speed = float(settings.pop("speed", 1.0))
        answers = msgspec.convert(settings.pop("answers", ()), Answers)
        journal = msgspec.convert(settings.pop("journal", None), str | None)
        parameters = msgspec.convert(settings, SimParameters)
        codec = _ModelCodec(path / "tokenizer.json")
        if answers and not codec.is_there:
            raise ModelUnusable(f"scripted answers need the model's tokenizer: {path} has no tokenizer.json")
        speech = Speech(codec, answers, eos_token=parameters.eos_token) if codec.is_there else None
        engine = cls(model=model, parameters=parameters, speed=speed, speech=speech)
        if journal is not None:
            engine.keep_journal(Path(journal))
        return engine

    def __repr__(self) -> str:
        return f"<SimEngine {self._simulator!r}>"

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def script(self, output: Sequence[int], *, prompt: bytes | None = None) -> None:
        """Say what the next request, or the next with this prompt, generates; see `Simulator.script`."""
        self._simulator.script(output, prompt=prompt)

    def keep_journal(self, file: Path) -> None:
        """Append a line for every request from now on; see `Journal`."""
        self._journal = Journal(file, self._clock)

    async def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        self._check_alive()
        arrived_s = self._clock()
        request_id = f"{generation.request_id}-{next(self._ids)}"  # ids may repeat, as they may in vLLM
        said = self._said(generation)
        if said is not None and said.stall_s:
            await self._sleep(said.stall_s)
            self._check_alive()
        script = None if said is None else said.script
        self._simulator.submit(msgspec.structs.replace(generation, request_id=request_id), script)
        stream = self._streams[request_id] = asyncio.Queue()
        if self._journal is not None:
            self._journal.arrived(request_id, generation.request_id, arrived_s)
        self._work.set()
        try:
            while True:
                first = await stream.get()
                deltas = [first, *(stream.get_nowait() for _ in range(stream.qsize()))]
                tokens = [delta for delta in deltas if delta]
                if tokens:
                    yield _scored(_combined(tokens), generation.sampling.logprobs)
                    if tokens[-1].finish_reason:
                        return
                if deltas[-1] is None:
                    raise ReplicaGone("the engine is gone")
        finally:
            del self._streams[request_id]
            self._simulator.abort(request_id)
            if self._journal is not None:
                self._journal.left(request_id)

    async def events(self) -> AsyncIterator[EventBatch]:
        while not self._has_ended:
            while self._batches:
                yield self._batches.popleft()
            self._news.clear()
            await self._news.wait()

    async def reset_prefix_cache(self) -> bool:
        self._check_alive()
        return self._simulator.reset_prefix_cache()

    def load(self) -> EngineLoad:
        return self._simulator.load()

    def resident(self) -> dict[int, int]:
        """Engine hash -> copies in the pool: what a relay must show."""
        return self._simulator.pool.resident()

    async def check_health(self) -> None:
        self._check_alive()

    def kill(self) -> None:
        """Die as a crashed engine does: nothing is said, and every generation fails."""
        self._end()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.kill()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _said(self, generation: Generation) -> Said | None:
        if self._speech is not None:
            return self._speech.of(generation)
        if generation.sampling.structured is not None:
            raise InvalidRequest("a simulated engine without a tokenizer.json cannot follow a constraint")
        return None

    def _check_alive(self) -> None:
        if self._has_ended or self._task is None or self._task.done():
            raise ReplicaGone("the engine is gone")

    def _end(self) -> None:
        self._has_ended = True
        for stream in self._streams.values():
            stream.put_nowait(None)
        self._news.set()

    async def _run(self) -> None:
        try:
            await self._run_steps()
        finally:
            self._end()

    async def _run_steps(self) -> None:
        while True:
            ends_at = self._simulator.begin_step(self._clock())
            if ends_at is None:
                self._work.clear()
                await self._work.wait()
                continue
            await self._sleep(max(0.0, ends_at - self._clock()))
            result = self._simulator.end_step()
            if result.batch:
                self._batches.append(result.batch)
                self._news.set()
            for delta in result.deltas:
                if delta.request_id in self._streams:
                    self._streams[delta.request_id].put_nowait(delta)
                    if self._journal is not None:
                        self._journal.made_token(delta.request_id)


class _ModelCodec:
    """A model's tokenizer, read when it is needed first: most simulated engines never speak."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.is_there = file.is_file()

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # noqa: PLC0415 - same

        return Tokenizer.from_file(str(self._file))

    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)  # type: ignore[no-any-return]


def _scored(delta: TokenDelta, alternatives: int | None) -> TokenDelta:
    """A simulated engine is always certain: every token has probability 1 and no alternative but itself."""
    if alternatives is None:
        return delta
    tokens = array("I", delta.tokens)
    scores = (TokenLogprob(token, 0.0, ((token, 0.0),) if alternatives else ()) for token in tokens)
    return msgspec.structs.replace(delta, logprobs=tuple(scores))


def _combined(deltas: Sequence[SimDelta]) -> TokenDelta:
    return TokenDelta(
        tokens=array("I", [delta.token for delta in deltas]).tobytes(),
        cached_tokens=deltas[-1].cached_tokens,
        finish_reason=deltas[-1].finish_reason,
    )
