"""A small store and blocks for it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from workers.kv_store.frames import HEADER_BYTES, LAYOUT_BYTES
from workers.kv_store.store import PAGE_BYTES, BlockStore, Unwritten

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = bytes(range(LAYOUT_BYTES))
PAYLOAD_BYTES = PAGE_BYTES - HEADER_BYTES  # a frame of exactly one page


def key_of(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def payload_of(name: object, size: int = PAYLOAD_BYTES) -> bytes:
    return hashlib.shake_128(repr(name).encode()).digest(size)


def block(name: object, stamp: int, size: int = PAYLOAD_BYTES) -> Unwritten:
    return Unwritten(key_of(name), payload_of(name, size), stamp)


def opened(folder: Path, *, pages: int, layout: bytes = LAYOUT) -> BlockStore:
    return BlockStore(folder / "store", max_bytes=pages * PAGE_BYTES, layout=layout)


def read(store: BlockStore, name: object, size: int = PAYLOAD_BYTES) -> bytes:
    payload = bytearray(size)
    store.load(key_of(name), memoryview(payload))
    return bytes(payload)


def file_of(folder: Path, name: object) -> Path:
    digits = key_of(name).hex()
    return folder / "store" / "blocks" / digits[0] / digits[1] / digits


def bytes_of_files(folder: Path) -> int:
    """What the store's frames take, finished or not, in whole pages. Files that go meanwhile do not count."""
    taken: dict[int, int] = {}  # by inode: a file that appears has two names for a moment
    for place, _, files in os.walk(folder / "store"):
        for file in files:
            if file not in {"ledger", "alive"}:
                try:
                    status = os.stat(os.path.join(place, file))
                except FileNotFoundError:
                    continue
                taken[status.st_ino] = -(-status.st_size // PAGE_BYTES) * PAGE_BYTES
    return sum(taken.values())
