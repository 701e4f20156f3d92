"""Frames and snapshots survive the round trip; hostile bytes give `WireError` and nothing else."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router import limits, wire
from router.errors import KvistBug, WireError
from router.wire import (
    Cleared,
    Frame,
    Load,
    Op,
    Removed,
    SnapshotChunk,
    Stored,
    decode_chunk,
    decode_frame,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
    encode_snapshot_request,
)

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: not any(0xD800 <= ord(c) < 0xE000 for c in name))
COUNTS = st.integers(0, limits.MAX_COUNT)
HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9).map(tuple)
RUNS = st.builds(Stored, st.sampled_from(wire.MEDIA), HASHES)
OPS = st.one_of(RUNS, st.builds(Removed, st.sampled_from(wire.MEDIA), HASHES), st.just(Cleared()))
LOADS = st.builds(Load, *[COUNTS] * len(Load._fields))
FRAMES = st.builds(
    Frame,
    replica=NAMES,
    incarnation=NAMES,
    seq=COUNTS,
    ts=st.floats(allow_nan=False, allow_infinity=False),
    ops=st.lists(OPS, max_size=5).map(tuple),
    load=LOADS,
    block_size=st.integers(1, limits.MAX_BLOCK_TOKENS),
)
CHUNKS = st.builds(
    SnapshotChunk,
    replica=NAMES,
    incarnation=NAMES,
    seq=st.integers(-1, limits.MAX_COUNT),
    index=st.integers(0, 3),
    count=st.integers(4, limits.MAX_SNAPSHOT_CHUNKS),
    block_size=st.integers(1, limits.MAX_BLOCK_TOKENS),
    blocks=st.lists(RUNS, max_size=5).map(tuple),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=9),
        st.binary(max_size=17),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=12,
)
DECODERS = (decode_frame, decode_chunk, decode_snapshot_request)


def frame(*ops: Op, seq: int = 0) -> Frame:
    return Frame("r", "i", seq, 1.5, ops, Load(1, 2, 3, 4, 5), 16)


def fields(message: bytes) -> dict[str, Any]:
    raw: dict[str, Any] = msgpack.unpackb(message)
    return raw


FRAME = fields(encode_frame(frame(Stored("gpu", (1, 2)))))
CHUNK = fields(encode_chunk(SnapshotChunk("r", "i", 3, 0, 1, 16, (Stored("cpu", (7,)),)), nonce=5))


@given(FRAMES)
@settings(deadline=None)
@example(frame(seq=-1))
def test_a_frame_survives_the_round_trip(sent: Frame) -> None:
    """What goes in comes out, types included."""
    received = decode_frame(encode_frame(sent))
    assert received == sent
    assert [type(op) for op in received.ops] == [type(op) for op in sent.ops]


@given(CHUNKS, COUNTS)
@settings(deadline=None)
def test_a_snapshot_chunk_and_its_nonce_survive_the_round_trip(sent: SnapshotChunk, nonce: int) -> None:
    """The answer names the request that it belongs to."""
    assert decode_chunk(encode_chunk(sent, nonce=nonce)) == (sent, nonce)


@given(COUNTS)
def test_a_snapshot_request_survives_the_round_trip(nonce: int) -> None:
    """The nonce is all there is."""
    assert decode_snapshot_request(encode_snapshot_request(nonce)) == nonce


def test_hashes_travel_as_little_endian_u64_strings_and_nothing_else_of_a_block_does() -> None:
    """The form other implementations may rely on: no tokens, no salts."""
    assert FRAME["ops"] == [["stored", "gpu", (1).to_bytes(8, "little") + (2).to_bytes(8, "little")]]
    assert set(FRAME) == {"v", "replica", "incarnation", "seq", "ts", "ops", "load", "block_size"}


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_only_wire_error_escapes_from_random_bytes(data: bytes) -> None:
    """Whatever arrives, a decoder returns a value or raises its one error."""
    for decode in DECODERS:
        with pytest.raises(WireError):
            decode(data)


@given(st.sampled_from([FRAME, CHUNK]), st.data(), VALUES)
@settings(deadline=None, max_examples=300)
def test_only_wire_error_escapes_when_one_field_is_replaced(
    message: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    """Wrong types and values inside an otherwise good message."""
    name = data.draw(st.sampled_from(sorted(message)))
    for decode in DECODERS:
        try:
            decode(msgpack.packb(message | {name: value}))
        except WireError as error:
            assert str(error)  # noqa: PT017


@given(st.sampled_from([FRAME, CHUNK]), st.data())
@settings(deadline=None, max_examples=300)
def test_only_wire_error_escapes_when_bytes_are_cut_or_flipped(message: dict[str, Any], data: st.DataObject) -> None:
    """Damage in transit."""
    good = bytearray(msgpack.packb(message))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    damaged = bytes(good[: data.draw(st.integers(0, len(good)))])
    for decode in DECODERS:
        try:
            decode(damaged)
        except WireError as error:
            assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=["array", "map", "bin", "str", "ext"]
)
@pytest.mark.parametrize("decode", DECODERS)
def test_a_declared_length_of_four_billion_allocates_nothing(head: bytes, decode: Any) -> None:
    """A length is compared with its limit and with the bytes at hand before anything is built."""
    tracemalloc.start()
    with pytest.raises(WireError):
        decode(head + b"\xff\xff\xff\xff" + b"\x01" * 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1v", b"\xdd\x00\x00\x00\x01"])
@pytest.mark.parametrize("decode", DECODERS)
def test_deep_nesting_is_refused(nest: bytes, decode: Any) -> None:
    """A million levels neither overflow the stack nor escape as another error."""
    with pytest.raises(WireError):
        decode(nest * 1_000_000)


@pytest.mark.parametrize("decode", DECODERS)
def test_trailing_bytes_are_refused(decode: Any) -> None:
    """One message is one message."""
    for good in (msgpack.packb(FRAME), msgpack.packb(CHUNK), encode_snapshot_request(1)):
        with pytest.raises(WireError):
            decode(good + b"\x00")


BAD_FRAMES = [
    {"v": 2}, {"v": True}, {"v": 1.0},
    {"replica": ""}, {"replica": b"r"}, {"replica": "é" * 129}, {"incarnation": None},
    {"seq": -1}, {"seq": 2**53 + 1}, {"seq": 1.0}, {"seq": True},
    {"ts": float("nan")}, {"ts": float("inf")}, {"ts": 1},
    {"block_size": 0}, {"block_size": limits.MAX_BLOCK_TOKENS + 1},
    {"load": [1, 2, 3, 4]}, {"load": [1, 2, 3, 4, -1]}, {"load": {}}, {"load": [1, 2, 3, 4, True]},
    {"ops": {}}, {"ops": [[]]}, {"ops": ["cleared"]}, {"ops": [["cleared", "gpu"]]},
    {"ops": [["pinned", "gpu", bytes(8)]]},
    {"ops": [["stored", "gpu"]]}, {"ops": [["stored", "GPU", bytes(8)]]}, {"ops": [["stored", "tape", bytes(8)]]},
    {"ops": [["stored", "gpu", b""]]}, {"ops": [["stored", "gpu", bytes(9)]]}, {"ops": [["stored", "gpu", "12345678"]]},
    {"ops": [[["stored"], "gpu", bytes(8)]]}, {"ops": [["stored", ["gpu"], bytes(8)]]},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD_FRAMES, ids=[str(change)[:40] for change in BAD_FRAMES])
def test_a_frame_with_one_wrong_field_is_refused(change: dict[str, Any]) -> None:
    """Every field has a type and a range."""
    decode_frame(msgpack.packb(FRAME))
    with pytest.raises(WireError):
        decode_frame(msgpack.packb(FRAME | change))


BAD_CHUNKS = [
    {"nonce": -1}, {"nonce": None}, {"seq": -2}, {"index": 1}, {"index": -1}, {"count": 0},
    {"count": limits.MAX_SNAPSHOT_CHUNKS + 1}, {"blocks": {}}, {"blocks": [["gpu"]]}, {"blocks": [[1, bytes(8)]]},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD_CHUNKS, ids=[str(change)[:40] for change in BAD_CHUNKS])
def test_a_chunk_with_one_wrong_field_is_refused(change: dict[str, Any]) -> None:
    """Every field has a type and a range."""
    decode_chunk(msgpack.packb(CHUNK))
    with pytest.raises(WireError):
        decode_chunk(msgpack.packb(CHUNK | change))


@pytest.mark.parametrize("message", [FRAME, CHUNK], ids=["frame", "chunk"])
def test_a_missing_or_an_extra_field_is_refused(message: dict[str, Any]) -> None:
    """The set of fields belongs to the version."""
    decode = decode_frame if message is FRAME else decode_chunk
    for name in message:
        with pytest.raises(WireError):
            decode(msgpack.packb({key: value for key, value in message.items() if key != name}))
    with pytest.raises(WireError):
        decode(msgpack.packb(message | {"tokens": [1, 2]}))


@pytest.mark.parametrize("name", ["replica", "incarnation"])
def test_max_name_bytes_stops_names_that_fill_memory(name: str) -> None:
    """They are counted in bytes, and kept for as long as the replica is."""
    longest = "é" * (limits.MAX_NAME_BYTES // 2)
    for message, decode in ((FRAME, decode_frame), (CHUNK, decode_chunk)):
        decode(msgpack.packb(message | {name: longest}))
        with pytest.raises(WireError, match=f"{name}: not a name"):
            decode(msgpack.packb(message | {name: longest + "x"}))


def test_max_block_tokens_stops_blocks_that_no_prompt_could_fill() -> None:
    """Its hashes would be computed for every prompt."""
    for message, decode in ((FRAME, decode_frame), (CHUNK, decode_chunk)):
        decode(msgpack.packb(message | {"block_size": limits.MAX_BLOCK_TOKENS}))
        with pytest.raises(WireError, match="block_size"):
            decode(msgpack.packb(message | {"block_size": limits.MAX_BLOCK_TOKENS + 1}))


def test_max_count_stops_numbers_beyond_what_every_language_counts_exactly() -> None:
    """Sequence numbers, nonces and loads alike."""
    loads = [limits.MAX_COUNT] * len(Load._fields)
    decode_frame(msgpack.packb(FRAME | {"seq": limits.MAX_COUNT, "load": loads}))
    decode_chunk(msgpack.packb(CHUNK | {"seq": limits.MAX_COUNT, "nonce": limits.MAX_COUNT}))
    beyond = limits.MAX_COUNT + 1
    for message in (FRAME | {"seq": beyond}, FRAME | {"load": [*loads[1:], beyond]}, CHUNK | {"nonce": beyond}):
        with pytest.raises(WireError, match="in range"):
            (decode_chunk if "nonce" in message else decode_frame)(msgpack.packb(message))


def test_max_frame_bytes_stops_a_giant_message() -> None:
    """Size is checked before anything is decoded, and before anything is sent."""
    with pytest.raises(WireError, match="too many bytes"):
        decode_frame(bytes(limits.MAX_FRAME_BYTES + 1))
    many = tuple(Removed("gpu", (1,)) for _ in range(limits.MAX_FRAME_OPS))
    assert decode_frame(encode_frame(frame(*many))).ops == many


def test_max_frame_ops_stops_a_frame_of_endless_operations() -> None:
    """Neither side accepts one more."""
    many = tuple(Cleared() for _ in range(limits.MAX_FRAME_OPS + 1))
    with pytest.raises(KvistBug):
        encode_frame(frame(*many))
    with pytest.raises(WireError):
        decode_frame(msgpack.packb(FRAME | {"ops": [["cleared"]] * len(many)}))


def test_max_frame_hashes_stops_a_frame_of_endless_blocks() -> None:
    """Neither side accepts one more."""
    with pytest.raises(KvistBug):
        encode_frame(frame(Stored("gpu", (1,) * (limits.MAX_FRAME_HASHES + 1))))
    with pytest.raises(WireError, match="too many hashes"):
        decode_frame(msgpack.packb(FRAME | {"ops": [["stored", "gpu", bytes(8 * (limits.MAX_FRAME_HASHES + 1))]]}))


def test_snapshot_chunk_hashes_and_max_snapshot_chunks_stop_an_endless_snapshot() -> None:
    """A snapshot has a bounded number of bounded parts."""
    with pytest.raises(WireError, match="too many hashes"):
        decode_chunk(msgpack.packb(CHUNK | {"blocks": [["gpu", bytes(8 * (limits.SNAPSHOT_CHUNK_HASHES + 1))]]}))
    for chunk in (
        SnapshotChunk("r", "i", 0, 0, 1, 16, (Stored("gpu", (1,) * (limits.SNAPSHOT_CHUNK_HASHES + 1)),)),
        SnapshotChunk("r", "i", 0, 0, limits.MAX_SNAPSHOT_CHUNKS + 1, 16, ()),
    ):
        with pytest.raises(KvistBug):
            encode_chunk(chunk, nonce=1)


def test_an_encoder_never_builds_more_than_a_decoder_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message over MAX_FRAME_BYTES is the publisher's bug, found where it is made."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 64)
    with pytest.raises(KvistBug, match="MAX_FRAME_BYTES"):
        encode_frame(frame(Stored("gpu", (1, 2, 3))))
