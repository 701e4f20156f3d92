"""`llm-d`: weighted scorers, as llm-d's inference scheduler documents its default profile.

    score = 2 · matched blocks / prompt blocks  +  1 · (1 − KV cache in use)  +  1 · queue

Queue is (longest − its own) / (longest − shortest) over the waiting requests of all replicas, 1 when they are equal.
The highest score wins, equal ones by chance. Matched blocks come from the engines' events (its `precise` prefix
scorer, without speculative entries, which are off by default), the other two from the engines' last gauge: what was
sent since is not seen, and nothing weighs tokens.
From llm-d-router's scorers (`prefix-cache-scorer`, `kv-cache-utilization-scorer`, `queue-scorer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load_tests.baselines.tracked import Informed

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked

PREFIX_WEIGHT: Final = 2.0
UTILIZATION_WEIGHT: Final = 1.0
QUEUE_WEIGHT: Final = 1.0


class LlmD(Informed):
    """argmax of the weighted scores."""

    def scores(self, asked: Asked) -> dict[str, float]:
        """Every known replica's score for a prompt, 0 to 4. O(replicas · log prompt)."""
        matched = self._index.match(asked.hashes, self._replicas)
        waiting = [gauge.waiting for gauge in self._gauges.values()]
        longest, spread = max(waiting), max(waiting) - min(waiting)
        scores: dict[str, float] = {}
        for name, gauge in self._gauges.items():
            prefix = matched[name].disk / len(asked.hashes) if name in matched else 0.0
            unused = gauge.free_blocks / gauge.total_blocks if gauge.total_blocks else 1.0
            queue = (longest - gauge.waiting) / spread if spread else 1.0
            scores[name] = PREFIX_WEIGHT * prefix + UTILIZATION_WEIGHT * unused + QUEUE_WEIGHT * queue
        return scores

    def _choose(self, asked: Asked) -> str:
        scores = self.scores(asked)
        highest = max(scores.values())
        return self._random.choice([name for name, score in scores.items() if score == highest])
