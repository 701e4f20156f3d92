"""`sglang`: SGLang's cache-aware router (smg 1.13) as it runs without engine events.

It remembers per replica the prompts it sent there. The replicas with the longest match hold it. When the match is more
than CACHE_THRESHOLD of the prompt, the holder with the fewest unfinished requests takes it; otherwise, the replica with
the fewest, of equal ones that with fewer requests ever, then the first. The gate: when the holder has

    requests > 1.5 · mean   and   requests > mean + min(64, max(4, 2σ))

the request spills to the least loaded one, which holds the prompt from then on too. Every EVICT_EVERY_S a memory above
TREE_BLOCKS forgets what was sent least recently; that an engine evicted something is never seen, and tokens do not
count. From smg's documentation and `cache_aware` policy. Its tree counts characters: 2²⁶ of them per replica, here as
tokens of CHARACTERS_PER_TOKEN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from load_tests.baselines.prompt_tree import PromptTree
from load_tests.baselines.tracked import Tracked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from load_tests.sim.placing import Asked, ReplicaSpec

CACHE_THRESHOLD: Final = 0.3
GATE_RATIO: Final = 1.5
GATE_MARGIN_MOST: Final = 64.0
GATE_MARGIN_LEAST: Final = 4.0
GATE_SIGMAS: Final = 2.0
EVICT_EVERY_S: Final = 120.0
TREE_CHARACTERS: Final = 1 << 26
CHARACTERS_PER_TOKEN: Final = 4


class Sglang(Tracked):
    """The longest match by memory, unless its holder is overloaded."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._trees: dict[str, PromptTree] = {}
        self._ever: dict[str, int] = {}
        self._evicted_at = 0.0

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """A replica exists that was sent nothing."""
        super().join(replica, now)
        self._trees[replica.name] = PromptTree(TREE_CHARACTERS // CHARACTERS_PER_TOKEN // replica.block_size)
        self._ever[replica.name] = 0

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with what was remembered of it."""
        super().leave(replica, now)
        self._trees.pop(replica, None)
        self._ever.pop(replica, None)

    def is_overloaded(self, replica: str) -> bool:
        """Whether the gate is open for a known replica. O(replicas)."""
        loads = self._in_flight.values()
        mean = sum(loads) / len(loads)
        load = self._in_flight[replica]
        if load <= GATE_RATIO * mean or load <= mean + GATE_MARGIN_LEAST:
            return False
        deviation = math.sqrt(sum([(one - mean) ** 2 for one in loads]) / len(loads))
        return load > mean + min(GATE_MARGIN_MOST, max(GATE_MARGIN_LEAST, GATE_SIGMAS * deviation))

    def _choose(self, asked: Asked) -> str:
        matched = {name: tree.matched(asked.hashes) for name, tree in self._trees.items()}
        longest = max(matched.values())
        if not asked.hashes or longest <= CACHE_THRESHOLD * len(asked.hashes):
            return self._least_loaded(self._replicas)
        holder = self._least_loaded([name for name, blocks in matched.items() if blocks == longest])
        return self._least_loaded(self._replicas) if self.is_overloaded(holder) else holder

    def _entered(self, replica: str, asked: Asked, now: float) -> None:
        self._ever[replica] += 1
        self._evict(now)
        self._trees[replica].insert(asked.hashes, now)

    def _least_loaded(self, names: Iterable[str]) -> str:
        return min(names, key=lambda name: (self._in_flight[name], self._ever[name]))

    def _evict(self, now: float) -> None:
        if now - self._evicted_at >= EVICT_EVERY_S:
            self._evicted_at = now
            for tree in self._trees.values():
                tree.evict()
