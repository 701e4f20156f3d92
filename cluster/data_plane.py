"""An ingress's end of the data plane: one connection per replica, many generations on it, beside the Serve handle."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from typing import TYPE_CHECKING

from router.errors import ReplicaBusy, ReplicaDied, ReplicaGone, WireError
from router.hashing import BYTES_PER_TOKEN
from router.limits import DATA_CONNECT_TIMEOUT_S, DATA_RECONNECT_S, DATA_STREAM_TOKENS
from workers import data_frames as frames
from workers.data_link import DataLink, proof
from workers.engine import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.replicas import DataEndpoint
    from workers.data_frames import Message
    from workers.engine import Generation, TokenDelta

logger = logging.getLogger("ray.serve")


class DataPlane:
    """Connections to the replicas of one model. Used on one event loop. `on_lost` is called with a replica whose
    connection has ended though nobody here wanted it to."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_lost: Callable[[str], None] = lambda _replica: None
    ) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._links: dict[str, _Link] = {}
        self._retired: set[_Link] = set()

    def __repr__(self) -> str:
        return f"<DataPlane replicas={len(self._links)} streams={self.streams}>"

    @property
    def streams(self) -> int:
        """Generations that run now."""
        return sum(link.streams for link in (*self._links.values(), *self._retired))

    def add(self, replica: str, endpoint: DataEndpoint) -> None:
        """A replica exists; connect to it now. Needs a running loop."""
        link = self._links[replica] = _Link(replica, endpoint, self._clock, self._on_lost)
        link.connect()

    def remove(self, replica: str) -> None:
        """It takes no new generations; those that run go on, for a replica that drains finishes them."""
        link = self._links.pop(replica, None)
        if link is not None:
            self._retired = {other for other in self._retired if not other.is_over}
            self._retired.add(link)
            link.retire()

    def reaches(self, replica: str) -> bool:
        """Whether generations for this replica can be asked for here."""
        return replica in self._links

    def call(self, replica: str, generation: Generation) -> DataCall:
        """A generation on a replica that is reached here, not begun before it is iterated."""
        return DataCall(self._links[replica], generation)

    async def close(self) -> None:
        """Fail what runs and leave no socket behind."""
        for link in (*self._links.values(), *self._retired):
            await link.close()
        self._links.clear()
        self._retired.clear()


