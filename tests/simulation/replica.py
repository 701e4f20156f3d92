"""A simulated replica: the real engine simulator, relay and announcer, in a process that can die, stop and return."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

from router.replicas import ReplicaInfo
from router.wire import Cleared, Load, Removed, Stored, decode_snapshot_request
from tests.simulation.link import FRAME_S, Link, Message
from tests.simulation.names import Names
from tests.simulation.world import MODEL, require
from workers.simulator import SimParameters, Simulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.wire import Op
    from tests.simulation.router import SimRouter
    from tests.simulation.workload import Request
    from tests.simulation.world import World
    from workers.engine import EventBatch

CHUNK_HASHES: Final = 24  # so that most snapshots come in several parts


class SimReplica:
    """`history[ordinal][seq + 1]` is the fingerprint (sum of hashes) of what incarnation `ordinal` showed as of data
    frame `seq`. `relay` may be `behind` after a batch of engine events was lost, then know a part only."""

    def __init__(self, world: World, name: str, *, block_size: int, pool_blocks: int) -> None:
        self.name = name
        self.block_size = block_size
        self.pool_blocks = pool_blocks
        self.links: dict[SimRouter, Link] = {}
        self.history: list[list[int]] = []
        self.ordinal_of: dict[str, int] = {}
        self.is_up = False
        self.is_paused = False
        self.is_gone = False  # for good
        self.lose_batches = 0
        self.ts_offset_s = 0.0
        self.requests: dict[str, Request] = {}
        self._world = world
        self.names = Names(block_size)
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._pump_s = world.rng.uniform(0.0005, 0.02)  # from the engine's step to the relay
        self._reply_s = world.rng.choice((0.0, 0.01, 0.1))  # from the engine's reset to whoever asked for it

    def __repr__(self) -> str:
        return f"<SimReplica {self.name} {self.announcer!r} {self.simulator!r}>"

    @property
    def ordinal(self) -> int:
        """Of the current incarnation."""
        return len(self.history) - 1

    @property
    def is_idle(self) -> bool:
        """Running, and with nothing under way between its engine and its relay."""
        return self.is_up and not self.is_paused and self.simulator.is_idle and not self._is_at_work

    @property
    def _is_at_work(self) -> bool:
        return bool(self.simulator.step_ends_at or self.pending_batches or self._resets_to_tell)

    @property
    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            replica=self.name,
            incarnation=self.announcer.incarnation,
            model=MODEL,
            block_size=self.block_size,
            pool_blocks=self.pool_blocks,
            max_model_len=65_536,
            events=f"tcp://events/{self.ordinal}",
            snapshots=f"tcp://snapshots/{self.ordinal}",
        )

    def start(self) -> None:
        """A new process: empty pool, new incarnation."""
        incarnation = f"{self.name}/{len(self.history)}"
        self.ordinal_of[incarnation] = len(self.history)
        self.history.append([0])
        self.simulator = Simulator(
            SimParameters(
                block_size=self.block_size,
                pool_blocks=self.pool_blocks,
                max_num_seqs=8,
                max_batched_tokens=64,
                step_s=0.02,
                prefill_token_s=0.0005,
                decode_s=0.002,
            )
        )
        self.relay = self._world.parts.relay(model=MODEL, block_size=self.block_size)
        self.announcer = self._world.parts.announcer(
            replica=self.name,
            incarnation=incarnation,
            block_size=self.block_size,
            resident=self.relay.snapshot,
            load=self._load,
            chunk_hashes=CHUNK_HASHES,
        )
        self.pending_batches = 0
        self._wants_clear = False
        self._resets_to_tell = 0
        self.knowledge: Literal["exact", "behind", "partial"] = "exact"
        self.is_up = True
        self._look(self.ordinal)

    def kill(self) -> None:
        """The process is gone, and with it every request."""
        self.is_up = self.is_paused = False
        self._inbox.clear()
        for request in list(self.requests.values()):
            request.fail()
        self.requests.clear()

    def pause(self, until: float) -> None:
        """Stop the process, as a signal does."""
        self.is_paused = True
        self._world.clock.at(until, self._resume, self.ordinal)

    def clear_soon(self) -> None:
        """Reset the engine's cache, as soon as no request holds blocks any more."""
        self._wants_clear = True
        self._clear_if_idle()

    def submit(self, request: Request) -> None:
        """Take a request in; in a stopped process it waits, in a dead one it fails."""
        self.requests[request.generation.request_id] = request
        if not self.is_up:
            request.fail()
        else:
            self._soon(self._submit, request)

    def cancel(self, request: Request) -> None:
        """The client has gone."""
        self._soon(self._cancel, request)

    def on_request(self, link: Link, router: SimRouter, data: bytes) -> None:
        """A router asks for a snapshot."""
        if self.is_up:
            self._soon(self._answer, link, router, data)

    def check_relay(self) -> None:
        """The relay of an idle engine shows the pool: exactly, or no more than it when events were lost."""
        shown = {block for run in self.relay.snapshot() for block in run.hashes}
        held = self.simulator.pool.resident()
        whole = self.names.whole_chains(held)
        if self.knowledge == "exact":
            require(shown == whole, f"{self!r}: the relay shows other blocks than the pool holds")
            require(self.relay.pools().get((0, 0), {}) == held, f"{self!r}: copies differ")
        elif self.knowledge == "partial":
            require(shown <= whole, f"{self!r}: the relay shows more than the pool holds")

    def check_integrity(self) -> None:
        self.relay.check_integrity()
        self.simulator.check_integrity()
        shown = sum(sum(run.hashes) for run in self.relay.snapshot())
        require(shown == self.history[-1][-1], f"{self!r}: the frames do not add up to what the relay shows")

    def thaw(self) -> None:
        """Go on after the whole cluster was frozen."""
        if self.is_up:
            self._step(self.ordinal)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        if self.is_paused:
            self._inbox.append((call, args))
        else:
            call(*args)

    def _resume(self, ordinal: int) -> None:
        if ordinal != self.ordinal or not self.is_paused:
            return
        self.is_paused = False
        while self._inbox:
            call, args = self._inbox.popleft()
            call(*args)

    def _submit(self, request: Request) -> None:
        if not request.is_over:
            self.simulator.submit(request.generation)
            self._step(self.ordinal)

    def _cancel(self, request: Request) -> None:
        self.simulator.abort(request.generation.request_id)
        request.forget()

    def _step(self, ordinal: int) -> None:
        if self._world.frozen or ordinal != self.ordinal or self.simulator.step_ends_at is not None:
            return
        ends_at = self.simulator.begin_step(self._world.clock.now)
        if ends_at is not None:
            self._world.clock.at(ends_at, self._end_step, ordinal)

    def _end_step(self, ordinal: int) -> None:
        if ordinal != self.ordinal or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((self._end_step, (ordinal,)))
            return
        result = self.simulator.end_step()
        if result.batch:
            self.pending_batches += 1
            self._world.clock.at(self._world.clock.now + self._pump_s, self._pump, ordinal, result.batch)
        for delta in result.deltas:
            if delta.request_id in self.requests:
                self.requests[delta.request_id].on_delta(delta)
        self._clear_if_idle()
        self._step(ordinal)

    def _clear_if_idle(self) -> None:
        is_free = not self._resets_to_tell and self.simulator.step_ends_at is None  # one at a time
        if not (self._wants_clear and is_free and self.simulator.reset_prefix_cache()):
            return
        self._wants_clear = False
        self._world.faults["clear"] += 1
        self._resets_to_tell += 1
        known, replied_at = self.relay.resets_known, self._world.clock.now + self._reply_s
        self._world.clock.at(replied_at, self._tell_reset, self.ordinal, known)

    def _tell_reset(self, ordinal: int, known: int) -> None:
        """The engine's reply has come; routers are told at once."""
        if ordinal != self.ordinal or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((self._tell_reset, (ordinal, known)))
            return
        self._resets_to_tell -= 1
        self._announce(self.relay.reset(known))

    def _pump(self, ordinal: int, batch: EventBatch) -> None:
        """As the event pump does: through the relay, to the routers."""
        if ordinal != self.ordinal or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((self._pump, (ordinal, batch)))
            return
        self.pending_batches -= 1
        if self.lose_batches:
            self.lose_batches -= 1
            self.knowledge = "behind"
            self._world.faults["batch_loss"] += 1
            return
        if self.knowledge == "behind":
            self.knowledge = "partial"
        verdict = self.relay.apply(batch.seq, batch.payload)
        require(verdict.verdict != "rejected", f"{self!r}: the relay rejects its own engine: {verdict.reasons}")
        self._announce(verdict.ops)

    def _announce(self, ops: tuple[Op, ...]) -> None:
        now = self._world.clock.now
        for data in self.announcer.announce(ops, now=now, ts=now + self.ts_offset_s):
            shown = self.history[-1][-1]
            for op in ops:
                match op:
                    case Stored(_, hashes):
                        shown += sum(hashes)
                    case Removed(_, hashes):
                        shown -= sum(hashes)
                    case Cleared():
                        shown = 0
            self.history[-1].append(shown)
            require(len(self.history[-1]) == self.announcer.seq + 2, "frames are numbered without holes")
            self._send(data)

    def _look(self, ordinal: int) -> None:
        """Send heartbeats for as long as this incarnation lives."""
        if ordinal != self.ordinal or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((self._look, (ordinal,)))
            return
        now = self._world.clock.now
        if now >= self.announcer.heartbeat_at:
            self._send(self.announcer.heartbeat(now=now, ts=now + self.ts_offset_s))
        self._world.clock.at(self.announcer.heartbeat_at, self._look, ordinal)

    def _send(self, data: bytes) -> None:
        message = Message(data, self.ordinal, self.announcer.seq)
        for router, link in self.links.items():
            link.carry(router.on_frame, link, message, takes_s=FRAME_S)

    def _answer(self, link: Link, router: SimRouter, data: bytes) -> None:
        takes_s = link.snapshot_takes_s()
        for chunk in self.announcer.snapshot(decode_snapshot_request(data)):
            if self._world.clock.now < link.snapshots_lost_until:
                self._world.faults["lost_snapshot_chunk"] += 1
            else:
                link.carry(router.on_chunk, link, chunk, takes_s=takes_s)

    def _load(self) -> Load:
        load = self.simulator.load()
        return Load(load.running, load.waiting, load.backlog_tokens, load.free_blocks, self.pool_blocks)
