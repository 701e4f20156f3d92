"""The simulated engine: vLLM's scheduling and cache rules in virtual time, alike on every run."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.hashing import block_hashes, seed_of
from tests.workers.support import MODEL, View
from workers.engine import Generation, Sampling
from workers.relay import Relay
from workers.simulator import SimDelta, SimParameters, Simulator, StepResult

PACE = {"step_s": 1.0, "prefill_token_s": 0.0, "decode_s": 0.0}


def sim(**parameters: Any) -> Simulator:
    return Simulator(SimParameters(**{"block_size": 4, "pool_blocks": 64, "max_model_len": 256, **PACE, **parameters}))


def generation(name: str, tokens: list[int], *, max_tokens: int = 1, salt: str = "", **sampling: Any) -> Generation:
    return Generation(
        request_id=name,
        tokens=struct.pack(f"<{len(tokens)}I", *tokens),
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        cache_salt=salt,
    )


def finish(simulator: Simulator) -> list[StepResult]:
    results = []
    while simulator.begin_step(0.0) is not None:
        results.append(simulator.end_step())
        simulator.check_integrity()
    return results


def run(simulator: Simulator, *generations: Generation) -> list[SimDelta]:
    for each in generations:
        simulator.submit(each)
    return [delta for result in finish(simulator) for delta in result.deltas]


def cached(simulator: Simulator, tokens: list[int], salt: str = "") -> int:
    return run(simulator, generation("again", tokens, salt=salt))[0].cached_tokens


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 30, 32])
def test_a_repeat_finds_all_but_the_block_of_its_last_token(length: int) -> None:
    simulator = sim()
    prompt = list(range(length))
    assert cached(simulator, prompt) == 0
    assert cached(simulator, prompt) == (length - 1) // 4 * 4


def test_generated_tokens_are_cached_too() -> None:
    """All but the last one, which has not been computed."""
    simulator = sim()
    prompt = list(range(8))
    output = [delta.token for delta in run(simulator, generation("a", prompt, max_tokens=9))]
    assert cached(simulator, [*prompt, *output, 1, 2, 3]) == 16


def test_salts_keep_tenants_apart() -> None:
    simulator = sim()
    assert cached(simulator, list(range(9)), salt="a") == 0
    assert cached(simulator, list(range(9)), salt="b") == 0
    assert cached(simulator, list(range(9)), salt="a") == 8


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    simulator = sim(max_batched_tokens=8)
    simulator.submit(generation("a", list(range(20))))
    results = finish(simulator)
    assert [len(result.deltas) for result in results] == [0, 0, 1]
    assert [result.batch is not None for result in results] == [True, True, True]


def test_two_equal_prompts_in_one_step_share_their_blocks() -> None:
    simulator = sim()
    prompt = list(range(9))
    deltas = run(simulator, generation("a", prompt), generation("b", prompt))
    assert [delta.cached_tokens for delta in deltas] == [0, 8]


def test_decodes_go_before_waiting_prefills() -> None:
    """A long prompt never stops those who are generating; it takes what the budget leaves."""
    simulator = sim(max_batched_tokens=8)
    simulator.submit(generation("a", [1, 2, 3], max_tokens=4))
    simulator.begin_step(0.0)
    simulator.end_step()
    simulator.submit(generation("b", list(range(100, 120))))
    ends = [[delta.request_id for delta in result.deltas] for result in finish(simulator)]
    assert ends == [["a"], ["a"], ["a", "b"]]


def test_time_is_what_the_step_holds() -> None:
    simulator = sim(step_s=1.0, prefill_token_s=0.1, decode_s=0.01)
    simulator.submit(generation("a", list(range(10)), max_tokens=2))
    assert simulator.begin_step(5.0) == pytest.approx(7.0)
    simulator.end_step()
    assert simulator.begin_step(7.0) == pytest.approx(8.01)


def test_virtual_time_runs_every_step_that_ends_by_then() -> None:
    simulator = sim()
    assert simulator.advance(100.0) == []
    simulator.submit(generation("a", [1, 2, 3], max_tokens=3))
    assert simulator.advance(10.0) == []
    assert simulator.step_ends_at == 11.0
    assert [result.ended_at for result in simulator.advance(12.5)] == [11.0, 12.0]
    assert [result.ended_at for result in simulator.advance(13.0)] == [13.0]
    assert simulator.is_idle


def test_any_replica_continues_a_text_alike() -> None:
    """After a failure the prompt and the tokens so far go elsewhere, whatever that replica's block size."""
    prompt = list(range(50))
    whole = [delta.token for delta in run(sim(), generation("a", prompt, max_tokens=40))]
    other = sim(block_size=16, max_batched_tokens=7)
    for cut in (1, 13, 39):
        rest = run(other, generation("b", [*prompt, *whole[:cut]], max_tokens=40 - cut))
        assert [delta.token for delta in rest] == whole[cut:]
    assert len(set(whole)) > 30, "a text of one token would continue alike by accident"
    assert all(256 <= token < 4096 for token in whole)


