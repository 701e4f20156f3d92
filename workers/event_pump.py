"""Moves one engine's events through the relay to the publisher, for as long as the replica lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from router.wire import Load
from workers.publisher import Publisher
from workers.relay import Relay

if TYPE_CHECKING:
    from collections import Counter

    from workers.engine import Engine

logger = logging.getLogger("ray.serve")


class EventPump:
    """Owns the relay and the publisher of a started engine. Used on the engine's event loop."""

    def __init__(self, *, engine: Engine, model: str, host: str, replica: str, incarnation: str) -> None:
        self._engine = engine
        info = engine.info
        self._relay = Relay(model=model, block_size=info.block_size)
        self._blocks = info.pool_blocks
        self._publisher = Publisher(
            host=host,
            replica=replica,
            incarnation=incarnation,
            block_size=info.block_size,
            resident=self._relay.snapshot,
            load=self._load,
        )
        self._task: asyncio.Task[None] | None = None
        self._fault: str | None = None

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
        self._task = asyncio.create_task(self._run())

    def announce_clear(self) -> None:
        """The engine was reset: say so now, for an idle engine's own event comes with its next step only."""
        self._publisher.publish(self._relay.clear())

    async def close(self) -> None:
        """Stop. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._publisher.close()

    async def _run(self) -> None:
        try:
            async for batch in self._engine.events():
                verdict = self._relay.apply(batch.seq, batch.payload)
                self._publisher.publish(verdict.ops)
                if verdict.verdict == "rejected":
                    logger.warning("engine events, batch %d: %s", batch.seq, "; ".join(verdict.reasons))
                    self.announce_clear()  # removals may have been in it: too little shown is safe, too much is not
            self._fault = "the engine's event stream ended"
        except Exception as fault:
            self._fault = repr(fault)
            logger.exception("engine events no longer flow")

    def _load(self) -> Load:
        load = self._engine.load()
        return Load(
            running=load.running,
            waiting=load.waiting,
            backlog_tokens=load.backlog_tokens,
            free_blocks=load.free_blocks,
            total_blocks=self._blocks,
        )
