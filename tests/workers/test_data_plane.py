"""A replica's end of the data plane, over real sockets, as strangers and as ingresses of any manners meet it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from router.limits import DATA_SILENCE_MS, DATA_WRITE_HIGH_BYTES
from tests.workers.data_support import Replica, generation, packed, replica, until
from workers import data_frames as frames
from workers import data_link, data_plane
from workers.data_link import DataLink, proof

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workers.data_frames import Message

pytestmark = pytest.mark.anyio

NONCE = bytes(range(32))


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports are different code."""
    return "asyncio", {"use_uvloop": request.param}


class Peer:
    """A hand-made ingress, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = frames.FrameReader(frames.FROM_REPLICA)
        self._messages: list[Message] = []

    def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    async def next(self) -> Message:
        while not self._messages:
            data = await self._reader.read(65_536)
            if not data:
                raise EOFError
            self._messages = self._frames.feed(data)
        return self._messages.pop(0)

    async def is_turned_away(self) -> bool:
        """The other side closes without another frame."""
        try:
            return not await self.next()
        except (EOFError, ConnectionResetError):
            return True

    async def greet(self, secret: str) -> None:
        challenge = (await self.next()).body
        self.send(frames.encode_frame(frames.HELLO, body=NONCE + proof(secret, "ingress", challenge, NONCE)))

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def peer(one: Replica, *, secret: str | None = None) -> AsyncIterator[Peer]:
    """A connection; with a secret, one that has said hello with it."""
    found = Peer(*await asyncio.open_connection(one.endpoint.host, one.endpoint.port))
    try:
        if secret is not None:
            await found.greet(secret)
            assert (await found.next()).kind == frames.WELCOME
        yield found
    finally:
        found.close()


async def test_a_generation_takes_a_slot_until_before_its_last_delta() -> None:
    """Who has the whole answer finds the slot free."""
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        one.speaker.gate.clear()
        ingress.send(frames.encode_open(5, generation(40, 41, max_tokens=2)))
        await until(lambda: one.speaker.running == 1)
        assert (one.slots.held, one.server.streams) == (1, 1)
        one.speaker.gate.set()
        said = [frames.decode_delta((await ingress.next()).body) for _ in range(2)]
        assert one.slots.held == 0
        assert [delta.tokens for delta in said] == [packed([1]), packed([2])]
        assert said[-1].finish_reason == "length"
        assert one.speaker.asked == [generation(40, 41, max_tokens=2)]


async def test_who_does_not_know_the_secret_is_turned_away() -> None:
    """Without a word; the secret itself never travels, and a proof is good for one connection only."""
    async with replica() as one:
        async with peer(one) as stranger:
            await stranger.greet("00" * 32)
            assert await stranger.is_turned_away()
        async with peer(one) as stranger:
            stranger.send(frames.encode_open(1, generation(1)))
            assert (await stranger.next()).kind == frames.CHALLENGE
            assert await stranger.is_turned_away()
        async with peer(one) as stranger:
            await stranger.next()
            replayed = proof(one.server.secret, "ingress", bytes(32), NONCE)
            stranger.send(frames.encode_frame(frames.HELLO, body=NONCE + replayed))
            assert await stranger.is_turned_away()
        assert one.speaker.asked == []
        assert one.server.secret not in repr(one.endpoint)


async def test_a_stranger_that_says_nothing_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA_PROOF_TIMEOUT_S stops connections that only wait."""
    monkeypatch.setattr(data_plane, "DATA_PROOF_TIMEOUT_S", 0.01)
    async with replica() as one, peer(one) as stranger:
        assert (await stranger.next()).kind == frames.CHALLENGE
        assert await stranger.is_turned_away()


async def test_connections_beyond_the_limit_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_DATA_CONNECTIONS stops a crowd from taking all file descriptors."""
    monkeypatch.setattr(data_plane, "MAX_DATA_CONNECTIONS", 1)
    async with replica() as one:
        async with peer(one, secret=one.server.secret), peer(one) as second:
            assert await second.is_turned_away()
        await until(lambda: not one.server.connections)
        async with peer(one, secret=one.server.secret):
            pass


async def test_streams_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_DATA_STREAMS stops one ingress from opening streams without end."""
    monkeypatch.setattr(data_plane, "MAX_DATA_STREAMS", 1)
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        one.speaker.gate.clear()
        ingress.send(frames.encode_open(1, generation(1)), frames.encode_open(2, generation(1)))
        assert (await ingress.next())[:2] == (frames.REFUSED, 2)


@pytest.mark.parametrize("is_draining", [True, False])
async def test_a_full_or_draining_replica_refuses_and_begins_nothing(is_draining: bool) -> None:
    """Serve's answer is passed on: no slot, no generation."""
    async with replica(limit=0) as one, peer(one, secret=one.server.secret) as ingress:
        one.slots.limit, one.slots.is_draining = int(is_draining), is_draining
        ingress.send(frames.encode_open(9, generation(1)))
        assert (await ingress.next())[:2] == (frames.REFUSED, 9)
        assert one.speaker.asked == []


