"""`kvist demo`: start the clusters that load_tests/demo.py measures, one after the other."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from cluster.config import parse_config
from cluster.kv_store_config import SHARED_MEMORY
from cluster.launch import LocalCluster
from cluster.ports import free_port
from cluster.preflight import check
from cluster.probe import url_of, wait_until_warm
from load_tests import demo, demo_report, demo_share

if TYPE_CHECKING:
    from collections.abc import Iterator


def run_demo(folder: Path) -> tuple[dict[str, Any], str]:
    """Measure everything; the data of demo.json and the table. Takes two to four minutes on two cores."""
    with running(demo.arms_models()) as url:
        arms = asyncio.run(demo.measure_arms(url))
    with running(demo.routing_models()) as url:
        routing = asyncio.run(demo.measure_routing(url))
    data = demo.report(arms, routing, folder)
    return data, demo_report.table(data)


def run_share(folder: Path) -> tuple[dict[str, Any], str]:
    """Measure sharing; the data of share.json and the table. Takes a minute or two on two cores."""
    with shared_folder() as store, running(demo_share.share_models(store)) as url:
        pairs = asyncio.run(_measure_share(url, store))
    data = demo_share.as_data(pairs)
    demo_share.write(data, folder)
    return data, demo_share.table(pairs)


async def _measure_share(url: str, store: Path) -> list[demo_share.Pair]:
    timeout = aiohttp.ClientTimeout(total=demo.REQUEST_LIMIT_S)
    async with aiohttp.ClientSession(url, timeout=timeout, read_bufsize=2**20) as http:
        return await demo_share.measure_share(http, store)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder for a store, in shared memory where there is such; removed on the way out."""
    memory = Path(SHARED_MEMORY).parent
    folder = Path(tempfile.mkdtemp(prefix="kvist-share-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
