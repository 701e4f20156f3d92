"""A deterministic engine in virtual time: vLLM's scheduling and cache rules, with a clock instead of a model.

One step at a time: running requests continue first (a decode takes one token of the step's budget, a prefill takes
what is left), then waiting ones join, first come first served, each starting after its longest cached prefix. While
others are there, none gets more than `long_prefill_token_threshold` of a step, as in vLLM (0: no such cap). A step
lasts `step_s + prefill tokens x prefill_token_s + pairs x attention_pair_s + decodes x decode_s`; the pairs are those
of a prefilled token and one before it, cached ones included. When blocks run out, the request that joined last is put
back and computes again later. Events leave with the step that caused them: an idle engine sends none.

The next token is a function of all tokens before it and the seed only: any replica continues a text alike.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import xxhash

from router.errors import InvalidRequest
from router.hashing import BYTES_PER_TOKEN, block_hashes, seed_of
from workers.block_pool import BlockPool, CachedRun
from workers.engine import EngineLoad, EventBatch, FinishReason, Generation

if TYPE_CHECKING:
    from collections.abc import Sequence

_encoder: Final = msgspec.msgpack.Encoder()
_ENGINE_HASHES: Final = "simulator"  # makes the engine's hashes differ from the router's, as real ones do


PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NaturalInt = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class SimParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and pace of a simulated engine. The default pace is that of a small model on a fast GPU."""

    block_size: PositiveInt = 16
    pool_blocks: PositiveInt = 4096
    max_model_len: PositiveInt = 65_536
    max_num_seqs: PositiveInt = 128
    max_batched_tokens: PositiveInt = 2048
    long_prefill_token_threshold: NaturalInt = 0
    step_s: Seconds = 0.004
    prefill_token_s: Seconds = 0.000_02
    attention_pair_s: Seconds = 0.0
    decode_s: Seconds = 0.000_1
    vocabulary: tuple[int, int] = (256, 4096)  # generated tokens are at least the first and below the second
    eos_token: int | None = None
    seed: int = 0


class SimDelta(msgspec.Struct, frozen=True):
    """One new token of one request (none when it was refused), what was cached, and how it ended, if it did."""

    request_id: str
    token: int
    cached_tokens: int
    finish_reason: FinishReason | None


class Script(msgspec.Struct, frozen=True):
    """What a request generates instead of its own, and how it ends then."""

    tokens: Sequence[int]
    ending: FinishReason = "stop"


class StepResult(msgspec.Struct, frozen=True):
    """What one step brought; `batch` is None when the cache did not change."""

    ended_at: float
    deltas: tuple[SimDelta, ...]
    batch: EventBatch | None


class _Request:
    """One generation in the engine. `tokens` grow; `computed` of them have their KV in `blocks`."""

    def __init__(self, generation: Generation, *, block_size: int, seed: int, script: Script | None) -> None:
        self.generation = generation
        self.tokens = array("I", generation.tokens)
        self.prompt_tokens = len(self.tokens)
        self.script = None if script is None else deque(script.tokens)
        self._script_ending: FinishReason = "stop" if script is None else script.ending
        self.computed = 0
        self.scheduled = 0  # tokens of the step in progress
        self.cached_tokens = -1
        self.blocks: list[int] = []
        self.named_blocks = 0
        self._block_size = block_size
        self._seed = seed_of(_ENGINE_HASHES, salt=generation.cache_salt)
        self.hashes = self._hashes_from(0)
        self._context = xxhash.xxh3_64(generation.tokens, seed=seed)

    def append_next(self, parameters: SimParameters) -> int:
        """Choose and append the next token."""
        low, high = parameters.vocabulary
        token = self.script.popleft() if self.script else low + self._context.intdigest() % (high - low)
        self.tokens.append(token)
        self._context.update(token.to_bytes(BYTES_PER_TOKEN, "little"))
        if len(self.tokens) % self._block_size == 0:
            self.hashes += self._hashes_from(len(self.hashes))
        return token

    def finish_reason(self, token: int, *, eos_token: int | None, capacity: int) -> FinishReason | None:
        sampling = self.generation.sampling
        made = len(self.tokens) - self.prompt_tokens
        if token == eos_token and not sampling.ignore_eos:
            return "stop"
        if self.script is not None and not self.script:
            return self._script_ending
        if made >= sampling.max_tokens or len(self.tokens) >= capacity:
            return "length"
        return None

    def _hashes_from(self, start: int) -> list[int]:
        data = self.tokens[start * self._block_size :].tobytes()
        root = self.hashes[-1] if start else self._seed
        return block_hashes(data, block_size=self._block_size, seed=root)


