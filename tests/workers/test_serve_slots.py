"""Serve's own slots: taken as Serve takes them, and not offered by a Serve that is not the one they were made for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.serve._private.replica import Replica as ServeReplica
from ray.serve._private.utils import Semaphore

from router.errors import ReplicaBusy
from workers.serve_slots import NEEDED, SlotsUnavailable, serve_slots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Counted:
    """A Serve replica cut down to its slots: the real methods for those, and a list of what was logged."""

    max_ongoing_requests = 2
    _can_accept_request = ServeReplica._can_accept_request
    _is_replica_quiescing = ServeReplica._is_replica_quiescing

    def __init__(self) -> None:
        self._event_loop: Any = asyncio.get_running_loop()
        self._semaphore = Semaphore(lambda: self.max_ongoing_requests)
        self._quiescing = False
        self._metrics_manager = self
        self.is_counting = True
        self.ongoing = 0
        self.logged: list[str] = []

    def get_num_ongoing_requests(self) -> int:
        return self.ongoing

    def should_collect_ongoing_requests(self) -> bool:
        return self.is_counting

    @asynccontextmanager
    async def _start_request(self, metadata: Any) -> AsyncIterator[None]:
        await self._semaphore.acquire()
        self.ongoing += 1
        try:
            yield
        finally:
            self.ongoing -= 1
            self._semaphore.release()

    @contextmanager
    def _wrap_request(self, metadata: Any) -> Iterator[None]:
        try:
            yield
        except BaseException as fault:
            self.logged.append(f"{metadata.call_method} {metadata.request_id} {type(fault).__name__}")
            raise
        self.logged.append(f"{metadata.call_method} {metadata.request_id} OK")


def present(monkeypatch: pytest.MonkeyPatch, *replicas: Any) -> None:
    """These are the actors of this process; one that is no replica of Serve is always there."""
    actors = {number: type("Actor", (), {"_replica_impl": one})() for number, one in enumerate(replicas)}
    monkeypatch.setattr(ray._private.worker.global_worker, "actors", actors | {-1: object()}, raising=False)


async def test_a_slot_is_held_and_given_back_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Done, failed, cancelled; Serve logs each as a call of `generate`."""
    replica = Counted()
    present(monkeypatch, replica)
    slots = await serve_slots()
    async with slots.hold("fine"):
        assert replica.ongoing == 1
    with pytest.raises(ZeroDivisionError):
        async with slots.hold("broken"):
            raise ZeroDivisionError
    async with asyncio.timeout(5.0):
        task = asyncio.create_task(hold(slots.hold, "left"))
        while replica.ongoing == 0:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert replica.ongoing == 0
    assert replica.logged == ["generate fine OK", "generate broken ZeroDivisionError", "generate left CancelledError"]


async def hold(slot: Callable[[str], Any], request_id: str) -> None:
    async with slot(request_id):
        await asyncio.Event().wait()


async def test_a_full_or_draining_replica_has_no_slot_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very methods with which Serve answers its own handles."""
    replica = Counted()
    present(monkeypatch, replica)
    slots = await serve_slots()
    async with slots.hold("one"), slots.hold("two"):
        with pytest.raises(ReplicaBusy):
            await slots.hold("three").__aenter__()
    replica._quiescing = True
    with pytest.raises(ReplicaBusy):
        await slots.hold("four").__aenter__()
    assert replica.ongoing == 0


async def test_a_serve_that_is_not_the_known_one_offers_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version, no replica or two, a part that is gone, another thread, counts that are not its own."""
    present(monkeypatch)
    with pytest.raises(SlotsUnavailable, match="0 Serve replicas"):
        await serve_slots()
    present(monkeypatch, Counted(), Counted())
    with pytest.raises(SlotsUnavailable, match="2 Serve replicas"):
        await serve_slots()
    for name in NEEDED:
        replica = Counted()
        setattr(replica, name, None)
        present(monkeypatch, replica)
        with pytest.raises(SlotsUnavailable, match=f"Serve's replica has no {name}"):
            await serve_slots()
    replica = Counted()
    replica._event_loop = object()
    present(monkeypatch, replica)
    with pytest.raises(SlotsUnavailable, match="RAY_SERVE_THROUGHPUT_OPTIMIZED"):
        await serve_slots()
    elsewhere = Counted()
    elsewhere.is_counting = False
    present(monkeypatch, elsewhere)
    with pytest.raises(SlotsUnavailable, match="AUTOSCALING_METRICS_ON_HANDLE=0"):
        await serve_slots()
    blind = Counted()
    blind.get_num_ongoing_requests = lambda: 7  # type: ignore[method-assign]
    present(monkeypatch, blind)
    with pytest.raises(SlotsUnavailable, match="does not count"):
        await serve_slots()
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    present(monkeypatch, Counted())
    with pytest.raises(SlotsUnavailable, match=r"this is 2\.61\.0"):
        await serve_slots()


def test_the_installed_serve_has_all_that_is_needed() -> None:
    """Its names, before a replica would find out."""
    assert all(callable(getattr(ServeReplica, name, None)) for name in NEEDED)
