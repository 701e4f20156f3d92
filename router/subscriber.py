"""The sockets of a fleet: event frames in over SUB, snapshots over DEALER, one pair per replica.

Both carry messages of one part: a frame; a snapshot request; a chunk (the replica's side is PUB and ROUTER).

ZMQ's descriptor tells when to look; reading never waits, so no cancellation can lose a message that was already handed
over. Whatever has arrived is handled before time passes for the fleet, so that a pause of this process is not taken for
silence of the replicas.

Whatever fails, reading goes on: a replica whose news cannot be handled starts afresh, others do not notice. A task that
ended would leave an index that is believed for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import zmq

from router.curve import connect_with
from router.limits import (
    MAX_FRAME_BYTES,
    RELINK_INTERVAL_S,
    REQUESTS_HWM,
    SUBSCRIBER_BATCH,
    SUBSCRIBER_HWM_FRAMES,
    TICK_INTERVAL_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.curve import ClientCurve
    from router.fleet import Action, Fleet
    from router.replicas import ReplicaInfo

logger = logging.getLogger(__name__)

RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1_000

Socket = zmq.Socket[bytes]


class _Link:
    """The two sockets to one replica, and where what each brings goes."""

    def __init__(self, info: ReplicaInfo, fleet: Fleet, *, connect: Callable[[int, str], Socket], now: float) -> None:
        self.info = info
        self.opened_at = now
        self.events = connect(zmq.SUB, info.events)
        self.events.subscribe(b"")
        self.snapshots = connect(zmq.DEALER, info.snapshots)
        self.takers = {self.events: fleet.on_frame, self.snapshots: fleet.on_chunk}


class Subscriber:
    """Feeds a fleet from the network and sends what it asks for.

    `add` and `remove` are synchronous and tell the fleet as well; `run` must be running for anything to arrive. All on
    one event loop. Bounds: SUBSCRIBER_HWM_FRAMES queued per socket (ZMQ drops more, which the feed notices),
    SUBSCRIBER_BATCH messages of one socket at a time, MAX_FRAME_BYTES per message (ZMQ cuts the connection, which is
    opened anew when the lease has ended).
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float], *, curve: ClientCurve | None = None) -> None:
        self._curve = curve
        self._fleet = fleet
        self._clock = clock
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._links: dict[str, _Link] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = asyncio.Event()
        self._running = False
        self._fault: str | None = None

    def __repr__(self) -> str:
        return f"<Subscriber links={len(self._links)} {self._fleet!r}>"

    @property
    def running(self) -> bool:
        """Whether news arrive: true from the start of `run` to its end."""
        return self._running

    @property
    def fault(self) -> str | None:
        """The last exception that nothing here foresaw, survived or not; None without any."""
        return self._fault

    def add(self, info: ReplicaInfo) -> None:
        """Follow a replica; one already followed under other endpoints or another incarnation is followed anew."""
        known = self._links.get(info.replica)
        if known is not None:
            if known.info == info:
                return
            self._unlink(known)
        self._link(info)
        self._perform(self._fleet.join(info, self._clock()))

    def remove(self, replica: str) -> None:
        """Follow a replica no longer; an unknown one is ignored."""
        link = self._links.pop(replica, None)
        if link is not None:
            self._unlink(link)
        self._fleet.leave(replica, self._clock())

    async def run(self) -> None:
        """Read and tick until `close` or cancellation, whatever fails; then no socket is left."""
        self._loop = asyncio.get_running_loop()
        self._running = True
        try:
            for link in self._links.values():
                self._watch(link)
            while not self._closed.is_set():
                self._tick()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), TICK_INTERVAL_S)
        finally:
            self._running = False
            self._release()

    async def close(self) -> None:
        """Stop reading and leave no socket behind. Safe to call twice."""
        self._closed.set()
        self._release()

    def _tick(self) -> None:
        for link in list(self._links.values()):
            for socket in link.takers:
                self._drain(link, socket)
        now = self._clock()
        try:
            self._fleet.sweep(now)
        except Exception as fault:
            logger.exception("reservations are not swept")
            self._fault = repr(fault)
        alive = set(self._fleet.routable)
        for name, link in list(self._links.items()):
            try:
                self._perform(self._fleet.tick_replica(name, now))
                if name not in alive and now - link.opened_at > RELINK_INTERVAL_S:
                    # ZMQ reconnects by itself after most failures, but never after one it calls a protocol error. The
                    # fleet knows the replica already, unless a fresh start failed.
                    self._follow(link.info)
            except Exception as fault:  # noqa: BLE001 - logged there
                self._start_afresh(link, fault)

    def _start_afresh(self, link: _Link, fault: Exception) -> None:
        """Forget all of a replica and follow it anew; where that fails too, it is silent, hence linked anew later."""
        logger.error("replica %s cannot be followed; it starts afresh", link.info.replica, exc_info=fault)
        self._fault = repr(fault)
        for step in (self._forget, self._follow):
            try:
                step(link.info)
            except Exception:
                logger.exception("replica %s did not start afresh", link.info.replica)

    def _forget(self, info: ReplicaInfo) -> None:
        self._fleet.leave(info.replica, self._clock())

    def _follow(self, info: ReplicaInfo) -> None:
        self._unlink(self._links[info.replica])
        self._link(info)
        self._perform(self._fleet.join(info, self._clock()))

    def _link(self, info: ReplicaInfo) -> None:
        link = self._links[info.replica] = _Link(info, self._fleet, connect=self._connected, now=self._clock())
        self._watch(link)

    def _watch(self, link: _Link) -> None:
        if self._loop is not None:
            for socket in link.takers:
                self._loop.add_reader(socket.fileno(), self._drain, link, socket)

    def _unlink(self, link: _Link) -> None:
        for socket in link.takers:
            if socket.closed:
                continue
            if self._loop is not None:
                self._loop.remove_reader(socket.fileno())
            socket.close(linger=0)

    def _release(self) -> None:
        for link in self._links.values():
            self._unlink(link)
        self._links.clear()
        self._context.term()

    def _drain(self, link: _Link, socket: Socket) -> None:
        """Take what has arrived on one socket, at most a batch; the rest a loop turn later."""
        take, name = link.takers[socket], link.info.replica
        try:
            for _ in range(SUBSCRIBER_BATCH):
                if socket.closed:
                    return
                self._perform(take(name, socket.recv(zmq.NOBLOCK), self._clock()))
        except zmq.Again:
            return
        except Exception as fault:  # noqa: BLE001 - logged there
            if self._links.get(name) is link:
                self._start_afresh(link, fault)
            return
        self._look_again(link, socket)

    def _look_again(self, link: _Link, socket: Socket) -> None:
        # The descriptor signals only new arrivals: after a full batch, or a send, there may be more without a signal.
        if self._loop is not None:
            self._loop.call_soon(self._drain, link, socket)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            link = self._links.get(action.replica)
            if link is None:
                continue
            with contextlib.suppress(zmq.Again):  # nobody there: the feed asks again
                link.snapshots.send(action.request, zmq.NOBLOCK)
            self._look_again(link, link.snapshots)

    def _connected(self, kind: int, endpoint: str) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, SUBSCRIBER_HWM_FRAMES)
        socket.setsockopt(zmq.SNDHWM, REQUESTS_HWM)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if self._curve is not None:
            connect_with(socket, self._curve)
        socket.connect(endpoint)
        return socket
