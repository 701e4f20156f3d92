"""`kvist bench`: the cluster that is measured, with simulated engines, and which of its processes do what."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import psutil

from cluster.cache_dir import cache_dir
from cluster.demo import running
from cluster.serve_ingress import INGRESS_DEPLOYMENT
from load_tests.bench.ingress import bench_ingress
from load_tests.bench.ingress_client import Address
from load_tests.bench.ingress_dynamo import dynamo
from load_tests.bench.ingress_sides import BURST, PACED, WORKERS, Processes, Side, engine_args, make_model, named
from load_tests.bench.stages import bench_stages
from load_tests.peers.environment import versions_of
from workers.models import resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load_tests.bench.ingress import Plan

SLOW_FLUSH_MS: Final = 100.0


def measure_ingress(plan: Plan, *, lab: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """The data of `kvist bench ingress`; with `lab`, Dynamo is the peer. Clusters get `options` in their config.

    What a token costs at a slow flush is measured last, with a cluster that is set so, beside the same peer.
    """
    with ExitStack() as stack:
        versions = versions_of("dynamo", lab) if lab else {}
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kvist-bench-")))
        model = bench_model(folder)
        peers = [stack.enter_context(dynamo(model, folder, lab=lab))] if lab else []
        with kvist(model, folder, **options) as side:
            measured = bench_ingress([side, *peers], plan)
        if plan.has_slow_flush:
            with kvist(model, folder, **options | {"flush_ms": SLOW_FLUSH_MS}) as side:
                measured = measured.beside(bench_ingress([side, *peers], plan.only_tokens()))
    return measured.data(versions)


def measure_stages(*, rounds: int, turns: int, options: dict[str, Any]) -> dict[str, Any]:
    """The data of `kvist bench stages`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kvist-bench-")))
        side = stack.enter_context(kvist(bench_model(folder), folder, **options))
        return bench_stages(side, rounds=rounds, turns=turns)


def bench_model(folder: Path) -> Path:
    """The model both sides serve: SmolLM2's tokenizer with a template that knows tools."""
    return make_model(resolve_model("smollm2", cache_dir()), folder / "model")


@contextmanager
def kvist(model: Path, folder: Path, **options: Any) -> Iterator[Side]:
    """A warm cluster as a side of the bench. Engines write their journals into `folder`; `options` go into the config.
    Raises `InvalidRequest` for those that it does not know."""
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
    with running(models, **options) as url:
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
