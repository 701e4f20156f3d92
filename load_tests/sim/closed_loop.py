"""Sessions laid out in time: so many agents at work at once, each taking the next session when one ends."""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.sim.sessions import OWN_IDS, Call, Session
from load_tests.sim.work import After, Run, SimRequest, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGGER_S: Final = 600.0  # of the trace's time, over which the first sessions begin


class Layout(NamedTuple):
    """`agents` work at once. The run ends with the `requests`-th request at the trace's own pace, whatever the
    cluster's; sessions come in an order drawn from `seed`, all of them before any comes again as a new conversation.
    Think times and stagger are divided by `rate_scale`."""

    agents: int
    requests: int
    rate_scale: float = 1.0
    seed: int = 0
    stagger_s: float = STAGGER_S


class _Placed(NamedTuple):
    """A call with its time in the trace's own pace. `after` names a session's place and a call in it."""

    begins_s: float
    session: int
    place: int
    call: Call
    after: tuple[tuple[int, int, float], ...]


def closed_loop(name: str, block_size: int, sessions: Sequence[Session], layout: Layout) -> Workload:
    """The first requests of an endless sequence of these sessions, each waiting as its trace says."""
    random = Random(layout.seed)
    free = [(random.uniform(0.0, layout.stagger_s), agent) for agent in range(layout.agents)]
    heapify(free)
    before: dict[int, int] = {}  # agent → its last session
    taken: list[tuple[Session, float]] = []
    placed: list[_Placed] = []
    begins: list[float] = []  # of all calls, in order
    order: list[Session] = []
    while len(begins) < layout.requests or begins[layout.requests - 1] >= free[0][0]:
        begins_s, agent = heappop(free)
        order = order or random.sample(sessions, len(sessions))
        session = order.pop()
        number = len(taken)
        taken.append((session, begins_s))
        new = _place(session, number, begins_s, before.get(agent), taken)
        placed += new
        for one in new:
            insort(begins, one.begins_s)
        before[agent] = number
        heappush(free, (begins_s + session.ends_s, agent))
    placed.sort(key=lambda one: one[:3])
    return Workload(name, block_size, _requests(placed[: layout.requests], taken, layout.rate_scale))


def _place(
    session: Session, number: int, begins_s: float, before: int | None, taken: Sequence[tuple[Session, float]]
) -> list[_Placed]:
    found = []
    for place, call in enumerate(session.calls):
        after = [(number, at, gap_s) for at, gap_s in call.after]
        if before is not None and not after:
            earlier, started_s = taken[before]
            last = max(range(len(earlier.calls)), key=lambda at: earlier.calls[at].ends_s)
            after.append((before, last, begins_s + call.begins_s - started_s - earlier.ends_s))
        found.append(_Placed(begins_s + call.begins_s, number, place, call, tuple(after)))
    return found


def _requests(
    placed: Sequence[_Placed], taken: Sequence[tuple[Session, float]], rate_scale: float
) -> tuple[SimRequest, ...]:
    bases, base = [], OWN_IDS
    for session, _ in taken:
        bases.append(base)
        base += session.own_ids
    index = {(one.session, one.place): at for at, one in enumerate(placed)}
    turns = [0] * len(taken)
    found = []
    for one in placed:
        call, shift = one.call, bases[one.session] - OWN_IDS
        found.append(
            SimRequest(
                session=f"{taken[one.session][0].name}.{one.session}",
                turn=turns[one.session],
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                runs=tuple(
                    [Run(run.first + shift if run.first >= OWN_IDS else run.first, run.blocks) for run in call.runs]
                ),
                at=0.0 if one.after else one.begins_s / rate_scale,
                after=tuple([After(index[number, at], gap_s / rate_scale) for number, at, gap_s in one.after]),
                seen_at=one.begins_s,
                left_at=one.begins_s + call.ends_s - call.begins_s,
            )
        )
        turns[one.session] += 1
    return tuple(found)
