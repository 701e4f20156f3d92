"""The fast engine by examples; `test_engine_model` compares it with the reference."""

from __future__ import annotations

from typing import Any

import pytest

from load_tests.sim.engine import Engine
from router.errors import InvalidRequest
from router.wire import Load
from tests.load_tests.sim.builders import finish, job, parameters


def first_tokens(told: list[Any]) -> dict[int, tuple[float, int]]:
    return {one.request: (end.ended_at, one.cached_tokens) for end in told for one in end.first_tokens}


def ends(told: list[Any]) -> dict[int, float]:
    return {request: end.ended_at for end in told for request in end.finished}


def test_a_prompt_takes_a_step_for_each_budget_and_its_repeat_finds_it() -> None:
    engine = Engine(parameters())
    engine.submit(job(0, range(1, 9)), 0.0)
    assert first_tokens(finish(engine)) == {0: (3.0, 0)}
    engine.submit(job(1, range(1, 9)), 10.0)
    assert first_tokens(finish(engine, 10.0)) == {1: (11.0, 32)}


def test_a_faster_engine_takes_less_of_everything() -> None:
    engine = Engine(parameters(), speed=2.0)
    engine.submit(job(0, range(1, 9), output_tokens=5), 0.0)
    assert ends(finish(engine)) == {0: 3.5}


def test_first_come_first_served_makes_a_short_prompt_wait_for_a_long_one() -> None:
    engine = Engine(parameters())
    engine.submit(job(0, range(1, 33)), 0.0)
    engine.submit(job(1, [100]), 0.0)
    assert first_tokens(finish(engine)) == {0: (9.0, 0), 1: (9.0, 0)}


def test_with_a_shared_step_a_short_prompt_does_not() -> None:
    engine = Engine(parameters(long_prefill_token_threshold=8))
    engine.submit(job(0, range(1, 33)), 0.0)
    engine.submit(job(1, [100]), 0.0)
    told = first_tokens(finish(engine))
    assert told[1] == (1.0, 0)
    assert told[0] == (9.0, 0)  # half of the first step, then alone: all of each


def test_an_arrival_waits_for_the_step_in_progress_only() -> None:
    engine = Engine(parameters())
    engine.submit(job(0, [1], output_tokens=200), 0.0)
    engine.advance(0.0)
    engine.advance(50.5)
    engine.submit(job(1, [2]), 50.5)
    assert first_tokens(finish(engine, 50.5))[1] == (52.0, 0)


def test_decodes_lengthen_the_step_of_all() -> None:
    engine = Engine(parameters(decode_s=0.5))
    for request in range(2):
        engine.submit(job(request, [request + 1], output_tokens=11), 0.0)
    assert ends(finish(engine)) == {0: 1.0 + 10 * 2.0, 1: 1.0 + 10 * 2.0}


def test_the_latest_comer_is_put_back_when_blocks_run_out_and_ends_all_the_same() -> None:
    engine = Engine(parameters(pool_blocks=10))
    for request in range(2):
        engine.submit(job(request, [10 * request + block for block in range(1, 5)], output_tokens=16), 0.0)
    told = ends(finish(engine))
    assert told.keys() == {0, 1}
    assert told[1] > told[0]


def test_a_prompt_that_no_pool_of_this_size_holds_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="exceed 40"):
        Engine(parameters(pool_blocks=10)).submit(job(0, range(1, 11)), 0.0)


def test_a_request_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="needs a token"):
        Engine(parameters()).submit(job(0, [1])._replace(output_tokens=0), 0.0)


def test_the_gauge_counts_what_is_not_computed() -> None:
    engine = Engine(parameters(max_num_seqs=1))
    engine.submit(job(0, range(1, 9)), 0.0)
    engine.submit(job(1, range(50, 52)), 0.0)
    engine.advance(0.0)
    engine.advance(1.0)
    assert engine.load() == Load(running=1, waiting=1, backlog_tokens=17 + 9, free_blocks=56, total_blocks=64)
    assert engine.requests == [0, 1]
    assert repr(engine).startswith("Engine(1 running, 1 waiting")


def test_an_engine_without_pace_takes_no_time() -> None:
    engine = Engine(parameters(step_s=0.0))
    engine.submit(job(0, range(1, 9), output_tokens=9), 5.0)
    assert ends(finish(engine, 5.0)) == {0: 5.0}
