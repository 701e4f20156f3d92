"""A replica's stream as bytes: numbered without holes, never silent, and a snapshot of one moment."""

from __future__ import annotations

from router.limits import HEARTBEAT_INTERVAL_S, MAX_FRAME_HASHES, MAX_FRAME_OPS, SNAPSHOT_CHUNK_HASHES
from router.wire import Cleared, Load, Op, Removed, Stored, decode_chunk, decode_frame
from workers.announcer import Announcer

LOAD = Load(1, 2, 3, 4, 5)


def announcer(*resident: Stored, chunk_hashes: int = SNAPSHOT_CHUNK_HASHES) -> Announcer:
    return Announcer(
        replica="r",
        incarnation="one",
        block_size=16,
        resident=lambda: resident,
        load=lambda: LOAD,
        chunk_hashes=chunk_hashes,
    )


def announced(one: Announcer, *ops: Op) -> list[tuple[int, tuple[Op, ...]]]:
    frames = [decode_frame(data) for data in one.announce(ops, now=0.0, ts=1.5)]
    assert all(frame[:2] == ("r", "one") and frame.ts == 1.5 and frame.load == LOAD for frame in frames)
    return [(frame.seq, frame.ops) for frame in frames]


def test_data_frames_count_up_from_zero() -> None:
    """One frame per announcement, whatever is in it."""
    one = announcer()
    assert announced(one, Stored("gpu", (1, 2)), Removed("gpu", (3,))) == [
        (0, (Stored("gpu", (1, 2)), Removed("gpu", (3,))))
    ]
    assert announced(one, Cleared()) == [(1, (Cleared(),))]
    assert one.seq == 1


def test_nothing_to_say_takes_no_number() -> None:
    """A data frame has operations: an empty one would be a heartbeat with a number that never comes."""
    one = announcer()
    assert announced(one) == []
    assert one.seq == -1


def test_a_frame_never_holds_more_hashes_than_a_decoder_takes() -> None:
    """MAX_FRAME_HASHES: what exceeds it goes on under the next number, in order."""
    many = tuple(range(MAX_FRAME_HASHES + 5))
    frames = announced(announcer(), Removed("gpu", many), Stored("gpu", (7,)))
    assert [seq for seq, _ in frames] == [0, 1]
    assert [op for _, ops in frames for op in ops] == [
        Removed("gpu", many[:MAX_FRAME_HASHES]),
        Removed("gpu", many[MAX_FRAME_HASHES:]),
        Stored("gpu", (7,)),
    ]


def test_a_frame_never_holds_more_operations_than_a_decoder_takes() -> None:
    """MAX_FRAME_OPS: a clear of one tier may move each block to another on its own."""
    moves = [op for block in range(MAX_FRAME_OPS) for op in (Removed("gpu", (block,)), Stored("cpu", (block,)))]
    frames = announced(announcer(), *moves, Cleared())
    assert [(seq, len(ops)) for seq, ops in frames] == [(0, MAX_FRAME_OPS), (1, MAX_FRAME_OPS), (2, 1)]
    assert [op for _, ops in frames for op in ops] == [*moves, Cleared()]


def test_a_heartbeat_is_due_at_once_and_then_after_every_silence() -> None:
    """HEARTBEAT_INTERVAL_S: any frame counts, and a heartbeat repeats the last number."""
    one = announcer()
    assert one.heartbeat_at < 0.0
    assert decode_frame(one.heartbeat(now=0.0, ts=0.0)).seq == -1
    assert one.heartbeat_at == HEARTBEAT_INTERVAL_S
    list(one.announce((Stored("gpu", (1,)),), now=0.2, ts=0.0))
    assert one.heartbeat_at == 0.2 + HEARTBEAT_INTERVAL_S
    beat = decode_frame(one.heartbeat(now=0.5, ts=0.0))
    assert (beat.seq, beat.ops) == (0, ())


def test_a_snapshot_is_cut_into_bounded_chunks_of_one_moment() -> None:
    """All chunks carry the number at which the first was made, even when more is announced meanwhile."""
    one = announcer(Stored("gpu", (1, 2, 3)), Stored("disk", (4,)), chunk_hashes=2)
    list(one.announce((Stored("gpu", (1, 2, 3)),), now=0.0, ts=0.0))
    chunks = []
    for data in one.snapshot(9):
        chunks.append(decode_chunk(data))
        list(one.announce((Removed("gpu", (1,)),), now=0.0, ts=0.0))
    assert [nonce for _, nonce in chunks] == [9, 9, 9]
    assert [(chunk.seq, chunk.index, chunk.count) for chunk, _ in chunks] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    assert [chunk.blocks for chunk, _ in chunks] == [
        (Stored("gpu", (1, 2)),),
        (Stored("gpu", (3,)),),
        (Stored("disk", (4,)),),
    ]


def test_nothing_resident_is_one_empty_chunk() -> None:
    """An answer that says nothing would be taken for one that was lost."""
    ((chunk, nonce),) = [decode_chunk(data) for data in announcer().snapshot(3)]
    assert (chunk.seq, chunk.count, chunk.blocks, nonce) == (-1, 1, (), 3)
