"""Event frames and snapshots on the wire: msgpack maps, block hashes as u64 little-endian byte strings.

Decoders take hostile bytes: every length is bounded before anything is allocated, every field is checked, and the only
exception that leaves them is `WireError`. Encoders refuse to build what a decoder would refuse for its size.

A data frame has operations and carries the number after the last data frame's. A heartbeat has none and repeats the
number of the last data frame (-1 before any), so that the loss of the newest frames shows too.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, NamedTuple

import msgpack

from router.errors import KvistBug, WireError
from router.limits import (
    MAX_BLOCK_TOKENS,
    MAX_COUNT,
    MAX_FRAME_BYTES,
    MAX_FRAME_HASHES,
    MAX_FRAME_OPS,
    MAX_NAME_BYTES,
    MAX_SNAPSHOT_CHUNKS,
    SNAPSHOT_CHUNK_HASHES,
)

VERSION: Final = 1
MEDIA: Final = ("gpu", "cpu", "disk")  # fastest first
HASH_BYTES: Final = 8


class Stored(NamedTuple):
    """These blocks are resident now. `medium` is the slowest tier that the block's whole chain needs."""

    medium: str
    hashes: tuple[int, ...]


class Removed(NamedTuple):
    """These blocks are no longer resident under this medium."""

    medium: str
    hashes: tuple[int, ...]


class Cleared(NamedTuple):
    """Nothing is resident any more."""


Op = Stored | Removed | Cleared


class Load(NamedTuple):
    """What the engine holds now, as a gauge. `backlog_tokens` are prompt tokens not yet computed; `skipped_events`
    counts what the relay could not use of the engine's events, since its start."""

    running: int
    waiting: int
    backlog_tokens: int
    free_blocks: int
    total_blocks: int
    skipped_events: int = 0


class Frame(NamedTuple):
    """One event frame. `ts` is the publisher's wall clock in seconds: a gauge, never used to order."""

    replica: str
    incarnation: str
    seq: int
    ts: float
    ops: tuple[Op, ...]
    load: Load
    block_size: int


class SnapshotChunk(NamedTuple):
    """Part `index` of `count` of the full resident set as of data frame `seq` (-1: before any)."""

    replica: str
    incarnation: str
    seq: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls here
    count: int  # type: ignore[assignment]
    block_size: int
    blocks: tuple[Stored, ...]


_FRAME_FIELDS: Final = {"v", "replica", "incarnation", "seq", "ts", "ops", "load", "block_size"}
_CHUNK_FIELDS: Final = {"v", "nonce", "replica", "incarnation", "seq", "index", "count", "block_size", "blocks"}
_REQUEST_FIELDS: Final = {"v", "nonce"}
_OPS: Final[dict[str, type[Stored | Removed]]] = {"stored": Stored, "removed": Removed}


def encode_frame(frame: Frame) -> bytes:
    """Bytes of one frame. Raises `KvistBug` above MAX_FRAME_OPS, MAX_FRAME_HASHES or MAX_FRAME_BYTES: split first."""
    if len(frame.ops) > MAX_FRAME_OPS or _hash_count(frame.ops) > MAX_FRAME_HASHES:
        raise KvistBug(f"a frame of {len(frame.ops)} operations, {_hash_count(frame.ops)} hashes is over the limit")
    return _packed({"v": VERSION} | frame._asdict() | {"ops": [_packed_op(op) for op in frame.ops]})


def decode_frame(data: bytes) -> Frame:
    """The frame in `data`. Raises `WireError` for anything else."""
    raw = _unpacked(data, _FRAME_FIELDS)
    if type(raw["ops"]) is not list:
        raise WireError("ops: not an array")
    ops = tuple([_op(item) for item in raw["ops"]])
    if _hash_count(ops) > MAX_FRAME_HASHES:
        raise WireError("ops: too many hashes")
    return Frame(
        replica=_name(raw, "replica"),
        incarnation=_name(raw, "incarnation"),
        seq=_integer(raw, "seq", low=0 if ops else -1),
        ts=_seconds(raw["ts"]),
        ops=ops,
        load=_load(raw["load"]),
        block_size=_integer(raw, "block_size", low=1, high=MAX_BLOCK_TOKENS),
    )


def encode_chunk(chunk: SnapshotChunk, *, nonce: int) -> bytes:
    """Bytes of one chunk that answers the request with this nonce. Raises `KvistBug` above SNAPSHOT_CHUNK_HASHES."""
    if chunk.count > MAX_SNAPSHOT_CHUNKS or _hash_count(chunk.blocks) > SNAPSHOT_CHUNK_HASHES:
        raise KvistBug(
            f"chunk {chunk.index} of {chunk.count} with {_hash_count(chunk.blocks)} hashes is over the limit"
        )
    blocks = [(run.medium, _packed_hashes(run.hashes)) for run in chunk.blocks]
    return _packed({"v": VERSION, "nonce": nonce} | chunk._asdict() | {"blocks": blocks})


