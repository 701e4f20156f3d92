"""One whole run: find the model, play the workload, watch it, sum it up."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from load_tests.stats import machine, versions
from load_tests.swarm.agents import Agents
from load_tests.swarm.endpoint import Endpoint
from load_tests.swarm.named import Fork, HotPrefix
from load_tests.swarm.play import Swarm
from load_tests.swarm.player import Player
from load_tests.swarm.progress import show
from load_tests.swarm.run_clock import RunClock
from load_tests.swarm.summarise import About, summarise
from load_tests.swarm.tally import Tally
from load_tests.swarm.trace import Trace, read_trace

if TYPE_CHECKING:
    from rich.console import Console

    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.scenario import Workload
    from load_tests.swarm.settings import Settings
    from load_tests.swarm.summary import Summary


class Target(NamedTuple):
    """An endpoint by where it is. `label` names its column and its file."""

    url: str
    key: str = ""
    label: str = "swarm"


class Result(NamedTuple):
    """What a run came to."""

    summary: Summary
    entries: list[Entry]


def workload_of(settings: Settings) -> Workload:
    """What the settings name. Raises `InvalidRequest` for a trace that cannot be read."""
    if settings.trace is not None:
        return read_trace(Path(settings.trace), settings)
    match settings.scenario:
        case "hot-prefix":
            return HotPrefix(settings)
        case "fork":
            return Fork(settings)
        case _:
            return Agents(settings)


async def run_swarm(settings: Settings, target: Target, *, console: Console | None = None) -> Result:
    """Play `settings` against `target`, progress told on `console`. Ctrl-C ends the run early; what was measured until
    then is summed up. Raises `InvalidRequest` before the first request when nothing can be sent."""
    if not settings.salt:
        settings = msgspec.structs.replace(settings, salt=f"{time.time_ns():x}")
    workload = workload_of(settings)
    endpoint = Endpoint(target.url, api=settings.api, key=target.key, replica_header=settings.replica_header)
    async with endpoint:
        if not settings.model:
            settings = msgspec.structs.replace(settings, model=await endpoint.first_model())
        return await _played(settings, target, workload=workload, endpoint=endpoint, console=console)


async def _played(
    settings: Settings, target: Target, *, workload: Workload, endpoint: Endpoint, console: Console | None
) -> Result:
    entries: list[Entry] = []
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    clock = RunClock(end_s=settings.end_s)
    tally = Tally(entries.append, clock.now_s)
    texts = workload.texts if isinstance(workload, Trace) else None
    player = Player(settings, endpoint, clock, watcher=tally, texts=texts)
    watching = asyncio.create_task(show(console, settings, tally.snapshot)) if console else None
    try:
        await _until_interrupted(Swarm(settings, workload, player, clock))
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
    tally.check_integrity()
    about = About(
        settings=settings,
        url=target.url,
        started_at=started_at,
        ended_s=clock.now_s(),
        versions=versions(),
        machine=machine(),
        label=target.label,
    )
    return Result(summarise(entries, about), entries)


async def _until_interrupted(swarm: Swarm) -> None:
    task = asyncio.create_task(swarm.run())
    loop = asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError, ValueError):  # only the main thread hears signals
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
    finally:
        with contextlib.suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)
