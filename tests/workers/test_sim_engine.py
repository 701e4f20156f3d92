"""The simulated engine on a real event loop: time, scripts, death. The shared contract is in tests/conformance."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tokenizers import Tokenizer

from router.errors import InvalidRequest, KvistBug, ModelUnusable, ReplicaDied
from workers.engine import EngineInfo, Generation, Sampling, Structured, TokenDelta
from workers.journal import Journey, read_journal
from workers.sim_engine import SimEngine
from workers.simulator import SimParameters

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

SMALL = SimParameters(block_size=4, pool_blocks=64, max_model_len=256)


def generation(tokens: list[int], *, max_tokens: int = 3) -> Generation:
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return Generation(request_id="a", tokens=packed, sampling=Sampling(max_tokens=max_tokens))


async def collect(engine: SimEngine, request: Generation) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(request)]


def run(engine: SimEngine, scenario: Coroutine[Any, Any, Any]) -> Any:
    async def whole() -> Any:
        await engine.start()
        try:
            return await asyncio.wait_for(scenario, 20.0)
        finally:
            await engine.close()

    return asyncio.run(whole())


class ManualTime:
    """A clock that moves only while somebody sleeps, by as much as they asked for."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_a_journal_tells_when_requests_arrived_and_tokens_were_made(tmp_path: Path) -> None:
    """One line for each request when it leaves, by the engine's clock."""
    time, journal = ManualTime(), tmp_path / "journal"
    parameters = msgspec.structs.replace(SMALL, step_s=1.0, prefill_token_s=0.0, decode_s=0.0)
    engine = SimEngine(model="m", parameters=parameters, clock=time.clock, sleep=time.sleep)
    engine.keep_journal(journal)
    run(engine, collect(engine, generation([1, 2, 3])))
    assert read_journal(journal) == [Journey("a", 100.0, 101.0, 103.0, 3)]


def test_engine_time_passes_on_the_injected_clock() -> None:
    """A simulation of an hour takes as long as its arithmetic."""
    time = ManualTime()
    slow = msgspec.structs.replace(SMALL, step_s=600.0, prefill_token_s=1.0, decode_s=10.0)
    engine = SimEngine(model="m", parameters=slow, speed=10.0, clock=time.clock, sleep=time.sleep)
    run(engine, collect(engine, generation([1, 2, 3, 4])))
    assert time.now == pytest.approx(100.0 + (3 * 600.0 + 4 * 1.0 + 2 * 10.0) / 10.0)


def test_tokens_that_wait_come_as_one_delta() -> None:
    """A slow reader gets fewer, larger deltas, as from vLLM."""
    engine = SimEngine(model="m", parameters=SMALL, speed=float("inf"))

    async def slow_reader() -> list[TokenDelta]:
        deltas = []
        async for delta in engine.generate(generation([1], max_tokens=50)):
            deltas.append(delta)
            await asyncio.sleep(0.05)
        return deltas

    deltas = run(engine, slow_reader())
    assert sum(len(delta.tokens) for delta in deltas) == 200
    assert len(deltas) < 50
    assert deltas[-1].finish_reason == "length"


def test_scripts_and_truth_are_open_to_tests() -> None:
    engine = SimEngine(model="m", parameters=SMALL, speed=float("inf"))
    request = generation([1, 2, 3, 4, 5], max_tokens=50)
    engine.script([7, 8], prompt=request.tokens)
    deltas = run(engine, collect(engine, request))
    assert b"".join(delta.tokens for delta in deltas) == struct.pack("<2I", 7, 8)
    assert list(engine.resident().values()) == [1]


def test_death_fails_what_runs_and_what_comes() -> None:
    engine = SimEngine(model="m", parameters=SMALL)

    async def die() -> None:
        await engine.check_health()
        running = asyncio.create_task(collect(engine, generation([1], max_tokens=200)))
        await asyncio.sleep(0.02)
        engine.kill()
        with pytest.raises(ReplicaDied):
            await running
        with pytest.raises(ReplicaDied):
            await collect(engine, generation([1]))
        with pytest.raises(ReplicaDied):
            await engine.reset_prefix_cache()
        with pytest.raises(ReplicaDied):
            await engine.check_health()
        assert [batch async for batch in engine.events()] == []
        assert engine.load().running == 0

    run(engine, die())


def test_a_fault_in_a_step_is_death_and_not_silence() -> None:
    engine = SimEngine(model="m", parameters=SMALL)

    async def break_it() -> None:
        def broken() -> None:
            raise KvistBug("broken")

        engine._simulator.end_step = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(ReplicaDied):
            await collect(engine, generation([1]))
        with pytest.raises(KvistBug):
            await engine._task  # type: ignore[misc]
        engine._task = None

    run(engine, break_it())


def test_an_engine_that_was_not_started_serves_nothing() -> None:
    engine = SimEngine(model="m", parameters=SMALL)
    with pytest.raises(ReplicaDied):
        asyncio.run(collect(engine, generation([1])))
    asyncio.run(engine.close())


def test_a_consumer_of_events_waits_for_the_next_step() -> None:
    engine = SimEngine(model="m", parameters=SMALL, speed=float("inf"))

    async def read() -> list[int]:
        seqs: list[int] = []

        async def reader() -> None:
            async for batch in engine.events():
                seqs.append(batch.seq)

        task = asyncio.create_task(reader())
        for first in (1, 50):
            await collect(engine, generation(list(range(first, first + 9))))
            await asyncio.sleep(0)
        engine.kill()
        await task
        return seqs

    assert run(engine, read()) == [0, 1]


