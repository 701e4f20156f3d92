"""Agents at work: conversations that grow by a turn with every request, one or many at once."""

from __future__ import annotations

import asyncio
import gc
import http.client
import itertools
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.bench.ingress_bodies import Head, Library, Scale, Talk
from load_tests.bench.ingress_client import Caller, Seen, StreamFailed
from load_tests.bench.ingress_sides import BURST
from load_tests.bench.processes import cpu_s, spent_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from load_tests.bench.ingress_sides import Side

MAX_TOKENS: Final = 64
SETTLE_S: Final = 0.3  # events of what came before have arrived
SEEDS_APART: Final = 1_000_000  # no two kinds of agents have the same conversations
SAMPLE_TURNS: Final = (1, 21)  # between which tokens for a turn are counted
COUNT_LIMIT_S: Final = 60.0
STREAMED, WHOLE = b'"stream":true', b'"stream":false'
PROMPT_FIELDS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Cost(NamedTuple):
    """What a stretch of requests took: wall seconds, and CPU seconds of each kind of process."""

    wall_s: float
    frontend_s: float
    workers_s: float
    rest_s: float


class Stretch(NamedTuple):
    """Measured requests of one arm in one round."""

    seen: list[Seen]
    cost: Cost


class Agents:
    """Makes fresh conversations, all with the same head. `scale` says how many exchanges are how many tokens."""

    def __init__(self, head: Head, library: Library, scale: Scale) -> None:
        self._head = head
        self._library = library
        self._scale = scale
        self._seeds = itertools.count(len(head.tools) * SEEDS_APART)

    @classmethod
    def measured(cls, side: Side, head: Head) -> Agents:
        """With the scale that this side counts by."""
        library = Library()
        talk = Talk(head, library, seed=0)
        bodies = [(turn, talk.body(turn, model=BURST, max_tokens=1)) for turn in SAMPLE_TURNS]
        counts = [(turn, count_tokens(side, body)) for turn, body in bodies]
        return cls(head, library, Scale.between(counts[0], counts[1]))

    def bodies(self, *, tokens: int, talks: int, turns: int) -> list[list[bytes]]:
        """For each new conversation: a first body, and `turns` more, about `tokens` long in the middle."""
        start = max(1, self._scale.exchanges(tokens) - turns // 2)
        made = [Talk(self._head, self._library, seed=next(self._seeds)) for _ in range(talks)]
        return [
            [one.body(start + turn, model=BURST, max_tokens=MAX_TOKENS) for turn in range(turns + 1)] for one in made
        ]


async def warm_turns(side: Side, bodies: Sequence[Sequence[bytes]], *, at_once: int, quick_ack: bool) -> Stretch:
    """The first body of each conversation off the clock, then all others in turn, `at_once` conversations at a time."""
    callers = [Caller(side.address, quick_ack=quick_ack) for _ in bodies]
    gate = asyncio.Semaphore(at_once)

    async def talk(caller: Caller, turns: Sequence[bytes]) -> list[Seen]:
        async with gate:
            return [await caller.ask(body) for body in turns]

    try:
        await asyncio.gather(*(talk(caller, turns[:1]) for caller, turns in zip(callers, bodies, strict=True)))
        await asyncio.sleep(SETTLE_S)
        with measuring(side) as cost:
            work = [talk(caller, turns[1:]) for caller, turns in zip(callers, bodies, strict=True)]
            seen = await asyncio.gather(*work)
    finally:
        for caller in callers:
            caller.close()
    return Stretch(list(itertools.chain(*seen)), cost[0])


async def new_talks(side: Side, bodies: Sequence[bytes], *, at_once: int) -> Stretch:
    """Conversations that nobody has seen, but for their system text and tools."""
    gate = asyncio.Semaphore(at_once)

    async def begin(body: bytes) -> Seen:
        caller = Caller(side.address, quick_ack=True)
        try:
            async with gate:
                return await caller.ask(body)
        finally:
            caller.close()

    await asyncio.sleep(SETTLE_S)
    with measuring(side) as cost:
        seen = await asyncio.gather(*map(begin, bodies))
    return Stretch(list(seen), cost[0])


@contextmanager
def measuring(side: Side) -> Iterator[list[Cost]]:
    """Fills in one `Cost` at the end. Python's own garbage collection is kept out of the client's times."""
    cost: list[Cost] = []
    kinds = side.processes()
    gc.collect()
    gc.disable()
    before, start = [cpu_s(pids) for pids in kinds], time.monotonic()
    try:
        yield cost
    finally:
        wall_s, after = time.monotonic() - start, [cpu_s(pids) for pids in kinds]
        gc.enable()
    # Looking for processes takes long, so it is done off the clock; those that came in between count from their start.
    came = [cpu_s(set(now) - set(then)) for now, then in zip(side.processes(), kinds, strict=True)]
    spent = map(spent_s, before, [last | new for last, new in zip(after, came, strict=True)])
    cost.append(Cost(wall_s, *spent))


def count_tokens(side: Side, body: bytes) -> int:
    """Tokens of a prompt by the side's own usage."""
    connection = http.client.HTTPConnection(*side.address, timeout=COUNT_LIMIT_S)
    try:
        whole = body.replace(STREAMED, WHOLE)
        connection.request("POST", "/v1/messages", whole, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise StreamFailed(f"{side.name} does not count tokens: {answer}")
        return sum(int(answer["usage"].get(name) or 0) for name in PROMPT_FIELDS)
    finally:
        connection.close()
