"""`dynamo` and `dynamo-tuned`: the cost function of NVIDIA Dynamo 1.6.1's KV router.

For each replica, in blocks:

    prefill = (prompt tokens before a first token there + the new prompt's tokens) / block size
    credit  = overlap credit · blocks on the GPU + 0.75 · further ones in host memory + 0.25 · further ones on disk
    decode  = different blocks of all unfinished prompts there, the new one included
    cost    = prefill load scale · max(prefill − credit, 0) + decode

The least cost wins, equal ones by chance. A request is charged with the tokens that the index did not show as cached
when it was placed (those of slower tiers in part, as above), until its first token, and with its full blocks until it
ends; neither the rest of its prompt nor its output counts as a block. Cached blocks come from the engines' events. Left
out, in its favour: it forgets requests that are older than five minutes. From the documentation and source of
ai-dynamo/dynamo (`kv-router`, scheduling), and compared with the real one by `load_tests.baselines.agreement`. The
tuned parameters are those of its published Mooncake study (`prefill_load_scale` 32) and of its thread 11714
(`overlap_score_credit` 1.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.baselines.active_blocks import ActiveBlocks
from load_tests.baselines.tracked import Informed
from router.errors import KvistBug
from router.index import Depth

if TYPE_CHECKING:
    from load_tests.baselines.tracked import Placed
    from load_tests.sim.placing import Asked, ReplicaSpec

HOST_CREDIT: Final = 0.75
DISK_CREDIT: Final = 0.25
NOTHING: Final = Depth(0, 0, 0)


class CostParameters(NamedTuple):
    """Dynamo's names for them; the defaults are its own."""

    prefill_load_scale: float = 1.0
    overlap_score_credit: float = 1.0


DEFAULTS: Final = CostParameters()
TUNED: Final = CostParameters(prefill_load_scale=32.0, overlap_score_credit=1.5)


class CostParts(NamedTuple):
    """Cached blocks of a prompt, tokens to prefill with it, and different blocks in use with it."""

    cached: Depth
    prefill_tokens: int
    decode_blocks: int


class _Slot:
    """The work of one replica that this router has booked."""

    __slots__ = ("block_size", "blocks", "prefill_tokens")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = ActiveBlocks()
        self.prefill_tokens = 0


class Dynamo(Informed):
    """argmin of the cost."""

    def __init__(self, *, seed: int, parameters: CostParameters = DEFAULTS) -> None:
        super().__init__(seed=seed)
        self._parameters = parameters
        self._slots: dict[str, _Slot] = {}
        self._charged: dict[int, int] = {}  # request before its first token → the tokens it was booked with

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """A replica exists, without work."""
        super().join(replica, now)
        self._slots[replica.name] = _Slot(replica.block_size)

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with its work."""
        super().leave(replica, now)
        self._slots.pop(replica, None)

    def costs(self, asked: Asked) -> dict[str, float]:
        """Every known replica's cost for a prompt, in blocks. O(replicas · log prompt)."""
        scale, overlap_credit = self._parameters
        hashes, tokens, prompt_blocks = asked.hashes, asked.prompt_tokens, len(asked.hashes)
        root = hashes[0] if hashes else None
        depths = self._index.match(hashes, self._replicas)
        costs: dict[str, float] = {}
        for name, slot in self._slots.items():
            prefill = (slot.prefill_tokens + tokens) / slot.block_size
            if name in depths:
                prefill -= _weighted(overlap_credit, depths[name])
            known = slot.blocks.union
            decode = slot.blocks.with_prompt(hashes) if root in known else len(known) + prompt_blocks
            costs[name] = (scale * prefill if prefill > 0 else 0.0) + decode
        return costs

    def parts(self, replica: str, asked: Asked) -> CostParts:
        """What the cost of a known replica is made of."""
        slot = self._slots[replica]
        cached = self._index.match(asked.hashes, (replica,)).get(replica, NOTHING)
        return CostParts(cached, slot.prefill_tokens + asked.prompt_tokens, slot.blocks.with_prompt(asked.hashes))

    def check_integrity(self) -> None:
        """Raise `KvistBug` when the booked work is not that of the requests. O(all blocks)."""
        super().check_integrity()
        booked = dict.fromkeys(self._replicas, 0)
        for request, tokens in self._charged.items():
            booked[self._requests[request].replica] += tokens
        if booked != {name: slot.prefill_tokens for name, slot in self._slots.items()}:
            raise KvistBug("the tokens booked are not those of the requests")
        for slot in self._slots.values():
            slot.blocks.check_integrity()

    def _choose(self, asked: Asked) -> str:
        costs = self.costs(asked)
        least = min(costs.values())
        best = [name for name, cost in costs.items() if cost == least]
        return best[0] if len(best) == 1 else self._random.choice(best)

    def _entered(self, replica: str, asked: Asked, now: float) -> None:
        del now
        slot = self._slots[replica]
        cached = self._index.match(asked.hashes, (replica,)).get(replica, NOTHING)
        tokens = max(asked.prompt_tokens - round(_weighted(1.0, cached) * slot.block_size), 0)
        self._charged[asked.request] = tokens
        slot.prefill_tokens += tokens
        slot.blocks.add(asked.request, asked.hashes)

    def _computed(self, placed: Placed) -> None:
        tokens = self._charged.pop(placed.asked.request, 0)
        self._slots[placed.replica].prefill_tokens -= tokens

    def _left(self, request: int, placed: Placed) -> None:
        self._computed(placed)
        self._slots[placed.replica].blocks.remove(request, placed.asked.hashes)


def _weighted(gpu_credit: float, cached: Depth) -> float:
    """Cached blocks, by what they are worth."""
    gpu, cpu, disk = cached
    return gpu_credit * gpu + HOST_CREDIT * (cpu - gpu) + DISK_CREDIT * (disk - cpu)
