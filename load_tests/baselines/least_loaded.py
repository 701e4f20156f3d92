"""`least-loaded`: the replica with the fewest unfinished requests, equal ones by chance.

That is nginx's `least_conn`, smg's `least_load` and Dynamo's `least-loaded`. It counts requests, whatever their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.baselines.tracked import Tracked

if TYPE_CHECKING:
    from load_tests.sim.placing import Asked


class LeastLoaded(Tracked):
    """argmin of the own requests in flight."""

    def _choose(self, asked: Asked) -> str:
        del asked
        fewest = min(self._in_flight.values())
        return self._random.choice([name for name, requests in self._in_flight.items() if requests == fewest])