class DataCall:
    """One generation: iterate it for its deltas. What has come since the last one is one delta.

    Iteration raises `ReplicaBusy` before any delta when nothing was begun, `InvalidRequest` or `ReplicaDied` at any
    time. For a slow reader it holds DATA_STREAM_TOKENS, and what was under way when the replica was told to pause.
    """

    def __init__(self, link: _Link, generation: Generation) -> None:
        self._link = link
        self._generation = generation
        self._connection: _Connection | None = None
        self._number = 0
        self._held: list[TokenDelta] = []
        self._held_tokens = 0
        self._is_paused = False
        self._has_ended = False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None

    def __aiter__(self) -> DataCall:
        return self

    async def __anext__(self) -> TokenDelta:
        if self._connection is None and not self._has_ended:
            await self._begin()
        while not self._held:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return self._take()

    def cancel(self) -> None:
        """Abort it, wherever it is. Safe at any time, and twice."""
        if self._connection is not None and not self._has_ended:
            self._connection.cancel(self._number)
        self._end(None)

    def abandon(self, error: Exception) -> None:
        """Abort it; iteration ends with `error`, after the deltas before it."""
        if self._connection is not None and not self._has_ended:
            self._connection.cancel(self._number)
        self._end(error)

    def push(self, delta: TokenDelta) -> None:
        """Take a delta from the connection."""
        self._held.append(delta)
        self._held_tokens += max(1, len(delta.tokens) // BYTES_PER_TOKEN)
        if delta.finish_reason is not None:
            self._end(None)
        elif self._held_tokens > DATA_STREAM_TOKENS and not self._is_paused and self._connection is not None:
            self._is_paused = True
            self._connection.send(frames.encode_frame(frames.PAUSE, self._number))
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, after the deltas before it."""
        self._end(error)

    async def _begin(self) -> None:
        connection = await self._link.connected()
        if not connection.writable.is_set():
            await connection.writable.wait()
        if self._has_ended:
            return
        self._number = connection.begin(self, self._generation)
        self._connection = connection

    def _take(self) -> TokenDelta:
        delta = joined(self._held)
        self._held = []
        self._held_tokens = 0
        if self._is_paused and self._connection is not None and not self._has_ended:
            self._is_paused = False
            self._connection.send(frames.encode_frame(frames.RESUME, self._number))
        return delta

    def _end(self, error: Exception | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class _Link:
    """The way to one replica: its connection, made again when it is needed after a loss."""

    def __init__(
        self, replica: str, endpoint: DataEndpoint, clock: Callable[[], float], on_lost: Callable[[str], None]
    ) -> None:
        self.replica = replica
        self._endpoint = endpoint
        self._clock = clock
        self._on_lost = on_lost
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._failed_at: float | None = None
        self._is_retired = False

    @property
    def streams(self) -> int:
        return len(self._connection.calls) if self._connection is not None else 0

    @property
    def is_over(self) -> bool:
        return self._connection is None or not self._connection.is_open

    def connect(self) -> asyncio.Task[_Connection]:
        """The attempt under way, or a new one."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_look_at)
        return self._connecting

    async def connected(self) -> _Connection:
        """An open connection. Raises `ReplicaBusy` when there is none to be had now.

        Only one attempt is waited for: after a failure others go elsewhere until a later one, beside them, succeeds.
        """
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._is_retired:
            raise ReplicaBusy("it is leaving")
        if self._failed_at is None:
            return await asyncio.shield(self.connect())
        if self._clock() >= self._failed_at + DATA_RECONNECT_S:
            self.connect()
        raise ReplicaBusy("it could not be reached a moment ago")

    def retire(self) -> None:
        """Close once the last stream has ended; begin nothing new."""
        self._is_retired = True
        if self._connection is not None:
            self._connection.retire()

    def on_lost(self) -> None:
        """Its connection has ended."""
        if not self._is_retired:
            self._on_lost(self.replica)

    async def close(self) -> None:
        self._is_retired = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.abort()
            await self._connection.lost.wait()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection = _Connection(self._endpoint.secret)
        try:
            async with asyncio.timeout(DATA_CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: connection, self._endpoint.host, self._endpoint.port)
                await connection.welcomed
        except (OSError, ReplicaDied) as fault:  # TimeoutError is an OSError
            connection.abort()
            self._failed_at = self._clock()
            logger.warning("replica %s: no data plane connection: %r", self.replica, fault)
            raise ReplicaBusy("its data plane cannot be reached") from fault
        except asyncio.CancelledError:
            connection.abort()
            raise
        if self._is_retired:
            connection.close()
            raise ReplicaBusy("it left before it was reached")
        self._connection, self._failed_at = connection, None
        connection.on_gone = self.on_lost
        return connection


class _Connection(DataLink):
    """One connection, proven on both sides before it carries anything."""

    def __init__(self, secret: str) -> None:
        super().__init__(frames.FROM_REPLICA)
        self._secret = secret
        self._nonce = secrets.token_bytes(frames.NONCE_BYTES)
        self._challenge = b""
        self._last_number = 0
        self._is_retired = False
        self.on_gone: Callable[[], None] = _nothing
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls: dict[int, DataCall] = {}

    def begin(self, call: DataCall, generation: Generation) -> int:
        """Ask for a generation; its stream's number. Raises `KvistBug` for one over the limit."""
        number = self._last_number % frames.MAX_STREAM + 1
        while number in self.calls:
            number = number % frames.MAX_STREAM + 1
        self.send(frames.encode_open(number, generation))
        self._last_number = number
        self.calls[number] = call
        return number

    def cancel(self, number: int) -> None:
        """Forget a stream, and tell the replica."""
        if self._pop(number) is not None:
            self.send(frames.encode_frame(frames.CANCEL, number))

    def retire(self) -> None:
        """Close once the last stream has ended."""
        self._is_retired = True
        if not self.calls:
            self.close()

    def on_message(self, message: Message) -> None:
        if not self.welcomed.done():
            self._greet(message)
        elif message.kind == frames.DELTA:
            self._push(message)
        elif message.kind == frames.REFUSED:
            self._fail(message.stream, ReplicaBusy("no slot was free"))
        elif message.kind == frames.ERROR:
            self._fail(message.stream, frames.decode_error(message.body))
        else:
            raise WireError(f"frame: kind {message.kind} does not belong here")

    def on_lost(self) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(ReplicaDied("the connection was closed before it was proven"))
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.fail(ReplicaGone("the connection to the replica was lost"))
        self.on_gone()

    def _greet(self, message: Message) -> None:
        if message.kind == frames.CHALLENGE and not self._challenge:
            self._challenge = message.body
            claim = proof(self._secret, "ingress", self._challenge, self._nonce)
            self.send(frames.encode_frame(frames.HELLO, body=self._nonce + claim))
            return
        claim = proof(self._secret, "replica", self._challenge, self._nonce)
        if message.kind != frames.WELCOME or not hmac.compare_digest(claim, message.body):
            raise WireError("welcome: not the replica that was meant")
        self.welcomed.set_result(None)

    def _push(self, message: Message) -> None:
        call = self.calls.get(message.stream)
        if call is None:
            return  # cancelled meanwhile
        delta = frames.decode_delta(message.body)
        if delta.finish_reason is not None:
            self._pop(message.stream)
        call.push(delta)

    def _fail(self, number: int, error: Exception) -> None:
        call = self._pop(number)
        if call is not None:
            call.fail(error)

    def _pop(self, number: int) -> DataCall | None:
        call = self.calls.pop(number, None)
        if self._is_retired and not self.calls:
            asyncio.get_running_loop().call_soon(self.close)
        return call


def _nothing() -> None:
    """Nobody waits for it."""


def _look_at(task: asyncio.Task[_Connection]) -> None:
    """Its failure was logged; nobody may have waited for it."""
    if not task.cancelled():
        task.exception()
