"""Snapshot chunks and requests: what is decoded encodes to the same again, all else is a `WireError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from router.errors import WireError
from router.wire import (
    SnapshotChunk,
    Stored,
    decode_chunk,
    decode_snapshot_request,
    encode_chunk,
    encode_snapshot_request,
)
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW, BUILT = b"\x00", b"\x01"
CHUNK: Final = SnapshotChunk("r", "i", 3, 0, 2, 16, (Stored("cpu", (7,)),))
FIELDS: Final = msgpack.unpackb(encode_chunk(CHUNK, nonce=5))
REQUEST: Final = msgpack.unpackb(encode_snapshot_request(5))


def run(data: bytes) -> None:
    draw = Draw(data)
    message = msgpack.packb(_built(draw)) if draw.below(2) else draw.rest()
    try:
        chunk, nonce = decode_chunk(message)
        assert decode_chunk(encode_chunk(chunk, nonce=nonce)) == (chunk, nonce)
        assert 0 <= chunk.index < chunk.count
    except WireError:
        pass
    try:
        nonce = decode_snapshot_request(message)
        assert decode_snapshot_request(encode_snapshot_request(nonce)) == nonce
    except WireError:
        pass


def seeds() -> Iterator[bytes]:
    for blocks in ((), CHUNK.blocks, (Stored("gpu", tuple(range(40))), Stored("disk", (2**64 - 1,)))):
        yield RAW + encode_chunk(CHUNK._replace(blocks=blocks, seq=-1), nonce=2**53)
    yield RAW + encode_snapshot_request(0)
    yield BUILT + b"\x00\x02\x00\x01\x01\x02\x09" + bytes(range(16))
    yield BUILT + b"\x01\x07\x01\x02\x03"


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Snapshots are ours alone: nobody else records them."""
    yield from ()


def _built(draw: Draw) -> dict[str, Any]:
    if draw.one_in(4):
        return draw.damaged(REQUEST)
    return draw.damaged(FIELDS | {"blocks": draw.sequence(4, lambda: _run(draw))})


def _run(draw: Draw) -> list[Any]:
    run: list[Any] = [draw.one_of(("gpu", "cpu", "disk")), draw.take(8 * draw.below(4)) or bytes(8)]
    if draw.one_in(8):
        run[draw.below(2)] = draw.value()
    return run