class Simulator:
    """One simulated engine. Nothing happens between calls; time comes in with them and never goes back.

    `begin_step` and `end_step` let a shell wait in between; `advance` does both for a virtual clock."""

    def __init__(self, parameters: SimParameters) -> None:
        self.parameters = parameters
        self.pool = BlockPool(pool_blocks=parameters.pool_blocks, block_size=parameters.block_size)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._requests: dict[str, _Request] = {}
        self._step_ends_at: float | None = None
        self._next_seq = 0
        self._scripts: dict[bytes | None, deque[Script]] = {}

    def __repr__(self) -> str:
        return f"Simulator({len(self._running)} running, {len(self._waiting)} waiting, {self.pool!r})"

    def script(self, output: Sequence[int], *, prompt: bytes | None = None) -> None:
        """The next request with this prompt (None: the next without a script of its own) generates exactly `output` and
        stops. Each script is used once."""
        self._scripts.setdefault(prompt, deque()).append(Script(list(output)))

    def submit(self, generation: Generation, script: Script | None = None) -> None:
        """Queue a request; a `script` is what it generates. Raises `InvalidRequest` for one that can never run."""
        tokens = len(generation.tokens) // BYTES_PER_TOKEN
        if not tokens or len(generation.tokens) % BYTES_PER_TOKEN or generation.sampling.max_tokens < 1:
            raise InvalidRequest("a generation needs whole tokens, at least one, and at least one to generate")
        if tokens >= self.capacity_tokens:
            raise InvalidRequest(f"{tokens} prompt tokens and one to generate exceed {self.capacity_tokens}")
        if generation.request_id in self._requests:
            raise InvalidRequest(f"request {generation.request_id} is running already")
        sampling = generation.sampling
        request = _Request(
            generation,
            block_size=self.parameters.block_size,
            seed=self.parameters.seed + (sampling.seed or 0 if sampling.temperature > 0 else 0),
            script=script or self._script_for(generation.tokens),
        )
        self._requests[generation.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Stop a request and free its blocks; their content stays cached. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if request in self._running:
            self._leave(request)
        else:
            self._waiting.remove(request)
            del self._requests[request_id]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; false while requests hold some. The event waits for the next step."""
        return self.pool.reset()

    def load(self) -> EngineLoad:
        running = sum(len(request.tokens) - request.computed for request in self._running if _in_prefill(request))
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            backlog_tokens=running + sum(len(request.tokens) for request in self._waiting),
            free_blocks=self.pool.free_blocks,
        )

    @property
    def capacity_tokens(self) -> int:
        """The most tokens that one request may have, its output included."""
        return min(self.parameters.max_model_len, self.pool.pool_blocks * self.pool.block_size)

    @property
    def is_idle(self) -> bool:
        return not self._requests

    @property
    def step_ends_at(self) -> float | None:
        """When the step in progress ends; None between steps."""
        return self._step_ends_at

    def begin_step(self, now: float) -> float | None:
        """Schedule a step that starts now and return when it ends; None when there is nothing to do."""
        if self._step_ends_at is None and self._requests:
            self._step_ends_at = now + self._schedule()
        return self._step_ends_at

    def end_step(self) -> StepResult:
        """The result of the step in progress, at the time it ends."""
        ended_at = self._step_ends_at
        assert ended_at is not None
        self._step_ends_at = None
        deltas = [delta for request in list(self._running) if (delta := self._sample(request))]
        events = self.pool.take_events()
        batch = None
        if events:
            batch = EventBatch(self._next_seq, _encoder.encode((ended_at, events, 0)))
            self._next_seq += 1
        return StepResult(ended_at, tuple(deltas), batch)

    def advance(self, now: float) -> list[StepResult]:
        """All steps that end by `now`, each begun when the one before ended. A step that finds the engine between steps
        begins now: call this after every submission too."""
        results: list[StepResult] = []
        started_at = now
        while (ends_at := self.begin_step(started_at)) is not None and ends_at <= now:
            results.append(self.end_step())
            started_at = ends_at
        return results

    def check_integrity(self) -> None:
        """Raise AssertionError when requests and pool disagree."""
        self.pool.check_integrity()
        assert len(self._requests) == len(self._running) + len(self._waiting)
        in_use = {block for request in self._running for block in request.blocks}
        assert len(in_use) == self.pool.used_blocks
        assert all(not request.blocks for request in self._waiting)

    @property
    def _share_tokens(self) -> int:
        """Most tokens that one request gets of the step that begins now. Alone it starves nobody and gets all."""
        threshold, budget = self.parameters.long_prefill_token_threshold, self.parameters.max_batched_tokens
        return min(threshold, budget) if threshold and len(self._requests) > 1 else budget

    def _script_for(self, prompt: bytes) -> Script | None:
        for key in (prompt, None):
            if self._scripts.get(key):
                return self._scripts[key].popleft()
        return None

    def _schedule(self) -> float:
        """Give each request its part of the step; returns the step's duration."""
        budget, share = self.parameters.max_batched_tokens, self._share_tokens
        before = len(self._running)
        for request in list(self._running):
            request.scheduled = 0
            wanted = min(len(request.tokens) - request.computed, share, budget)
            if request in self._running and wanted and self._make_room(request, wanted):
                self._assign(request, wanted)
                budget -= wanted
        was_put_back = len(self._running) < before
        while self._waiting and budget and not was_put_back and len(self._running) < self.parameters.max_num_seqs:
            wanted = self._join(self._waiting[0], min(share, budget))
            if not wanted:
                break
            self._running.append(self._waiting.popleft())
            budget -= wanted
        prefills = [request for request in self._running if request.scheduled and _in_prefill(request)]
        decodes = sum(request.scheduled == 1 and not _in_prefill(request) for request in self._running)
        tokens = self.parameters.max_batched_tokens - budget - decodes
        pairs = sum(request.scheduled * (request.computed + request.scheduled / 2) for request in prefills)
        pace = self.parameters
        return pace.step_s + tokens * pace.prefill_token_s + pairs * pace.attention_pair_s + decodes * pace.decode_s

    def _join(self, request: _Request, budget: int) -> int:
        """Start a waiting request after its cached prefix; 0 when there is no room for it."""
        reusable = (len(request.tokens) - 1) // self.parameters.block_size
        cached = self.pool.match(request.hashes[:reusable])
        start = len(cached) * self.parameters.block_size
        wanted = min(len(request.tokens) - start, budget)
        if not self.pool.can_take(self._blocks_for(start + wanted) - len(cached), beside=cached):
            return 0
        self.pool.use(cached)
        request.blocks, request.named_blocks, request.computed = cached, len(cached), start
        if request.cached_tokens < 0:
            request.cached_tokens = start
        self._assign(request, wanted)
        return wanted

    def _make_room(self, request: _Request, wanted: int) -> bool:
        """Put back the latest comers until the request's blocks fit; false when it was put back itself."""
        needed = self._blocks_for(request.computed + wanted) - len(request.blocks)
        while not self.pool.can_take(needed):
            victim = self._running.pop()
            self.pool.release(victim.blocks)
            victim.blocks, victim.named_blocks, victim.computed, victim.scheduled = [], 0, 0, 0
            self._waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _assign(self, request: _Request, count: int) -> None:
        """Schedule `count` tokens; blocks that they fill are named at once, as the engine does."""
        after = request.computed + count
        request.blocks += self.pool.take(self._blocks_for(after) - len(request.blocks))
        request.scheduled = count
        first, full = request.named_blocks, after // self.parameters.block_size
        if full > first:
            size = self.parameters.block_size
            self.pool.cache(
                CachedRun(
                    blocks=request.blocks[first:full],
                    hashes=request.hashes[first:full],
                    parent=request.hashes[first - 1] if first else None,
                    tokens=request.tokens[first * size : full * size],
                    salt=request.generation.cache_salt,
                    session_id=request.generation.session_id,
                )
            )
            request.named_blocks = full

    def _sample(self, request: _Request) -> SimDelta | None:
        """Finish the request's part of the step; a request whose tokens are all computed gets its next one."""
        request.computed += request.scheduled
        if not request.scheduled or request.computed < len(request.tokens):
            return None
        request.scheduled = 0
        token = request.append_next(self.parameters)
        reason = request.finish_reason(token, eos_token=self.parameters.eos_token, capacity=self.capacity_tokens)
        if reason:
            self._leave(request)
        return SimDelta(request.generation.request_id, token, request.cached_tokens, reason)

    def _leave(self, request: _Request) -> None:
        self._running.remove(request)
        self.pool.release(request.blocks)
        request.blocks = []
        del self._requests[request.generation.request_id]

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.parameters.block_size)


def _in_prefill(request: _Request) -> bool:
    return len(request.tokens) - request.computed > 1 or len(request.tokens) == request.prompt_tokens
