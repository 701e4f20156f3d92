"""The event loop of a simulation: clients, routers and engines on one virtual clock."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.sim.engine import Engine, Job, StepEnd
from load_tests.sim.kvist_router import incarnation_of
from load_tests.sim.outcome import Fate, Outcome, ReplicaWork
from load_tests.sim.placing import Asked, Held
from load_tests.sim.relay import SimRelay
from router.errors import InvalidRequest, KvistBug

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.sim.cluster import ClusterPlan, ReplicaPlan
    from load_tests.sim.placing import Placing
    from load_tests.sim.work import Workload
    from router.wire import Op

LEAST_HOLD_S: Final = 0.001  # before a held request is asked for again


class Kind(IntEnum):
    """What happens, in the order in which it happens at one time."""

    LEAVE = 0
    JOIN = 1
    STEP_END = 2
    FRAME = 3
    READY = 4
    SUBMIT = 5
    STEP_BEGIN = 6


class Event(NamedTuple):
    """`subject` is a request's or a replica's place; equal events keep the order of their making."""

    at: float
    kind: Kind
    order: int
    subject: int


class _Replica:
    """One replica through its lives. `engine` is None while it is away."""

    __slots__ = ("engine", "life", "plan", "relay", "underway", "wakes_at", "work")

    def __init__(self, plan: ReplicaPlan) -> None:
        self.plan = plan
        self.life = 0
        self.engine: Engine | None = None
        self.relay: SimRelay | None = None
        self.underway: dict[int, tuple[Job, float]] = {}  # chosen for it, and there at that time
        self.wakes_at: float | None = None
        self.work = ReplicaWork()


class World:
    """One run. Every placing sees its part of the requests, dealt by their place, and all events."""

    def __init__(self, workload: Workload, cluster: ClusterPlan, placings: Sequence[Placing]) -> None:
        self.workload = workload
        self.cluster = cluster
        self.placings = placings
        self.fates = [Fate() for _ in workload.requests]
        self._replicas = [_Replica(plan) for plan in cluster.replicas]
        self._at_name = {plan.name: index for index, plan in enumerate(cluster.replicas)}
        self._events: list[Event] = []
        self._count = 0
        self._open = len(workload.requests)
        self._missing = [len(one.after) for one in workload.requests]
        self._followers: list[list[int]] = [[] for _ in workload.requests]
        self._stranded: list[int] = []  # ready while no replica was there

    def __repr__(self) -> str:
        return f"<World {self.workload.name} open={self._open}>"

    def run(self) -> Outcome:
        """Everything, until the last request has ended."""
        self._plan_ahead()
        handlers = {
            Kind.LEAVE: self._leave,
            Kind.JOIN: self._join,
            Kind.STEP_END: self._step,
            Kind.FRAME: self._send_frame,
            Kind.READY: self._place,
            Kind.SUBMIT: self._submit,
            Kind.STEP_BEGIN: self._step,
        }
        while self._open:
            if not self._events:
                raise KvistBug(f"{self!r}: nothing more will happen")
            now, kind, _, subject = heappop(self._events)
            handlers[kind](subject, now)
        return self._outcome()

    def check_integrity(self) -> None:
        """Raise when an engine disagrees with its pool, or holds a request or a block after the end."""
        for replica in self._replicas:
            if replica.engine is None:
                continue
            replica.engine.check_integrity()
            if not self._open and replica.engine.pool.free_blocks != replica.engine.pool.pool_blocks:
                raise KvistBug(f"{replica.plan.name}: blocks in use after the last request")

    def _plan_ahead(self) -> None:
        for index, replica in enumerate(self._replicas):
            if not any(absence.from_s <= 0 for absence in replica.plan.absences):
                self._push(0.0, Kind.JOIN, index)
            for absence in replica.plan.absences:
                self._push(absence.from_s, Kind.LEAVE, index)
                self._push(absence.until_s, Kind.JOIN, index)
        for index, request in enumerate(self.workload.requests):
            for dep in request.after:
                self._followers[dep.request].append(index)
            if not request.after:
                self._push(request.at, Kind.READY, index)

    def _outcome(self) -> Outcome:
        for replica in self._replicas:
            self._note_work(replica)
        outcome = Outcome(self.workload, self.fates, {one.plan.name: one.work for one in self._replicas})
        self.check_integrity()
        outcome.check_integrity()
        return outcome

    def _push(self, at: float, kind: Kind, subject: int) -> None:
        self._count += 1
        heappush(self._events, Event(at, kind, self._count, subject))

    def _placing(self, request: int) -> Placing:
        return self.placings[request % len(self.placings)]

    def _join(self, index: int, now: float) -> None:
        replica = self._replicas[index]
        plan = replica.plan
        replica.life += 1
        replica.engine = Engine(plan.parameters, speed=plan.speed)
        replica.relay = SimRelay(
            plan.name,
            incarnation_of(plan.name, replica.life),
            block_size=plan.parameters.block_size,
            delay_s=self.cluster.event_delay_s,
        )
        for placing in self.placings:
            placing.join(plan.spec, now)
        stranded, self._stranded = self._stranded, []
        for request in stranded:
            self._push(now, Kind.READY, request)

    def _leave(self, index: int, now: float) -> None:
        replica = self._replicas[index]
        engine = replica.engine
        if engine is None:
            return
        self._note_work(replica)
        lost = [*engine.requests, *replica.underway]
        replica.engine = replica.relay = replica.wakes_at = None
        replica.underway.clear()
        for placing in self.placings:
            placing.leave(replica.plan.name, now)
        for request in lost:
            self._push(now, Kind.READY, request)

    @staticmethod
    def _note_work(replica: _Replica) -> None:
        if replica.engine is not None:
            replica.work.prefilled_tokens += replica.engine.prefilled_tokens
            replica.work.decoded_tokens += replica.engine.decoded_tokens
            replica.work.evicted_blocks += replica.engine.pool.evicted_blocks

    def _place(self, index: int, now: float) -> None:
        request, fate = self.workload.requests[index], self.fates[index]
        if fate.ready_at < 0:
            fate.ready_at = now
        if all(one.engine is None for one in self._replicas):
            self._stranded.append(index)
            return
        hashes = request.hashes()
        full = request.prompt_tokens // self.workload.block_size
        asked = Asked(index, request.session, request.turn, request.prompt_tokens, hashes[:full])
        answer = self._placing(index).place(asked, now)
        if isinstance(answer, Held):
            fate.held += 1
            self._push(max(answer.again_at, now + LEAST_HOLD_S), Kind.READY, index)
            return
        fate.placed.append(answer)
        replica = self._replicas[self._at_name[answer]]
        there_at = now + self.cluster.front_s
        replica.underway[index] = (
            Job(index, request.prompt_tokens, request.output_tokens, hashes, request.packed()),
            there_at,
        )
        if there_at > now:
            self._push(there_at, Kind.SUBMIT, index)
        else:
            self._submit(index, now)

    def _submit(self, index: int, now: float) -> None:
        where = self._at_name[self.fates[index].placed[-1]]
        replica = self._replicas[where]
        job, there_at = replica.underway.get(index, (None, now))
        if job is None or there_at != now or replica.engine is None or replica.relay is None:
            return  # its replica left, and it was placed again
        del replica.underway[index]
        try:
            replica.engine.submit(job, now)
        except InvalidRequest:
            self.fates[index].refused = True
            self._end(index, now)
            return
        self._tell(where, replica.relay, (), now)
        self._wake(where, replica, now)

    def _step(self, where: int, now: float) -> None:
        replica = self._replicas[where]
        if replica.wakes_at != now or replica.engine is None or replica.relay is None:
            return
        replica.wakes_at = None
        for result in replica.engine.advance(now):
            if result.ops or result.first_tokens or result.finished:
                self._tell(where, replica.relay, result.ops, now)
                self._hear(result, now)
        self._wake(where, replica, now)

    def _wake(self, where: int, replica: _Replica, now: float) -> None:
        """Come back when the engine's window ends, or at once when it is between steps with work to do."""
        engine = replica.engine
        assert engine is not None
        due_at = engine.due_at
        kind = Kind.STEP_END
        if due_at is None:
            if not engine.requests:
                return
            due_at, kind = now, Kind.STEP_BEGIN
        if due_at != replica.wakes_at:
            replica.wakes_at = due_at
            self._push(due_at, kind, where)

    def _hear(self, result: StepEnd, now: float) -> None:
        for first in result.first_tokens:
            fate = self.fates[first.request]
            if fate.first_token_at < 0:
                fate.started_at, fate.first_token_at, fate.cached_tokens = first.started_at, now, first.cached_tokens
            self._placing(first.request).first_token(first.request, cached_tokens=first.cached_tokens, now=now)
        for request in result.finished:
            self._end(request, now)

    def _end(self, index: int, now: float) -> None:
        self._placing(index).finish(index, now)
        self.fates[index].ended_at = now
        self._open -= 1
        for follower in self._followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                request = self.workload.requests[follower]
                free_at = [self.fates[dep.request].ended_at + dep.gap_s for dep in request.after]
                self._push(max(now, request.at, *free_at), Kind.READY, follower)

    def _tell(self, where: int, relay: SimRelay, ops: Sequence[Op], now: float) -> None:
        due_at = relay.due_at
        relay.changed(ops, now)
        if relay.due_at is not None and relay.due_at != due_at:
            self._push(relay.due_at, Kind.FRAME, where)

    def _send_frame(self, where: int, now: float) -> None:
        replica = self._replicas[where]
        relay, engine = replica.relay, replica.engine
        if relay is None or engine is None or relay.due_at != now:
            return
        frame = relay.frame(engine.load(), now)
        for placing in self.placings:
            placing.on_frame(replica.plan.name, frame, now)
