"""The scheduler's side: which blocks of a request the store has, which to load where, and which to save after a step.

Pure but for two questions, asked through `find` (is this block stored?) and `now_ns`. vLLM's requests and step outputs
are read, never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Load(NamedTuple):
    """Blocks (engine's hash, id in the cache) that a request waits for, in prompt order."""

    request_id: str
    blocks: list[tuple[bytes, int]]


class Save(NamedTuple):
    """Blocks (engine's hash, id in the cache) that are whole after this step, from place `depth` of a prompt on."""

    used_at_ns: int
    depth: int
    blocks: list[tuple[bytes, int]]


class Touch(NamedTuple):
    """A prompt's blocks that were found, here or in the store, from its start."""

    used_at_ns: int
    hashes: list[bytes]


class Plan(NamedTuple):
    """What a worker does in one step."""

    loads: list[Load]
    saves: list[Save]
    touches: list[Touch]


class _Tracked:
    """One request in the engine. `saved` counts blocks from its start that are saved, or were found; blocks from
    `found_from` to before `found_to` were in the store when it was last looked."""

    __slots__ = ("found_from", "found_to", "may_load", "request", "saved", "used_at_ns")

    def __init__(self, request: Any, used_at_ns: int) -> None:
        self.request = request
        self.used_at_ns = used_at_ns
        self.found_from = self.found_to = 0
        self.may_load = True
        self.saved: int | None = None


class Planner:
    """Plans for the requests of one engine. `find` says whether the block of an engine's hash is stored."""

    def __init__(self, *, block_size: int, find: Callable[[bytes], bool], now_ns: Callable[[], int]) -> None:
        self._block_size = block_size
        self._find = find
        self._now_ns = now_ns
        self._tracked: dict[str, _Tracked] = {}
        self._plan = Plan([], [], [])
        self._loading: dict[str, Load] = {}

    def __repr__(self) -> str:
        return f"<Planner {len(self._tracked)} requests, {len(self._loading)} loading>"

    @property
    def loading(self) -> int:
        """Loads that have not ended."""
        return len(self._loading)

    def loadable_tokens(self, request: Any, computed_tokens: int) -> int:
        """Tokens of full blocks in the store, one after the other from `computed_tokens` on. The last token of a prompt
        is always computed. Linear in the blocks found; none for a request whose load has failed."""
        tracked = self._track(request)
        if not tracked.may_load:
            return 0
        start = computed_tokens // self._block_size
        end = min((request.num_tokens - 1) // self._block_size, len(request.block_hashes))
        found = tracked.found_to if tracked.found_from == start < tracked.found_to <= end else start + 1
        found = found - 1  # a request that waits for room is asked about at every step: its last block tells
        while found < end and self._find(bytes(request.block_hashes[found])):
            found += 1
        tracked.found_from, tracked.found_to = start, found
        return (found - start) * self._block_size

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        """The request has cache blocks; those of `external_tokens` are to be loaded."""
        tracked = self._track(request)
        if not external_tokens:
            return
        start = tracked.found_from
        end = start + external_tokens // self._block_size
        hashes = [bytes(block_hash) for block_hash in request.block_hashes[start:end]]
        load = Load(request.request_id, list(zip(hashes, block_ids[start:end], strict=True)))
        self._plan.loads.append(load)
        self._loading[request.request_id] = load
        tracked.may_load = False

    def take(self, step: Any) -> Plan:
        """The plan of a step that is about to run."""
        for request_id, computed in _scheduled(step):
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                self._after_step(tracked, computed, step)
        plan, self._plan = self._plan, Plan([], [], [])
        return plan

    def loaded(self, request_ids: set[str], failed: set[int]) -> list[tuple[Any, int]]:
        """Loads have ended; requests of which blocks failed, with the number of their tokens that did arrive. They load
        no more."""
        hurt = []
        for request_id in request_ids:
            load, tracked = self._loading.pop(request_id, None), self._tracked.get(request_id)
            if load is None or tracked is None:
                continue
            arrived = next((place for place, (_, block) in enumerate(load.blocks) if block in failed), None)
            tracked.may_load = arrived is None
            if arrived is not None:
                hurt.append((tracked.request, (tracked.found_from + arrived) * self._block_size))
        return hurt

    def forget(self, request_id: str) -> None:
        """The request has left the engine."""
        self._tracked.pop(request_id, None)

    def _track(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = _Tracked(request, self._now_ns())
        return tracked

    def _after_step(self, tracked: _Tracked, computed: int, step: Any) -> None:
        request, size = tracked.request, self._block_size
        if tracked.saved is None or request.request_id in step.scheduled_cached_reqs.resumed_req_ids:
            tracked.saved = computed // size
            if tracked.saved:
                hashes = [bytes(block_hash) for block_hash in request.block_hashes[: tracked.saved]]
                self._plan.touches.append(Touch(tracked.used_at_ns, hashes))
        start = tracked.saved
        after = (computed + step.num_scheduled_tokens[request.request_id]) // size
        end = min(after, len(request.block_hashes))  # tokens beyond the hashes are guesses
        if end <= start:
            return
        block_ids = step.kv_connector_block_state.get_block_ids(request.request_id)[0]
        hashes = [bytes(block_hash) for block_hash in request.block_hashes[start:end]]
        blocks = list(zip(hashes, block_ids[start:end], strict=True))
        self._plan.saves.append(Save(tracked.used_at_ns, start, blocks))
        tracked.saved = end


def _scheduled(step: Any) -> Iterator[tuple[str, int]]:
    """Requests of a step, each with its tokens that were computed before it."""
    for new in step.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = step.scheduled_cached_reqs
    yield from zip(cached.req_ids, cached.num_computed_tokens, strict=True)
