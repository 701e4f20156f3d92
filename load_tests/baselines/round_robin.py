"""`round-robin`: one after the other, in the order in which replicas joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.baselines.tracked import Tracked

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked


class RoundRobin(Tracked):
    """A counter modulo the number of replicas, as nginx and smg's `round_robin` do."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._turn = 0

    def _choose(self, asked: Asked) -> str:
        del asked
        names = list(self._replicas)
        self._turn += 1
        return names[(self._turn - 1) % len(names)]