async def test_a_stream_that_is_cancelled_gives_its_slot_back_and_says_no_more() -> None:
    """Running, or cancelled in the very bytes that opened it; cancelling what has ended is nothing."""
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        one.speaker.gate.clear()
        cancels = [frames.encode_frame(frames.CANCEL, number) for number in (1, 2, 77)]
        ingress.send(frames.encode_open(1, generation(1)))
        await until(lambda: one.speaker.running == 1)
        ingress.send(frames.encode_open(2, generation(1)), *cancels)
        await until(lambda: one.server.streams == 0)
        assert (one.slots.held, one.speaker.running) == (0, 0)
        one.speaker.gate.set()
        ingress.send(frames.encode_open(3, generation(1, max_tokens=1)))
        assert (await ingress.next()).stream == 3


async def test_a_lost_connection_cancels_all_it_carried() -> None:
    """An ingress that dies leaves nothing running."""
    async with replica() as one:
        async with peer(one, secret=one.server.secret) as ingress:
            one.speaker.gate.clear()
            ingress.send(*[frames.encode_open(number, generation(1)) for number in range(20)])
            await until(lambda: one.speaker.running == 20)
        await until(lambda: one.slots.held == one.speaker.running == one.server.streams == 0)


async def test_a_stream_opened_twice_or_torn_closes_the_connection() -> None:
    """Such an ingress is out of its mind."""
    opened = frames.encode_open(1, generation(1))
    for hostile in (opened + opened, frames.encode_frame(frames.OPEN, 1, b"\xff" * 9), frames.encode_frame(99, 1)):
        async with replica() as one, peer(one, secret=one.server.secret) as ingress:
            one.speaker.gate.clear()
            ingress.send(hostile)
            assert await ingress.is_turned_away()


async def test_a_paused_stream_waits_and_the_others_do_not() -> None:
    """It says what was under way, keeps its slot, and goes on when it is resumed."""
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        ingress.send(frames.encode_open(1, generation(1, max_tokens=50)), frames.encode_frame(frames.PAUSE, 1))
        ingress.send(frames.encode_open(2, generation(1, max_tokens=50)))
        seen: list[int] = []
        while seen.count(2) < 50:
            seen.append((await ingress.next()).stream)
        assert seen.count(1) < 50
        assert one.slots.held == 1
        ingress.send(frames.encode_frame(frames.RESUME, 1))
        while seen.count(1) < 50:
            seen.append((await ingress.next()).stream)


async def test_an_ingress_that_does_not_read_stops_the_engine_not_the_memory() -> None:
    """DATA_WRITE_HIGH_BYTES stops unread deltas from piling up."""
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        ingress._writer.transport.pause_reading()  # type: ignore[attr-defined]
        endless = 10**9
        ingress.send(*[frames.encode_open(number, generation(1, max_tokens=endless)) for number in range(20)])
        (connection,) = one.server.connections
        await until(lambda: not connection.writable.is_set())
        said = one.speaker.said
        for _ in range(50):
            await asyncio.sleep(0)
        assert one.speaker.said <= said + 20
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 2 * DATA_WRITE_HIGH_BYTES


async def test_deltas_of_one_turn_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a batching engine steps all its streams at once."""
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        writes: list[int] = []
        flush = DataLink._flush

        def counted(link: DataLink) -> None:
            writes.append(len(link._outbox))
            flush(link)

        monkeypatch.setattr(DataLink, "_flush", counted)
        one.speaker.gate.clear()
        ingress.send(*[frames.encode_open(number, generation(1, max_tokens=3)) for number in range(30)])
        await until(lambda: one.speaker.running == 30)
        one.speaker.gate.set()
        for _ in range(90):
            await ingress.next()
        assert writes == [30, 30, 30]


async def test_a_machine_that_vanishes_is_noticed() -> None:
    """DATA_SILENCE_MS stops waiting for one that was cut off without a word."""
    async with replica() as one, peer(one, secret=one.server.secret):
        (connection,) = one.server.connections
        assert connection._transport is not None
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DATA_SILENCE_MS
        probes = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert probes * raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * 1000 <= DATA_SILENCE_MS
        assert probes == data_link.KEEPALIVE_PROBES


async def test_a_server_that_closes_ends_what_runs_and_is_closed_again_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DATA_CLOSE_S stops a peer that does not read from holding it up."""
    monkeypatch.setattr(data_plane, "DATA_CLOSE_S", 0.01)
    async with replica() as one, peer(one, secret=one.server.secret) as ingress:
        ingress.send(frames.encode_open(1, generation(1, max_tokens=10**9)))
        ingress._writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = one.server.connections
        await until(lambda: not connection.writable.is_set())
        await one.server.close()
        await until(lambda: not one.server.connections and one.slots.held == 0)
        await one.server.close()
