"""The fast engine against the reference `workers.simulator`: nothing differs but the cost of arithmetic."""

from __future__ import annotations

import struct
from collections import Counter
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from load_tests.sim.engine import Engine, Job
from load_tests.sim.pool import packed_of
from router.hashing import block_hashes, seed_of
from router.wire import Removed, Stored
from workers.engine import Generation, Sampling
from workers.simulator import Script, SimParameters, Simulator

BLOCK = 4
TICK_S = 1 / 1024  # sums of such durations are exact


class Turn(NamedTuple):
    """One request: its tokens, how many of them are the prompt, and when it comes."""

    at: float
    tokens: tuple[int, ...]
    prompt_tokens: int


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    """Prompts that begin alike, fork and repeat; answers of one token to several blocks."""
    made: list[Turn] = []
    now = 0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0, 0, 1, 7, 40, 400]))
        known = draw(st.sampled_from(made)).tokens if made else ()
        base = known[: draw(st.integers(0, len(known)))]
        fresh = draw(st.lists(st.integers(0, 1), min_size=1, max_size=24))
        answer = draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
        prompt = (base + tuple(fresh))[:40]
        made.append(Turn(now * TICK_S, (*prompt, *answer), len(prompt)))
    return made


@st.composite
def parameters(draw: st.DrawFn) -> SimParameters:
    budget = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 64]))
    return SimParameters(
        block_size=BLOCK,
        pool_blocks=draw(st.integers(14, 40)),
        max_model_len=256,
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 8])),
        max_batched_tokens=budget,
        long_prefill_token_threshold=draw(st.sampled_from([0, 1, budget // 2, budget + 1])),
        step_s=draw(st.sampled_from([0, 1, 3])) * TICK_S + TICK_S / 8,
        prefill_token_s=draw(st.sampled_from([0, 1])) * TICK_S,
        attention_pair_s=draw(st.sampled_from([0, 1])) * TICK_S / 32,
        decode_s=draw(st.sampled_from([0, 1, 2])) * TICK_S / 2,
    )


class Story:
    """What happened when, and what was resident after each step that changed it."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str, int]] = []
        self.residents: list[tuple[float, frozenset[int]]] = []

    def happened(self, now: float, request: str, what: str, cached_tokens: int = 0) -> None:
        self.events.append((now, request, what, cached_tokens))

    def resident(self, now: float, hashes: frozenset[int]) -> None:
        if hashes != (self.residents[-1][1] if self.residents else frozenset()):
            self.residents.append((now, hashes))

    def told(self) -> tuple[object, ...]:
        """In one order for what happens at once."""
        return sorted(self.events), self.residents


def reference(settings_: SimParameters, work: list[Turn], looks: list[float]) -> Story:
    """The simulator, with tokens; what is resident is counted from its events."""
    simulator, story = Simulator(settings_), Story()
    answered: set[str] = set()
    copies: Counter[int] = Counter()

    def take(now: float) -> None:
        for result in simulator.advance(now):
            for delta in result.deltas:
                if delta.request_id not in answered:
                    answered.add(delta.request_id)
                    story.happened(result.ended_at, delta.request_id, "first token", delta.cached_tokens)
                if delta.finish_reason:
                    story.happened(result.ended_at, delta.request_id, "end")
            if result.batch is not None:
                for event in msgspec.msgpack.decode(result.batch.payload)[1]:
                    copies.update(dict.fromkeys(event["block_hashes"], 1 if event["type"] == "BlockStored" else -1))
                story.resident(result.ended_at, frozenset(+copies))

    for now, batch in by_time(work, looks):
        take(now)
        for index, turn in batch:
            prompt = struct.pack(f"<{turn.prompt_tokens}I", *turn.tokens[: turn.prompt_tokens])
            answer = turn.tokens[turn.prompt_tokens :]
            generation = Generation(request_id=str(index), tokens=prompt, sampling=Sampling(max_tokens=len(answer)))
            simulator.submit(generation, Script(answer, "length"))
        take(now)
    assert simulator.is_idle
    return story


def fast(settings_: SimParameters, work: list[Turn], looks: list[float]) -> Story:
    """The engine, with blocks; what is resident is what it says of its steps."""
    engine, story = Engine(settings_), Story()
    resident: set[int] = set()

    def take(now: float) -> None:
        for result in engine.advance(now):
            for first in result.first_tokens:
                story.happened(result.ended_at, str(first.request), "first token", first.cached_tokens)
            for request in result.finished:
                story.happened(result.ended_at, str(request), "end")
            for op in result.ops:
                match op:
                    case Stored(_, hashes):
                        assert resident.isdisjoint(hashes)
                        resident.update(hashes)
                    case Removed(_, hashes):
                        assert resident.issuperset(hashes)
                        resident.difference_update(hashes)
            story.resident(result.ended_at, frozenset(resident))
        engine.check_integrity()

    for now, batch in by_time(work, looks):
        take(now)
        for index, turn in batch:
            data = struct.pack(f"<{len(turn.tokens) - 1}I", *turn.tokens[:-1])
            hashes = block_hashes(data, block_size=BLOCK, seed=seed_of("simulator", salt=""))
            output_tokens = len(turn.tokens) - turn.prompt_tokens
            engine.submit(Job(index, turn.prompt_tokens, output_tokens, hashes, packed_of(hashes)), now)
        take(now)
    assert not engine.requests
    return story


def by_time(work: list[Turn], looks: list[float]) -> list[tuple[float, list[tuple[int, Turn]]]]:
    times = [*sorted({turn.at for turn in work} | set(looks)), 1e6]
    return [(at, [(index, turn) for index, turn in enumerate(work) if turn.at == at]) for at in times]


@settings(deadline=None, max_examples=300)
@given(parameters(), turns(), st.lists(st.integers(0, 2000).map(lambda ticks: ticks * TICK_S / 8), max_size=6))
def test_it_does_what_the_reference_does(settings_: SimParameters, work: list[Turn], looks: list[float]) -> None:
    """First tokens, ends, cached tokens and what is resident, for whatever comes."""
    assert fast(settings_, work, looks).told() == reference(settings_, work, looks).told()