def test_seeds_change_the_text_only_when_sampling() -> None:
    def text(simulator: Simulator, **sampling: Any) -> list[int]:
        return [delta.token for delta in run(simulator, generation("a", [1, 2], max_tokens=5, **sampling))]

    assert text(sim(), temperature=0.0, seed=1) == text(sim(), temperature=0.0, seed=2)
    assert text(sim(), seed=1) != text(sim(), seed=2)
    assert text(sim(), seed=1) == text(sim(), seed=1)
    assert text(sim(seed=1)) != text(sim(seed=2))


def test_scripts_say_exactly_what_is_generated() -> None:
    simulator = sim()
    simulator.script([7, 8, 9])
    simulator.script([5], prompt=generation("x", [1]).tokens)
    deltas = run(simulator, generation("a", [2], max_tokens=50), generation("b", [1], max_tokens=50))
    assert [(delta.request_id, delta.token, delta.finish_reason) for delta in deltas] == [
        ("a", 7, None),
        ("b", 5, "stop"),
        ("a", 8, None),
        ("a", 9, "stop"),
    ]
    assert run(simulator, generation("c", [1]))[0].finish_reason == "length"


def test_the_end_token_stops_unless_ignored() -> None:
    simulator = sim(eos_token=7)
    for ignore, reasons in ((False, ["stop"]), (True, [None, "stop"])):
        simulator.script([7, 8])
        deltas = run(simulator, generation("a", [2], max_tokens=50, ignore_eos=ignore))
        assert [delta.finish_reason for delta in deltas] == reasons


def test_generation_ends_at_the_context_window() -> None:
    deltas = run(sim(max_model_len=20), generation("a", list(range(17)), max_tokens=100))
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]
    assert len(run(sim(pool_blocks=5), generation("a", list(range(17)), max_tokens=100))) == 3


@pytest.mark.parametrize(
    "bad",
    [
        generation("a", []),
        generation("a", [1], max_tokens=0),
        generation("a", list(range(256))),
        Generation(request_id="a", tokens=b"123", sampling=Sampling(max_tokens=1)),
    ],
)
def test_requests_that_can_never_run_are_refused(bad: Generation) -> None:
    with pytest.raises(InvalidRequest):
        sim().submit(bad)


def test_a_request_id_is_used_once_at_a_time() -> None:
    simulator = sim()
    simulator.submit(generation("a", [1]))
    with pytest.raises(InvalidRequest, match="running already"):
        simulator.submit(generation("a", [1]))


def test_an_abort_frees_the_blocks_and_keeps_their_content() -> None:
    simulator = sim(max_batched_tokens=8)
    for name in ("a", "b"):
        simulator.submit(generation(name, [ord(name), *range(19)]))
    simulator.begin_step(0.0)
    assert simulator.load().running == 1
    simulator.abort("b")
    simulator.abort("a")
    simulator.abort("unknown")
    assert simulator.is_idle
    assert simulator.pool.used_blocks == 0
    assert simulator.end_step().deltas == ()
    assert cached(simulator, [ord("a"), *range(19)]) == 8
    assert repr(simulator).startswith("Simulator(0 running, 0 waiting, BlockPool(0 used")


def test_load_counts_prompt_tokens_not_yet_computed() -> None:
    simulator = sim(max_batched_tokens=8, max_num_seqs=1)
    simulator.submit(generation("a", list(range(20)), max_tokens=2))
    simulator.submit(generation("b", list(range(10))))
    assert (simulator.load().waiting, simulator.load().backlog_tokens) == (2, 30)
    for backlog in (22, 14, 10, 10):
        simulator.begin_step(0.0)
        simulator.end_step()
        assert simulator.load().backlog_tokens == backlog
    assert simulator.load().free_blocks == 64


def test_the_latest_comer_makes_room_and_computes_again() -> None:
    """Output of a request that was put back continues where it was."""
    simulator = sim(pool_blocks=8)
    deltas = run(
        simulator, generation("a", list(range(12)), max_tokens=12), generation("b", list(range(50, 62)), max_tokens=12)
    )
    for name, first in (("a", 0), ("b", 50)):
        alone = run(sim(), generation("x", list(range(first, first + 12)), max_tokens=12))
        assert [delta.token for delta in deltas if delta.request_id == name] == [delta.token for delta in alone]
    order = [delta.request_id for delta in deltas]
    assert order.index("a") < order.index("b")
    assert order[-1] == "b"
    assert all(delta.cached_tokens == 0 for delta in deltas), "what was found first is what is told"


