"""What must be equal for a stored block to be of use: the model's weights, its numbers, and the engine's arithmetic."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

import xxhash

from router.errors import ModelUnusable

WEIGHT_ENDINGS: Final = (".safetensors", ".bin", ".gguf", ".pt")
SAMPLES: Final = 16
SAMPLE_BYTES: Final = 65_536
SAFE_HASHES: Final = ("sha256", "sha256_cbor")  # others are not equal in every process, or can be made to collide


def engine_identity(vllm_config: Any) -> dict[str, object]:
    """Everything but the tokens that a block's bytes depend on. Raises `ModelUnusable` for an engine whose block hashes
    do not name blocks in other processes."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    if cache.prefix_caching_hash_algo not in SAFE_HASHES:
        raise ModelUnusable(f"kv_store needs prefix_caching_hash_algo {' or '.join(SAFE_HASHES)}")
    from vllm import __version__  # noqa: PLC0415 - vLLM is imported when the engine starts

    return {
        "vllm": __version__,
        "hashes": (cache.prefix_caching_hash_algo, os.environ.get("PYTHONHASHSEED", "")),
        "weights": weights_identity(model.model, str(getattr(model.hf_config, "_commit_hash", None))),
        "revision": model.revision,
        "load": (str(vllm_config.load_config.load_format), model.seed, str(model.hf_overrides)),
        "config": model.hf_config.to_json_string(use_diff=False),
        "numbers": (str(model.dtype), str(cache.cache_dtype), str(model.quantization)),
        "block_size": cache.block_size,
        "parallel": (parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
        "device": (vllm_config.device_config.device_type, platform.machine(), _cpu_layout(vllm_config)),
    }


def weights_identity(model: str, commit: str) -> object:
    """Of a folder: names, sizes and samples of its weights, whatever their path and age. Else the hub's name and
    commit."""
    folder = Path(model)
    if not folder.is_dir():
        return (model, commit)
    files = sorted(file for file in folder.iterdir() if file.name.endswith(WEIGHT_ENDINGS))
    return [(file.name, file.stat().st_size, _sampled(file)) for file in files]


def _sampled(file: Path) -> str:
    """A digest of parts spread evenly over the file: a trained copy differs everywhere."""
    digest = xxhash.xxh3_128()
    size = file.stat().st_size
    with file.open("rb") as weights:
        for sample in range(SAMPLES):
            weights.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(weights.read(SAMPLE_BYTES))
    return str(digest.hexdigest())


def _cpu_layout(vllm_config: Any) -> str:
    """CPUs pack keys in the order that their instructions like."""
    if vllm_config.device_config.device_type != "cpu":
        return ""
    import torch  # noqa: PLC0415 - with vLLM

    return f"{torch.backends.cpu.get_cpu_capability()} {torch.cpu._is_amx_tile_supported()}"  # noqa: SLF001 - as vLLM
