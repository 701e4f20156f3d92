"""Engine events through relay, publisher, sockets and subscriber into a fleet: the whole path, without Ray."""

from __future__ import annotations

import asyncio
import struct
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import zmq
import zmq.asyncio

from router.fleet import Fleet
from router.hashing import block_hashes, seed_of
from router.replicas import PromptBlocks, ReplicaInfo, ReplicaStatus
from router.subscriber import Subscriber
from router.wire import encode_snapshot_request
from tests.workers.support import MODEL, payload, stored
from workers.engine import EventBatch, Generation, Sampling
from workers.event_pump import EventPump
from workers.sim_engine import SimEngine
from workers.simulator import SimParameters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from workers.engine import EngineInfo

BLOCK_SIZE, POOL_BLOCKS = 4, 64
SALT = "a-tenants-secret-salt"


class Path(NamedTuple):
    engine: SimEngine
    pump: EventPump
    fleet: Fleet


@asynccontextmanager
async def connected(engine_type: type[SimEngine] = SimEngine, *, block_size: int = BLOCK_SIZE) -> AsyncIterator[Path]:
    """An engine whose events arrive in a fleet over real sockets."""
    parameters = SimParameters(block_size=BLOCK_SIZE, pool_blocks=POOL_BLOCKS, max_model_len=200)
    engine = engine_type(model=MODEL, parameters=parameters, speed=float("inf"))
    await engine.start()
    pump = EventPump(engine=engine, model=MODEL, host="127.0.0.1", replica="r", incarnation="one")
    pump.start()
    fleet = Fleet(model=MODEL)
    subscriber = Subscriber(fleet, time.monotonic)
    running = asyncio.create_task(subscriber.run())
    events, snapshots = pump.endpoints
    subscriber.add(
        ReplicaInfo(
            replica="r",
            incarnation="one",
            model=MODEL,
            block_size=block_size,
            pool_blocks=POOL_BLOCKS,
            max_model_len=200,
            events=events,
            snapshots=snapshots,
        )
    )
    try:
        await until(lambda: not fleet.fenced("r"))
        yield Path(engine, pump, fleet)
    finally:
        await subscriber.close()
        await running
        await pump.close()
        await pump.close()
        await engine.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.01)


async def cached(engine: SimEngine, tokens: list[int]) -> int | None:
    request = Generation(request_id="a", tokens=packed(tokens), sampling=Sampling(max_tokens=1), cache_salt=SALT)
    return [delta.cached_tokens async for delta in engine.generate(request)][-1]


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def hashes_of(tokens: list[int]) -> list[int]:
    return block_hashes(packed(tokens), block_size=BLOCK_SIZE, seed=seed_of(MODEL, salt=SALT))


def status(fleet: Fleet) -> ReplicaStatus:
    return fleet.status(time.monotonic())[0]


def shown(fleet: Fleet) -> frozenset[int]:
    return frozenset(fleet.resident("r").get("gpu", frozenset()))


def test_the_fleet_foretells_what_the_engine_finds() -> None:
    """Through evictions of a pool that holds only some of the prompts."""

    async def scenario() -> None:
        async with connected() as (engine, _, fleet):
            prompts = [[1000 * number + at for at in range(40)] for number in range(9)]
            for prompt in [*prompts, prompts[7], prompts[1], prompts[8]]:
                await until(lambda: len(shown(fleet)) == len(engine.resident()))
                blocks = PromptBlocks(prompt_tokens=len(prompt), hashes={BLOCK_SIZE: hashes_of(prompt)})
                decision = fleet.choose(blocks, time.monotonic())
                assert await cached(engine, prompt) == decision.predicted_cached_tokens
                fleet.finish(decision.reservation, time.monotonic())
                await until(lambda prompt=prompt: shown(fleet) >= set(hashes_of(prompt)))  # type: ignore[misc]

    asyncio.run(scenario())


def test_a_reset_of_an_idle_engine_is_announced() -> None:
    """The engine itself says nothing before its next step."""

    async def scenario() -> None:
        async with connected() as (engine, pump, fleet):
            await cached(engine, list(range(40)))
            await until(lambda: len(shown(fleet)) == 10)
            assert await pump.reset()
            await until(lambda: not shown(fleet))
            await cached(engine, list(range(8)))
            await until(lambda: shown(fleet) == set(hashes_of(list(range(8)))))

    asyncio.run(scenario())


