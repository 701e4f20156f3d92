"""The run in the terminal as it goes: a live panel where there is a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from load_tests.swarm.settings import Settings
    from load_tests.swarm.tally import Snapshot

REFRESH_S: Final = 0.5
LINE_S: Final = 10.0


async def show(console: Console, settings: Settings, snapshot: Callable[[], Snapshot]) -> None:
    """Until cancelled."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_S)
            console.print(line(snapshot()), highlight=False, soft_wrap=True)
    with Live(panel(snapshot(), settings), console=console, auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(REFRESH_S)
            live.update(panel(snapshot(), settings), refresh=True)


def line(now: Snapshot) -> str:
    """One line of plain text."""
    return (
        f"kvist swarm: {now.now_s:6.0f} s  {now.ended:>6,} ended  {now.in_flight:>4} in flight  "
        f"{now.requests_per_s:6.1f}/s  TTFT p50 {_ms(now.ttft_p50_ms)} p99 {_ms(now.ttft_p99_ms)}  "
        f"hit {_share(now.hit_rate)} of {_share(now.ideal_hit_rate)}{_faults(now)}"
    )


def panel(now: Snapshot, settings: Settings) -> Group:
    """What a person watches."""
    phase = "warm-up" if now.now_s < settings.warmup_s else "measuring"
    phase = phase if now.now_s < settings.end_s else "waiting for the last answers"
    table = Table.grid(padding=(0, 2))
    table.add_row("requests", f"{now.ended:,} ended, {now.in_flight} in flight, {now.requests_per_s:.1f}/s")
    table.add_row("TTFT", f"p50 {_ms(now.ttft_p50_ms)}   p99 {_ms(now.ttft_p99_ms)}")
    table.add_row("hit rate", f"{_share(now.hit_rate)}   an infinite cache {_share(now.ideal_hit_rate)}")
    table.add_row("outcomes", "  ".join(f"{name} {count:,}" for name, count in sorted(now.outcomes.items())) or "none")
    if now.errors:
        table.add_row("errors", "  ".join(f"{name} {count:,}" for name, count in sorted(now.errors.items())))
    head = Text(f"kvist swarm: {phase}, {now.now_s:.0f} of {settings.end_s:.0f} s")
    return Group(head, ProgressBar(total=settings.end_s, completed=min(now.now_s, settings.end_s), width=60), table)


def _faults(now: Snapshot) -> str:
    faults = sum(now.errors.values())
    return f"  {faults:,} errors" if faults else ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
