"""What no router can beat: infinite caches, one pool for all, idle replicas; and how much cache a workload needs."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from load_tests.sim.pool import RunPool

if TYPE_CHECKING:
    from load_tests.sim.calibration import Calibration
    from load_tests.sim.work import Workload


def ideal_tokens(workload: Workload) -> list[int]:
    """Cached tokens of each request if everything that earlier ones computed were kept. O(new blocks) per request."""
    seen: set[int] = set()
    found = []
    for request in workload.requests:
        hashes = request.hashes()
        reusable = (request.prompt_tokens - 1) // workload.block_size
        depth = bisect_left(range(reusable), True, key=lambda at: hashes[at] not in seen)
        seen.update(hashes[depth:])
        found.append(depth * workload.block_size)
    return found


def capacity_tokens(workload: Workload, pool_blocks: int) -> list[int]:
    """The same with one pool of this size that evicts what was used least recently, one request after the other."""
    pool = RunPool(pool_blocks)
    found = []
    for request in workload.requests:
        hashes = request.hashes()
        if len(hashes) >= pool_blocks:
            found.append(0)
            continue
        packed = request.packed()
        slots = pool.match(hashes, packed, (request.prompt_tokens - 1) // workload.block_size)
        depth = len(slots)
        found.append(depth * workload.block_size)
        pool.use(slots)
        pool.take(len(hashes) - depth)
        named = pool.name(hashes[depth:], packed[depth:]) if depth < len(hashes) else slots[:0]
        pool.release(np.concatenate([slots, named]), found=depth)
        pool.take_ops()
    return found


def floor_s(workload: Workload, cached: list[int], pace: Calibration) -> list[float]:
    """Times to first token on an idle replica that has these tokens cached: alone, a prompt has all of each step."""
    found = []
    for request, tokens in zip(workload.requests, cached, strict=True):
        new = request.prompt_tokens - tokens
        steps, pairs = -(-new // pace.step_tokens), new * (tokens + new / 2)
        found.append(pace.front_s + steps * pace.step_s + new * pace.prefill_token_s + pairs * pace.attention_pair_s)
    return found


def working_set_blocks(workload: Workload) -> float:
    """Blocks between their first and last use at the trace's own pace: the mean of what the requests see."""
    if not workload.requests:
        return 0.0
    size = 1 + max(run.first + run.blocks for request in workload.requests for run in request.runs)
    first, last = np.full(size, np.inf), np.full(size, -np.inf)
    for request in workload.requests:
        for at, count in request.runs:
            np.minimum(first[at : at + count], request.seen_at, out=first[at : at + count])
            np.maximum(last[at : at + count], request.left_at, out=last[at : at + count])
    used = last >= first
    begun, ended = np.sort(first[used]), np.sort(last[used])
    times = np.array([request.seen_at for request in workload.requests])
    alive = np.searchsorted(begun, times, side="right") - np.searchsorted(ended, times, side="left")
    return float(alive.mean())
