"""Ports on loopback for a cluster of one machine.

All lie below the range from which systems give out ports by themselves, so that what starts in the meantime does not
take them.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from router.errors import InvalidRequest

SINGLE_PORTS: Final = range(20_000, 29_000)
BLOCK_PORTS: Final = 100
BLOCK_STARTS: Final = range(10_000, 20_000, BLOCK_PORTS)


def free_port() -> int:
    """A port that nobody uses now. Raises `InvalidRequest` when there is none."""
    for port in random.SystemRandom().sample(SINGLE_PORTS, len(SINGLE_PORTS)):
        if is_free(port):
            return port
    raise InvalidRequest(f"no port of {SINGLE_PORTS} is free on loopback")


def free_block() -> range:
    """BLOCK_PORTS consecutive ports that nobody uses now. Raises `InvalidRequest` when there are none."""
    for start in random.SystemRandom().sample(BLOCK_STARTS, len(BLOCK_STARTS)):
        block = range(start, start + BLOCK_PORTS)
        if all(map(is_free, block)):
            return block
    raise InvalidRequest(f"no {BLOCK_PORTS} consecutive ports of {BLOCK_STARTS} are free on loopback")


def is_free(port: int) -> bool:
    """Nobody listens there, not even sharing the port (SO_REUSEPORT)."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