def test_settings_take_the_place_of_a_model(tmp_path: Path) -> None:
    """The tokenizer's vocabulary and the context window are the model's; arguments win."""
    config = {"max_position_embeddings": 2048, "vocab_size": 1000, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = SimEngine.from_settings("m", tmp_path, {"block_size": 8, "pool_blocks": 500, "speed": "inf"})
    assert engine.info == EngineInfo(model="m", block_size=8, pool_blocks=500, max_model_len=2048, step_tokens=2048)
    parameters = engine._simulator.parameters
    assert (parameters.vocabulary, parameters.eos_token, parameters.step_s) == ((256, 1000), 2, 0.0)
    assert repr(engine).startswith("<SimEngine Simulator(0 running")
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": [2, 0]}))
    several = SimEngine.from_settings("m", tmp_path, {"max_model_len": 64})
    assert several._simulator.parameters.eos_token is None
    assert several.info.max_model_len == 64
    assert SimEngine.from_settings("m", tmp_path / "none", {}).info.max_model_len == 65_536


SCRIPT = [
    {"after": "weather?", "text": "<think>\nA café.\n</think>\n\nI look.<tool_call>\n{}\n</tool_call>", "stall_s": 2.0},
    {"after": "break", "text": "It was going well until then", "fails_after_tokens": 3},
]


def speaking(model: Path, **settings: Any) -> tuple[SimEngine, Tokenizer]:
    engine = SimEngine.from_settings("m", model, {"speed": "inf", "answers": SCRIPT} | settings)
    return engine, Tokenizer.from_file(str(model / "tokenizer.json"))


def asking(tokenizer: Tokenizer, text: str, **sampling: Any) -> Generation:
    asked = generation(tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n").ids)
    return msgspec.structs.replace(asked, sampling=Sampling(max_tokens=200, **sampling))


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [*memoryview(b"".join(delta.tokens for delta in deltas)).cast("I")]


def test_a_scripted_answer_is_said_in_the_models_own_tokens_after_its_stall(tiny_model: Path) -> None:
    """Marks and all, then the end token; another prompt gets what it always got."""
    engine, tokenizer = speaking(tiny_model)
    engine._sleep = (time := ManualTime()).sleep
    deltas = run(engine, collect(engine, asking(tokenizer, "How is the weather?")))
    assert tokens_of(deltas) == [*tokenizer.encode(SCRIPT[0]["text"]).ids, 2]
    assert deltas[-1].finish_reason == "stop"
    assert time.now == 102.0
    silent, _ = speaking(tiny_model, answers=[])
    other, _ = speaking(tiny_model)
    assert run(other, collect(other, asking(tokenizer, "Hello"))) == run(
        silent, collect(silent, asking(tokenizer, "Hello"))
    )


def test_a_scripted_fault_ends_a_generation_midway_and_nothing_else(tiny_model: Path) -> None:
    engine, tokenizer = speaking(tiny_model)

    async def twice() -> list[list[TokenDelta]]:
        return [await collect(engine, asking(tokenizer, "break")) for _ in range(2)]

    for deltas in run(engine, twice()):
        assert tokens_of(deltas) == tokenizer.encode(SCRIPT[1]["text"]).ids[:3]
        assert deltas[-1].finish_reason == "error"


def test_who_leaves_during_a_stall_leaves_nothing_and_death_ends_it(tiny_model: Path) -> None:
    """A stalled request holds no blocks yet; a dead engine does not take it."""
    engine, tokenizer = speaking(tiny_model, answers=[SCRIPT[0] | {"stall_s": 0.05}])

    async def leave_and_die() -> None:
        waiting = asyncio.create_task(collect(engine, asking(tokenizer, "weather?")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine._streams == {}
        waiting = asyncio.create_task(collect(engine, asking(tokenizer, "weather?")))
        await asyncio.sleep(0)
        engine.kill()
        with pytest.raises(ReplicaDied):
            await waiting

    run(engine, leave_and_die())


def test_a_constraint_is_met_or_refused(tiny_model: Path, tmp_path: Path) -> None:
    """Also where the prompt has a scripted answer; without a tokenizer nothing can be said."""
    engine, tokenizer = speaking(tiny_model)
    schema = json.dumps({"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]})
    titled = asking(tokenizer, "weather?", structured=Structured(kind="json", spec=schema))
    deltas = run(engine, collect(engine, titled))
    assert tokens_of(deltas) == [*tokenizer.encode('{"title":""}').ids, 2]
    regex = asking(tokenizer, "Hello", structured=Structured(kind="regex", spec="a+"))
    for mute in (speaking(tiny_model)[0], SimEngine(model="m", parameters=SMALL)):
        with pytest.raises(InvalidRequest, match="simulated engine"):
            run(mute, collect(mute, regex))
    with pytest.raises(ModelUnusable, match="no tokenizer"):
        SimEngine.from_settings("m", tmp_path, {"answers": SCRIPT})


@pytest.mark.parametrize("wrong", [{"block_size": 0}, {"tensor_parallel_size": 2}, {"step_s": -1}, {"answers": [{}]}])
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        SimEngine.from_settings("m", tmp_path, wrong)
