"""Reading ahead of a client, within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cluster.news import News
from cluster.pump import Pump
from router.errors import ReplicaDied
from router.limits import DATA_STREAM_TOKENS
from tests.cluster.support import packed
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.backend import Routed

pytestmark = pytest.mark.anyio


class Endless:
    """A stream of single tokens, or one of `tokens` each; it counts what was taken from it."""

    def __init__(self, tokens: int = 1) -> None:
        self._delta = TokenDelta(tokens=bytes(4 * tokens))
        self.taken = 0
        self.is_closed = False

    @property
    def routed(self) -> Routed | None:
        return None

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        while True:
            self.taken += 1
            yield self._delta

    async def aclose(self) -> None:
        self.is_closed = True


class Broken(Endless):
    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        yield self._delta
        raise ReplicaDied("gone")


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("tokens", [0, 1, 100])
async def test_a_client_that_does_not_read_stops_the_pump(tokens: int) -> None:
    """DATA_STREAM_TOKENS stops tokens from piling up at the ingress, and deltas that hold none; when they are taken, it
    reads on."""
    stream = Endless(tokens)
    most = -(-DATA_STREAM_TOKENS // max(1, tokens))
    async with Pump(stream, News(), waits=lambda _tokens: True) as pump:
        for filled in (1, 2, 3):
            await turns()
            assert stream.taken == filled * most
            assert len(pump.take()) == most
    assert stream.is_closed


async def test_an_error_comes_after_the_deltas_before_it() -> None:
    """What was said is not lost with what was not."""
    async with Pump(Broken(), News(), waits=lambda _tokens: True) as pump:
        await turns()
        assert pump.ended
        assert len(pump.take()) == 1
        with pytest.raises(ReplicaDied, match="gone"):
            pump.take()


class Listening(News):
    """Notes how urgent what it is told is."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bool] = []

    def tell(self, *, urgent: bool) -> None:
        self.told.append(urgent)


class Few(Endless):
    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        for token in (1, 1, 2, 1):
            yield TokenDelta(tokens=packed([token]))


async def test_what_can_wait_wakes_nobody() -> None:
    """The first delta is urgent, and one that cannot wait, and the end of the stream."""
    news = Listening()
    async with Pump(Few(1), news, waits=lambda tokens: tokens == packed([1])):
        await turns()
    assert news.told == [True, False, True, False, True]
