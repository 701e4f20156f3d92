"""`two-choices`: of two different replicas taken by chance, the one with fewer unfinished requests.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001); Ray Serve's default router and smg's
`power_of_two`. Equal ones are settled by the order of the draw, which is chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.baselines.tracked import Tracked

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked


class TwoChoices(Tracked):
    """The better of two."""

    def _choose(self, asked: Asked) -> str:
        del asked
        drawn = self._random.sample(list(self._replicas), min(2, len(self._replicas)))
        return min(drawn, key=self._in_flight.__getitem__)
