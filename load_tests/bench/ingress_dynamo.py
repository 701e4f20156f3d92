"""Dynamo as a side of `kvist bench ingress`: two models, of engines that take no time and of paced ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

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
from load_tests.peers import dynamo as peer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# By the word of its help 0 is infinite, but then engines take the time they simulate.
SPEEDUPS: Final = {BURST: 1e6, PACED: 0.3}
ENGINE: Final = {
    "--block-size": BLOCK_SIZE,
    "--num-gpu-blocks-override": POOL_BLOCKS,
    "--max-model-len": WINDOW,
    "--max-num-batched-tokens": BATCHED_TOKENS,
    "--max-num-seqs": SEQUENCES,
}


@contextlib.contextmanager
def dynamo(model: Path, folder: Path, *, lab: Path) -> Iterator[Side]:
    """Run it until the end of the block. Logs go to `folder`. Raises `PeerMissing`, `PeerFailed`."""
    fleets = [peer.Fleet(name, WORKERS, {**ENGINE, "--speedup-ratio": speedup}) for name, speedup in SPEEDUPS.items()]
    with peer.dynamo(model, folder, lab=lab, fleets=fleets) as running:
        processes = Processes(running.frontend, running.engines)
        at = urlsplit(running.url)
        yield Side("dynamo", Address(str(at.hostname), at.port or 0), lambda: processes)
