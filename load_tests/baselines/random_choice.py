"""`random`: every replica is as likely as any other. What a load balancer does that knows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.baselines.tracked import Tracked

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked


class Random(Tracked):
    """Uniform and independent."""

    def _choose(self, asked: Asked) -> str:
        del asked
        return self._random.choice(list(self._replicas))
