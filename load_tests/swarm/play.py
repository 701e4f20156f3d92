"""Playing a workload: who begins which session, and when.

Closed loop: agents play one session after the other, and a turn is due its pause after the answer before it.
Open loop: sessions, or requests, are due at times of their own. What cannot be sent in time is sent late and measured
from when it was due.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

from load_tests.bench.ingress_bodies import text_block
from load_tests.swarm.player import Step
from load_tests.swarm.schedule import agent_starts, due_times, rotation
from load_tests.swarm.settings import DEFAULT_AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load_tests.swarm.dialogue import Dialogue
    from load_tests.swarm.player import Player, Who
    from load_tests.swarm.run_clock import RunClock
    from load_tests.swarm.scenario import Session, Workload
    from load_tests.swarm.settings import Settings


class Swarm:
    """One run of `player` over the sessions of `workload`."""

    def __init__(self, settings: Settings, workload: Workload, player: Player, clock: RunClock) -> None:
        self._settings = settings
        self._workload = workload
        self._player = player
        self._clock = clock
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"<Swarm of {self._workload!r} after {self._clock.now_s():.1f} s>"

    async def run(self) -> None:
        """Until the time is over, or all sessions are played. Cancellation ends what is in flight, and its entries."""
        settings = self._settings
        if settings.rate is not None and settings.rate_of == "requests":
            await self._open_requests()
        elif settings.agents is None and (settings.rate is not None or self._has_times()):
            await self._open_sessions()
        else:
            await self._closed(settings.agents or self._workload.at_once or DEFAULT_AGENTS)

    def _has_times(self) -> bool:
        return self._workload.total is not None and self._workload.session(0).due_s is not None

    async def _closed(self, agents: int) -> None:
        starts = agent_starts(agents, ramp_s=self._settings.ramp_s)
        async with asyncio.TaskGroup() as group:
            for number, start_s in enumerate(starts):
                group.create_task(self._agent(f"agent-{number:03d}", start_s))

    async def _agent(self, agent: str, start_s: float) -> None:
        due_s = start_s
        while due_s < self._settings.end_s and (session := self._next()) is not None:
            await self._player.session(agent, session, due_s)
            due_s = max(self._clock.now_s() + session.turns[0].think_s, start_s)

    def _next(self) -> Session | None:
        number, total = next(self._numbers), self._workload.total
        return self._workload.session(number) if total is None or number < total else None

    async def _open_sessions(self) -> None:
        times = None if self._has_times() else self._due_times()
        async with asyncio.TaskGroup() as group:
            while (session := self._next()) is not None:
                due_s = session.due_s if times is None else next(times, None)
                if due_s is None or not await self._clock.wait_until(due_s):
                    return
                group.create_task(self._player.session(f"session-{session.number}", session, due_s))

    async def _open_requests(self) -> None:
        """Conversations go on with what answers stand for: nothing waits for the real ones."""
        width = self._settings.agents or DEFAULT_AGENTS
        open_talks: dict[int, tuple[Who, Dialogue]] = {}
        async with asyncio.TaskGroup() as group:
            for due_s, (session, number, turn) in zip(
                self._due_times(), rotation(self._workload, width=width), strict=False
            ):
                if number == 0:
                    open_talks[session.number] = self._player.begin(f"session-{session.number}", session)
                who, dialogue = open_talks[session.number]
                prompt = dialogue.ask(turn)
                dialogue.answered([text_block(turn.said)])
                if number == len(session.turns) - 1:
                    del open_talks[session.number]
                await self._clock.wait_until(due_s)
                group.create_task(self._player.request(Step(who, number, turn, due_s), prompt))

    def _due_times(self) -> Iterator[float]:
        settings = self._settings
        assert settings.rate is not None
        rng = random.Random(f"arrivals/{settings.seed}")
        return due_times(
            rate=settings.rate, ramp_s=settings.ramp_s, end_s=settings.end_s, arrivals=settings.arrivals, rng=rng
        )
