"""Which replica should take a prompt: the one whose predicted time to first token costs least.

    cost = (backlog + uncached · (1 + compute price)) / prefill rate + cost of the decodes that share its steps

The compute price stands for the delay that computing a prompt again causes to those who follow: it lets siblings wait
for a prefix that is on its way instead of computing it twice.

Scores closer than `tie_s` are equal. Equal scores break by how many such prompts the pool still takes before it evicts
anything, so that new conversations share the pools evenly; then by rendezvous hash of the prefix root, so that cold
prompts spread and the same one returns to the same replica. No randomness: equal inputs give equal rankings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import xxhash

from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.index import Depth


class Candidate(NamedTuple):
    """One routable replica. `depth` counts resident blocks, `coming_blocks` those that requests in flight add to it,
    `room_blocks` what its pool can take before anything cached is evicted. The engine is expected to find
    `overstated_tokens` less than all that."""

    replica: str
    block_size: int
    depth: Depth
    coming_blocks: int
    backlog_tokens: int
    running: int
    room_blocks: int
    overstated_tokens: int = 0

    def shown_tokens(self, prompt_tokens: int) -> int:
        """Tokens of a prompt of this length that are cached if all blocks are of use."""
        return min(
            (self.depth.disk + self.coming_blocks) * self.block_size, cacheable_tokens(prompt_tokens, self.block_size)
        )


class Question(NamedTuple):
    """What is to be placed. `root` is the first block's hash, 0 for a prompt without one; `turn` counts choices."""

    prompt_tokens: int
    root: int
    turn: int
    tokens_per_s: float


class Score(NamedTuple):
    """What a prompt costs on one replica, and what that was made of."""

    replica: str
    cost_s: float
    cached_tokens: int
    backlog_tokens: int


class Policy(Protocol):
    """A rule of choice: pure, deterministic, every candidate ranked exactly once, best first."""

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]: ...


class LeastTime(msgspec.Struct, frozen=True, kw_only=True):
    """The rule above. A credit is the share of a block's computation that finding it in that tier saves."""

    gpu_credit: float = 1.0
    cpu_credit: float = 0.75
    disk_credit: float = 0.5
    compute_price: float = 0.25
    decode_cost_s: float = 0.002
    tie_s: float = 0.001

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]:
        """O(n log n) over the candidates."""
        prompt_tokens, root, _, tokens_per_s = question
        ranked = []
        backlog_s, compute_s = 1.0 / tokens_per_s, (1.0 + self.compute_price) / tokens_per_s
        for replica, block_size, (gpu, cpu, disk), coming, backlog, running, room, overstated in candidates:
            cached = min((disk + coming) * block_size, cacheable_tokens(prompt_tokens, block_size))
            if overstated:
                cached = max(0, cached - overstated) // block_size * block_size
            dearer = (1.0 - self.gpu_credit) * (gpu + coming)
            if disk > gpu:
                dearer += (1.0 - self.cpu_credit) * (cpu - gpu) + (1.0 - self.disk_credit) * (disk - cpu)
            uncached = prompt_tokens - cached + dearer * block_size
            cost_s = backlog * backlog_s + uncached * compute_s + running * self.decode_cost_s
            score = Score(replica, cost_s, cached, backlog)
            fitting = max(room, 0) // max((prompt_tokens - cached) // block_size, 1)
            ranked.append((round(cost_s / self.tie_s), -fitting, replica, score))
        ranked.sort()
        tied = [entry for entry in ranked if entry[:2] == ranked[0][:2]]
        if len(tied) > 1:
            ranked[: len(tied)] = sorted(tied, key=lambda entry: xxhash.xxh3_64_intdigest(entry[2].encode(), root))
        return tuple([entry[3] for entry in ranked])


class RoundRobin(msgspec.Struct, frozen=True):
    """Each in turn, whatever it holds: the yardstick that locality is measured against."""

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]:
        """By name, beginning one further with each choice."""
        ranked = sorted(LeastTime().rank(candidates, question))
        first = question.turn % len(ranked) if ranked else 0
        return tuple(ranked[first:] + ranked[:first])


def policy_named(name: str) -> Policy:
    """The policy a config names: `kvist` or `round-robin`. Raises `InvalidRequest` for another."""
    policies: dict[str, Policy] = {"kvist": LeastTime(), "round-robin": RoundRobin()}
    if name not in policies:
        raise InvalidRequest(f"unknown routing policy {name!r}; known are {', '.join(policies)}")
    return policies[name]


def cacheable_tokens(prompt_tokens: int, block_size: int) -> int:
    """Most tokens an engine can take from its cache: whole blocks, and never the last token."""
    return max(prompt_tokens - 1, 0) // block_size * block_size
