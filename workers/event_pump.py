"""Moves one engine's events through the relay to the publisher, for as long as the replica lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from router.errors import ReplicaDied
from router.limits import ENGINE_HEALTH_INTERVAL_S
from router.wire import Load
from workers.publisher import Publisher
from workers.relay import Relay

if TYPE_CHECKING:
    from collections import Counter

    from router.curve import ServerCurve
    from workers.engine import Engine

logger = logging.getLogger("ray.serve")


class EventPump:
    """Owns the relay and the publisher of a started engine. Used on the engine's event loop. With a `curve` only the
    ingresses that it allows hear anything."""

    def __init__(
        self,
        *,
        engine: Engine,
        model: str,
        host: str,
        replica: str,
        incarnation: str,
        curve: ServerCurve | None = None,
    ) -> None:
        self._engine = engine
        info = engine.info
        self._relay = Relay(model=model, block_size=info.block_size)
        self._block_size = info.block_size
        self._blocks = info.pool_blocks
        self._publisher = Publisher(
            host=host,
            replica=replica,
            incarnation=incarnation,
            block_size=info.block_size,
            resident=self._relay.snapshot,
            load=self._load,
            curve=curve,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: str | None = None
        self._resetting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<EventPump {self._relay!r} {self._publisher!r}>"

    @property
    def endpoints(self) -> tuple[str, str]:
        """Where the events and the snapshots are."""
        return self._publisher.events, self._publisher.snapshots

    @property
    def counters(self) -> Counter[str]:
        """What the relay counted."""
        return self._relay.counters

    @property
    def fault(self) -> str | None:
        """Why events no longer flow; None while they do."""
        return self._fault

    def start(self) -> None:
        """Begin to move events. Needs a running loop."""
        self._publisher.start()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]

    async def reset(self) -> bool:
        """Forget the engine's cache and say so now, for an idle engine's own event comes with its next step only. False
        when requests hold blocks."""
        async with self._resetting:
            known = self._relay.resets_known
            done = await self._engine.reset_prefix_cache()
            if done:
                self._publisher.publish(self._relay.reset(known))
            return done

    async def close(self) -> None:
        """Stop. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._publisher.close()

    async def _run(self) -> None:
        try:
            async for batch in self._engine.events():
                verdict = self._relay.apply(batch.seq, batch.payload)
                self._publisher.block_size = self._relay.mismatch or self._block_size
                self._publisher.publish(verdict.ops)
                if verdict.verdict == "rejected":
                    logger.warning("engine events, batch %d: %s", batch.seq, "; ".join(verdict.reasons))
                    self._publisher.publish(
                        self._relay.clear()
                    )  # removals may have been in it: better too little shown
            self._fail("the engine's event stream ended")
        except Exception as fault:
            logger.exception("engine events no longer flow")
            self._fail(repr(fault))

    async def _watch(self) -> None:
        """A dead engine says nothing: its event sockets only fall silent."""
        try:
            while True:
                await self._engine.check_health()
                await asyncio.sleep(ENGINE_HEALTH_INTERVAL_S)
        except ReplicaDied as fault:
            self._fail(str(fault))

    def _fail(self, reason: str) -> None:
        """Blocks are gone, or no longer known: show none, and let routers see a silent replica."""
        if self._fault is None:
            self._fault = reason
            self._publisher.publish(self._relay.clear())
            self._publisher.fall_silent()

    def _load(self) -> Load:
        load = self._engine.load()
        return Load(
            running=load.running,
            waiting=load.waiting,
            backlog_tokens=load.backlog_tokens,
            free_blocks=load.free_blocks,
            total_blocks=self._blocks,
            skipped_events=self._relay.counters["unusable"],
        )
