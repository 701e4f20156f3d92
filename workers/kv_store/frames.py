"""One KV block as bytes: a fixed header, then the payload. What is wrong with a frame is found before it is used.

    magic    8   b"KVSTBLK1"
    version  2   little-endian like every number here
    header   2   length of the header, 96
    zero     4
    length   8   of the payload, bytes
    layout  16   fingerprint of how the payload is cut into layers
    key     32   the name under which the block is stored
    zero    16
    checksum 8   xxh3_64 of the payload, seeded with xxh3_64 of all that stands before it

The checksum finds accidents, not attackers: who may write into the folder may write anything.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from router.errors import KvistError

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"KVSTBLK1"
VERSION: Final = 1
LAYOUT_BYTES: Final = 16
KEY_BYTES: Final = 32
_FIELDS: Final = struct.Struct(f"<8sHHIQ{LAYOUT_BYTES}s{KEY_BYTES}s16x")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size


class BadFrame(KvistError):
    """These bytes are not the block that was asked for: foreign, cut, changed, or of another key."""


class ForeignLayout(BadFrame):
    """A whole frame whose payload another engine cuts in another way. It is of use to that engine."""


def header_of(payload: Buffer, *, key: bytes, layout: bytes) -> bytes:
    """The header that makes `payload` a frame. Linear in the payload."""
    if len(key) != KEY_BYTES or len(layout) != LAYOUT_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes and a layout {LAYOUT_BYTES}")
    fields = _FIELDS.pack(MAGIC, VERSION, HEADER_BYTES, 0, memoryview(payload).nbytes, layout, key)
    return fields + _CHECKSUM.pack(_checksum(fields, payload))


def encoded(payload: Buffer, *, key: bytes, layout: bytes) -> bytes:
    """A whole frame."""
    return header_of(payload, key=key, layout=layout) + memoryview(payload).cast("B")


def check(header: Buffer, payload: Buffer, *, key: bytes, layout: bytes) -> None:
    """Raise `BadFrame` unless these two are the frame of `key`, whole and unchanged, in this layout."""
    head = bytes(header)
    if len(head) != HEADER_BYTES:
        raise BadFrame(f"the header has {len(head)} bytes of {HEADER_BYTES}")
    magic, version, length_of_header, zero, length, found_layout, found_key = _FIELDS.unpack(head[: _FIELDS.size])
    if (magic, version, length_of_header, zero) != (MAGIC, VERSION, HEADER_BYTES, 0):
        raise BadFrame("not a frame of this version")
    if found_key != key:
        raise BadFrame("a block of another key")
    if _CHECKSUM.unpack(head[_FIELDS.size :])[0] != _checksum(head[: _FIELDS.size], payload):
        raise BadFrame("the checksum says that something was changed or cut")
    if found_layout != layout:
        raise ForeignLayout("a block of another layout")
    if length != memoryview(payload).nbytes:
        raise BadFrame(f"the payload has {memoryview(payload).nbytes} bytes of {length}")


def decoded(frame: Buffer, *, key: bytes, layout: bytes) -> memoryview:
    """The payload of a whole frame, not copied. Raises `BadFrame`."""
    view = memoryview(frame).cast("B")
    payload = view[HEADER_BYTES:]
    check(view[:HEADER_BYTES], payload, key=key, layout=layout)
    return payload


def _checksum(fields: bytes, payload: Buffer) -> int:
    return int(xxhash.xxh3_64_intdigest(payload, seed=xxhash.xxh3_64_intdigest(fields)))
