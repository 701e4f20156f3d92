"""Reading an engine's sockets without a hole, against sockets that publish and replay as vLLM's do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio

from router.limits import ENGINE_EVENTS_HWM
from workers import engine_events
from workers.engine_events import EngineEvents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workers.engine import EventBatch

END = b"\xff" * 8


class EngineSockets:
    """PUB with numbers and ROUTER with a buffer; `lose` stands for what a high-water mark drops."""

    def __init__(self, folder: Path, *, with_topic: bool = True) -> None:
        self.live, self.replay = f"ipc://{folder}/live", f"ipc://{folder}/replay"
        self._context = zmq.asyncio.Context()
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self._pub.bind(self.live)
        self._router.bind(self.replay)
        self._topic = [b"topic"] if with_topic else []
        self._buffer: dict[int, bytes] = {}
        self._next = 0
        self.asked: list[int] = []

    def keep(self) -> None:
        """A batch that nobody receives live; only the buffer has it."""
        self._buffer[self._next] = b"batch %d" % self._next
        self._next += 1

    async def publish(self) -> None:
        self.keep()
        seq = self._next - 1
        await self._pub.send_multipart([b"topic", seq.to_bytes(8, "big"), self._buffer[seq]])

    def forget_before(self, seq: int) -> None:
        self._buffer = {number: payload for number, payload in self._buffer.items() if number >= seq}

    async def answer(self) -> None:
        while True:
            sender, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for seq, payload in self._buffer.items():
                if seq >= self.asked[-1]:
                    await self._router.send_multipart([sender, b"", *self._topic, seq.to_bytes(8, "big"), payload])
            await self._router.send_multipart([sender, b"", *([b""] if self._topic else []), END, b""])

    def close(self) -> None:
        self._context.destroy(linger=0)


def scenario(folder: Path, steps: Callable[[EngineSockets, Reader], object], *, with_topic: bool = True) -> list[int]:
    """Run the steps beside a reader; the numbers it got."""

    async def whole() -> list[int]:
        sockets = EngineSockets(folder, with_topic=with_topic)
        answering = asyncio.create_task(sockets.answer())
        reader = Reader(sockets)
        try:
            await steps(sockets, reader)  # type: ignore[misc]
        finally:
            answering.cancel()
            await reader.close()
            sockets.close()
        assert all(batch.payload == b"batch %d" % batch.seq for batch in reader.batches)
        return [batch.seq for batch in reader.batches]

    return asyncio.run(whole())


class Reader:
    def __init__(self, sockets: EngineSockets) -> None:
        self.batches: list[EventBatch] = []
        self.events = EngineEvents(live=sockets.live, replay=sockets.replay)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._read())

    async def got(self, seq: int) -> None:
        async with asyncio.timeout(20.0):
            while not self.batches or self.batches[-1].seq < seq:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.events.close()
        self.events.close()

    async def _read(self) -> None:
        async for batch in self.events.batches():
            self.batches.append(batch)


@pytest.mark.parametrize("with_topic", [True, False], ids=["with topic", "older form"])
def test_a_late_reader_gets_everything_from_the_start(tmp_path: Path, with_topic: bool) -> None:
    """What was published before the reader attached is gone from the live socket."""

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        for _ in range(3):
            sockets.keep()
        reader.start()
        await reader.got(2)
        for _ in range(3):
            await sockets.publish()
        await reader.got(5)
        assert "next=6" in repr(reader.events)

    assert scenario(tmp_path, steps, with_topic=with_topic) == [0, 1, 2, 3, 4, 5]


def test_a_lost_batch_is_fetched_before_the_next_is_told(tmp_path: Path) -> None:
    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        reader.start()
        await sockets.publish()
        await reader.got(0)
        sockets.keep()
        sockets.keep()
        await sockets.publish()
        await reader.got(3)
        assert 1 in sockets.asked

    assert scenario(tmp_path, steps) == [0, 1, 2, 3]


def test_a_batch_lost_last_is_found_while_the_engine_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENGINE_REPLAY_INTERVAL_S bounds how long the loss of the newest batch goes unseen: nothing follows it."""
    monkeypatch.setattr(engine_events, "ENGINE_REPLAY_INTERVAL_S", 0.2)

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        reader.start()
        await sockets.publish()
        await reader.got(0)
        sockets.keep()
        await reader.got(1)

    assert scenario(tmp_path, steps) == [0, 1]


def test_what_the_engine_no_longer_has_shows_as_a_gap(tmp_path: Path) -> None:
    """The relay then forgets: removals may have been in it."""

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        for _ in range(5):
            sockets.keep()
        sockets.forget_before(3)
        reader.start()
        await reader.got(4)

    assert scenario(tmp_path, steps) == [3, 4]


def test_an_engine_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPLAY_PATIENCE_S stops a lost answer from holding live batches back for ever: they come after it."""
    monkeypatch.setattr(engine_events, "REPLAY_PATIENCE_S", 0.1)
    muted = EngineSockets.answer
    started: list[asyncio.Event] = []

    async def late(self: EngineSockets) -> None:
        started.append(asyncio.Event())
        await started[0].wait()
        await self._router.recv_multipart()
        await muted(self)

    monkeypatch.setattr(EngineSockets, "answer", late)

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        sockets.keep()
        reader.start()
        await asyncio.sleep(0.5)
        assert reader.batches == []
        started[0].set()
        await reader.got(0)

    assert scenario(tmp_path, steps) == [0]


def test_batches_beyond_the_bound_are_fetched_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENGINE_PENDING_BATCHES stops a replay that never comes from filling memory with live batches."""
    monkeypatch.setattr(engine_events, "ENGINE_PENDING_BATCHES", 2)
    monkeypatch.setattr(engine_events, "ENGINE_REPLAY_INTERVAL_S", 0.2)

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        for _ in range(9):
            sockets.keep()
        reader.start()
        await reader.got(8)

    assert scenario(tmp_path, steps) == list(range(9))


def test_what_did_not_fit_in_the_middle_of_an_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches behind the hole are not taken for proof that the engine has forgotten those in it."""
    monkeypatch.setattr(engine_events, "ENGINE_PENDING_BATCHES", 2)
    answered = EngineSockets.answer

    async def in_parts(self: EngineSockets) -> None:
        sender, _, _ = await self._router.recv_multipart()
        for part in ((0, 1, 2, 3), (7, 8)):
            for seq in part:
                await self._router.send_multipart([sender, b"", b"topic", seq.to_bytes(8, "big"), self._buffer[seq]])
            await asyncio.sleep(0.2)
        await self._router.send_multipart([sender, b"", b"", END, b""])
        await answered(self)

    monkeypatch.setattr(EngineSockets, "answer", in_parts)

    async def steps(sockets: EngineSockets, reader: Reader) -> None:
        for _ in range(9):
            sockets.keep()
        reader.start()
        await reader.got(8)

    assert scenario(tmp_path, steps) == list(range(9))


def test_engine_events_hwm_stops_an_unread_engine_from_filling_memory(tmp_path: Path) -> None:
    """ENGINE_EVENTS_HWM batches wait in each socket; beyond it ZMQ drops, which the reader sees by number and mends."""

    async def check() -> None:
        events = EngineEvents(live=f"ipc://{tmp_path}/live", replay=f"ipc://{tmp_path}/replay")
        for socket in (events._live, events._replay):
            assert socket.getsockopt(zmq.RCVHWM) == ENGINE_EVENTS_HWM
            assert socket.getsockopt(zmq.LINGER) == 0
        events.close()

    asyncio.run(check())
