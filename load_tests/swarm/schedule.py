"""When requests are due, known before any answer: nothing an endpoint does can move a time of the open loop."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from load_tests.swarm.scenario import Session, Turn, Workload

Arrivals = Literal["poisson", "even"]


def agent_starts(agents: int, *, ramp_s: float) -> list[float]:
    """When each agent begins: evenly over the ramp, the first at once."""
    return [ramp_s * number / agents for number in range(agents)]


def due_times(*, rate: float, ramp_s: float, end_s: float, arrivals: Arrivals, rng: random.Random) -> Iterator[float]:
    """Times from 0 to `end_s` at `rate` a second, reached in a straight line over `ramp_s`.

    A Poisson process (or even steps) of unit rate, stretched by the inverse of the rate's integral: r t²/2R up to the
    ramp's end R, r (t - R/2) after it."""
    area = 0.0
    while True:
        area += rng.expovariate(1.0) if arrivals == "poisson" else 1.0
        due_s = _when(area, rate=rate, ramp_s=ramp_s)
        if due_s >= end_s:
            return
        yield due_s


def _when(area: float, *, rate: float, ramp_s: float) -> float:
    """The time by which `area` arrivals are expected."""
    if area < rate * ramp_s / 2:
        return math.sqrt(2 * area * ramp_s / rate)
    return area / rate + ramp_s / 2


def scaled_times(times_s: list[float], *, rate: float | None) -> list[float]:
    """A trace's own times, from 0 on; stretched so that their mean rate is `rate` where one is asked for."""
    first_s, span_s = min(times_s, default=0.0), max(times_s, default=0.0) - min(times_s, default=0.0)
    factor = 1.0 if rate is None or span_s == 0 else len(times_s) / rate / span_s
    return [(time_s - first_s) * factor for time_s in times_s]


def rotation(workload: Workload, *, width: int) -> Iterator[tuple[Session, int, Turn]]:
    """Requests one by one, session number and turn told: `width` sessions are open, each in its turn makes its next
    request, and a finished one gives its place to the next. Sub-agents are left out: they hang on answers."""
    total = math.inf if workload.total is None else workload.total
    places = deque(_turns(workload.session(number)) for number in range(int(min(width, total))))
    begun = len(places)
    while places:
        place = places.popleft()
        found = next(place, None)
        if found is not None:
            yield found
            places.append(place)
        elif begun < total:
            places.append(_turns(workload.session(begun)))
            begun += 1


def _turns(session: Session) -> Iterator[tuple[Session, int, Turn]]:
    return ((session, number, turn) for number, turn in enumerate(session.turns))
