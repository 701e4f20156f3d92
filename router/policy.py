"""Which replica should take a prompt: the one where it costs least, for itself and for those who follow.

What a cost is made of is in router/cost.py, how an engine shares its steps in router/step_rule.py, and what is learnt
meanwhile in router/rates.py; docs/routing.md explains the rule with pictures.

Costs closer than `tie_s` are equal. Equal costs break by how many such prompts the pool still takes before it evicts
anything, so that new conversations share the pools evenly; then by rendezvous hash of the prefix root, so that cold
prompts spread and the same one returns to the same replica. No randomness: equal inputs give equal rankings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import xxhash

from router.cost import Standing, delay_s2
from router.errors import InvalidRequest
from router.step_rule import FIRST_COME, ahead_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.index import Depth

UNKNOWN: Final = Standing(FIRST_COME)


class Candidate(NamedTuple):
    """One routable replica. `depth` counts resident blocks, `coming_blocks` those that requests in flight add to it,
    `room_blocks` what its pool can take before anything cached is evicted. The engine is expected to find
    `overstated_tokens` less than all that."""

    replica: str
    block_size: int
    depth: Depth
    coming_blocks: int
    running: int
    room_blocks: int
    overstated_tokens: int = 0
    standing: Standing = UNKNOWN

    def shown_tokens(self, prompt_tokens: int) -> int:
        """Tokens of a prompt of this length that are cached if all blocks are of use."""
        return min(
            (self.depth.disk + self.coming_blocks) * self.block_size, cacheable_tokens(prompt_tokens, self.block_size)
        )


class Question(NamedTuple):
    """What is to be placed. `root` is the first block's hash, 0 for a prompt without one; `turn` counts choices.

    Learnt of the deployment: prompt tokens per second, by how much a decode makes a step longer, and the share of
    prompts that compute no more than one share of a step, and the steps that an answer takes."""

    prompt_tokens: int
    root: int
    turn: int
    tokens_per_s: float
    decode_s: float = 0.0
    short_share: float = 0.0
    answer_steps: float = 0.0


class Score(NamedTuple):
    """What a prompt costs on one replica, and what that is made of; see router/cost.py. `ahead_tokens` are computed
    before it is done, of `backlog_tokens` that others have left."""

    replica: str
    cost_s: float
    cached_tokens: int
    backlog_tokens: int
    ahead_tokens: int = 0
    wait_s: float = 0.0
    compute_s: float = 0.0
    decodes_s: float = 0.0
    others_s: float = 0.0
    room_s: float = 0.0


class Policy(Protocol):
    """A rule of choice: pure, deterministic, every candidate ranked exactly once, best first."""

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]: ...


class LeastTime(msgspec.Struct, frozen=True, kw_only=True):
    """The rule above. A credit is the share of a block's computation that finding it in that tier saves.

    `compute_price` is what a second of computing costs beside the delays that are learnt: it holds siblings together
    before any arrival rate is known. `room_price` is the share of evicted live tokens that are computed again."""

    gpu_credit: float = 1.0
    cpu_credit: float = 0.75
    disk_credit: float = 0.5
    compute_price: float = 0.25
    others_price: float = 1.0
    room_price: float = 1.0
    tie_s: float = 0.001

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]:
        """O(n log n) over the candidates, and O(prompts ahead²) for those with a queue."""
        prompt_tokens, root, _, tokens_per_s, decode_s, short_share, answer_steps = question
        ranked, new, compute_price = [], tuple.__new__, self.compute_price  # a third faster built by its class
        dear_gpu, dear_cpu, dear_disk = 1.0 - self.gpu_credit, 1.0 - self.cpu_credit, 1.0 - self.disk_credit
        for replica, size, (gpu, cpu, disk), coming, running, room, overstated, standing in candidates:
            cached = min((disk + coming) * size, cacheable_tokens(prompt_tokens, size))
            if overstated:
                cached = max(0, cached - overstated) // size * size
            dearer = dear_gpu * (gpu + coming)
            if disk > gpu:
                dearer += dear_cpu * (cpu - gpu) + dear_disk * (disk - cpu)
            rule, part, backlog, ahead, slowness, arrivals_per_s, overdue_s, live_room = standing
            uncached = prompt_tokens - cached
            token_s = slowness / tokens_per_s
            compute_s = (uncached + dearer * size) * token_s
            before = ahead_tokens(rule, ahead, uncached) if backlog else 0
            wait_s = before * token_s + overdue_s
            price_s = compute_s * compute_price
            if arrivals_per_s:
                price_s += self.others_price * arrivals_per_s * delay_s2(wait_s, compute_s, part * token_s, short_share)
            decodes_s = (uncached // part + 1 + answer_steps) * running * decode_s
            room_s = 0.0
            if live_room < uncached:
                room_s = min(uncached - live_room, uncached) * token_s * self.room_price
            cost_s = wait_s + compute_s + decodes_s + price_s + room_s
            score = new(Score, (
                replica, cost_s, cached, backlog, before, wait_s, compute_s, decodes_s, price_s, room_s
            ))  # fmt: skip
            fitting = max(room, 0) // (uncached // size or 1)
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
