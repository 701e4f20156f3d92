"""Dynamo as it is fastest here: KV routing, its fast tokenizer, a tokenizer cache of 2 GB; mock engines.

A frontend and engines, each a process of its own, without etcd and NATS; everything that can be told so listens on
loopback. All of them are ended by pid.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from load_tests.peers.children import Children, chat_fault
from load_tests.peers.environment import interpreter_of
from load_tests.peers.ports import LOOPBACK, free_port
from load_tests.peers.running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

NAME: Final = "dynamo"
READY_LIMIT_S: Final = 120.0
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


class Fleet(NamedTuple):
    """Mock engines of one model; `options` are those of `python -m dynamo.mocker`."""

    model: str
    engines: int
    options: Mapping[str, Any]


@contextlib.contextmanager
def dynamo(model_folder: Path, folder: Path, *, lab: Path, fleets: Sequence[Fleet]) -> Iterator[Running]:
    """Run it until the end of the block. Logs go to `folder`. Raises `PeerMissing`, `PeerFailed`."""
    python = str(interpreter_of(NAME, lab))
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    environment = os.environ | SETTINGS | {"DYN_FILE_KV": str(folder / "discovery")}
    with Children(NAME, folder) as children:
        frontend = children.start("frontend", frontend_command(python, port), environment)
        engines = [
            children.start(f"{fleet.model}{number}", mocker_command(python, model_folder, fleet), environment)
            for fleet in fleets
            for number in range(fleet.engines)
        ]
        for fleet in fleets:
            children.wait_until(partial(chat_fault, url, fleet.model), limit_s=READY_LIMIT_S)
        yield Running(NAME, url, fleets[0].model, (frontend,), tuple(engines))


def frontend_command(python: str, port: int) -> list[str]:
    options = f"--http-host {LOOPBACK} --http-port {port} --router-mode kv --enable-anthropic-api"
    return [python, "-m", "dynamo.frontend", *options.split(), "--tokenizer", "fastokens", "--no-tokenizer-fallback"]


def mocker_command(python: str, model_folder: Path, fleet: Fleet) -> list[str]:
    options = {
        "--model-path": model_folder,
        "--model-name": fleet.model,
        "--endpoint": f"dyn://dynamo.{fleet.model}.generate",
        "--num-workers": 1,
        **fleet.options,
    }
    return [python, "-m", "dynamo.mocker", *(str(one) for option in options.items() for one in option)]