class Late(SimEngine):
    """Its events can be held up on their way."""

    async def start(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        await super().start()

    async def events(self) -> AsyncIterator[EventBatch]:
        async for batch in super().events():
            await self.open.wait()
            yield batch


def test_news_from_before_a_reset_is_not_shown_after_it() -> None:
    """It may still be on its way when the reset is announced, and an idle engine would not correct it."""

    async def scenario() -> None:
        async with connected(Late) as (engine, pump, fleet):
            assert isinstance(engine, Late)
            engine.open.clear()
            await cached(engine, list(range(40)))
            assert await pump.reset()
            engine.open.set()
            await until(lambda: pump.counters["batches"] == 1)
            await asyncio.sleep(0.3)
            assert not shown(fleet)
            await cached(engine, list(range(8)))
            await until(lambda: shown(fleet) == set(hashes_of(list(range(8)))))

    asyncio.run(scenario())


def test_an_unreadable_batch_hides_what_it_may_have_taken() -> None:
    """Nobody knows which blocks it removed; a router may know too little, never too much."""

    async def scenario() -> None:
        async with connected() as (engine, pump, fleet):
            await cached(engine, list(range(40)))
            await until(lambda: len(shown(fleet)) == 10)
            engine._batches.append(EventBatch(1, b"\xc1"))
            engine._news.set()
            await until(lambda: not shown(fleet))
            assert pump.counters["rejected"] == 1
            assert pump.fault is None

    asyncio.run(scenario())


def test_each_event_that_could_not_be_used_is_told_to_the_operator_once() -> None:
    """Batches that cannot be read, and events that are broken, whole batches of them or not."""

    async def scenario() -> None:
        async with connected() as (engine, _, fleet):
            engine._batches += [
                EventBatch(0, b"\xc1"),
                EventBatch(1, payload(stored([1], [7] * BLOCK_SIZE), {"type": "BlockRemoved", "medium": "GPU"})),
                EventBatch(2, payload(stored([2], [7] * (BLOCK_SIZE + 1), block_size=BLOCK_SIZE))),
            ]
            engine._news.set()
            sentence = "3 of its engine's events could not be used"
            await until(lambda: sentence in status(fleet).problems)
            assert status(fleet).skipped_events == 3

    asyncio.run(scenario())


class OtherBlocks(SimEngine):
    """Says blocks of twice the size of those that its events tell of."""

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, block_size=2 * BLOCK_SIZE)


def test_an_engine_whose_events_have_another_block_size_than_it_says_is_a_loud_state() -> None:
    """Its hashes would never match: the router says so, and believes nothing of it, until the engine starts anew."""

    async def scenario() -> None:
        async with connected(OtherBlocks, block_size=2 * BLOCK_SIZE) as (engine, _, fleet):
            assert not status(fleet).problems
            await cached(engine, list(range(40)))
            await until(lambda: status(fleet).state == "mismatched")
            sentence = "its events have another block size than its metadata: no locality credit until it restarts"
            assert status(fleet).problems[0] == sentence
            assert (status(fleet).fenced, fleet.routable, shown(fleet)) == (True, ("r",), frozenset())
            engine._batches.append(EventBatch(0, payload(stored([1], [7] * 2 * BLOCK_SIZE))))
            engine._news.set()
            await until(lambda: status(fleet).state == "live" and len(shown(fleet)) == 1)

    asyncio.run(scenario())


def test_the_end_of_the_events_is_a_fault() -> None:
    """Serve's health check reads it: a replica whose events stopped must be replaced."""

    async def scenario() -> None:
        async with connected() as (engine, pump, _):
            assert pump.fault is None
            assert "Relay" in repr(pump)
            engine.kill()
            await until(lambda: pump.fault is not None)

    asyncio.run(scenario())


class SilentInDeath(SimEngine):
    """Dies as vLLM's engine process does: its event sockets do not end."""

    async def events(self) -> AsyncIterator[EventBatch]:
        async for batch in super().events():
            yield batch
        await asyncio.Event().wait()


def test_a_dead_engine_is_shown_empty_then_falls_silent() -> None:
    """Else its heartbeats would vouch for blocks that are gone, until something replaces the replica. The loss
    goes unseen for ENGINE_HEALTH_INTERVAL_S at most."""

    async def scenario() -> None:
        async with connected(SilentInDeath) as (engine, pump, fleet):
            await cached(engine, list(range(40)))
            await until(lambda: len(shown(fleet)) == 10)
            engine.kill()
            await until(lambda: not shown(fleet))
            assert pump.fault == "the engine is gone"
            await until(lambda: not fleet.routable)

    asyncio.run(scenario())


def test_an_exception_in_the_events_is_a_fault() -> None:
    async def scenario() -> None:
        async with connected() as (engine, pump, _):
            engine._batches.append("no batch")  # type: ignore[arg-type]
            engine._news.set()
            await until(lambda: pump.fault is not None)
            assert "AttributeError" in str(pump.fault)

    asyncio.run(scenario())


def test_no_token_and_no_salt_leaves_the_node() -> None:
    """Everything on both sockets, searched for the tokens in any packing and for the salt."""

    async def scenario() -> list[bytes]:
        async with connected() as (engine, pump, fleet):
            context = zmq.asyncio.Context()
            events, snapshots = pump.endpoints
            live, asked = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            live.subscribe(b"")
            live.connect(events)
            asked.connect(snapshots)
            seen = [await live.recv()]
            await cached(engine, tokens)
            await until(lambda: shown(fleet) == set(hashes_of(tokens)))
            while hashes_of(tokens)[0].to_bytes(8, "little") not in seen[-1]:
                seen.append(await live.recv())
            await asked.send(encode_snapshot_request(7))
            seen.append(await asked.recv())
            context.destroy(linger=0)
            return seen

    tokens = [0x5A5A0000 + at for at in range(40)]
    traffic = asyncio.run(scenario())
    assert any(hashes_of(tokens)[9].to_bytes(8, "little") in message for message in traffic[:-1])
    assert hashes_of(tokens)[9].to_bytes(8, "little") in traffic[-1]
    for message in traffic:
        assert SALT.encode() not in message
        for token in tokens:
            assert token.to_bytes(4, "little") not in message
            assert token.to_bytes(4, "big") not in message