def test_reset_on_an_idle_engine_is_told_with_the_next_step() -> None:
    simulator = sim()
    run(simulator, generation("a", list(range(8))))
    assert simulator.reset_prefix_cache()
    assert simulator.begin_step(0.0) is None
    simulator.submit(generation("a", list(range(8))))
    assert not simulator.reset_prefix_cache() or simulator.load().running == 0
    (result,) = finish(simulator)
    assert result.batch is not None
    types = [event["type"] for event in msgspec.msgpack.decode(result.batch.payload)[1]]
    assert types[0] == "AllBlocksCleared"
    simulator.submit(generation("b", [1]))
    simulator.begin_step(0.0)
    assert not simulator.reset_prefix_cache()


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(
    lambda parts: [t for part in parts for t in (part,) * 3]
)
requests = st.lists(st.tuples(prompts, st.integers(1, 6), st.sampled_from(["", "salt"])), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(st.lists(requests, max_size=8), st.integers(6, 20))
def test_the_relays_shown_set_predicts_what_the_engine_finds(
    waves: list[list[tuple[list[int], int, str]]], pool_blocks: int
) -> None:
    """Under eviction, copies, preemption and salts: hashes shown = blocks held, and a match foretells the hit."""
    simulator, relay, view = sim(pool_blocks=pool_blocks, max_batched_tokens=8), Relay(model=MODEL), View()
    name = 0
    for wave in waves:
        for prompt, max_tokens, salt in wave:
            name += 1
            simulator.submit(generation(str(name), prompt, max_tokens=max_tokens, salt=salt))
        for result in finish(simulator):
            if result.batch:
                verdict = relay.apply(result.batch.seq, result.batch.payload)
                assert verdict.verdict == "applied"
                view.apply(verdict.ops)
        assert relay.resident().get("gpu", {}) == simulator.pool.resident()
        assert view.equals(relay.snapshot())
        relay.check_integrity()
        prompt, _, salt = wave[0]
        packed = struct.pack(f"<{len(prompt)}I", *prompt)
        hashes = block_hashes(packed, block_size=4, seed=seed_of(MODEL, salt=salt))[: (len(prompt) - 1) // 4]
        predicted = next((at for at, block in enumerate(hashes) if block not in view.tiers["gpu"]), len(hashes)) * 4
        simulator.submit(generation("probe", prompt, salt=salt))
        results = finish(simulator)
        assert results[-1].deltas[-1].cached_tokens == predicted
        for batch in [result.batch for result in results if result.batch]:
            view.apply(relay.apply(batch.seq, batch.payload).ops)


def first_tokens(simulator: Simulator, *generations: Generation) -> dict[str, int]:
    """In which step each request got its first token."""
    for each in generations:
        simulator.submit(each)
    found: dict[str, int] = {}
    for step, result in enumerate(finish(simulator), start=1):
        for delta in result.deltas:
            found.setdefault(delta.request_id, step)
    return found


def test_first_come_first_served_a_short_prompt_waits_for_a_long_one() -> None:
    long, short = generation("long", list(range(100))), generation("short", [200] * 10)
    assert first_tokens(sim(max_batched_tokens=20), long, short) == {"long": 5, "short": 6}


def test_with_a_shared_step_a_short_prompt_overtakes_a_long_one() -> None:
    """The long one gets half a step while it is not alone, and all of each step after."""
    long, short = generation("long", list(range(100))), generation("short", [200] * 10)
    shared = sim(max_batched_tokens=20, long_prefill_token_threshold=10)
    assert first_tokens(shared, long, short) == {"short": 1, "long": 6}


def test_alone_a_long_prompt_gets_all_of_each_step() -> None:
    shared = sim(max_batched_tokens=20, long_prefill_token_threshold=10)
    assert first_tokens(shared, generation("long", list(range(100)))) == {"long": 5}


def test_a_threshold_above_the_budget_changes_nothing() -> None:
    long, short = generation("long", list(range(100))), generation("short", [200] * 10)
    assert first_tokens(sim(max_batched_tokens=20, long_prefill_token_threshold=90), long, short) == {
        "long": 5, "short": 6,
    }  # fmt: skip


def test_attention_costs_what_a_token_looks_back_on() -> None:
    """8 new tokens see 0 to 7 of their own and, the second time, 16 cached ones each."""
    simulator = sim(step_s=0.0, attention_pair_s=1.0)
    simulator.submit(generation("cold", list(range(16))))
    assert simulator.begin_step(0.0) == 16 * 16 / 2
    simulator.end_step()
    simulator.submit(generation("warm", [*range(16), *range(100, 108)]))
    assert simulator.begin_step(1000.0) == 1000.0 + 8 * (16 + 8 / 2)
