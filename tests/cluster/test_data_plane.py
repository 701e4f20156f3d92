"""An ingress's end of the data plane against a replica's, over real sockets: errors, loss, slow readers."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from array import array
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from cluster import data_plane
from cluster.data_plane import DataCall, DataPlane
from router.errors import InvalidRequest, KvistBug, ReplicaBusy, ReplicaDied
from router.limits import DATA_RECONNECT_S, DATA_STREAM_TOKENS
from router.replicas import DataEndpoint
from tests.workers.data_support import Replica, generation, packed, replica, until
from workers import data_frames
from workers.engine import Generation, Sampling, Structured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

DISCONNECTS, AT_ONCE = 240, 24


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports are different code."""
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def plane(**replicas: Replica) -> AsyncIterator[DataPlane]:
    """One that is connected to these replicas; on the way out nothing of it is left."""
    found = DataPlane()
    for name, one in replicas.items():
        found.add(name, one.endpoint)
    await until(lambda: all(link._connection is not None for link in found._links.values()))
    try:
        yield found
    finally:
        await found.close()
        assert found.streams == 0


async def tokens_of(call: DataCall) -> list[int]:
    return [token for delta in [delta async for delta in call] for token in array("I", delta.tokens)]


async def test_a_generation_comes_back_whole_with_all_that_was_asked() -> None:
    """Every setting reaches the engine, every token and count the reader."""
    asked = Generation(
        request_id="req",
        tokens=packed(range(60_000)),
        sampling=Sampling(
            max_tokens=3,
            temperature=0.5,
            logit_bias=((7, -1.5),),
            logprobs=2,
            structured=Structured(kind="json", spec='{"type": "object"}'),
        ),
        cache_salt="salt",
        session_id="session",
        expected_cached_tokens=16,
    )
    async with replica() as one, plane(a=one) as ingress:
        deltas = [delta async for delta in ingress.call("a", asked)]
        assert one.speaker.asked == [asked]
        assert b"".join(delta.tokens for delta in deltas) == packed([1, 2, 3])
        assert (deltas[0].cached_tokens, deltas[-1].finish_reason) == (0, "length")
        assert (one.slots.held, ingress.streams) == (0, 0)


async def test_many_generations_share_one_connection_and_keep_apart() -> None:
    """Each reader gets its own tokens, in order."""
    async with replica() as one, plane(a=one) as ingress:
        calls = [ingress.call("a", generation(n, max_tokens=n % 17 + 1)) for n in range(200)]
        said = await asyncio.gather(*(tokens_of(call) for call in calls))
        assert said == [list(range(1, n % 17 + 2)) for n in range(200)]
        assert len(one.server.connections) == 1


@pytest.mark.parametrize("fault", [InvalidRequest("a form nobody can follow"), ReplicaDied("the engine is gone")])
async def test_an_engines_error_comes_after_the_deltas_before_it(fault: Exception) -> None:
    """With its kind and its words; the slot is free again."""
    async with replica() as one, plane(a=one) as ingress:
        one.speaker.error, one.speaker.error_after = fault, 2
        call, said = ingress.call("a", generation(1)), bytearray()
        while len(said) < len(packed([1, 2])):
            said += (await anext(call)).tokens
        with pytest.raises(type(fault), match=str(fault)):
            await anext(call)
        assert bytes(said) == packed([1, 2])
        assert (one.slots.held, ingress.streams) == (0, 0)


async def test_a_busy_replica_says_so_before_anything_is_begun() -> None:
    """No more run at once than there are slots, and the connection serves on."""
    async with replica(limit=3) as one, plane(a=one) as ingress:
        one.speaker.gate.clear()
        tasks = [asyncio.create_task(tokens_of(ingress.call("a", generation(1)))) for _ in range(8)]
        await until(lambda: sum(task.done() for task in tasks) == 5)
        one.speaker.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, ReplicaBusy) for result in results) == 5
        assert one.slots.most == len(one.speaker.asked) == 3
        assert await tokens_of(ingress.call("a", generation(1, max_tokens=1))) == [1]


async def test_a_replica_that_dies_ends_all_its_streams_at_once_and_others_go_elsewhere() -> None:
    """`ReplicaDied` to each; what comes next is told that nothing was begun."""
    async with replica() as one, replica() as other, plane(a=one, b=other) as ingress:
        one.speaker.gate.clear()
        tasks = [asyncio.create_task(tokens_of(ingress.call("a", generation(1)))) for _ in range(10)]
        await until(lambda: one.speaker.running == 10)
        assert one.server._server is not None
        one.server._server.close()
        for connection in one.server.connections:
            connection.abort()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, ReplicaDied) for result in results)
        for _ in range(3):
            with pytest.raises(ReplicaBusy):
                await tokens_of(ingress.call("a", generation(1)))
        assert await tokens_of(ingress.call("b", generation(1, max_tokens=1))) == [1]


async def test_a_connection_that_was_lost_is_made_again() -> None:
    """The replica lives: the next call finds it."""
    async with replica() as one, plane(a=one) as ingress:
        for connection in one.server.connections:
            connection.abort()
        await until(lambda: not one.server.connections)
        await until(lambda: not ingress._links["a"]._connection.is_open)  # type: ignore[union-attr]
        assert await tokens_of(ingress.call("a", generation(1, max_tokens=1))) == [1]