def decode_chunk(data: bytes) -> tuple[SnapshotChunk, int]:
    """The chunk in `data` and the nonce of the request it answers. Raises `WireError` for anything else."""
    raw = _unpacked(data, _CHUNK_FIELDS)
    if type(raw["blocks"]) is not list:
        raise WireError("blocks: not an array")
    blocks = tuple([_run(item) for item in raw["blocks"]])
    if _hash_count(blocks) > SNAPSHOT_CHUNK_HASHES:
        raise WireError("blocks: too many hashes")
    count = _integer(raw, "count", low=1, high=MAX_SNAPSHOT_CHUNKS)
    chunk = SnapshotChunk(
        replica=_name(raw, "replica"),
        incarnation=_name(raw, "incarnation"),
        seq=_integer(raw, "seq", low=-1),
        index=_integer(raw, "index", high=count - 1),
        count=count,
        block_size=_integer(raw, "block_size", low=1, high=MAX_BLOCK_TOKENS),
        blocks=blocks,
    )
    return chunk, _integer(raw, "nonce")


def encode_snapshot_request(nonce: int) -> bytes:
    """Bytes that ask for a snapshot. The answer repeats the nonce, so that an older request's answer is recognised."""
    return _packed({"v": VERSION, "nonce": nonce})


def decode_snapshot_request(data: bytes) -> int:
    """The nonce of a snapshot request. Raises `WireError` for anything else."""
    return _integer(_unpacked(data, _REQUEST_FIELDS), "nonce")


def _packed(fields: dict[str, object]) -> bytes:
    data: bytes = msgpack.packb(fields)
    if len(data) > MAX_FRAME_BYTES:
        raise KvistBug(f"a message of {len(data)} bytes is over MAX_FRAME_BYTES")
    return data


def _packed_op(op: Op) -> tuple[object, ...]:
    match op:
        case Stored(medium, hashes):
            return "stored", medium, _packed_hashes(hashes)
        case Removed(medium, hashes):
            return "removed", medium, _packed_hashes(hashes)
        case _:
            return ("cleared",)


def _packed_hashes(hashes: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


def _hash_count(ops: tuple[Op, ...]) -> int:
    return sum([len(op.hashes) for op in ops if op])  # Cleared is the empty tuple


def _unpacked(data: bytes, fields: set[str]) -> dict[str, Any]:
    if len(data) > MAX_FRAME_BYTES:
        raise WireError("message: too many bytes")
    try:
        raw = msgpack.unpackb(data, max_array_len=MAX_FRAME_OPS, max_map_len=16, max_ext_len=0)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"message: not msgpack within limits ({type(error).__name__})") from None
    if type(raw) is not dict or raw.keys() != fields:
        raise WireError("message: not the expected fields")
    if _integer(raw, "v") != VERSION:
        raise WireError("v: another version")
    return raw


def _op(item: object) -> Op:
    if type(item) is not list or not item or type(item[0]) is not str:
        raise WireError("ops: not an operation")
    if item == ["cleared"]:
        return Cleared()
    if item[0] not in _OPS:
        raise WireError("ops: unknown operation")
    return _OPS[item[0]](*_run(item[1:]))


def _run(item: object) -> Stored:
    if type(item) is not list or len(item) != 2:
        raise WireError("blocks: not a medium and its hashes")
    medium, packed = item
    if type(medium) is not str or medium not in MEDIA:
        raise WireError("medium: unknown")
    if type(packed) is not bytes or not packed or len(packed) % HASH_BYTES:
        raise WireError("hashes: not one or more u64")
    return Stored(medium, struct.unpack(f"<{len(packed) // HASH_BYTES}Q", packed))


def _load(raw: object) -> Load:
    if type(raw) is not list or len(raw) != len(Load._fields):
        raise WireError("load: not six numbers")
    for value in raw:
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise WireError("load: not an integer in range")
    return Load(*raw)


def _integer(raw: dict[str, Any], name: str, *, low: int = 0, high: int = MAX_COUNT) -> int:
    value = raw[name]
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{name}: not an integer in range")
    return value


def _name(raw: dict[str, Any], name: str) -> str:
    value = raw[name]
    if type(value) is not str or not 0 < len(value.encode()) <= MAX_NAME_BYTES:
        raise WireError(f"{name}: not a name")
    return value


def _seconds(value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise WireError("ts: not a finite number of seconds")
    return value
