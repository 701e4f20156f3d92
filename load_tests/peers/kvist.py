"""Kvist itself as a cluster of a comparison, started from outside as users start it: `kvist serve --config`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import yaml

from load_tests.peers.children import Children, call
from load_tests.peers.ports import free_port
from load_tests.peers.running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "kvist"
READY_LIMIT_S: Final = 1_800.0


@contextlib.contextmanager
def kvist(folder: Path, models: list[dict[str, Any]]) -> Iterator[Running]:
    """Run a cluster of `models` (as in a cluster file) until the end of the block; the first is the one that is asked.
    Logs go to `folder`. Raises `PeerFailed`."""
    port = free_port()
    url, config = f"http://127.0.0.1:{port}", folder / "kvist.yaml"
    write_config(config, models, port=port)
    with Children(NAME, folder) as children:
        children.start("serve", [sys.executable, "-m", "cluster.cli", "serve", "--config", str(config)], os.environ)
        children.wait_until(lambda: _missing(url), limit_s=READY_LIMIT_S)
        yield Running(NAME, url, str(models[0]["name"]))


def write_config(file: Path, models: list[dict[str, Any]], *, port: int) -> None:
    """A cluster file."""
    file.write_text(yaml.safe_dump({"models": models, "port": port}), encoding="utf-8")


def _missing(url: str) -> str:
    status, said = call(url, "/healthz")
    try:
        health = json.loads(said)
    except ValueError:
        return said or f"status {status}"
    return "" if health.get("warm") else str(health.get("detail", "starting"))
