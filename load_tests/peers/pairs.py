"""Kvist and a peer, both up, with the same engines, and the swarm that both are asked by."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from load_tests.peers.dynamo import Fleet, dynamo
from load_tests.peers.kvist import kvist
from load_tests.peers.pace import Pace
from load_tests.peers.ray_kv_aware import ray_kv_aware
from workers.models import resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from load_tests.client import Api
    from load_tests.peers.running import Running

MODEL: Final = "tiny"
SIM_REPLICAS: Final = 4
SIM_PACE: Final = Pace(
    step_s=0.005,
    prefill_token_s=2e-5,
    decode_s=1e-4,
    step_tokens=8192,
    block_size=16,
    pool_blocks=16_384,
    max_model_len=65_536,
)
VLLM_REPLICAS: Final = 2
VLLM_ARGS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "kv_cache_memory_bytes": 256 * 2**20,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 4096,
        "max_model_len": 32_768,
        "long_prefill_token_threshold": 2048,  # what Kvist sets by itself, said to both
    }
)
"""What vLLM is told on both sides."""
VLLM_TOOLS: Final = MappingProxyType({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"})
"""What vLLM's own chat API needs besides before it takes a request with tools; Kvist finds its parser by itself."""


class Pair(NamedTuple):
    """Both are started by `start(folder, lab)`. `swarm` are `load_tests.swarm.settings.Settings`."""

    start: Callable[[Path, Path], AbstractContextManager[tuple[Running, Running]]]
    apis: tuple[Api, ...]
    replicas: int
    swarm: Mapping[str, Any]
    engines: str


@contextlib.contextmanager
def beside_dynamo(folder: Path, lab: Path) -> Iterator[tuple[Running, Running]]:
    """Raises `PeerMissing` before anything is started."""
    source = model_folder()
    fleet = Fleet(MODEL, SIM_REPLICAS, SIM_PACE.mocker_options(folder / "pace.npz"))
    ours = {"name": MODEL, "source": str(source), "replicas": SIM_REPLICAS, "engine": "sim"}
    models = [{**ours, "engine_args": SIM_PACE.sim_args()}]
    with dynamo(source, folder, lab=lab, fleets=[fleet]) as peer, kvist(folder, models) as own:
        yield own, peer


@contextlib.contextmanager
def beside_ray_kv_aware(folder: Path, lab: Path) -> Iterator[tuple[Running, Running]]:
    """Raises `PeerMissing` before anything is started."""
    source = model_folder()
    engine_args = {**VLLM_ARGS, **VLLM_TOOLS}
    ours = {"name": MODEL, "source": str(source), "replicas": VLLM_REPLICAS, "engine_args": dict(VLLM_ARGS)}
    theirs = ray_kv_aware(source, folder, lab=lab, model=MODEL, replicas=VLLM_REPLICAS, engine_args=engine_args)
    with theirs as peer, kvist(folder, [ours]) as own:
        yield own, peer


def model_folder() -> Path:
    """Of the tiny model that both sides serve: made once, in the cache folder that clusters use."""
    cache = Path(os.environ.get("KVIST_CACHE") or Path.home() / ".cache" / "kvist")
    return resolve_model(MODEL, cache)


PAIRS: Final[Mapping[str, Pair]] = MappingProxyType(
    {
        "dynamo": Pair(
            start=beside_dynamo,
            apis=("messages", "chat"),
            replicas=SIM_REPLICAS,
            swarm=MappingProxyType({"agents": 24, "duration_s": 30.0, "warmup_s": 8.0, "think_s": 2.0, "turns": 12}),
            engines="4 simulated engines each: 5 ms a step, 20 µs a prompt token, 0.1 ms a decode, 16,384 blocks of 16",
        ),
        "ray-kv-aware": Pair(
            start=beside_ray_kv_aware,
            apis=("chat",),
            replicas=VLLM_REPLICAS,
            swarm=MappingProxyType({"agents": 8, "duration_s": 40.0, "warmup_s": 8.0, "think_s": 2.0, "turns": 12}),
            engines="2 vLLM-CPU replicas each, the same model, pool and arguments",
        ),
    }
)
