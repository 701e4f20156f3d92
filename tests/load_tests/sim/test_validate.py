"""One workload on an engine with tokens and in the simulator with blocks: what is compared, and that it is the same."""

from __future__ import annotations

import asyncio

import pytest

from load_tests.sim.calibration import Calibration
from load_tests.sim.cluster import even_cluster
from load_tests.sim.measure import Probes
from load_tests.sim.outcome import Fate, Outcome
from load_tests.sim.real_engine import RealRun, generation_of
from load_tests.sim.validate import BLOCK_TOKENS, Comparison, compare, small_workload
from load_tests.sim.work import After, Workload
from load_tests.simulate import simulate
from tests.load_tests.sim.builders import InTurn
from workers.sim_engine import SimEngine

PACE = Calibration(
    name="test", source="a test", step_s=0.004, prefill_token_s=0.0001, decode_s=0.001, front_s=0.0, step_tokens=1024,
    max_num_seqs=32,
)  # fmt: skip


def one_after_the_other(work: Workload) -> Workload:
    """Without what depends on time: every request waits for the one before."""
    requests = [one._replace(at=0.0, after=(After(at - 1, 0.0),) if at else ()) for at, one in enumerate(work.requests)]
    return work._replace(requests=tuple(requests))


def engine(speed: float) -> SimEngine:
    parameters = PACE.parameters(block_size=BLOCK_TOKENS, pool_blocks=2_000)
    return SimEngine(model="test", parameters=parameters, speed=speed)


async def run_on(real: SimEngine, work: Workload) -> Outcome:
    await real.start()
    try:
        return await RealRun(work, real).run()
    finally:
        await real.close()


def test_an_engine_with_tokens_finds_what_the_simulator_finds() -> None:
    """Block ids become tokens, and tokens that begin alike are cached alike."""
    work = one_after_the_other(small_workload(agents=3, turns=3))
    plan = even_cluster(PACE, replicas=1, block_size=BLOCK_TOKENS, pool_blocks=2_000)
    simulated = simulate(work, plan, InTurn())
    real = asyncio.run(run_on(engine(float("inf")), work))
    assert [one.cached_tokens for one in real.fates] == [one.cached_tokens for one in simulated.fates]
    assert sum(one.cached_tokens for one in real.fates) > 0
    real.check_integrity()


def test_a_prompt_is_as_long_as_the_workload_says_and_repeats_its_prefix() -> None:
    work = small_workload(agents=1, turns=2)
    first, second = (generation_of(one, at, BLOCK_TOKENS) for at, one in enumerate(work.requests))
    assert len(first.tokens) == 4 * work.requests[0].prompt_tokens
    full = work.requests[0].prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert first.tokens[: 4 * full] == second.tokens[: 4 * full]
    work.check_integrity()


def test_probes_find_the_pace_of_an_engine() -> None:
    """On virtual time, where the line is exact."""
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await asyncio.sleep(0)

    parameters = PACE.parameters(block_size=BLOCK_TOKENS, pool_blocks=4_000)
    real = SimEngine(model="test", parameters=parameters, clock=lambda: now[0], sleep=sleep)

    async def measure() -> Calibration:
        await real.start()
        try:
            probes = Probes(real, clock=lambda: now[0])
            return await probes.calibration(name="test", source="a test", max_num_seqs=32)
        finally:
            await real.close()

    found = asyncio.run(measure())
    assert found.step_s == pytest.approx(PACE.step_s, rel=0.05)
    assert found.prefill_token_s == pytest.approx(PACE.prefill_token_s, rel=0.05)
    assert found.decode_s == pytest.approx(PACE.decode_s, rel=0.05)
    assert found.front_s == pytest.approx(0.0, abs=0.001)


def outcome(work: Workload, first_token_s: float) -> Outcome:
    fates = [Fate(ready_at=1.0, first_token_at=1.0 + first_token_s, cached_tokens=8) for _ in work.requests]
    return Outcome(work, fates, {})


def test_the_error_is_the_simulated_less_the_real() -> None:
    work = small_workload(agents=1, turns=2)
    found: Comparison = compare(PACE, outcome(work, 0.1), outcome(work, 0.11))
    assert found.errors["p50"] == pytest.approx(0.1)
    assert "+10.0%" in found.as_text()
    assert "within 20%: met" in found.as_text()
    assert compare(PACE, outcome(work, 0.1), outcome(work, 0.2)).as_text().endswith("missed")
    assert '"name": "test"' in found.pace_as_json()
