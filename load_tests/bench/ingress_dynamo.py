"""Dynamo as it is fastest here: KV routing, its fast tokenizer, a tokenizer cache of 2 GB, engines that take no time.

A frontend and mock engines, each a process of its own, without etcd and NATS; everything that can be told so listens on
loopback. All of them are ended by pid.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final

from load_tests.bench.ingress_bodies import short_body
from load_tests.bench.ingress_client import Address
from load_tests.bench.ingress_sides import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BURST,
    PACED,
    POOL_BLOCKS,
    SEQUENCES,
    WINDOW,
    WORKERS,
    Processes,
    Side,
)
from load_tests.bench.peer import STOP_TIMEOUT_S, PeerFailed, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOPBACK: Final = "127.0.0.1"
PACKAGES: Final = ("ai-dynamo", "ai-dynamo-runtime")
READY_LIMIT_S: Final = 120.0
POLL_S: Final = 0.5
# By the word of its help 0 is infinite, but then engines take the time they simulate.
SPEEDUPS: Final = {BURST: 1e6, PACED: 0.3}
SETTINGS: Final = {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
    "DYN_TCP_RPC_HOST": LOOPBACK,
    "DYN_EVENT_PLANE_HOST": LOOPBACK,
    "DYN_TCP_RESPONSE_STREAM_HOST": LOOPBACK,
    "DYN_TOKENIZER_CACHE_BYTES": "2000000000",
    "DYN_LOG": "warn",
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    "HF_HUB_OFFLINE": "1",
}


@contextlib.contextmanager
def dynamo(model: Path, folder: Path, *, lab: Path) -> Iterator[Side]:
    """Run it until the end of the block. Logs go to `folder`. Raises `PeerMissing`, `PeerFailed`."""
    python = str(interpreter_of("dynamo", lab))
    address = Address(LOOPBACK, _free_port())
    environment = os.environ | SETTINGS | {"DYN_FILE_KV": str(folder / "discovery")}
    with contextlib.ExitStack() as children:

        def start(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            with (folder / f"dynamo-{name}.log").open("wb") as log:
                child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)  # noqa: S603
            children.callback(_stop, child)
            return child

        frontend = start("frontend", _frontend(python, address))
        engines = [
            start(f"{name}{number}", _mocker(python, model, name)) for name in SPEEDUPS for number in range(WORKERS)
        ]
        for name in SPEEDUPS:
            _wait_until_it_serves(address, name, [frontend, *engines], folder)
        processes = Processes((frontend.pid,), tuple(engine.pid for engine in engines))
        yield Side("dynamo", address, lambda: processes)


def dynamo_versions(lab: Path) -> dict[str, str]:
    """Of the packages in its environment."""
    program = "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [str(interpreter_of("dynamo", lab)), "-c", program, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _frontend(python: str, address: Address) -> list[str]:
    options = f"--http-host {address.host} --http-port {address.port} --router-mode kv --enable-anthropic-api"
    return [python, "-m", "dynamo.frontend", *options.split(), "--tokenizer", "fastokens", "--no-tokenizer-fallback"]


def _mocker(python: str, model: Path, name: str) -> list[str]:
    options = {
        "--model-path": model,
        "--model-name": name,
        "--endpoint": f"dyn://dynamo.{name}.generate",
        "--num-workers": 1,
        "--block-size": BLOCK_SIZE,
        "--num-gpu-blocks-override": POOL_BLOCKS,
        "--max-model-len": WINDOW,
        "--max-num-batched-tokens": BATCHED_TOKENS,
        "--max-num-seqs": SEQUENCES,
        "--speedup-ratio": SPEEDUPS[name],
    }
    return [python, "-m", "dynamo.mocker", *(str(one) for option in options.items() for one in option)]


def _wait_until_it_serves(address: Address, model: str, children: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline, said = time.monotonic() + READY_LIMIT_S, ""
    while time.monotonic() < deadline:
        for child in children:
            if child.poll() is not None:
                raise PeerFailed(f"a process of dynamo has ended with code {child.returncode}; logs are in {folder}")
        connection = http.client.HTTPConnection(*address, timeout=10.0)
        try:
            body = short_body(0, model=model, max_tokens=2)
            connection.request("POST", "/v1/messages", body, {"content-type": "application/json"})
            response = connection.getresponse()
            said = response.read().decode(errors="replace")[:200]
            if response.status == 200:
                return
        except (OSError, http.client.HTTPException) as fault:
            said = str(fault)
        finally:
            connection.close()
        time.sleep(POLL_S)
    raise PeerFailed(f"dynamo does not serve {model} after {READY_LIMIT_S:.0f} s: {said}; logs are in {folder}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
