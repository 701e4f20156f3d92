"""`kvist bench`: the cluster that is measured, with simulated engines, and which of its processes do what."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from cluster.cache_dir import cache_dir
from cluster.demo import running
from cluster.serve_ingress import INGRESS_DEPLOYMENT
from load_tests.bench.ingress_client import Address
from load_tests.bench.ingress_sides import BURST, PACED, WORKERS, Processes, Side, engine_args, make_model, named
from workers.models import resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def bench_model(folder: Path) -> Path:
    """The model both sides serve: SmolLM2's tokenizer with a template that knows tools."""
    return make_model(resolve_model("smollm2", cache_dir()), folder / "model")


@contextmanager
def kvist(model: Path, folder: Path) -> Iterator[Side]:
    """A warm cluster as a side of the bench. Engines write their journals into `folder`."""
    journals = {name: folder / f"{name}.journal" for name in (BURST, PACED)}
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "source": str(model),
            "replicas": WORKERS,
            "engine": "sim",
            "engine_args": engine_args(journal, paced=name == PACED),
            "max_ongoing_requests": 1024,
        }
        for name, journal in journals.items()
    ]
    before = {pid for pid, _ in _descendants()}
    with running(models) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        yield Side("kvist", Address(host, int(port)), lambda: _processes(before), journals)


def _processes(others: set[int]) -> Processes:
    found = [(pid, command) for pid, command in _descendants() if pid not in others]
    frontend = named(found, f":{INGRESS_DEPLOYMENT}", "haproxy -")
    workers = named(found, ":Worker-")
    return Processes(frontend, workers, tuple(pid for pid, _ in found if pid not in {*frontend, *workers}))


def _descendants() -> list[tuple[int, str]]:
    return [(child.pid, _command(child)) for child in psutil.Process().children(recursive=True)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