async def test_only_one_attempt_to_reach_a_replica_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA_CONNECT_TIMEOUT_S stops waiting for one that accepts and says nothing; until DATA_RECONNECT_S is over nobody
    tries, and then in the background."""
    monkeypatch.setattr(data_plane, "DATA_CONNECT_TIMEOUT_S", 0.01)
    accepted: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    now = 0.0
    ingress = DataPlane(lambda: now)
    ingress.add("a", DataEndpoint(host="127.0.0.1", port=mute.sockets[0].getsockname()[1], secret="00" * 32))
    for _ in range(3):
        with pytest.raises(ReplicaBusy):
            await tokens_of(ingress.call("a", generation(1)))
    assert len(accepted) == 1
    now += DATA_RECONNECT_S
    with pytest.raises(ReplicaBusy):
        await tokens_of(ingress.call("a", generation(1)))
    await until(lambda: len(accepted) == 2)
    await ingress.close()
    for writer in accepted:
        writer.close()
    mute.close()


async def test_another_process_behind_the_port_gets_nothing() -> None:
    """A replica that took a dead one's port does not know its secret: no prompt is sent to it."""
    async with replica() as one:
        ingress = DataPlane()
        ingress.add("a", DataEndpoint(host=one.endpoint.host, port=one.endpoint.port, secret="00" * 32))
        with pytest.raises(ReplicaBusy):
            await tokens_of(ingress.call("a", generation(1)))
        assert one.speaker.asked == []
        await ingress.close()


async def test_an_impostor_that_cannot_prove_itself_gets_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that welcomes everybody."""
    monkeypatch.setattr("workers.data_plane.hmac", SimpleNamespace(compare_digest=lambda *_: True))
    async with replica() as one:
        ingress = DataPlane()
        ingress.add("a", DataEndpoint(host=one.endpoint.host, port=one.endpoint.port, secret="00" * 32))
        with pytest.raises(ReplicaBusy):
            await tokens_of(ingress.call("a", generation(1)))
        assert one.speaker.asked == []
        await ingress.close()


async def test_a_replica_that_leaves_finishes_what_runs_and_takes_nothing_new() -> None:
    """As one does that drains; then its connection is closed."""
    async with replica() as one, plane(a=one) as ingress:
        one.speaker.gate.clear()
        late = ingress.call("a", generation(1))
        task = asyncio.create_task(tokens_of(ingress.call("a", generation(1, max_tokens=2))))
        await until(lambda: one.speaker.running == 1)
        ingress.remove("a")
        ingress.remove("a")
        assert not ingress.reaches("a")
        one.speaker.gate.set()
        assert await task == [1, 2]
        await until(lambda: not one.server.connections)
        with pytest.raises(ReplicaBusy):
            await tokens_of(late)


async def test_a_prompt_over_the_limit_is_our_bug_and_leaves_the_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit stops it before a byte is sent."""
    monkeypatch.setattr(data_frames, "MAX_DATA_OPEN_BYTES", 1_000)
    async with replica() as one, plane(a=one) as ingress:
        with pytest.raises(KvistBug):
            await tokens_of(ingress.call("a", generation(*range(1_000))))
        assert ingress.streams == 0
        assert await tokens_of(ingress.call("a", generation(1, max_tokens=1))) == [1]


async def test_a_slow_reader_pauses_its_replica_and_misses_nothing() -> None:
    """DATA_STREAM_TOKENS stops deltas from piling up for a reader that does not come; then it gets all, in fewer."""
    most = 50 * DATA_STREAM_TOKENS
    async with replica() as one, plane(a=one) as ingress:
        call = ingress.call("a", generation(1, max_tokens=most))
        first = await anext(call)
        await until(lambda: call._is_paused)
        await until(lambda: not next(iter(one.server.connections)).streams[1].flow.is_set())
        assert call._held_tokens < most // 10
        assert one.speaker.said < most // 10
        at_once = await anext(call)
        assert len(array("I", at_once.tokens)) > DATA_STREAM_TOKENS
        said = array("I", b"".join([first.tokens, at_once.tokens, *[delta.tokens async for delta in call]]))
        assert list(said) == list(range(1, most + 1))


async def test_240_early_disconnects_leak_neither_slots_nor_streams() -> None:
    """Before the first delta, between deltas, at the end; the memory they took is given back."""
    rng = random.Random(0)
    async with replica(limit=AT_ONCE) as one, plane(a=one) as ingress:
        for begun in range(DISCONNECTS // AT_ONCE):
            if begun == 2:
                tracemalloc.start()
            await asyncio.gather(*(leave_early(ingress, rng.randrange(12)) for _ in range(AT_ONCE)))
        await until(lambda: one.slots.held == one.speaker.running == one.server.streams == ingress.streams == 0)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 2**20
        calls = [ingress.call("a", generation(1, max_tokens=1)) for _ in range(AT_ONCE)]
        assert await asyncio.gather(*(tokens_of(call) for call in calls)) == [[1]] * AT_ONCE


async def leave_early(ingress: DataPlane, patience: int) -> None:
    """Read for some turns of the loop, then be cancelled and close, as a request does whose client left."""
    call = ingress.call("a", generation(1, max_tokens=patience % 5 + 1 if patience % 3 else 10**6))
    task = asyncio.create_task(tokens_of(call))
    for _ in range(patience):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    call.cancel()
    call.cancel()
