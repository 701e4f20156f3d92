"""One engine's life in a process of its own: `python -m tests.conformance.engine_process KIND close|die TINY_MODEL`.

Prints `pids` and those of the engine's processes while it runs, then `done` when all went as promised.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from router.errors import ReplicaDied
from tests.conformance.engines import ENGINES, packed
from workers.engine import Generation, Sampling
from workers.sim_engine import SimEngine

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from workers.engine import Engine


def descendants() -> list[psutil.Process]:
    """Processes below this one that are the engine's; multiprocessing's own helper ends with this process."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if not any("resource_tracker" in word for word in process.cmdline())
    ]


def kill(engine: Engine) -> None:
    """Let the engine crash."""
    if isinstance(engine, SimEngine):
        engine.kill()
        return
    for process in descendants():
        process.kill()


async def generate(engine: Engine, *, max_tokens: int) -> None:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    async for delta in engine.generate(Generation(request_id="a", tokens=packed([300] * 50), sampling=sampling)):
        assert delta.finish_reason in {None, "length"}


async def watch(engine: Engine) -> None:
    while True:
        await engine.check_health()
        await asyncio.sleep(0.05)


async def must_fail(attempt: Coroutine[None, None, None]) -> None:
    try:
        await asyncio.wait_for(attempt, 10.0)
    except ReplicaDied:
        return
    raise SystemExit("a dead engine was not noticed")


async def main(kind: str, end: str, tiny: str) -> None:
    engine = ENGINES[kind](Path(tiny))
    await engine.start()
    await generate(engine, max_tokens=3)
    await engine.check_health()
    print("pids", *[process.pid for process in descendants()])
    if end == "die":
        running = asyncio.create_task(must_fail(generate(engine, max_tokens=8000)))
        await asyncio.sleep(0.05)
        kill(engine)
        await running
        await must_fail(watch(engine))
        await must_fail(generate(engine, max_tokens=3))
    await engine.close()
    await engine.close()
    left = descendants()
    print(left or "done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
