"""Event frames: a decoder returns a frame that encodes to the same frame again, or raises `WireError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from router.errors import WireError
from router.wire import Cleared, Frame, Load, Removed, Stored, decode_frame, encode_frame
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW, BUILT = b"\x00", b"\x01"
LOAD: Final = Load(1, 2, 3, 4, 5)
FIELDS: Final = msgpack.unpackb(encode_frame(Frame("r", "i", 7, 1.5, (), LOAD, 16)))


def run(data: bytes) -> None:
    draw = Draw(data)
    message = msgpack.packb(_built(draw)) if draw.below(2) else draw.rest()
    try:
        frame = decode_frame(message)
    except WireError:
        return
    assert decode_frame(encode_frame(frame)) == frame
    assert len(frame.replica) <= 256
    assert frame.seq >= (0 if frame.ops else -1)


def seeds() -> Iterator[bytes]:
    every = (Stored("gpu", (1, 2**64 - 1)), Removed("cpu", (3,)), Stored("disk", (4, 5, 6)), Cleared())
    for seq, ops in ((-1, ()), (0, every), (2**53, every[:1]), (8, (Cleared(),) * 20)):
        yield RAW + encode_frame(Frame("replica", "incarnation", seq, 1.5, ops, LOAD, 16))
    for ops_drawn in (b"\x03\x00\x02\x02\x01\x00\x02", b"\x01\x03\x01\x03\x04\x04\x02\x03"):
        yield BUILT + ops_drawn


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Frames are ours alone: nobody else records them."""
    yield from ()


def _built(draw: Draw) -> dict[str, Any]:
    ops = draw.sequence(4, lambda: _op(draw))
    return draw.damaged(FIELDS | {"ops": ops})


def _op(draw: Draw) -> list[Any]:
    if draw.one_in(4):
        return ["cleared"]
    hashes = draw.take(8 * draw.below(4)) or bytes(8)
    op: list[Any] = [draw.one_of(("stored", "removed")), draw.one_of(("gpu", "cpu", "disk")), hashes]
    if draw.one_in(8):
        op[draw.below(3)] = draw.value()
    return op
