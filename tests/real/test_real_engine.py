"""A real vLLM engine with a pool of 40 blocks in a process of its own, followed by the real router in this one.

Every generation first waits until the router believes exactly what the worker's relay shows, and then compares what the
router predicts with what the engine counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.real.leading import REPLICA, Follower, Stage, seconds_until
from tests.real.measured import record, record_times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.leading import Prediction

pytestmark = pytest.mark.vllm

BLOCK = 32
ENGINE_ARGS = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": 41,
    "max_model_len": 1024,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
}
SANE_S = 5.0


@pytest.fixture(scope="module")
def stage(tiny_model: Path) -> Iterator[Stage]:
    stage = Stage(path=tiny_model, engine_args=ENGINE_ARGS)
    yield stage
    stage.close()


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    chosen = random.Random(seed)
    return [chosen.choices(range(300, 4000), k=length) for length in lengths]


def play(stage: Stage, tokens: list[int], *, salt: str = "", **fields: int) -> Prediction:
    """Generate; the prediction must be the engine's count within one block."""

    async def run() -> Prediction:
        return await stage.router.generate(await stage.worker(), tokens, salt=salt, **fields)

    found = stage.run(run())
    assert abs(found.predicted - found.counted) <= BLOCK, found
    return found


def test_prompts_that_share_a_prefix(stage: Stage) -> None:
    head, *tails = prompts(1, 300, 100, 70, 1)
    assert play(stage, head).counted == 0
    for tail in tails:
        assert play(stage, [*head, *tail]).counted == 288


def test_whole_blocks_sent_again_leave_copies_that_are_counted(stage: Stage) -> None:
    """The block of the last token is computed again, into another physical block under the same hash; the evictions of
    the copies must take it out of the index once, with the last."""
    (prompt,) = prompts(2, 3 * BLOCK)
    assert [play(stage, prompt).counted for _ in range(4)] == [0, 64, 64, 64]
    for filler in prompts(3, 400, 400, 400, 400):
        play(stage, filler)
    assert play(stage, prompt).counted == 0


def test_generated_blocks_are_found_by_the_next_turn(stage: Stage) -> None:
    (prompt,) = prompts(4, 90)
    first = play(stage, prompt, max_tokens=75)
    second = play(stage, [*prompt, *first.tokens, *prompts(5, 40)[0]], max_tokens=40)
    assert second.counted == (90 + 75 - 1) // BLOCK * BLOCK


def test_a_prompt_longer_than_a_step(stage: Stage) -> None:
    """Computed in four pieces, announced in four batches."""
    (prompt,) = prompts(6, 1000)
    assert [play(stage, prompt).counted for _ in range(2)] == [0, 992]


def test_evictions_far_beyond_the_pool(stage: Stage) -> None:
    """Some 400 blocks go through a pool of 40, with prefixes that come back warm, cold, and partly evicted."""
    chosen = random.Random(7)
    heads = prompts(8, 200, 260, 320, 380)
    found = []
    for number in range(45):
        head = chosen.choice(heads)
        cut = chosen.randrange(50, len(head))
        found.append(play(stage, [*head[:cut], *prompts(100 + number, chosen.randrange(1, 300))[0]]))
    warm = [one for one in found if one.counted]
    assert 5 < len(warm) < 45
    exact = sum(one.predicted == one.counted for one in found)
    record(
        "predicted cached tokens in a pool that evicts", {"predictions": len(found), "warm": len(warm), "exact": exact}
    )


def test_many_at_once_and_some_that_leave(stage: Stage) -> None:
    """Aborts in the middle of a stream, prompts that differ in the last token, a pool too small for all: afterwards
    router and relay agree to the block."""

    async def run() -> None:
        worker = await stage.worker()
        (head,) = prompts(9, 250)
        everyone = [
            worker.ask("generate", tokens=[*head, 300 + number], max_tokens=60, leave_after=(number % 3) * 7)
            for number in range(12)
        ]
        assert {answer.fault for answer in await asyncio.gather(*everyone)} == {None}

    stage.run(run())
    play(stage, prompts(13, 40)[0])  # its news comes after all of theirs
    assert play(stage, prompts(9, 250)[0]).counted > 0


