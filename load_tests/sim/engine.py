"""The engine of `workers.simulator`, by the same rules, at the cost of what happens instead of every token.

A prompt is the list of its blocks. Between two steps that change the cache or end a request, decodes only count: such
steps are taken as one window, which an arrival cuts at the end of the step in progress. All other steps are scheduled
one by one, as the reference does it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from load_tests.sim.pool import NO_SLOTS, Hashes, Ints, RunPool
from router.errors import InvalidRequest
from router.wire import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.wire import Op
    from workers.simulator import SimParameters


class Job(NamedTuple):
    """What one request asks of an engine. `hashes` are those of all blocks that its prompt and its answer but the last
    token fill; `packed` are the same as an array."""

    request: int
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]
    packed: Hashes


class FirstToken(NamedTuple):
    """A prompt is computed, of which so many tokens were cached; its first step began at `started_at`."""

    request: int
    cached_tokens: int
    started_at: float


class StepEnd(NamedTuple):
    """What came of the last step of a window; `finished` requests have all their tokens."""

    ended_at: float
    first_tokens: tuple[FirstToken, ...]
    finished: tuple[int, ...]
    ops: tuple[Op, ...]


class _Request:
    """`computed` of `tokens` have their KV in `held` blocks, the first `named` of which have content."""

    __slots__ = (
        "cached_tokens", "computed", "found", "hashes", "is_decoding", "job", "last_tokens", "named", "packed",
        "scheduled", "slots", "started_at", "tokens", "unnamed",
    )  # fmt: skip

    def __init__(self, job: Job, *, capacity_tokens: int) -> None:
        self.job = job
        self.hashes = job.hashes
        self.packed = job.packed
        self.tokens = job.prompt_tokens
        self.last_tokens = min(job.prompt_tokens + job.output_tokens, capacity_tokens)
        self.cached_tokens = -1
        self.started_at = 0.0
        self.slots: list[Ints] = []
        self.forget_blocks()

    def forget_blocks(self) -> None:
        self.computed = self.scheduled = self.named = self.unnamed = self.found = 0
        self.is_decoding = False
        self.slots.clear()

    @property
    def all_slots(self) -> Ints:
        return np.concatenate(self.slots) if self.slots else NO_SLOTS

    def look_on(self) -> None:
        """Note whether only its next token is to be computed."""
        self.is_decoding = self.tokens - self.computed == 1 and self.tokens > self.job.prompt_tokens


class Engine:
    """One simulated engine. Time comes in with the calls and never goes back; `speed` divides all durations.

    After `submit`, and whenever `due_at` has come, call `advance`."""

    def __init__(self, parameters: SimParameters, *, speed: float = 1.0) -> None:
        self.parameters = parameters
        self.pool = RunPool(parameters.pool_blocks)
        self.prefilled_tokens = 0
        self.decoded_tokens = 0
        self._step_s = parameters.step_s / speed
        self._prefill_token_s = parameters.prefill_token_s / speed
        self._attention_pair_s = parameters.attention_pair_s / speed
        self._decode_s = parameters.decode_s / speed
        self._size = parameters.block_size
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        # The window: `_plain` steps that only count, then `_last` (0 or 1) that does more, each of `_each_s`.
        self._began_at: float | None = None
        self._plain = 0
        self._last = 0
        self._each_s = 0.0
        self._is_scheduled = False  # the last step's parts are given out already
        self._may_join = True  # something changed since nobody waiting could join

    def __repr__(self) -> str:
        return f"Engine({len(self._running)} running, {len(self._waiting)} waiting, {self.pool!r})"

    @property
    def capacity_tokens(self) -> int:
        """The most tokens that one request may have, its output included."""
        return min(self.parameters.max_model_len, self.parameters.pool_blocks * self._size)

    @property
    def requests(self) -> list[int]:
        """All requests that have not finished."""
        return [one.job.request for one in (*self._running, *self._waiting)]

    @property
    def due_at(self) -> float | None:
        """When something comes of the window in progress; None between windows."""
        if self._began_at is None:
            return None
        return self._began_at + (self._plain + self._last) * self._each_s

    def submit(self, job: Job, now: float) -> None:
        """Queue a request. All steps that end by `now` must have been taken. Raises `InvalidRequest` for one that can
        never run."""
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise InvalidRequest("a request needs a token, and at least one to generate")
        if job.prompt_tokens >= self.capacity_tokens:
            raise InvalidRequest(f"{job.prompt_tokens} prompt tokens and one to generate exceed {self.capacity_tokens}")
        self._waiting.append(_Request(job, capacity_tokens=self.capacity_tokens))
        self._may_join = True
        self._cut_window(now)

    def advance(self, now: float) -> list[StepEnd]:
        """Take all steps that end by `now`. An engine between steps begins one now."""
        results: list[StepEnd] = []
        started_at = now
        while True:
            if self._began_at is None:
                if not (self._running or self._waiting):
                    return results
                self._begin_window(started_at)
            due_at = self.due_at
            assert due_at is not None
            if due_at > now:
                return results
            results.append(self._end_window(due_at))
            started_at = due_at

    def load(self) -> Load:
        """The gauge, as of the last step that ended."""
        prefilling = sum([one.tokens - one.computed for one in self._running if not one.is_decoding])
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            backlog_tokens=prefilling + sum([one.tokens for one in self._waiting]),
            free_blocks=self.pool.free_blocks,
            total_blocks=self.pool.pool_blocks,
        )

    def check_integrity(self) -> None:
        """Raise when requests and pool disagree."""
        self.pool.check_integrity()
        in_use = {int(slot) for one in self._running for slot in one.all_slots}
        unnamed = sum(one.unnamed for one in self._running)
        assert len(in_use) + unnamed == self.pool.pool_blocks - self.pool.free_blocks
        assert not any(one.slots for one in self._waiting)

    def _cut_window(self, now: float) -> None:
        """Let only the step in progress at `now` end before a newcomer is looked at."""
        if self._began_at is None or self._is_scheduled or not self._each_s:
            return
        complete = int((now - self._began_at) / self._each_s)
        while complete and self._began_at + complete * self._each_s > now:
            complete -= 1
        while self._began_at + (complete + 1) * self._each_s <= now:
            complete += 1
        if complete < self._plain:
            self._plain, self._last = complete + 1, 0

    def _begin_window(self, now: float) -> None:
        self._began_at = now
        self._plain, self._last, self._is_scheduled = 0, 1, False
        if self._only_decodes:
            self._each_s = self._duration(0, 0, len(self._running))
            self._plain, blocks = self._plain_steps()
            if blocks <= self.pool.free_blocks and not self._waiting:
                return
            if self._plain:
                self._last = 0
                return
        self._is_scheduled = True
        self._each_s = self._schedule(now)

    @property
    def _only_decodes(self) -> bool:
        if not self._running or len(self._running) > self.parameters.max_batched_tokens:
            return False
        if self._waiting and self._may_join:
            return False
        return not [one for one in self._running if not one.is_decoding]

    def _plain_steps(self) -> tuple[int, int]:
        """Steps in which no request takes or fills a block or ends, and how many blocks are taken in the next one."""
        size = self._size
        plain, taking = 1 << 60, 0
        for one in self._running:
            computed = one.computed
            ahead = min(-computed % size, (-computed - 1) % size, one.last_tokens - one.tokens - 1)
            if ahead < plain:
                plain, taking = ahead, 0
            if ahead == plain and (computed + ahead) % size == 0:
                taking += 1
        return plain, taking

    def _end_window(self, now: float) -> StepEnd:
        plain, self._plain = self._plain, 0
        self._began_at = None
        if plain:
            self.decoded_tokens += plain * len(self._running)
            for one in self._running:
                one.computed += plain
                one.tokens += plain
        if not self._last:
            return StepEnd(now, (), (), ())
        return self._results(now) if self._is_scheduled else self._decoded(now)

    def _decoded(self, now: float) -> StepEnd:
        """A step of decodes only, for which there is room."""
        size, pool = self._size, self.pool
        finished: list[int] = []
        self.decoded_tokens += len(self._running)
        for one in self._running:
            place = one.computed % size
            if not place:
                pool.take(1)
                one.unnamed += 1
            one.computed += 1
            one.tokens += 1
            if place == size - 1:
                one.slots.append(pool.name_one(one.hashes[one.named]))
                one.named += 1
                one.unnamed -= 1
            if one.tokens >= one.last_tokens:
                finished.append(one.job.request)
        if finished:
            self._let_go()
        return StepEnd(now, (), tuple(finished), tuple(pool.take_ops()))

    def _results(self, now: float) -> StepEnd:
        """Finish every request's part of the step; who has all tokens computed gets the next one."""
        first_tokens: list[FirstToken] = []
        finished: list[int] = []
        for one in self._running:
            if one.is_decoding:
                self.decoded_tokens += one.scheduled
            else:
                self.prefilled_tokens += one.scheduled
            one.computed += one.scheduled
            if not one.scheduled or one.computed < one.tokens:
                one.look_on()
                continue
            one.scheduled = 0
            one.tokens += 1
            one.is_decoding = True
            if one.tokens == one.job.prompt_tokens + 1:
                first_tokens.append(FirstToken(one.job.request, one.cached_tokens, one.started_at))
            if one.tokens >= one.last_tokens:
                finished.append(one.job.request)
        if finished:
            self._let_go()
        return StepEnd(now, tuple(first_tokens), tuple(finished), tuple(self.pool.take_ops()))

    def _let_go(self) -> None:
        self._may_join = True
        for one in self._running:
            if one.tokens >= one.last_tokens:
                self._release(one)
        self._running = [one for one in self._running if one.tokens < one.last_tokens]

    def _release(self, one: _Request) -> None:
        self.pool.release(one.all_slots, unnamed=one.unnamed, found=one.found)
        one.forget_blocks()

    def _schedule(self, now: float) -> float:
        """Give each request its part of the step; returns the step's duration."""
        most = budget = self.parameters.max_batched_tokens
        share, before = self._share_tokens, len(self._running)
        for one in list(self._running):
            one.scheduled = 0
            wanted = min(one.tokens - one.computed, share, budget)
            if wanted and one in self._running and self._make_room(one, wanted):
                self._assign(one, wanted)
                budget -= wanted
        if len(self._running) == before:
            budget = self._admit(budget, share, now)
        decodes = sum([one.scheduled == 1 and one.is_decoding for one in self._running])
        prefills = [one for one in self._running if one.scheduled and not one.is_decoding]
        pairs = sum([one.scheduled * (one.computed + one.scheduled / 2) for one in prefills])
        return self._duration(most - budget - decodes, pairs, decodes)

    def _admit(self, budget: int, share: int, now: float) -> int:
        """Let waiting requests join while there is room; returns what is left of the budget."""
        while self._waiting and budget and len(self._running) < self.parameters.max_num_seqs:
            wanted = self._join(self._waiting[0], min(share, budget), now)
            if not wanted:
                break
            self._running.append(self._waiting.popleft())
            budget -= wanted
        self._may_join = not budget
        return budget

    def _duration(self, tokens: int, pairs: float, decodes: int) -> float:
        pace = self._prefill_token_s, self._attention_pair_s, self._decode_s
        return self._step_s + tokens * pace[0] + pairs * pace[1] + decodes * pace[2]

    @property
    def _share_tokens(self) -> int:
        threshold, budget = self.parameters.long_prefill_token_threshold, self.parameters.max_batched_tokens
        return min(threshold, budget) if threshold and len(self._running) + len(self._waiting) > 1 else budget

    def _join(self, one: _Request, budget: int, now: float) -> int:
        """Start a waiting request after its cached prefix; 0 when there is no room for it."""
        cached = self.pool.match(one.hashes, one.packed, (one.tokens - 1) // self._size)
        start = len(cached) * self._size
        wanted = min(one.tokens - start, budget)
        if not self.pool.can_take(self._blocks_for(start + wanted) - len(cached), beside=cached):
            return 0
        self.pool.use(cached)
        if len(cached):
            one.slots.append(cached)
        one.named = one.found = len(cached)
        one.computed = start
        one.look_on()
        if one.cached_tokens < 0:
            one.cached_tokens, one.started_at = start, now
        self._assign(one, wanted)
        return wanted

    def _make_room(self, one: _Request, wanted: int) -> bool:
        """Put back the latest comers until the request's blocks fit; false when it was put back itself."""
        needed = self._blocks_for(one.computed + wanted) - one.named - one.unnamed
        while needed > self.pool.free_blocks:
            victim = self._running.pop()
            self._release(victim)
            self._waiting.appendleft(victim)
            self._may_join = True
            if victim is one:
                return False
        return True

    def _assign(self, one: _Request, count: int) -> None:
        """Schedule `count` tokens; blocks that they fill are named at once, as the engine does."""
        after = one.computed + count
        needed = self._blocks_for(after) - one.named - one.unnamed
        if needed:
            self.pool.take(needed)
            one.unnamed += needed
        one.scheduled = count
        first, full = one.named, after // self._size
        if full > first:
            one.slots.append(self.pool.name(one.hashes[first:full], one.packed[first:full]))
            one.named = full
            one.unnamed -= full - first

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._size)
