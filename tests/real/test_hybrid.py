"""Models that need more than the blocks of a prefix: the router sees an upper bound, and learns the truth."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.real.hybrids import HYBRIDS, prepare_hybrid
from tests.real.leading import Stage
from tests.real.measured import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.leading import Prediction

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ENGINE_ARGS = {
    "load_format": "dummy",
    "num_gpu_blocks_override": 161,
    "max_model_len": 2048,
    "max_num_batched_tokens": 512,
}


@pytest.fixture(scope="module", params=[*HYBRIDS])
def stage(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    path = prepare_hybrid(request.param, tiny_model, tmp_path_factory.mktemp("hybrid"))
    stage = Stage(path=path, engine_args=ENGINE_ARGS)
    yield stage
    stage.close()


def play(stage: Stage, tokens: list[int], *, max_tokens: int = 1) -> Prediction:
    async def run() -> Prediction:
        return await stage.router.generate(await stage.worker(), tokens, max_tokens=max_tokens)

    found = stage.run(run())
    print(len(tokens), found[:3])
    assert found.counted <= found.shown, "the router must never see less than the engine finds"
    return found


def test_predictions_converge_to_what_the_engine_counts(stage: Stage, request: pytest.FixtureRequest) -> None:
    """Conversations that grow, and new ones that fork off earlier ones somewhere in the middle."""
    chosen = random.Random(1)
    head = chosen.choices(range(300, 4000), k=600)
    found = []
    for _ in range(16):
        prompt = [*head[: chosen.randrange(300, 600)], *chosen.choices(range(300, 4000), k=200)]
        for _ in range(2):
            turn = play(stage, prompt, max_tokens=40)
            found.append(turn)
            prompt = [*prompt, *turn.tokens, *chosen.choices(range(300, 4000), k=30)]
    worker = stage.run(stage.worker())
    assert worker.info.optimistic
    assert stage.run(worker.ask("stats")).optimistic
    later = found[len(found) // 2 :]
    shown, predicted, counted = (
        sum(getattr(turn, name) for turn in later) for name in ("shown", "predicted", "counted")
    )
    record(
        f"hybrid model, {request.node.callspec.id}",
        {
            "block_size": worker.info.block_size,
            "shown_tokens": shown,
            "predicted_tokens": predicted,
            "engine_tokens": counted,
        },
    )
    assert abs(predicted - counted) <= 0.2 * counted