def test_tenants_never_share(stage: Stage) -> None:
    """The salt of a tenant seeds the router's hashes as it does the engine's; the same tenant does find its own."""
    (prompt,) = prompts(10, 200)
    for salt in ("tenant a", "tenant b", ""):
        found = play(stage, prompt, salt=salt)
        assert (found.predicted, found.counted) == (0, 0)
    for salt in ("tenant a", "tenant b", ""):
        assert play(stage, prompt, salt=salt).counted == 192


def test_a_reset_while_idle_is_announced_at_once(stage: Stage) -> None:
    """The engine itself says so with its next step only."""

    async def reset() -> float:
        worker = await stage.worker()
        assert stage.router.holds()
        assert (await worker.ask("reset")).done
        return await seconds_until(lambda: not stage.router.holds())

    (prompt,) = prompts(11, 200)
    seconds = []
    for _ in range(5):
        assert play(stage, prompt, max_tokens=9).counted == 0
        seconds.append(stage.run(reset()))
    record_times("reset while idle, from its return until nothing is believed", seconds)
    assert max(seconds) < SANE_S


@pytest.mark.slow
def test_a_router_that_sleeps_under_load(stage: Stage) -> None:
    """SIGSTOP of a router for 20 s: the engine does not notice, and the router's index is exact afterwards. The router
    in this process goes on, and tells how long events took to reach it."""

    async def run() -> None:
        worker = await stage.worker()
        follower = await Follower.start(worker.info)
        await follower.agrees_with(worker)
        await worker.ask("busy", at_once=4, prompt_tokens=200, max_tokens=64)
        await asyncio.sleep(1.0)
        await worker.ask("lags")
        stage.router.fleet.lags_s.clear()
        before = await worker.pace(10.0)
        os.kill(follower.pipe.pid, signal.SIGSTOP)
        during = await worker.pace(20.0)
        os.kill(follower.pipe.pid, signal.SIGCONT)
        after = await worker.pace(10.0)
        await worker.ask("idle")
        relay_lags_s = (await worker.ask("lags")).relay_lags_s
        await stage.router.generate(worker, prompts(14, 40)[0])  # its news comes after all that was before
        await follower.agrees_with(worker)
        await follower.end()
        record(
            "SIGSTOP of the router for 20 s, real vLLM",
            during.against(before, after)
            | {
                "before_per_s": round(before.per_s),
                "during_per_s": round(during.per_s),
                "after_per_s": round(after.per_s),
            },
        )
        record_times("under load, from the engine's step to the frame", relay_lags_s)
        record_times("under load, from the frame to the index", stage.router.fleet.lags_s)
        assert during.per_s > min(before.per_s, after.per_s) / 10, "the engine waits for a router"
        assert sorted(stage.router.fleet.lags_s)[len(stage.router.fleet.lags_s) // 2] < 1.0

    stage.run(run())


def test_a_killed_engine_is_believed_no_longer_and_its_successor_starts_empty(stage: Stage) -> None:
    """SIGKILL of the engine's own process: the worker lives on, and must not vouch for what died. Then of the worker,
    and a new one in its place."""

    async def kill_engine() -> tuple[float, float]:
        worker = await stage.worker()
        engine_core = [process for process in worker.pipe.below() if process.status() != psutil.STATUS_ZOMBIE]
        assert engine_core
        began = time.monotonic()
        for process in engine_core:
            process.kill()
        unbelieved = await seconds_until(lambda: not stage.router.holds())
        await seconds_until(lambda: REPLICA not in stage.router.fleet.routable)
        return unbelieved, time.monotonic() - began

    async def restart() -> float:
        began = time.monotonic()
        await stage.kill_worker()
        worker = await stage.worker()
        assert worker.info.incarnation == stage.router.fleet.status(time.monotonic())[0].incarnation
        assert not stage.router.holds()
        return time.monotonic() - began

    (prompt,) = prompts(12, 300)
    play(stage, prompt)
    unbelieved, unroutable = stage.run(kill_engine())
    restarted = stage.run(restart())
    record_times("SIGKILL of the engine process, until nothing is believed", [unbelieved])
    record_times("SIGKILL of the engine process, until not routable", [unroutable])
    record("a worker with a real engine, from SIGKILL to serving again", {"n": 1, "s": round(restarted, 1)})
    assert [play(stage, prompt).counted for _ in range(2)] == [0, 288]
    assert max(unbelieved, unroutable) < SANE_S * 2
