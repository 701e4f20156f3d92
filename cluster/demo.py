"""`kvist demo`: start the clusters that load_tests/demo.py measures, one after the other."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cluster.config import parse_config
from cluster.launch import LocalCluster
from cluster.ports import free_port
from cluster.preflight import check
from cluster.probe import url_of, wait_until_warm
from load_tests import demo, demo_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def run_demo(folder: Path) -> tuple[dict[str, Any], str]:
    """Measure everything; the data of demo.json and the table. Takes two to four minutes on two cores."""
    with running(demo.arms_models()) as url:
        arms = asyncio.run(demo.measure_arms(url))
    with running(demo.routing_models()) as url:
        routing = asyncio.run(demo.measure_routing(url))
    data = demo.report(arms, routing, folder)
    return data, demo_report.table(data)


@contextmanager
def running(models: list[dict[str, Any]], **options: Any) -> Iterator[str]:
    """A warm cluster of `models` on a free port of loopback; ended on the way out. Yields its URL. `options` are more
    of its config."""
    config = parse_config({"models": models, "port": free_port(), **options}, where="the cluster")
    check(config)
    cluster = LocalCluster(config, stdout=subprocess.DEVNULL)
    try:
        wait_until_warm(config, still_alive=cluster.raise_if_ended, tell=_nothing)
        yield url_of(config)
    finally:
        cluster.stop()


def _nothing(progress: str) -> None:
    """The cluster's own process tells of it."""
