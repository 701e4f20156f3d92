"""Free ports on loopback for what a test starts."""

from __future__ import annotations

import random
import socket
from typing import Final

from load_tests.peers.environment import PeerFailed

LOOPBACK: Final = "127.0.0.1"
BLOCK_PORTS: Final = 100
BLOCK_STARTS: Final = range(30_000, 32_000, BLOCK_PORTS)
"""Below the range from which systems give out ports by themselves, apart from where Kvist's clusters look."""


def free_port() -> int:
    """One that the system gives out."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def free_block() -> range:
    """BLOCK_PORTS consecutive ports that nobody uses now. Raises `PeerFailed` when there are none."""
    for start in random.SystemRandom().sample(BLOCK_STARTS, len(BLOCK_STARTS)):
        block = range(start, start + BLOCK_PORTS)
        if all(map(is_free, block)):
            return block
    raise PeerFailed(f"no {BLOCK_PORTS} consecutive ports of {BLOCK_STARTS} are free on loopback")


def is_free(port: int) -> bool:
    """Nobody listens there."""
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
