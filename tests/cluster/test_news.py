"""Who sends an answer is woken in time, on the event loop that serves and on the one that tests run on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from cluster.news import News

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_whatever_the_pace_nothing_that_came_is_slept_through(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Waits that end, last and begin anew, with intervals that are over before they are waited for."""

    async def run() -> int:
        loop, news, told, heard = asyncio.get_running_loop(), News(), 0, 0
        async with asyncio.timeout(20):
            for pace_s in (0.0, 0.0001, 0.001, 0.003):
                for _ in range(30):
                    quiet_s = loop.time() + 0.002
                    loop.call_later(pace_s, lambda: news.tell(urgent=False))
                    told += 1
                    heard += await news.wait(quiet_until_s=quiet_s, deadline_s=loop.time() + 10)
                    assert loop.time() >= quiet_s
        news.close()
        return told - heard

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run()) == 0


@LOOPS
def test_urgent_news_do_not_wait_and_silence_ends_at_the_deadline(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """What came meanwhile without being urgent is there for the next wait."""

    async def run() -> None:
        loop, news = asyncio.get_running_loop(), News()
        far_s = loop.time() + 3600
        loop.call_soon(lambda: news.tell(urgent=True))
        assert await news.wait(quiet_until_s=far_s, deadline_s=None)
        news.tell(urgent=False)
        assert not await news.wait(quiet_until_s=far_s, deadline_s=loop.time() + 0.005)
        assert await news.wait(quiet_until_s=0.0, deadline_s=None)
        assert not await news.wait(quiet_until_s=0.0, deadline_s=loop.time())
        news.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
